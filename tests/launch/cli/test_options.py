"""What the words of a command line give; options that are unknown, or that the run would not read, are refused."""

from __future__ import annotations

import re
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dba3c.config import TrainConfig, option_names, replace_options, typed_options
from dba3c.errors import UserError
from dba3c.resuming import MAY_CHANGE, changed_on_resume, refuse_another_run
from launch.cli.evaluate import RecordArguments
from launch.cli.main import COMMANDS, main
from launch.cli.options import COMMON, parse, parse_resume, parse_train
from launch.cli.simulate import simulate

ROOT = Path(__file__).parents[3]
RELIABILITY = ROOT / "docs" / "reliability.md"
POLICY_GRADIENT = "algorithm actor_critic or vtrace or ppo or package.module:loss"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (
            "breakout --mode central --algorithm r2d2 --network resnet_lstm",
            f"network: an option of {POLICY_GRADIENT} only, and this run's algorithm is r2d2",
        ),
        (
            "--preset sac --entropy-cost .5 --network=resnet",
            f"entropy_cost, network: options of {POLICY_GRADIENT} only, and this run's algorithm is sac",
        ),
        (
            "CartPole-v1 --evaluation-games 9 --evaluation-budget-s 0",
            "evaluation_budget_s, evaluation_games: options of evaluators only, and this run's evaluators is 0",
        ),
        (
            "breakout --recording-every 2",
            "recording_every: an option of recorders only, and this run's recorders is 0",
        ),
        (
            "CartPole-v1 --environment-timeout-s 5",
            "environment_timeout_s: an option of environment_processes only, and this run's environment_processes is "
            "False",
        ),
        (
            "--preset sac --precision bfloat16",
            f"precision: an option of {POLICY_GRADIENT} or r2d2 only, and this run's algorithm is sac",
        ),
        (
            "--preset sac --memory-size 64 --burn_in 7 --n-step 9",
            "burn_in, memory_size, n_step: options of algorithm r2d2 only, and this run's algorithm is sac",
        ),
        (
            "--preset r2d2 --polyak .3 --hidden-size 3",
            "hidden_size, polyak: options of algorithm sac only, and this run's algorithm is r2d2",
        ),
        (
            "--preset r2d2 --ppo-epochs 3",
            "ppo_epochs: an option of algorithm ppo or package.module:loss only, and this run's algorithm is r2d2",
        ),
        (
            "CartPole-v1 --algorithm my.losses:Mine --burn-in 3",
            "burn_in: an option of algorithm r2d2 only, and this run's algorithm is package.module:loss",
        ),
        (
            "classic --decay 0.9",
            "decay: an option of optimizer rmsprop or adadelta only, and this run's optimizer is adam",
        ),
        (
            "breakout --clip-rule none --clip-norm 1",
            "clip_norm: an option of clip_rule global or average_per_tensor only, and this run's clip_rule is none",
        ),
        (
            "breakout --exchange allreduce --max-staleness 2",
            "max_staleness: an option of exchange async only, and this run's exchange is allreduce",
        ),
        (
            "breakout --replay-start 7",
            "replay_start: an option of algorithm r2d2 or sac only, and this run's algorithm is actor_critic",
        ),
        (
            "breakout --mode central --rollout-length 50 --envs-per-worker 64",
            "envs_per_worker, rollout_length: options of mode worker only, and this run's mode is central",
        ),
        (
            "breakout --unroll-length 50 --actors 7",
            "actors, unroll_length: options of mode central only, and this run's mode is worker",
        ),
        (
            "--preset sac --batch-unrolls 3",
            "batch_unrolls: an option of mode central and algorithm vtrace only, "
            "and this run's mode is central and algorithm is sac",
        ),
    ],
)
def test_an_option_that_would_do_nothing_is_refused_with_whose_it_is(words: str, why: str) -> None:
    with pytest.raises(UserError) as refused:
        parse_train(words.split()).config(2)
    assert str(refused.value) == why


