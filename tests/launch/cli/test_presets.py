"""Presets: which one fits an environment, and what each refuses."""

import gymnasium
import numpy as np
import pytest

from dba3c.assembly.model import Spaces, build_module
from dba3c.config import replace_options
from dba3c.environments.atari_protocols import protocol_name
from dba3c.errors import UserError
from dba3c.networks.torsos import ConvolutionalTorso, PerceptronTorso
from dba3c.resuming import environments_of, rate_for
from launch.cli import presets
from launch.cli.configuration import fit_config, said_of_samples, samples_of, samples_text
from launch.cli.options import parse_train
from launch.cli.presets import dba3c_paper, fitting_preset, preset
from launch.cluster.launchers import LaunchPlace
from param_servers.config import parse_schedule


@pytest.mark.parametrize(
    ("env_id", "name"),
    [
        ("ALE/Pong-v5", "atari"),
        ("CartPole-v1", "classic"),
        ("HalfCheetah-v5", "mujoco"),
        ("football/academy_empty_goal_close", "football"),
        ("vizdoom/basic", "vizdoom"),
        ("my_game:make_env", "classic"),
    ],
)
def test_every_family_has_a_preset_that_fits(env_id: str, name: str) -> None:
    assert fitting_preset(env_id) == name
    assert preset(None, env_id, workers=2).environment.env_id == env_id


@pytest.mark.parametrize(("quick", "precision"), [(True, "bfloat16"), (False, "float32")])
def test_convolutions_of_presets_are_in_bfloat16_only_where_that_is_quicker(
    quick: bool, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presets, "is_quick_in_bfloat16", lambda: quick)
    for name in ("breakout", "atari", "breakout_cluster", "vizdoom"):
        assert preset(name, None, workers=2).network.precision == precision


@pytest.mark.parametrize(
    ("name", "family"),
    [("football", "football/<scenario>"), ("vizdoom", "vizdoom/<scenario>")]
    + [(name, "Atari games") for name in ("breakout", "atari", "breakout_cluster", "dba3c_paper")],
)
def test_a_family_s_preset_refuses_another_family_in_one_line(name: str, family: str) -> None:
    line = f"the preset {name} is for {family}, and CartPole-v1 is none: --preset classic fits it"
    with pytest.raises(UserError, match=line) as refused:
        preset(name, "CartPole-v1", workers=2)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("space", "torso"),
    [
        (gymnasium.spaces.Box(0, 255, (4, 84, 84), np.uint8), ConvolutionalTorso),
        (gymnasium.spaces.Box(-1, 1, (4,), np.float32), PerceptronTorso),
    ],
)
def test_classic_chooses_its_network_by_what_is_observed(space: gymnasium.Space, torso: type) -> None:
    config = preset("classic", "my_game:make_env", workers=2)
    network = build_module(config, Spaces(space, gymnasium.spaces.Discrete(2)))
    assert isinstance(network.torso, torso)


def test_r2d2_sees_rewards_as_they_are_and_the_other_recipes_for_atari_clip_them() -> None:
    clips = {
        name: preset(name, "ALE/Pong-v5", workers=2).environment.clips_reward for name in ("r2d2", "impala", "ppo")
    }
    assert clips == {"r2d2": False, "impala": True, "ppo": True}
    assert not parse_train(["--preset", "r2d2", "--protocol", "2017"]).config(2).environment.clips_reward
    assert parse_train(["--preset", "r2d2", "--clip-reward", "True"]).config(2).environment.clips_reward


def test_ppo_is_its_papers_for_atari() -> None:
    config = preset("ppo", "ALE/Pong-v5", workers=1)
    algorithm, clip = config.algorithm, parse_schedule(config.algorithm.policy_clip)
    rate = parse_schedule(config.optimizer.learning_rate)
    assert (algorithm.rollout_length, config.environment.envs_per_worker, config.exchange.num_workers) == (128, 8, 1)
    assert (algorithm.ppo_epochs, algorithm.ppo_minibatches) == (3, 4)  # of 256
    assert (algorithm.discount, algorithm.trace_lambda, algorithm.entropy_cost) == (0.99, 0.95, "constant:0.01")
    assert algorithm.value_cost / 2 == 1.0  # the paper's coefficient is of the whole square, ours of half of it
    for alpha in (1.0, 0.5, 0.0):
        at = 10e6 * (1 - alpha)
        assert (clip(at), rate(at)) == pytest.approx((0.1 * alpha, 2.5e-4 * alpha))


