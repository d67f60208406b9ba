"""Running mean and deviation, against NumPy over everything at once; kept beside checkpoints, and found again."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from dba3c.assembly.statistics_keeper import StatisticsKeeper
from dba3c.config import TrainConfig, replace_options
from dba3c.environments.config import EnvironmentConfig
from dba3c.environments.factory import make_vector_environment
from dba3c.environments.normalization import (
    NormalizedObservations,
    PixelStatistics,
    RunningStatistics,
    statistics_for,
    statistics_of,
    use_statistics,
)
from dba3c.environments.protocol import EnvironmentFailed
from dba3c.environments.spaces import MixedSpace, NormalizedImage
from dba3c.errors import UserError
from dba3c.evaluation.evaluator import evaluate
from dba3c.roles import RunProcess
from dba3c.runs.checkpoints import find_parameters
from dba3c.runs.files import checkpoint_steps
from dba3c.runs.folder import RunFolder
from dba3c.workers.worker import worker
from launch.cli.options import parse_train
from launch.cli.presets import preset

PENDULUM = EnvironmentConfig(env_id="Pendulum-v1", normalize_observations=True)
BREAKOUT = EnvironmentConfig(env_id="ALE/Breakout-v5")
NORMALIZED_BREAKOUT = dataclasses.replace(BREAKOUT, normalize_observations=True)


def test_merged_batches_have_the_mean_and_variance_of_all_rows():
    rows = np.random.default_rng(0).normal(loc=[1e4, -3.0], scale=[0.01, 5.0], size=(1000, 2))
    statistics = RunningStatistics(2)
    for batch in np.split(rows, [1, 8, 300]):
        statistics.update(batch)
    assert statistics.count == 1000
    assert statistics.mean == pytest.approx(rows.mean(axis=0), rel=1e-12)
    assert statistics.variance == pytest.approx(rows.var(axis=0), rel=1e-6)


def test_a_hand_worked_case():
    statistics = RunningStatistics(1)
    statistics.update(np.array([[1.0], [3.0]]))  # mean 2, variance 1
    assert statistics.normalize(np.array([[5.0]])) == pytest.approx(3.0, rel=1e-6)
    assert statistics.normalize(np.array([[500.0]])).tolist() == [[10.0]]


def test_training_observations_are_normalised_by_what_was_seen_so_far(made):
    raw = made(EnvironmentConfig(env_id="Pendulum-v1"), 4, seed=0)
    normalized = made(PENDULUM, 4, seed=0)
    oracle = [raw.reset()]
    normalized.reset()
    for _ in range(20):
        actions = np.ones((4, 1), np.float32)
        oracle.append(raw.step(actions).observation)
        shown = normalized.step(actions).observation
    seen = np.concatenate(oracle).astype(np.float64)
    expected = (oracle[-1] - seen.mean(axis=0)) / np.sqrt(seen.var(axis=0) + 1e-8)
    assert shown == pytest.approx(np.clip(expected, -10, 10), abs=1e-4)


def test_an_evaluation_uses_the_statistics_it_is_given_and_changes_nothing(made):
    envs = made(PENDULUM, 2, seed=0, view="evaluation")
    trained = RunningStatistics(3)
    trained.update(np.random.default_rng(0).normal(size=(50, 3)))
    envs.statistics.merge(json.loads(json.dumps(trained.to_dict())))
    first = envs.reset()
    envs.step(np.zeros((2, 1), np.float32))
    assert envs.statistics.count == 50
    raw = made(EnvironmentConfig(env_id="Pendulum-v1"), 2, seed=0).reset()
    assert first == pytest.approx(trained.normalize(raw))


def test_observations_to_be_normalised_without_statistics_are_refused_and_not_merely_clipped(made):
    with pytest.raises(UserError, match="without a run's statistics"):
        made(PENDULUM, 2, seed=0, view="evaluation").reset()


def normalized_by_hand(frame: np.ndarray, shown: np.ndarray) -> np.ndarray:
    """What a network takes of a frame [H, W] after all of `shown` [N, H, W], which it is one of."""
    deviation = np.sqrt(shown.var(axis=0, dtype=np.float64) + 5.0**2)
    return np.clip((frame - shown.mean(axis=0, dtype=np.float64)) / deviation, -5, 5)


def as_numbers(normalized: np.ndarray) -> np.ndarray:
    return (normalized.astype(np.float64) - NormalizedImage.ZERO) / NormalizedImage.LEVELS


def test_each_frame_of_a_stack_is_normalised_once_by_what_its_pixels_were_until_then(made):
    raw, normalized = made(BREAKOUT, 3, seed=0), made(NORMALIZED_BREAKOUT, 3, seed=0)
    assert isinstance(normalized.observation_space, NormalizedImage)
    frames, stack = [raw.reset()[:, -1]], normalized.reset()
    expected = [[normalized_by_hand(each, frames[0]) for each in frames[0]]]
    for step in range(12):
        actions = np.full(3, step % 4)
        frames.append(raw.step(actions).observation[:, -1])
        seen = np.concatenate(frames)
        expected.append([normalized_by_hand(each, seen) for each in frames[-1]])
        before, stack = stack, normalized.step(actions).observation
        assert np.array_equal(stack[:, :-1], before[:, 1:])
        np.testing.assert_allclose(as_numbers(stack[:, -1]), expected[-1], atol=0.5 / NormalizedImage.LEVELS + 1e-4)
    assert np.ptp(as_numbers(stack)) > 3  # what moves is loud
    assert normalized.statistics.count == 3 * 13


def test_the_stack_of_a_new_game_is_normalised_whole_and_not_what_the_last_game_showed(made):
    short = dataclasses.replace(BREAKOUT, max_episode_frames=40)
    raw = made(short, 2, seed=0)
    normalized = made(dataclasses.replace(short, normalize_observations=True), 2, seed=0)
    raw.reset(), normalized.reset()
    actions = np.zeros(2, int)
    for _ in range(30):
        played, shown = raw.step(actions), normalized.step(actions)
        if played.first.any():
            break
    assert played.first.all()
    np.testing.assert_array_equal(shown.observation, normalized.statistics.normalize(played.observation))


def test_pixels_statistics_are_kept_to_five_digits():
    statistics = PixelStatistics(2)
    statistics.update(np.array([[3, 100], [4, 100], [4, 107]], np.uint8))
    kept = json.loads(json.dumps(statistics.to_dict()))
    assert kept == {"count": 3.0, "mean": [3.6667, 102.33], "squares": [0.66667, 32.667]}
    again = PixelStatistics(2)
    again.merge(kept)
    image = np.array([[[[3, 107]]]], np.uint8)
    assert np.array_equal(again.normalize(image), statistics.normalize(image))


def test_statistics_of_another_size_and_observations_of_several_parts_are_refused():
    with pytest.raises(UserError, match="statistics of 2 numbers, but observations have 3"):
        RunningStatistics(3).merge(seen(np.ones((1, 2))))
    with pytest.raises(UserError, match="normalize_observations is for vectors or images; both has MixedSpace"):
        statistics_for("both", MixedSpace([(1, 84, 84)], 2), 1)


def config_of(**options: object) -> TrainConfig:
    return replace_options(
        preset("classic", "Pendulum-v1", workers=1),
        normalize_observations=True,
        exchange="local",
        num_workers=1,
        checkpoint_every_steps=10,
        track=(),
        **options,
    )


def train(run: Path, config: TrainConfig, resume: bool = False, incarnation: int = 0) -> RunFolder:
    """A run of one process, in this one."""
    with RunFolder.launch(run, config.to_json(), resume=resume) as folder:
        worker(RunProcess(folder, config, rank=0, incarnation=incarnation))
    return folder


def seen(*batches: np.ndarray) -> dict:
    statistics = RunningStatistics(batches[0].shape[1])
    for batch in batches:
        statistics.update(batch)
    return statistics.to_dict()


def test_merging_is_as_if_one_had_seen_everything():
    rows = np.random.default_rng(0).normal(loc=[5.0, -1e3], scale=[2.0, 0.1], size=(300, 2))
    merged = RunningStatistics(2)
    for stored in (seen(rows[:100]), seen(rows[100:]), RunningStatistics(2).to_dict()):
        merged.merge(stored)
    assert merged.count == 300
    assert merged.mean == pytest.approx(rows.mean(axis=0), rel=1e-12)
    assert merged.variance == pytest.approx(rows.var(axis=0), rel=1e-6)


def test_a_resumed_run_goes_on_from_the_statistics_it_ended_with(tmp_path: Path):
    config = config_of(total_frames=16 * 8 * 25)
    folder = train(tmp_path / "run", config)
    ended = statistics_of(folder.path, step=10**9)
    assert ended is not None and ended["count"] == 16 * (8 * 25 + 1)
    process = RunProcess(folder, config, rank=0, incarnation=1)
    environments = make_vector_environment(config.environment, 16, seed=9)
    StatisticsKeeper(process, "worker", [environments])
    assert isinstance(environments, NormalizedObservations)
    assert environments.statistics.to_dict() | {"step": 24} == ended  # what the last update, the 25th, was made of
    train(folder.path, replace_options(config, total_frames=16 * 8 * 50), resume=True, incarnation=1)
    resumed = statistics_of(folder.path, step=10**9)
    assert resumed is not None and resumed["count"] == 16 * (8 * 50 + 2)


def test_an_evaluation_normalises_by_the_statistics_of_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = train(tmp_path / "run", config_of(total_frames=16 * 8 * 25))
    step = min(checkpoint_steps(folder.checkpoints))  # on a busy machine one that is due is left out
    policy = find_parameters(folder.checkpoints, step, on_skip=print)
    at_checkpoint = json.loads((folder.path / "observations" / "worker-0.json").read_text())[str(step)]
    assert policy.observation_statistics is not None
    assert policy.observation_statistics | {"life": 0} == at_checkpoint | {"step": step}
    used = []

    def spy(environments, stored, checkpoint):
        use_statistics(environments, stored, checkpoint)
        used.append(environments.statistics)

    monkeypatch.setattr("dba3c.evaluation.full_games.use_statistics", spy)
    config = folder.train_config()
    evaluate(config, policy, games=2, num_envs=2)
    assert (
        used[0].to_dict() | {"step": step} == policy.observation_statistics
    )  # and 400 steps later it is still the same
    with pytest.raises(UserError, match=f"step-{step}: its run kept no observation statistics"):
        evaluate(config, dataclasses.replace(policy, observation_statistics=None), games=2)


def test_the_statistics_of_all_workers_are_merged_each_as_it_was_at_the_checkpoint(tmp_path: Path):
    rows = np.random.default_rng(0).normal(size=(60, 3))
    observations = tmp_path / "observations"
    observations.mkdir()
    early, late, other = seen(rows[:10]), seen(rows[:40]), seen(rows[40:])
    (observations / "worker-0.json").write_text(json.dumps({"0": early, "100": late}))
    (observations / "worker-1.json").write_text(json.dumps({"60": other}))
    assert statistics_of(tmp_path, 99)["count"] == 30
    both = statistics_of(tmp_path, 100)
    assert both["count"] == 60
    assert both["mean"] == pytest.approx(rows.mean(axis=0))
    assert statistics_of(tmp_path, 0, "worker-1") == early | {"step": 0}  # it came later
    newcomer = statistics_of(tmp_path, 100, "worker-2")  # as one process that has seen what the two have
    assert newcomer["count"] == both["count"] / 2 and newcomer["mean"] == both["mean"]
    assert newcomer["squares"] == [squares / 2 for squares in both["squares"]]
    assert statistics_of(tmp_path, 60, "worker-1") == other | {"step": 60}
    assert statistics_of(tmp_path / "nothing", 0) is None


def test_a_folder_of_statistics_that_cannot_be_read_is_not_one_without_any(tmp_path: Path) -> None:
    (tmp_path / "observations").symlink_to(tmp_path / "observations")
    with pytest.raises(OSError, match="symbolic links"):
        statistics_of(tmp_path, 0)


def write_lives(folder: Path, *lives_at: dict[int, int]) -> np.ndarray:
    """Which life each lane's snapshot of a step is of; the first lane saw rows :10, then :40, the second 40:."""
    rows = np.random.default_rng(0).normal(size=(60, 3))
    (folder / "observations").mkdir()
    lanes = ("worker-0", [rows[:10], rows[:40]]), ("worker-0.1", [rows[40:]])
    for (name, parts), lives in zip(lanes, lives_at, strict=True):
        kept = {step: seen(part) | {"life": life} for part, (step, life) in zip(parts, lives.items(), strict=True)}
        (folder / "observations" / f"{name}.json").write_text(json.dumps(kept))
    return rows


