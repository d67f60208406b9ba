"""The evaluator's life beside a run."""

import dataclasses
import errno
import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from dba3c.assembly.model import initial_parameters
from dba3c.config import replace_options
from dba3c.environments.normalization import FOLDER, RunningStatistics
from dba3c.errors import UserError
from dba3c.evaluation import evaluator as evaluator_module
from dba3c.evaluation import full_games
from dba3c.evaluation.evaluator import evaluate, evaluated_policies, evaluator
from dba3c.roles import RunProcess
from dba3c.runs import checkpoints, ending
from dba3c.runs.checkpoints import CheckpointWatch
from dba3c.runs.ending import Overtime, RunEnd
from param_servers.errors import CheckpointUnreadable, RunBroken
from tests.dba3c.evaluation.conftest import CARTPOLE, records

PATIENCE_S = 120


def evaluator_of(run, config, says):
    """The role in a thread; the future of its reason."""

    def be():
        torch.set_num_threads(1)
        return evaluator(RunProcess(run, config, 0, 0), look_s=0.01, say=says)

    return ThreadPoolExecutor(1).submit(be)


def test_the_evaluator_plays_each_new_checkpoint_and_ends_with_the_run(cartpole, write_checkpoint):
    run, _ = cartpole
    played = {10: threading.Event(), 20: threading.Event()}

    def says(line):
        for step, event in played.items():
            if line.startswith(f"step {step}: mean"):
                event.set()

    future = evaluator_of(run, CARTPOLE, says)
    assert played[10].wait(PATIENCE_S)
    write_checkpoint(run, CARTPOLE, step=20, parameters=torch.randn(initial_parameters(CARTPOLE)[1].shape))
    assert played[20].wait(PATIENCE_S)
    run.request_stop("enough seen")
    assert future.result(PATIENCE_S) == "enough seen"
    evaluations = records(run, "evaluation")
    assert [record["checkpoint_step"] for record in evaluations] == [10, 20]
    assert evaluations[0]["games"] == 4 and len(evaluations[0]["interval_95"]) == 2
    assert sorted(path.name for path in (run.path / "evaluations").iterdir()) == [
        "step-10-sampled.json",
        "step-20-sampled.json",
    ]


def test_the_evaluator_stops_the_run_when_enough_full_games_reach_the_stop_score(cartpole):
    run, _ = cartpole
    config = replace_options(CARTPOLE, stop_score=5.0, stop_games=4)
    run.note_left("worker", 0)
    reason = evaluator_of(run, config, lambda line: None).result(PATIENCE_S)
    assert "of 4 full games reached the stop score 5" in reason
    assert run.stop_reason() == reason


def test_fewer_games_than_the_stop_rule_asks_for_do_not_stop_the_run(cartpole):
    run, _ = cartpole
    lines, played = [], threading.Event()

    def says(line):
        lines.append(line)
        if line.startswith("step 10"):
            played.set()

    future = evaluator_of(run, replace_options(CARTPOLE, stop_score=5.0), says)
    assert played.wait(PATIENCE_S)
    run.note_left("worker", 0)
    run.end_life("finished", "1,000 frames trained on")
    assert future.result(PATIENCE_S) == "1,000 frames trained on" and run.stop_reason() is None
    assert lines[0] == "will not stop the run: 4 games are fewer than the 50 of the stop rule"


# -- the end of a run --------------------------------------------------------------------------------------------------


def ended_with(run, write_checkpoint, step):
    """The training has had its frames, and writes its last checkpoint."""
    run.request_stop("200 frames trained on", finished=True)
    write_checkpoint(run, CARTPOLE, step=step, parameters=torch.randn(initial_parameters(CARTPOLE)[1].shape))
    run.note_left("worker", 0)


def test_the_checkpoint_a_run_ends_with_is_evaluated_also_where_it_is_the_only_one(make_run, write_checkpoint):
    run, lines = make_run(CARTPOLE), []
    asked = threading.Event()

    def says(line):
        lines.append(line)
        if "playing 4 games with its last checkpoint, for at most 120 s" in line:
            asked.set()

    future = evaluator_of(run, CARTPOLE, says)
    run.request_stop("200 frames trained on", finished=True)
    assert asked.wait(PATIENCE_S)  # and it waits for the checkpoint
    ended_with(run, write_checkpoint, step=7)
    assert future.result(PATIENCE_S) == "200 frames trained on"
    assert [record["checkpoint_step"] for record in records(run, "evaluation")] == [7]
    assert lines[-1].startswith("step 7: mean")