@pytest.mark.parametrize(
    "words",
    [
        "breakout --mode central --network resnet_lstm --unroll-length 9 --batch-unrolls 4 --entropy-cost constant:0",
        "breakout --envs-per-worker 4 --rollout-length 3 --algorithm vtrace --value-cost 1",
        "--preset sac --hidden-size 8 --polyak .1 --replay-start 9 --actors 1",
        "--preset r2d2 --memory-size 8 --n-step 3 --replay-ratio 1",
        "CartPole-v1 --algorithm my.losses:Mine --value-cost 1 --ppo-epochs 2 --network my.nets:mine",
        "--preset ppo --ppo-epochs 2 --trace-lambda .9 --network small",
        "CartPole-v1 --evaluators 1 --evaluation-games 9 --evaluation-budget-s 0 --recorders 1 --recording-every 2",
        "CartPole-v1 --environment-processes --environment-timeout-s 5",
    ],
)
def test_whoever_reads_an_option_takes_it(words: str) -> None:
    said = parse_train(words.split())
    config = said.config(2)
    taken = {option.name: getattr(group, option.name) for group in groups_of(config) for option in fields(group)}
    assert said.given.items() <= taken.items()


def groups_of(config: TrainConfig) -> list[Any]:
    return [getattr(config, group.name) for group in fields(TrainConfig)]


def test_whoever_reads_an_option_is_an_option_or_the_family_of_environments() -> None:
    options = [option for group in groups_of(TrainConfig()) for option in fields(group)]
    named = {name for option in options for name in option.metadata.get("read_by", {})}
    assert named <= {option.name for option in options} | {"family"}


def test_words_give_what_they_say_and_no_more() -> None:
    said = parse_train(
        ["--workers=3", "ALE/Pong-v5", "--lr", "1e-3", "--no-grayscale", "--frame_skip", "2", "4", "--resume"]
    )
    assert said.given == {
        "num_workers": 3, "env_id": "ALE/Pong-v5", "learning_rate": "1e-3", "grayscale": False, "frame_skip": (2, 4),
    }  # fmt: skip
    assert said.resume and said.preset is None
    assert parse_train(["breakout"]).preset == "breakout"