def test_an_evaluation_normalises_without_those_that_a_resumed_life_does_not_have(tmp_path: Path):
    rows = write_lives(tmp_path, {100: 1, 200: 2}, {100: 1})
    assert statistics_of(tmp_path, 199)["count"] == 30
    assert statistics_of(tmp_path, 200) == seen(rows[:40]) | {"step": 200}


def test_a_process_that_sat_out_a_life_goes_on_from_what_the_others_have_seen(tmp_path: Path):
    rows = write_lives(tmp_path, {100: 0, 200: 1}, {100: 0})
    assert statistics_of(tmp_path, 100, "worker-0.1") == seen(rows[40:]) | {"step": 100}
    assert statistics_of(tmp_path, 200, "worker-0.1") == seen(rows[:40]) | {"step": 200}


def test_who_played_in_the_life_before_until_the_checkpoint_does_not_read_what_others_kept(tmp_path: Path):
    rows = write_lives(tmp_path, {100: 0, 200: 1}, {100: 0})
    (tmp_path / "observations" / "worker-7.json").write_text("none of them can be read")
    assert statistics_of(tmp_path, 200, "worker-0", life=2) == seen(rows[:40])
    assert statistics_of(tmp_path, 200, "worker-0", life=1) == seen(rows[:40])  # started again in the same life
    for step, life in ((200, 3), (199, 2), (100, 2)):  # it may have missed one, or somebody may have a newer
        with pytest.raises(UserError, match=r"worker-7.json is not a file of observation statistics"):
            statistics_of(tmp_path, step, "worker-0", life=life)