def in_the_middle_of_games(monkeypatch, step, happen):
    """`happen` when the first evaluation has taken so many steps; from then on it looks at once."""
    asked, ask = [], Overtime.__call__

    def look(self):
        asked.append(self.step)
        if len(asked) == step:
            happen()
            self._run_end._next_look_s = 0.0
        return ask(self)

    monkeypatch.setattr(Overtime, "__call__", look)


def test_games_under_way_at_the_end_are_finished_and_then_the_last_checkpoint_is_played(
    cartpole, write_checkpoint, monkeypatch
):
    run, _ = cartpole
    in_the_middle_of_games(monkeypatch, 3, lambda: ended_with(run, write_checkpoint, step=20))
    evaluator_of(run, CARTPOLE, lambda line: None).result(PATIENCE_S)
    found = records(run, "evaluation")
    assert [(one["checkpoint_step"], one["games"], one["unfinished"]) for one in found] == [(10, 4, 0), (20, 4, 0)]


def test_what_the_budget_does_not_suffice_for_is_counted_and_the_command_named(cartpole, write_checkpoint, monkeypatch):
    run, _ = cartpole
    config, lines = replace_options(CARTPOLE, evaluation_budget_s=0.0), []
    in_the_middle_of_games(monkeypatch, 3, lambda: ended_with(run, write_checkpoint, step=20))
    evaluator_of(run, config, lines.append).result(PATIENCE_S)
    assert records(run, "evaluation") == []
    why = "none of 4 games had ended when 0 s after the run's end were over"
    assert lines[-1] == f"step 20: {why}; `dba3c evaluate {run.path} --step 20` does it"


def test_a_run_that_is_stopped_is_not_held_up_by_games_and_the_command_is_named(cartpole, monkeypatch):
    run, _ = cartpole
    lines = []
    in_the_middle_of_games(monkeypatch, 12, lambda: run.request_stop("SIGINT"))
    future = evaluator_of(run, CARTPOLE, lines.append)
    assert future.result(PATIENCE_S) == "SIGINT" and f"(SIGINT); `dba3c evaluate {run.path}` does it" in lines[-1]
    ended = [(one["games"], one["unfinished"]) for one in records(run, "evaluation")]
    untold = [
        line
        for line in lines
        if line.startswith("step 10: none of 4 games had ended when somebody waits for the run's end (SIGINT)")
    ]
    assert sum(ended, ()) in {(1, 3), (2, 2), (3, 1)} or untold


def test_who_stops_a_run_after_its_end_ends_its_overtime_and_the_first_reason_stays(cartpole):
    run, _ = cartpole
    lines = []

    def says(line):
        lines.append(line)
        if "Ctrl-C ends that" in line:  # while it waits for a last checkpoint that does not come
            assert not run.request_stop("SIGINT")

    run.request_stop("enough", finished=True)
    future = evaluator_of(run, CARTPOLE, says)
    assert future.result(PATIENCE_S) == "enough" == run.stop_reason()
    assert "none of 4 games had ended when somebody waits for the run's end (enough)" in lines[-1]


def test_games_played_by_hand_with_other_actions_are_not_the_evaluator_s(cartpole):
    run, policy = cartpole
    evaluate(CARTPOLE, policy, games=2, actions="greedy").save(run)
    assert evaluated_policies(run, 2, "sampled") == set()
    assert evaluated_policies(run, 2, "greedy") == {policy.sha256}


def test_games_that_cannot_be_read_are_played_again(cartpole, monkeypatch):
    run, policy = cartpole
    evaluate(CARTPOLE, policy, games=2).save(run)
    assert evaluated_policies(run, 2, "sampled") == {policy.sha256}

    def stale(path, **_):
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))

    monkeypatch.setattr(Path, "read_text", stale)
    assert evaluated_policies(run, 2, "sampled") == set()


def test_games_of_another_stream_or_with_an_end_cut_off_are_not_the_evaluator_s(cartpole):
    run, policy = cartpole
    evaluate(CARTPOLE, policy, games=2, seed_index=1).save(run)
    dataclasses.replace(evaluate(CARTPOLE, policy, games=2), unfinished=1).save(run)
    assert evaluated_policies(run, 2, "sampled") == set()