def test_of_two_presets_the_word_says_what_is_learned_and_the_option_how() -> None:
    config = parse_train(["mujoco", "--preset", "sac"]).config(2)
    assert (config.environment.env_id, config.algorithm.algorithm) == ("HalfCheetah-v5", "sac")
    assert parse_train(["mujoco", "--preset", "sac", "--env", "Ant-v5"]).config(2).environment.env_id == "Ant-v5"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("breakout --worker 3", "unknown option --worker; did you mean --workers"),
        ("breakout --envs-per-workr=3", "unknown option --envs-per-workr; did you mean --envs-per-worker"),
        ("breakout --banana 3", "unknown option --banana"),
        ("breakout pong", "pong belongs to no option"),
        ("breakout --workers two", "--workers takes a whole number, not 'two'"),
        ("breakout --total-frames 1.5", "--total-frames takes a whole number, not '1.5'"),
        ("breakout --total-frames inf", "--total-frames takes a whole number, not 'inf'"),
        ("breakout --stop-score high", "--stop-score takes a number, not 'high'"),
        ("breakout --workers", "--workers needs a value"),
        ("breakout --exchange sevrers", "--exchange cannot be 'sevrers'; did you mean servers?"),
        ("breakout --mode x", "--mode cannot be 'x'; there are worker, central"),
        ("ppoo", "no preset is called 'ppoo'; did you mean ppo?"),
        ("CartPole-v1 --env Acrobot-v1", "two environments are given, CartPole-v1 and Acrobot-v1: say one"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_line(words: str, why: str) -> None:
    with pytest.raises(UserError) as refused:
        parse_train(words.split())
    assert str(refused.value).startswith(why)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["train", "CartPole-v1", "--run-dir", ""], "--run-dir is empty"),
        (["train", ""], "unknown environment ''"),
        (["plot", "--into", "", "runs"], "--into is empty"),
        (["watch", ""], "PATH is empty"),
        (["resume", ""], "PATH is empty"),
    ],
)
def test_an_empty_word_as_of_a_variable_that_is_not_set_is_no_path(
    words: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert capsys.readouterr().err.startswith(f"dba3c: {why}")


def test_a_path_that_no_shell_expands_begins_at_home_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert parse(RecordArguments, ["~/run", "--output=~/film.mp4"], "dba3c record").output == Path("/home/me/film.mp4")


def test_whole_numbers_may_be_written_as_floats() -> None:
    words = "breakout --total-frames 1e5 --seed 2.5e6 --frame-skip 2.0 4 --stop-score 1e2"
    said = parse_train(words.split())
    assert said.given == {"total_frames": 10**5, "seed": 2_500_000, "frame_skip": (2, 4), "stop_score": 100.0}
    assert type(said.given["total_frames"]) is int
    huge = 2**53 + 1  # which no float is
    assert parse_train(["--seed", str(huge)]).given == {"seed": huge}


def test_no_servers_are_what_an_exchange_without_servers_has() -> None:
    words = ["CartPole-v1", "--workers", "1", "--servers", "0"]
    assert parse_train([*words, "--exchange", "local"]).config(2).exchange.exchange == "local"
    with pytest.raises(UserError, match="--servers must be at least 1; --exchange local, allreduce or majority has no"):
        parse_train(words).config(2)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--version"], f"dba3c {version('dba3c')}"),
        (["trian"], "dba3c: no command is called 'trian'; did you mean train?"),
        (["train", "--preset", "ppoo"], "dba3c: no preset is called 'ppoo'; did you mean ppo?"),
        (["evaluate"], "dba3c: PATH is missing: The run's folder"),
        (["evaluate", "--game", "3"], "dba3c: unknown option --game; did you mean --games?"),
        (
            ["evaluate", "RUN", "--banana"],
            "dba3c: unknown option --banana; dba3c evaluate --help lists those that",
        ),
    ],
)
def test_commands_say_what_is_wrong_in_one_line(
    words: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(words)
    said = capsys.readouterr()
    text = said.out + said.err
    assert text.startswith(line) and text.count("\n") == 1
    assert code == (0 if words == ["--version"] else 2)


def test_help_shows_the_defaults_of_the_preset_that_fits(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_train(["CartPole-v1", "--help"])
    said = capsys.readouterr().out
    assert not ended.value.code
    assert "--lr STR, --learning-rate STR" in said and "(default: 475.0)" in said and "--burn-in" not in said
    with pytest.raises(SystemExit):
        parse_train(["CartPole-v1", "--help-all"])
    said = capsys.readouterr().out
    assert "(default: CartPole-v1)" in said and "--burn-in" in said


SAID_IN_HELP = {
    "train": "[OPTIONS] [ENV|PRESET]\n",
    "sweep": "dba3c sweep [ENV|PRESET] [TRAIN OPTIONS]",
    "study": "[OPTIONS] NAME\n",
    "plot": "dba3c plot STUDY draws a study",
}
"""What may be left out, and how a command is called in its text."""


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert not ended.value.code
    said = capsys.readouterr().out
    assert said.startswith(f"usage: dba3c {command}") and "``" not in said
    assert SAID_IN_HELP.get(command, "") in said and SAID_IN_HELP.keys() <= {*COMMANDS}


def test_a_run_goes_on_with_what_may_change_and_the_rest_is_refused_by_name() -> None:
    folder, given = parse_resume(["RUN", "--total-frames", "2000", "--track", "--evaluators", "1"])
    changed = changed_on_resume(TrainConfig(), given)
    assert str(folder) == "RUN"
    assert (changed.run.total_frames, changed.run.track, changed.run.evaluators) == (2000, (), 1)
    line = "^--learning-rate, --num-workers cannot change when a run goes on; dba3c resume --help lists what can$"
    with pytest.raises(UserError, match=line):
        changed_on_resume(TrainConfig(), parse_resume(["RUN", "--lr", "1", "--workers", "3"])[1])
    with pytest.raises(UserError, match="PATH is missing"):
        parse_resume(["--total-frames", "3"])
    of_32 = replace_options(TrainConfig(), envs_per_worker=32)
    with pytest.raises(UserError, match="the run's 32 environments .* by 12 lanes: 1, 2, 4, 8, 16, 32 can$"):
        changed_on_resume(of_32, parse_resume(["RUN", "--lanes", "12"])[1])
    assert changed_on_resume(of_32, parse_resume(["RUN", "--lanes", "16"])[1]).environment.lanes == 16
    assert set(MAY_CHANGE) <= set(option_names()) and len(COMMON) <= 25
    documented = RELIABILITY.read_text().split("## Resume and change")[1]
    assert {name.replace("_", "-") for name in MAY_CHANGE} == set(re.findall(r"`--([a-z-]+)`", documented))


def test_every_test_that_shows_what_is_promised_is_there() -> None:
    promised, files = RELIABILITY.read_text(), sorted((ROOT / "tests").rglob("test_*.py"))
    paths = {path for file in files for path in (file.name, str(file.relative_to(ROOT)))}
    tests = {name for file in files for name in re.findall(r"def (test_\w+)", file.read_text())}
    named = re.findall(r"`((?:…|test_)\w+…?)`", promised)
    of_files = re.findall(r"`([\w/]*test_\w+\.py)`", promised)
    assert len(named) > 20 and len(of_files) > 20
    assert not [name for name in named if not any(re.fullmatch(name.replace("…", ".*"), test) for test in tests)]
    assert not set(of_files) - paths


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"episodic_life": "false"}, "episodic_life must be bool, not 'false'"),
        ({"envs_per_worker": 4.7}, "envs_per_worker must be int, not 4.7"),
        ({"rollout_length": True}, "rollout_length must be int, not True"),
        ({"rollout_length": np.True_}, "rollout_length must be int, not "),
        ({"rollout_length": np.float32(4.7)}, "rollout_length must be int, not "),
        ({"rollout_length": np.float32("inf")}, "rollout_length must be int, not "),
        ({"rollout_length": float("inf")}, "rollout_length must be int, not inf"),
        ({"clip_reward": "no"}, "clip_reward must be bool"),
        ({"protocl": "v5"}, "unknown option 'protocl'; did you mean protocol"),
    ],
)
def test_a_value_of_another_type_is_refused_from_python_too(options: dict[str, Any], line: str) -> None:
    with pytest.raises(UserError, match=line):
        typed_options(options, ("preset", "protocol"))