@pytest.mark.parametrize(
    ("words", "frames"),
    [("", 40_000_000), ("--protocol 2017", 30_000_000), ("--frame-skip 1", 10_000_000), ("--total-frames 5", 5)],
)
def test_ppo_ends_where_its_schedules_do_however_many_frames_a_step_has(words: str, frames: int) -> None:
    assert parse_train(["ppo", *words.split()]).config(2).run.total_frames == frames


def test_r2d2_is_seeds() -> None:
    config = preset("r2d2", "ALE/Pong-v5", workers=1)
    optimizer, replay = config.optimizer, config.replay
    assert (parse_schedule(optimizer.learning_rate)(0), optimizer.epsilon) == (4.8e-4, 1e-3)
    assert (optimizer.clip_rule, optimizer.clip_norm) == ("global", 40.0)
    assert (replay.replay_batch, config.central.unroll_length, replay.burn_in, replay.n_step) == (64, 100, 40, 5)
    assert (config.algorithm.discount, replay.replay_ratio, replay.target_every_steps) == (0.997, 1.5, 2500)


def test_a_worker_of_dba3c_paper_has_the_batch_that_its_docstring_says() -> None:
    config = preset("dba3c_paper", "ALE/Breakout-v5", workers=1)
    samples = config.environment.envs_per_worker * config.algorithm.rollout_length
    assert str(dba3c_paper.__doc__).count(f"{samples} samples, {60 * samples:,} in an update") == 1


@pytest.mark.parametrize("name", ["2017", "v5", "v4-no-sticky"])
def test_a_protocol_is_chosen_by_its_name_and_options_still_change_it(name: str) -> None:
    words = ["ALE/Pong-v5", "--protocol", name]
    assert protocol_name(parse_train(words).config(2).environment) == name
    changed = parse_train([*words, "--noop-max", "7"]).config(2).environment
    assert protocol_name(changed) == f"{name} but noop_max=7"


def test_a_protocol_that_does_not_exist_or_fit_is_refused_in_one_line() -> None:
    with pytest.raises(UserError, match="no Atari protocol is called 'v6'; there are 2017, v5, v4-no-sticky"):
        parse_train(["ALE/Pong-v5", "--protocol", "v6"]).config(2)
    with pytest.raises(UserError, match="is for Atari games, and CartPole-v1 is not one"):
        parse_train(["CartPole-v1", "--protocol", "v5"]).config(2)


@pytest.mark.parametrize(
    ("words", "gradients", "backup"),
    [
        ("breakout --exchange servers", 58, 6),
        ("breakout --exchange majority", 58, 6),
        ("breakout --exchange allreduce", 64, 0),
        ("breakout --exchange async", 1, 0),
        ("breakout --exchange local --workers 1", 1, 0),
        ("breakout --exchange local", 1, 0),
        ("breakout --workers 4", 4, 0),
        ("breakout --workers 40", 36, 4),
        ("breakout --gradients 50", 50, 14),
        ("dba3c_paper --workers 4", 4, 0),
        ("breakout --workers 8 --backup-workers 2", 6, 2),
    ],
)
def test_a_preset_s_backup_workers_give_way_to_what_was_asked_for(words: str, gradients: int, backup: int) -> None:
    exchange = parse_train(words.split()).config(64).exchange
    assert (exchange.gradients_per_step, exchange.backup_workers) == (gradients, backup)


@pytest.mark.parametrize("words", [["breakout"], ["breakout", "--mode", "worker"]])
@pytest.mark.parametrize(("cores", "lanes", "envs"), [(1, 1, 32), (2, 2, 32), (12, 12, 192), (64, 64, 256)])
def test_on_one_machine_a_preset_is_one_worker_with_a_lane_for_each_core(
    words: list[str], cores: int, lanes: int, envs: int
) -> None:
    config = parse_train(words).config(cores)
    assert (config.exchange.exchange, config.exchange.num_workers) == ("local", 1)
    assert (config.environment.lanes, config.environment.envs_per_worker) == (lanes, envs)


