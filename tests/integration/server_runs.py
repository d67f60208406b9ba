"""Servers and workers as real processes with a run folder between them, and the faults that tests do to them.

A worker's gradient is a function of (life of the run, worker, incarnation, sequence), so a test can replay the audit
log afterwards.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from param_servers.checkpoint.files import find_newest, load_checkpoint
from param_servers.config import ExchangeConfig, OptimizerConfig
from param_servers.errors import ParamServersError
from param_servers.exchange import RunStopped
from param_servers.layout import FlatLayout, plan_shards
from param_servers.servers.audit import history, read_audit
from param_servers.servers.client import ServersExchange
from param_servers.servers.server import TERMS_OF_A_LIFE, ParameterServer
from tests.param_servers.servers.replay import replay

SECRET = b"of this test run" * 2
PATIENCE_S = 60.0
_FORK = multiprocessing.get_context("fork")


def gradient_of(numel: int, life: int, worker: int, incarnation: int, sequence: int) -> Tensor:
    """[P] float32, the same wherever it is asked for."""
    seed = ((life * 100 + worker) * 1000 + incarnation) * 100_000 + sequence
    return torch.randn(numel, generator=torch.Generator().manual_seed(seed))


class Run:
    """One run; `stop()` ends it and `check()` compares its end with a replay of its audit log."""

    def __init__(
        self, folder: Path, *, numel: int = 5000, servers: int = 2, workers: int = 3, backup: int = 0, **settings: Any
    ) -> None:
        self.folder, self.numel = folder, numel
        defaults: dict[str, Any] = {
            "exchange": "servers",
            "step_timeout_s": 2.0,
            "join_timeout_s": 30.0,
            "reconnect_timeout_s": 30.0,
            "checkpoint_every_steps": 5,
            "num_workers": workers,
            "num_backup_workers": backup,
            "num_servers": servers,
        }
        self.exchange = ExchangeConfig(**(defaults | settings))
        self.optimizer = OptimizerConfig(optimizer="adam", learning_rate="linear:0.01->0@100000")
        self.plan = plan_shards(FlatLayout.of({"w": (numel,)}), servers)
        self.initial = torch.linspace(-1, 1, numel)
        self.servers: dict[int, BaseProcess] = {}
        self.workers: dict[int, BaseProcess] = {}
        self.life = 0
        self._lives: dict[str, int] = {}

    # -- processes -----------------------------------------------------------------------------------------------

    def start(self, only: list[int] | None = None) -> Run:
        for shard in range(self.plan.num_shards):
            self.start_server(shard)
        for worker in range(self.exchange.num_workers) if only is None else only:
            self.start_worker(worker)
        return self

    def resume(self) -> Run:
        """The next life of a run that was stopped: everybody is new, and counts from 0 again."""
        (self.folder / "stop").unlink()
        for path in self.folder.glob("server-*.json"):
            path.unlink()
        self.life += 1
        self._lives.clear()
        return self.start()

    def start_server(self, shard: int) -> None:
        self.servers[shard] = self._start(self._serve, "server", shard, ())

    def start_worker(self, worker: int, die: tuple[str, int] | None = None) -> None:
        """`die`: ("before" | "during" | "after", sequence of the push)."""
        self.workers[worker] = self._start(self._work, "worker", worker, (die,))

    def _start(self, target: Callable[..., None], role: str, rank: int, arguments: tuple[Any, ...]) -> BaseProcess:
        incarnation = self._lives[f"{role}-{rank}"] = self._lives.get(f"{role}-{rank}", -1) + 1
        process = _FORK.Process(target=self._guarded, args=(target, role, rank, incarnation, *arguments))
        process.start()
        return process

    def _guarded(self, target: Callable[..., str], role: str, rank: int, incarnation: int, *arguments: Any) -> None:
        gc.freeze()  # what other tests left in this process is not ours to clean up: a thread of C++ would abort us
        try:
            target(rank, incarnation, *arguments)
        except ParamServersError as error:
            self._say(role, rank, {"event": "error", "message": f"{type(error).__name__}: {error}"})
            os._exit(3)
        os._exit(0)

    def _serve(self, shard: int, incarnation: int) -> None:
        ParameterServer(
            shard=shard,
            plan=self.plan,
            initial_parameters=self.initial,
            optimizer_config=self.optimizer,
            exchange_config=self.exchange,
            resolve=self.address,
            secret=SECRET,
            incarnation=incarnation,
            publish_address=lambda host, port: self._publish(shard, host, port),
            checkpoint_dir=self.folder / "checkpoints",
            audit_path=self.folder / "audit.jsonl",
            life=self.life,
            should_stop=lambda step, data_points: "asked to" if (self.folder / "stop").exists() else None,
            on_event=lambda event: self._say("server", shard, event),
        ).run()

    def _work(self, worker: int, incarnation: int, die: tuple[str, int] | None) -> None:
        exchange = ServersExchange(
            worker=worker,
            plan=self.plan,
            exchange_config=self.exchange,
            resolve=self.address,
            secret=SECRET,
            incarnation=incarnation,
        )
        sequence = 0
        try:
            while True:
                pull = exchange.pull()
                sequence += 1
                gradient = gradient_of(self.numel, self.life, worker, incarnation, sequence)
                if die is not None and sequence == die[1]:
                    _die(exchange, die[0], gradient, pull.step)
                receipt = exchange.push(gradient, pull.step, data_points=10)
                self._say("worker", worker, {"step": receipt.step, "reason": receipt.reason, "pid": os.getpid()})
        except RunStopped:
            exchange.close()

    # -- the folder ----------------------------------------------------------------------------------------------

    def address(self, shard: int) -> tuple[str, int] | None:
        try:
            host, port = json.loads((self.folder / f"server-{shard}.json").read_text())
            return str(host), int(port)
        except FileNotFoundError:
            return None

    def _publish(self, shard: int, host: str, port: int) -> None:
        temporary = self.folder / f"server-{shard}.tmp"
        temporary.write_text(json.dumps([host, port]))
        temporary.replace(self.folder / f"server-{shard}.json")

    def _say(self, role: str, rank: int, line: dict[str, Any]) -> None:
        with (self.folder / f"{role}-{rank}.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")

    def said(self, role: str, rank: int) -> list[dict[str, Any]]:
        path = self.folder / f"{role}-{rank}.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def messages(self, *words: str) -> list[str]:
        """What servers reported that contains all the words."""
        lines = [line["message"] for shard in self.servers for line in self.said("server", shard)]
        return [line for line in lines if all(word in line for word in words)]

    def audit(self) -> list[dict[str, Any]]:
        path = self.folder / "audit.jsonl"
        return list(read_audit(path)) if path.exists() else []

    def commits(self) -> list[dict[str, Any]]:
        return [line for line in self.audit() if line["kind"] == "commit"]

    # -- waiting and checking ------------------------------------------------------------------------------------

    def until(self, what: str, done: Callable[[], Any], timeout_s: float = PATIENCE_S) -> None:
        """Wait until something is so; never longer than stated."""
        deadline = time.monotonic() + timeout_s
        while not done():
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {timeout_s:g} s: {what}; servers said {self.messages()[-8:]}")
            time.sleep(0.02)

    def more_commits(self, count: int = 5) -> None:
        """Wait for new commits from now on."""
        target = len(self.commits()) + count
        self.until(f"{count} more commits", lambda: len(self.commits()) >= target)

    def commits_with(self, worker: int, incarnation: int, count: int = 3) -> None:
        """Wait until this incarnation of a worker has been counted a few times."""

        def counted() -> bool:
            return sum([worker, incarnation] == m[:2] for line in self.commits() for m in line["members"]) >= count

        self.until(f"worker {worker}.{incarnation} counts", counted)

    def kill(self, process: BaseProcess) -> None:
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join(10)

    def freeze(self, process: BaseProcess) -> None:
        assert process.pid is not None
        os.kill(process.pid, signal.SIGSTOP)

    def wake(self, process: BaseProcess) -> None:
        assert process.pid is not None
        os.kill(process.pid, signal.SIGCONT)

    def stop(self) -> None:
        """Ask the run to end and wait for everybody."""
        (self.folder / "stop").touch()
        for process in [*self.servers.values(), *self.workers.values()]:
            process.join(PATIENCE_S)
            assert process.exitcode is not None, "a process did not end"

    def clean_up(self) -> None:
        for process in [*self.servers.values(), *self.workers.values()]:
            if process.is_alive():
                process.kill()
            process.join(10)

    def check(self) -> None:
        """Each step has g members, and the last checkpoint is, bit by bit, what one process computes from the log."""
        lines = self.audit()
        self._check_members(lines)
        path = find_newest(self.folder / "checkpoints")
        assert path is not None
        checkpoint = load_checkpoint(path)
        counted = history(lines)
        assert len(counted) == checkpoint.step
        expected = replay(self.initial, self.optimizer, counted, lambda *key: gradient_of(self.numel, *key))
        assert torch.equal(checkpoint.parameters, expected)
        assert checkpoint.optimizer_state["step"].item() == checkpoint.step
        assert checkpoint.data_points == 10 * sum(len(line["members"]) for line in counted)

    def _check_members(self, lines: list[dict[str, Any]]) -> None:
        """Each step, those that were undone too, has g members of as many workers. A life of server 0 begins with all
        of g, and says when they are fewer or more."""
        server_0, gradients = (-1, -1), 0
        for line in lines:
            if line["kind"] == "rollback" and (line["life"], line["term"] // TERMS_OF_A_LIFE) > server_0:
                server_0 = line["life"], line["term"] // TERMS_OF_A_LIFE
                gradients = self.exchange.gradients_per_step
            elif line["kind"] in ("shrunk", "grown"):
                gradients = line["num_gradients"]
            elif line["kind"] == "commit":
                workers = {worker for worker, _, _ in line["members"]}
                assert len(workers) == len(line["members"]) == gradients, f"g is {gradients}: {line}"


def _die(exchange: ServersExchange, when: str, gradient: Tensor, step: int) -> None:
    """kill -9 oneself at a point of the push."""
    if when != "before":
        exchange.begin_push(gradient, step, 10)
        exchange._hub.flush()  # what the kernel takes at once: the first part of a large gradient
    if when == "after":
        for _ in range(100):
            exchange._hub.poll(0.01)
            if all(link.idle for link in exchange._hub._links.values()):
                break
    os.kill(os.getpid(), signal.SIGKILL)