def test_a_checkpoint_evaluated_in_an_earlier_life_is_not_played_again(cartpole):
    run, policy = cartpole
    evaluate(CARTPOLE, policy, games=2).save(run)
    lines = []
    watch = CheckpointWatch(
        run.checkpoints, lambda: None, is_done=lambda found: found.sha256 == policy.sha256, say=lines.append
    )
    assert watch.newest_unseen() is None and lines == []


def test_of_several_waiting_checkpoints_the_newest_whole_one_is_taken_and_the_others_named(cartpole, write_checkpoint):
    run, _ = cartpole
    lines = []
    watch = CheckpointWatch(run.checkpoints, lambda: None, say=lines.append)
    assert watch.newest_unseen().step == 10
    assert watch.newest_unseen() is None
    for step in (20, 30, 40):
        write_checkpoint(run, CARTPOLE, step=step)
    (run.checkpoints / "step-40" / "manifest.json").write_text("{")
    assert watch.newest_unseen().step == 30
    assert len(lines) == 1 and "step-40 is torn" in lines[0]
    assert watch.passed_over == [20]
    assert watch.newest_unseen() is None and len(lines) == 1
    write_checkpoint(run, CARTPOLE, step=40)  # written again after a roll-back
    assert watch.newest_unseen().step == 40 and watch.passed_over == []


def test_a_checkpoint_that_cannot_be_read_now_is_looked_at_again(cartpole, monkeypatch):
    run, _ = cartpole
    lines = []
    watch = CheckpointWatch(run.checkpoints, lambda: None, say=lines.append)
    with monkeypatch.context() as away:

        def unreadable(path):
            raise CheckpointUnreadable(f"{path} cannot be read")

        away.setattr(checkpoints, "load_parameters", unreadable)
        assert watch.newest_unseen() is None and watch.newest_unseen() is None
    assert len(lines) == 1 and "step-10 cannot be read" in lines[0]
    assert watch.newest_unseen().step == 10


def test_a_checkpoint_that_is_ahead_of_its_observation_statistics_is_played_with_when_they_have_come(
    cartpole, write_checkpoint
):
    run, _ = cartpole
    write_checkpoint(run, CARTPOLE, step=20)
    seen = RunningStatistics(4).to_dict() | {"life": 0}
    (run.path / FOLDER).mkdir()
    file = run.path / FOLDER / "worker-0.json"
    file.write_text(json.dumps({"0": seen, "10": seen}))
    looks = 0

    def until_the_snapshot():
        nonlocal looks
        looks += 1
        if looks == 3:
            file.write_text(json.dumps({"0": seen, "10": seen, "19": seen}))  # of central inference: one step behind
        return "the run has ended" if looks > 5 else None

    watch = CheckpointWatch(run.checkpoints, until_the_snapshot, say=pytest.fail, look_s=0.0)
    assert watch.wait().step == 20 and looks == 3
    write_checkpoint(run, CARTPOLE, step=30)
    assert watch.wait() is None  # they have not come
    assert watch.newest_unseen().step == 30  # with what there is: nobody is left who could write more


def test_a_checkpoint_whose_observation_statistics_do_not_come_is_played_with_earlier_ones_and_that_is_said(
    cartpole, write_checkpoint, monkeypatch
):
    run, _ = cartpole
    write_checkpoint(run, CARTPOLE, step=20)
    (run.path / FOLDER).mkdir()
    file = run.path / FOLDER / "worker-0.json"
    file.write_text(json.dumps({"10": RunningStatistics(4).to_dict() | {"life": 0}}))
    monkeypatch.setattr(checkpoints, "STATISTICS_S", 0.0)
    lines = []
    policy = CheckpointWatch(run.checkpoints, lambda: None, say=lines.append, look_s=0.0).wait()
    assert policy.step == 20 and policy.observation_statistics["step"] == 10
    assert lines == ["step-20: no observation statistics of its time within 0 s: those of step 10 are used"]