@pytest.mark.parametrize(
    ("words", "cores", "samples", "rate"),
    [
        ("", 2, 160, 7e-4),
        ("", 8, 640, 1.4e-3),
        ("", 12, 960, 1.7e-3),
        ("", 96, 960, 1.7e-3),  # two in each lane are 192
        ("--workers 6", 12, 960, 1.7e-3),
        ("--envs-per-worker 32", 12, 160, 7e-4),
        ("--lanes 2", 12, 160, 7e-4),
        ("--lanes 1 --workers 4", 12, 320, 9.9e-4),
        ("--learning-rate 1e-3", 12, 960, 1e-3),
        ("--optimizer rmsprop", 12, 960, 1.7e-3),
        ("--optimizer adam", 12, 960, 7e-4),
        ("--envs-per-worker 240", 2, 1200, 7e-4),  # what is counted is left alone
        ("--workers 4", 2, 320, 9.9e-4),
        ("--workers 4 --lanes 1", 2, 320, 9.9e-4),
    ],
)
def test_breakout_has_larger_updates_with_more_lanes_and_their_learning_rate(
    words: str, cores: int, samples: int, rate: float
) -> None:
    config = parse_train(["breakout", *words.split()]).config(cores)
    assert (samples_of(config), parse_schedule(config.optimizer.learning_rate)(0)) == (samples, pytest.approx(rate))


@pytest.mark.parametrize("preset", ["breakout", "breakout_cluster"])
@pytest.mark.parametrize(
    "words", ["--exchange async --workers 4", "--mode central", "--envs-per-worker 12", "--optimizer adam"]
)
def test_the_learning_rate_of_synchronous_rmsprop_is_not_for_others(preset: str, words: str) -> None:
    config = parse_train([preset, *words.split()]).config(12)
    assert parse_schedule(config.optimizer.learning_rate)(0) == 7e-4


@pytest.mark.parametrize(
    "words",
    [
        "atari --envs-per-worker 12",
        "CartPole-v1 --envs-per-worker 12",
        "CartPole-v1 --lanes 3 --envs-per-worker 6",
        "dba3c_paper --lanes 4 --envs-per-worker 8",
        "breakout --envs-per-worker 36",
    ],
)
def test_environments_that_are_counted_need_not_be_those_of_the_preset(words: str) -> None:
    config = parse_train(words.split()).config(12)
    assert config.environment.envs_per_worker == int(words.split()[-1])


@pytest.mark.parametrize(
    ("preset", "ranks", "servers", "cores", "samples"),
    [
        ("breakout", 2, 1, 12, 960),
        ("breakout", 3, 2, 2, 160),
        ("breakout", 6, 2, 12, 1200),
        ("breakout", 17, 3, 12, 840),
        ("breakout_cluster", 64, 4, 12, 3600),
        ("breakout_cluster", 46, 5, 12, 2460),
    ],
)
def test_on_a_cluster_the_lanes_of_workers_count_and_not_the_cores_of_servers(
    preset: str, ranks: int, servers: int, cores: int, samples: int
) -> None:
    said = parse_train([preset, "--servers", str(servers), "--backup-workers", "0"])
    config, _ = fit_config(said, LaunchPlace(launcher="slurm", world_size=ranks), cores=cores)
    assert samples_of(config) == samples
    rates = (config.optimizer.learning_rate, rate_for(environments_of(config)))
    assert parse_schedule(rates[0])(0) == parse_schedule(rates[1])(0)


@pytest.mark.parametrize(("nodes", "envs"), [(64, 1), (16, 5), (8, 14), (2, 60)])
def test_a_cluster_of_any_size_has_the_same_updates(nodes: int, envs: int) -> None:
    place = LaunchPlace(launcher="slurm", world_size=nodes)
    servers = str(min(4, nodes - 1))
    said = parse_train(["breakout_cluster", "--servers", servers, "--backup-workers", "0"])
    config, topology = fit_config(said, place, cores=12)
    assert topology.gradients == nodes - int(servers)
    assert (config.environment.lanes, config.environment.envs_per_lane) == (12, envs)
    assert samples_of(config) == pytest.approx(3600, rel=0.1)
    assert said_of_samples(said, config) == [samples_text(config)]  # it was shown to learn from so many