def test_a_resumed_process_leaves_what_was_seen_at_its_checkpoint_to_those_who_come_later(tmp_path: Path):
    config = config_of(total_frames=16 * 8 * 25)
    folder = train(tmp_path / "run", config)
    step = max(checkpoint_steps(folder.checkpoints))
    before = statistics_of(folder.path, step)
    folder = train(folder.path, replace_options(config, total_frames=16 * 8 * 50), resume=True, incarnation=1)
    assert statistics_of(folder.path, step) == before


def test_a_life_that_ends_at_the_checkpoint_it_began_with_leaves_its_statistics_as_they_are(tmp_path: Path):
    config = config_of(total_frames=16 * 8 * 25)
    folder = train(tmp_path / "run", config)
    step = max(checkpoint_steps(folder.checkpoints))
    path = folder.path / "observations" / "worker-0.json"
    (path.parent / "worker-0.1.json").write_text(path.read_text())  # of a lane that the next life does not have
    both = statistics_of(folder.path, step)
    environments = make_vector_environment(config.environment, 16, seed=9)
    with RunFolder.launch(folder.path, None, resume=True) as again:
        keeper = StatisticsKeeper(RunProcess(again, config, rank=0, incarnation=1), "worker", [environments])
        environments.reset()
        keeper.at(step)
        keeper.close()
    assert statistics_of(folder.path, step) == both