def test_a_checkpoint_whose_game_does_not_end_costs_its_own_evaluation_alone(cartpole, write_checkpoint, monkeypatch):
    run, _ = cartpole
    told, played = threading.Event(), threading.Event()
    monkeypatch.setattr(full_games, "LONGEST_GAME_STEPS", 3)

    def says(line):
        if line.startswith("step 10: not evaluated: environment"):
            monkeypatch.undo()
            told.set()
        if line.startswith("step 20: mean"):
            played.set()

    future = evaluator_of(run, CARTPOLE, says)
    assert told.wait(PATIENCE_S)
    write_checkpoint(run, CARTPOLE, step=20, parameters=torch.randn(initial_parameters(CARTPOLE)[1].shape))
    assert played.wait(PATIENCE_S)
    run.request_stop("enough seen")
    assert future.result(PATIENCE_S) == "enough seen"


@pytest.mark.parametrize("first", [True, False])
def test_an_environment_that_cannot_be_made_is_bad_input_only_for_an_evaluator_that_has_not_played(
    first, cartpole, write_checkpoint, monkeypatch
):
    run, _ = cartpole
    heard, reached = [], threading.Semaphore(0)

    def says(line):
        heard.append(line)
        if line.startswith("step "):
            reached.release()

    def cannot(*given, **options):
        raise UserError("CartPole-v1 cannot be made: its port is taken")

    if first:
        monkeypatch.setattr(evaluator_module, "make_vector_environment", cannot)
        with pytest.raises(UserError, match="its port is taken"):
            evaluator_of(run, CARTPOLE, says).result(PATIENCE_S)
        return
    future = evaluator_of(run, CARTPOLE, says)
    assert reached.acquire(timeout=PATIENCE_S)
    with monkeypatch.context() as taken:
        taken.setattr(evaluator_module, "make_vector_environment", cannot)
        write_checkpoint(run, CARTPOLE, step=20, parameters=torch.randn(initial_parameters(CARTPOLE)[1].shape))
        assert reached.acquire(timeout=PATIENCE_S)
    assert "step 20: not evaluated: CartPole-v1 cannot be made: its port is taken; " in heard[-1]
    write_checkpoint(run, CARTPOLE, step=30, parameters=torch.randn(initial_parameters(CARTPOLE)[1].shape))
    assert reached.acquire(timeout=PATIENCE_S)
    assert heard[-1].startswith("step 30: mean")
    run.request_stop("enough seen")
    assert future.result(PATIENCE_S) == "enough seen"


@pytest.mark.parametrize("asks", ["iterdir", "read_text"])
def test_a_file_system_that_is_away_for_a_while_ends_no_evaluator(cartpole, monkeypatch, asks):
    run, _ = cartpole
    observations = run.path / "observations"
    observations.mkdir()
    (observations / "worker-0.json").write_text('{"0": {"count": 1.0, "mean": [0.0], "squares": [0.0]}}')
    watch = CheckpointWatch(run.checkpoints, lambda: None, say=print)
    assert watch.unreadable is None
    original = getattr(Path, asks)

    def away(path, *given, **options):
        if path in (run.checkpoints, observations / "worker-0.json"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return original(path, *given, **options)

    with monkeypatch.context() as while_away:
        while_away.setattr(Path, asks, away)
        assert watch.newest_unseen() is None
        assert watch.unreadable is not None  # which is not "there is none"
    assert watch.newest_unseen().step == 10
    assert watch.unreadable is None


@pytest.mark.parametrize("asks", ["exists", "iterdir"])
def test_a_file_system_that_is_away_for_a_while_ends_no_overtime(cartpole, monkeypatch, asks):
    run, _ = cartpole
    run.request_stop("it has seen its frames", finished=True)
    overtime = Overtime(run, CARTPOLE, RunEnd(run, look_s=0.0))
    for process in overtime._awaited:
        run.note_left(*process)
    original = getattr(Path, asks)

    def away(path):
        if path == run.checkpoints or path.name.startswith("left-"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return original(path)

    with monkeypatch.context() as while_away:
        while_away.setattr(Path, asks, away)
        assert overtime() is None and not overtime.training_has_ended()
    assert overtime.training_has_ended()
    overtime.step = 10
    assert overtime() is None


def test_a_launch_that_is_gone_without_a_word_is_not_waited_for(cartpole, monkeypatch):
    monkeypatch.setattr(ending, "GONE_AFTER_S", -1.0)
    run, _ = cartpole
    run.release()
    with pytest.raises(RunBroken, match="nobody has held its lock"):
        CheckpointWatch(run.checkpoints, RunEnd(run, look_s=0.0), say=print, look_s=0.0).wait()