def test_a_number_that_is_whole_and_a_tracker_alone_are_taken_for_what_they_are() -> None:
    taken = typed_options({"total_frames": 1e6, "workers": "4", "frame_skip": (2, 4), "track": "tensorboard"})
    assert taken == {"total_frames": 10**6, "num_workers": 4, "frame_skip": (2, 4), "track": ("tensorboard",)}
    assert isinstance(taken["total_frames"], int)
    of_numpy = typed_options({"rollout_length": np.float32(4), "seed": np.int64(3), "episodic_life": np.True_})
    assert of_numpy == {"rollout_length": 4, "seed": 3, "episodic_life": True}
    assert of_numpy["episodic_life"] is True and type(of_numpy["seed"]) is int


def test_train_resume_with_the_options_of_another_run_is_refused_by_name_and_other_ranks_are_not() -> None:
    of_run = replace_options(TrainConfig(), exchange="servers")
    refuse_another_run(of_run, of_run)
    fitted = replace_options(
        of_run, num_workers=7, num_servers=3, envs_per_worker=16, lanes=4, precision="bfloat16", total_frames=9,
        actors=9, inference_batch=16,
    )  # fmt: skip
    refuse_another_run(fitted, of_run)
    written_otherwise = {"entropy_cost": "1e-2", "policy_clip": "constant:0.2", "frame_skip": 4, "clip_reward": True}
    assert of_run.environment.frame_skip_range == (4, 4) and of_run.environment.clips_reward
    refuse_another_run(replace_options(of_run, **written_otherwise), of_run)
    other = replace_options(of_run, learning_rate="0.1", env_id="ALE/Pong-v5", seed=3)
    with pytest.raises(
        UserError, match=r"has --env-id ALE/Breakout-v5 \(not ALE/Pong-v5\), --learning-rate .* \(not constant:0.1\)"
    ):
        refuse_another_run(other, of_run)
    with pytest.raises(UserError, match=r"--seed 0 \(not 3\): give the options that it began with"):
        refuse_another_run(other, of_run)
    with pytest.raises(UserError, match=r"--mode worker \(not central\), --unroll-length 20 \(not 5\)"):
        refuse_another_run(replace_options(of_run, mode="central", algorithm="vtrace", unroll_length=5), of_run)