def test_an_older_checkpoint_is_normalised_without_those_that_came_with_a_later_life(tmp_path: Path):
    rows = write_lives(tmp_path, {100: 0, 300: 1}, {300: 1})
    assert statistics_of(tmp_path, 100) == seen(rows[:10]) | {"step": 100}
    assert statistics_of(tmp_path, 300)["count"] == 60


def test_a_worker_keeps_a_snapshot_for_each_checkpoint_and_groups_share_theirs(tmp_path: Path):
    config = config_of()
    with RunFolder.create(tmp_path / "run", config.to_json()) as folder:
        groups = [make_vector_environment(PENDULUM, 2, seed) for seed in range(2)]
        keeper = StatisticsKeeper(RunProcess(folder, config, rank=3, incarnation=0), "actor", groups)
        for step in range(25):
            for group in groups:
                group.reset()
            keeper.at(step)
        keeper.close()
        snapshots = json.loads((folder.path / "observations" / "actor-3.json").read_text())
        assert {step: stored["count"] for step, stored in snapshots.items()} == {"0": 4, "10": 44, "20": 84, "24": 100}
        for step in (10, 20):
            (folder.checkpoints / f"step-{step}").mkdir()
        keeper.at(30)
        assert list(json.loads((folder.path / "observations" / "actor-3.json").read_text())) == ["10", "20", "24", "30"]


