"""All-reduce with backup workers between real processes: one is killed, one is stopped, one comes back."""

from __future__ import annotations

import gc
import itertools
import json
import multiprocessing
import os
import re
import signal
import time

import pytest
import torch

from param_servers.checkpoint.files import find_newest, load_checkpoint
from param_servers.config import ExchangeConfig
from param_servers.errors import ParamServersError
from param_servers.exchange import RunStopped
from param_servers.majority.exchange import MajorityExchange
from param_servers.servers.audit import history, read_audit
from tests.integration.allreduce_rank import BATCH, LAYOUT, OPTIMIZER, gradient, initial_parameters
from tests.param_servers.servers.replay import replay

_FORK = multiprocessing.get_context("fork")
PATIENCE_S = 60.0


def gradient_of(rank, incarnation, sequence):
    return gradient(10 * rank + incarnation, sequence)


class Run:
    """Ranks as processes; each writes the steps it was accepted in to a file."""

    def __init__(self, folder, size, **settings):
        self.folder = folder
        defaults = {"step_timeout_s": 3, "join_timeout_s": 30, "checkpoint_every_steps": 10}
        self.config = ExchangeConfig(exchange="majority", num_workers=size, **(defaults | settings))
        self.ranks = {}

    def start(self, *ranks, incarnation=0):
        for rank in ranks:
            self.ranks[rank] = _FORK.Process(target=self.work, args=(rank, incarnation))
            self.ranks[rank].start()
        return self

    def address(self, rank):
        path = self.folder / "address.json"
        return tuple(json.loads(path.read_text())) if path.exists() else None

    def publish(self, host, port):
        (self.folder / "address.tmp").write_text(json.dumps([host, port]))
        os.replace(self.folder / "address.tmp", self.folder / "address.json")

    def work(self, rank, incarnation):
        gc.freeze()  # see server_runs
        log = (self.folder / f"rank-{rank}.jsonl").open("a", buffering=1)
        try:
            exchange = MajorityExchange(
                rank=rank,
                incarnation=incarnation,
                layout=LAYOUT,
                initial_parameters=initial_parameters(),
                optimizer_config=OPTIMIZER,
                exchange_config=self.config,
                secret=b"0123456789abcdef",
                resolve=self.address,
                publish_address=self.publish,
                checkpoint_dir=self.folder / "checkpoints",
                audit_path=self.folder / "audit.jsonl",
                should_stop=lambda step, points: "asked to" if (self.folder / "stop").exists() else None,
            )
            for sequence in itertools.count(1):
                pulled = exchange.pull()
                receipt = exchange.push(gradient_of(rank, incarnation, sequence), pulled.step, BATCH)
                log.write(json.dumps([pulled.step, receipt.accepted]) + "\n")
        except RunStopped:
            exchange.close()
            os._exit(0)
        except ParamServersError as error:
            log.write(json.dumps(str(error)) + "\n")
            os._exit(3)

    def lines(self, rank):
        path = self.folder / f"rank-{rank}.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def steps(self, rank):
        return [line[0] for line in self.lines(rank) if isinstance(line, list) and line[1]]

    def reach(self, rank, more=5):
        """Wait until `rank` has been accepted in so many further steps."""
        goal, deadline = len(self.steps(rank)) + more, time.monotonic() + PATIENCE_S
        while len(self.steps(rank)) < goal:
            assert self.ranks[rank].is_alive() and time.monotonic() < deadline, self.lines(rank)[-1:]
            time.sleep(0.02)

    def stop(self):
        """End the run as asked; the checkpoint of its last step."""
        (self.folder / "stop").write_text("")
        for process in self.ranks.values():
            process.join(PATIENCE_S)
            assert process.exitcode == 0
        return load_checkpoint(find_newest(self.folder / "checkpoints"))

    def check(self, checkpoint):
        """The checkpoint is bit-equal to a replay of the audit log (sums of two have only one order)."""
        lines = list(read_audit(self.folder / "audit.jsonl"))
        commits = history(lines)
        assert len(commits) == checkpoint.step and commits[-1]["data_points"] == checkpoint.data_points
        assert all(len({member[0] for member in commit["members"]}) == 2 for commit in commits)
        replayed = replay(initial_parameters(), OPTIMIZER, lines, lambda life, *key: gradient_of(*key))
        assert torch.equal(checkpoint.parameters, replayed)

    def kill(self):
        for process in self.ranks.values():
            if process.is_alive():
                process.kill()
            process.join(PATIENCE_S)


@pytest.fixture
def start(tmp_path):
    runs = []

    def begin(size, **settings):
        runs.append(Run(tmp_path, size, **settings))
        return runs[-1].start(*range(size))

    yield begin
    for run in runs:
        run.kill()


def test_a_killed_rank_costs_nothing_and_a_restarted_one_takes_part_again(start):
    run = start(3, num_gradients=2)
    run.reach(1)
    os.kill(run.ranks[1].pid, signal.SIGKILL)
    run.ranks.pop(1).join()
    run.reach(0)
    run.reach(2)
    run.start(1, incarnation=1)
    run.reach(1)
    run.check(run.stop())


def test_a_stopped_rank_is_expelled_within_the_stated_time_and_learns_it_when_it_wakes(start):
    run = start(3, num_gradients=2, step_timeout_s=2)
    run.reach(2)
    os.kill(run.ranks[2].pid, signal.SIGSTOP)
    run.reach(0)
    os.kill(run.ranks[2].pid, signal.SIGCONT)
    run.ranks[2].join(PATIENCE_S)
    assert run.ranks.pop(2).exitcode == 3
    assert "rank 2 was expelled" in run.lines(2)[-1] or "is lost" in run.lines(2)[-1]
    run.check(run.stop())


@pytest.mark.parametrize("size", [2, 3])
def test_when_rank_0_is_stopped_the_others_say_so_the_next_leaves_a_checkpoint_and_rank_0_ends_when_it_wakes(
    start, size
):
    run = start(size, step_timeout_s=2, checkpoint_every_steps=0)
    run.reach(0)
    run.reach(1)
    os.kill(run.ranks[0].pid, signal.SIGSTOP)
    for rank in range(1, size):
        run.ranks[rank].join(PATIENCE_S)
        assert run.ranks[rank].exitcode == 3
        assert run.lines(rank)[-1] == "rank 0, which decides who takes part, is lost: silent for 4 s"
    left = load_checkpoint(find_newest(run.folder / "checkpoints"))
    assert left.step > run.steps(1)[-1]
    before = run.steps(0)[-1]
    os.kill(run.ranks[0].pid, signal.SIGCONT)
    run.ranks[0].join(PATIENCE_S)
    assert run.ranks[0].exitcode == 3
    alone = r"rank 0 was stopped for \d+ s, and the others have ended the run without it"
    assert re.fullmatch(rf"{alone}(; step \d+ was decided, but its sum broke: .*)?", run.lines(0)[-1])
    assert run.steps(0)[-1] <= before + 1  # nothing is trained alone
    found = load_checkpoint(find_newest(run.folder / "checkpoints"))
    assert found.step - left.step in (0, 1) and (found.term == left.term or found.step > left.step)


def test_a_run_of_which_all_ranks_are_stopped_goes_on_when_they_wake(start):
    run = start(3, num_gradients=2, step_timeout_s=2)
    run.reach(2)
    for process in run.ranks.values():
        os.kill(process.pid, signal.SIGSTOP)
    time.sleep(7)  # not for a condition: the fault is that this much time is lost
    for process in run.ranks.values():
        os.kill(process.pid, signal.SIGCONT)
    for rank in run.ranks:
        run.reach(rank)
    run.check(run.stop())