def test_a_run_whose_learning_rate_goes_with_the_cores_goes_on_with_others_and_one_of_its_own_does_not() -> None:
    said = parse_train(["breakout"])
    refuse_another_run(said.config(12), said.config(2))
    assert said.config(12).optimizer.learning_rate != said.config(2).optimizer.learning_rate
    own = parse_train(["breakout", "--learning-rate", "1e-3"])
    refuse_another_run(own.config(12), own.config(2))
    with pytest.raises(UserError, match=r"--learning-rate constant:0.001 \(not linear:.*\): give the options"):
        refuse_another_run(said.config(12), own.config(2))
    for words in (["--learning-rate", "linear:7e-4->7e-5@20e6"], ["--mode", "central"]):  # by chance that of 32
        same = parse_train(["breakout", *words])
        refuse_another_run(same.config(64), same.config(1))


def test_resume_as_one_of_several_ranks_names_what_ranks_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"}.items():
        monkeypatch.setenv(name, value)
    assert main(["resume", "RUN"]) == 2
    assert "mpirun started 4 ranks: let them run dba3c train" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("--node-cores 24 --learner-speeds 12", "--node-cores, --learner-speeds: of --central, which is not given"),
        ("--central --steps 9", "--steps: of the table of servers and backup workers, which --central does not make"),
    ],
)
def test_what_one_kind_of_simulation_does_not_read_is_refused_by_it(words: str, why: str) -> None:
    with pytest.raises(UserError, match=f"^{why}$"):
        simulate(words.split())


@pytest.mark.parametrize("columns", [1, 5, 30, 300])
def test_a_terminal_of_any_width_gets_help_and_the_same_line(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(["evaluate", "RUN", "--games", "x" * 100]) == 2
    assert capsys.readouterr().err.startswith("dba3c: --games takes a whole number, not '")
    assert main(["train", "CartPole-v1", "--max-core-hour", "3"]) == 2
    assert capsys.readouterr().err.startswith("dba3c: unknown option --max-core-hour; did you mean --max-core-hours")
    with pytest.raises(SystemExit):
        main(["stop", "--help"])
    assert "usage: dba3c stop" in capsys.readouterr().out


@pytest.mark.parametrize("groups", [3, 5])
def test_environments_that_a_preset_counted_give_way_to_the_groups_that_are_asked_for(groups: int) -> None:
    words = f"breakout --mode central --actor-groups {groups}"
    config = parse_train(words.split()).config(4)
    assert config.central.envs_per_actor % groups == 0
    with pytest.raises(UserError, match="cannot be cut into"):
        parse_train(f"{words} --envs-per-actor {groups + 1}".split()).config(4)