@pytest.mark.parametrize("cores", [1, 2, 12])
def test_atari_is_breakout_with_normalised_images_and_breakout_cluster_has_larger_updates(cores: int) -> None:
    config = parse_train(["ALE/Pong-v5"]).config(cores)
    plain = parse_train(["ALE/Pong-v5", "--preset", "breakout"]).config(cores)
    assert config == replace_options(plain, normalize_observations=True)
    large = parse_train(["ALE/Pong-v5", "--preset", "breakout_cluster"]).config(cores)
    assert samples_of(large) == 3600
    assert parse_schedule(large.optimizer.learning_rate)(0) == 3.3e-3  # as it was shown to learn


def test_a_preset_that_counts_environments_for_each_worker_keeps_them_on_any_cluster() -> None:
    said = parse_train(["HalfCheetah-v5", "--servers", "1"])
    config, _ = fit_config(said, LaunchPlace(launcher="slurm", world_size=10), cores=1)
    assert config.environment.envs_per_worker == 8


def test_updates_of_another_size_than_was_shown_to_learn_are_told() -> None:
    said = parse_train(["breakout"])
    config, _ = fit_config(said, LaunchPlace(launcher="slurm", world_size=64), cores=12)
    assert said_of_samples(said, config)[1].endswith(
        "shown to learn with 160 to 1,200 (results/batch_size); --preset breakout_cluster has 3,600"
    )
    small = parse_train(["breakout_cluster", "--envs-per-worker", "8"])
    assert "40 samples an update: the preset breakout_cluster was shown" in said_of_samples(small, small.config(2))[1]


@pytest.mark.parametrize(
    ("words", "exchange", "workers", "envs"),
    [
        (["breakout", "--workers", "2"], "servers", 2, 96),
        (["breakout", "--servers", "1"], "servers", 12, 19),
        (["breakout", "--exchange", "allreduce", "--workers", "4"], "allreduce", 4, 48),
        (["dba3c_paper"], "servers", 65, 6),
        (["breakout", "--workers", "4", "--backup-workers", "2"], "servers", 4, 96),  # two gradients make an update
        (["breakout", "--exchange", "async", "--workers", "4"], "async", 4, 9),  # each is an update
    ],
)
def test_who_speaks_of_several_workers_or_of_servers_has_them(
    words: list[str], exchange: str, workers: int, envs: int
) -> None:
    config = parse_train(words).config(12)
    assert (config.exchange.exchange, config.exchange.num_workers) == (exchange, workers)
    assert config.environment.envs_per_worker == envs


def test_backup_workers_that_were_asked_for_do_not_give_way() -> None:
    with pytest.raises(UserError, match="4 of 64 would be backup workers: choose exchange majority"):
        parse_train(["breakout", "--exchange", "allreduce", "--backup-workers", "4"]).config(64)


@pytest.mark.parametrize(
    ("words", "gradients"),
    [
        ("breakout_cluster --servers 4 --backup-workers 0 --min-workers 60", 60),
        ("breakout_cluster --servers 4 --num-gradients 59 --min-workers 59", 59),
        ("breakout --mode central --learners 2 --exchange servers --servers 1 --backup-workers 0 --min-workers 2", 2),
    ],
)
def test_the_least_workers_of_ranks_are_held_against_the_gradients_that_were_asked_for(words, gradients):
    place = LaunchPlace(launcher="slurm", world_size=64)
    config, _ = fit_config(parse_train(words.split()), place, cores=12)
    assert config.exchange.min_workers == config.exchange.gradients_per_step == gradients
    more = words.replace(f"--min-workers {gradients}", f"--min-workers {gradients + 1}")
    with pytest.raises(UserError, match=f"min_workers is {gradients + 1}, .* num_gradients is {gradients}"):
        fit_config(parse_train(more.split()), place, cores=12)


@pytest.mark.parametrize(("actors", "threads"), [(None, 12), (4, 6), (64, 1)])
def test_actors_beside_learners_of_horovod_share_the_cores_of_their_rank(actors: int | None, threads: int) -> None:
    words = ["ALE/Pong-v5", "--mode", "central", "--exchange", "allreduce", "--collective-backend", "horovod"]
    said = parse_train([*words, *(["--actors", str(actors)] if actors else [])])
    config, topology = fit_config(said, LaunchPlace(launcher="horovodrun", world_size=2), cores=12)
    assert (topology.learners, topology.actors, config.environment.env_threads) == (2, actors or 2, threads)
    assert config.central.envs_per_actor >= config.central.actor_groups * threads