def test_a_resumed_process_that_ends_before_its_first_step_keeps_the_snapshots_of_earlier_checkpoints(tmp_path: Path):
    config = config_of(total_frames=16 * 8 * 25)
    folder = train(tmp_path / "run", config)
    kept = folder.path / "observations" / "worker-0.json"
    before = json.loads(kept.read_text())
    environments = make_vector_environment(config.environment, 16, seed=9)
    StatisticsKeeper(RunProcess(folder, config, rank=0, incarnation=1), "worker", [environments]).close()
    assert before.items() <= json.loads(kept.read_text()).items()


def test_nothing_is_kept_where_observations_are_not_normalised(tmp_path: Path):
    config = replace_options(config_of(), normalize_observations=False)
    with RunFolder.create(tmp_path / "run", config.to_json()) as folder:
        environments = make_vector_environment(config.environment, 2, seed=0)
        StatisticsKeeper(RunProcess(folder, config, rank=0, incarnation=0), "worker", [environments]).close()
        assert not (folder.path / "observations").exists()


def test_statistics_that_the_disk_refuses_stop_no_worker(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = config_of()
    with RunFolder.create(tmp_path / "run", config.to_json()) as folder:
        (folder.path / "observations").write_text("a file where the folder should be")
        environments = make_vector_environment(config.environment, 2, seed=0)
        keeper = StatisticsKeeper(RunProcess(folder, config, rank=0, incarnation=0), "worker", [environments])
        for step in (0, 10, 20):
            keeper.at(step)
        keeper.close()
    assert capsys.readouterr().err.count("observations/worker-0.json") == 1


@pytest.mark.parametrize("words", ["Pendulum-v1 --preset sac", "CartPole-v1 --preset r2d2"])
def test_a_new_run_with_a_replay_refuses_normalised_observations_and_an_older_one_is_read(words: str) -> None:
    with pytest.raises(UserError, match="normalize_observations is for what is learned from once"):
        parse_train([*words.split(), "--normalize-observations"]).config(2)
    config = replace_options(parse_train(words.split()).config(2), normalize_observations=True)
    assert TrainConfig.from_json(config.to_json()) == config


def test_a_worker_that_fails_keeps_the_statistics_of_its_last_step_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    config = config_of()

    def fails(config, agent, environments, exchange, metrics, *, at_step, **_):
        environments.reset()
        for step in range(7):
            environments.step(np.zeros((environments.num_envs, 1), np.float32))
            at_step(step)
        raise EnvironmentFailed("its game is broken")

    monkeypatch.setattr("dba3c.workers.worker.run_worker", fails)
    with RunFolder.create(tmp_path / "run", config.to_json()) as folder, pytest.raises(EnvironmentFailed):
        worker(RunProcess(folder, config, rank=0, incarnation=0))
    kept = json.loads((tmp_path / "run" / "observations" / "worker-0.json").read_text())
    assert [*kept] == ["0", "6"] and kept["6"]["count"] > kept["0"]["count"]
