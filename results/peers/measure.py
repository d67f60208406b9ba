"""Other systems' whole training loops beside ours, on the same cores: agent steps/s of Breakout, in turn.

    python results/peers/measure.py speed --cleanrl DIR      (30 minutes on an idle machine of 2 cores)
    python results/peers/measure.py page                     writes the tables of README.md from rows.jsonl

Virtual environments are made under --venvs (default ~/.cache/dba3c/peers), with the pinned versions of VENVS. DIR is a
checkout of CleanRL, which is no package: https://github.com/vwxyzjn/cleanrl (its ppo_atari_envpool.py is as it was on
2023-11-27, 35896b1f). All play 84×84×4 gray frames, frame skip 4, sticky actions off, a lost life ends an episode,
rewards clipped, with the network of Nature 2015 where nothing else is said, and the hyperparameters that their authors
recommend for Atari.

A row is one run: agent steps/s of its last SECONDS, after WARM_UP_S, and the private memory of all of its processes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from dba3c.errors import UserError
from dba3c.studies.page import add_row, facts, made_by, markdown, renew, rows_of

HERE = Path(__file__).resolve().parent
ROWS = HERE / "rows.jsonl"
SECONDS, WARM_UP_S, START_S = 25.0, 10.0, 300.0
TORCH = "torch==2.13.0"
VENVS = {
    "cleanrl": (TORCH, "envpool==0.8.4", "gym==0.23.1", "numpy==1.26.4", "tyro==1.0.17", "tensorboard==2.21.0"),
    "sb3": (TORCH, "stable-baselines3==2.7.1", "ale-py==0.12.1", "opencv-python-headless==5.0.0.93"),
    "sample_factory": (TORCH, "sample-factory==2.1.1", "ale-py==0.10.1", "opencv-python-headless==4.11.0.86"),
    "rllib": (TORCH, "ray[rllib]==2.60.0", "ale-py==0.12.1", "opencv-python-headless==5.0.0.93"),
}
"""Virtual environments, and what is installed into them (rows of 25 November: before numpy, tyro, tensorboard and
OpenCV were pinned)."""
FOREVER = "100000000"


@dataclass(frozen=True)
class Peer:
    """One row's system: how it is started, and how its output tells agent steps.

    `counts`: a pattern of a line whose first group is the number of agent steps (× `scale`) so far.
    """

    words: tuple[str, ...]
    venv: str = ""
    counts: str = r"^steps (\d+)"
    scale: float = 1.0


BF16, FLOAT32 = ("--precision", "bfloat16"), ("--precision", "float32")
NATURE = ("--network", "nature", "--envs-per-worker", "128")


def peers(cleanrl: Path, game: str = "Breakout", seed: int = 1) -> dict[str, Peer]:
    """By name, in the order of the table. What has no virtual environment is ours, and plays Breakout."""
    envpool = (
        str(cleanrl / "cleanrl" / "ppo_atari_envpool.py"), "--no-cuda", "--total-timesteps", FOREVER,
        "--env-id", f"{game}-v5", "--seed", str(seed),
    )  # fmt: skip
    its = (game, FOREVER, str(seed))
    told = r"global_step=(\d+)"
    ours = ("-m", "launch", "train", "breakout", "--track", "--metrics-window-s", "1", "--run-dir", "RUN")
    frames = r" frames ([\d,]+) "
    return {
        "ours, small network, bf16, 160 samples": Peer((*ours, *BF16), counts=frames, scale=0.25),
        "ours, small network, float32, 160 samples": Peer((*ours, *FLOAT32), counts=frames, scale=0.25),
        "ours, Nature, bf16, 64 environments a core": Peer((*ours, *NATURE, *BF16), counts=frames, scale=0.25),
        "ours, Nature, float32, 64 environments a core": Peer(
            (*ours, *NATURE, *FLOAT32), counts=frames, scale=0.25
        ),
        "CleanRL PPO + EnvPool, 1 epoch": Peer((*envpool, "--update-epochs", "1"), "cleanrl", told),
        "CleanRL PPO + EnvPool (4 epochs)": Peer(envpool, "cleanrl", told),
        "Stable-Baselines3 A2C": Peer((str(HERE / "run_sb3.py"), "a2c", *its), "sb3"),
        "Stable-Baselines3 PPO (4 epochs)": Peer((str(HERE / "run_sb3.py"), "ppo", *its), "sb3"),
        "Sample Factory APPO": Peer(
            (
                str(HERE / "run_sample_factory.py"), f"--env=atari_{game.lower()}", f"--seed={seed}",
                "--experiment=run", "--train_dir=RUN",
                "--device=cpu", "--num_workers=2", "--num_envs_per_worker=8", "--batch_size=512",
                f"--train_for_env_steps={FOREVER}",
            ),
            "sample_factory", r"Total num frames: (\d+)", 0.25,
        ),
        "RLlib IMPALA": Peer((str(HERE / "run_rllib.py"), "impala", *its), "rllib"),
        "RLlib PPO (4 epochs)": Peer((str(HERE / "run_rllib.py"), "ppo", *its), "rllib"),
    }  # fmt: skip


def python_of(venv: str, venvs: Path) -> str:
    """Of a virtual environment, which is made where it is not there."""
    if not venv:
        return sys.executable
    python, done = venvs / venv / "bin" / "python", venvs / venv / "installed"
    if not done.exists():
        print(f"making {venvs / venv}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(venvs / venv)], check=True)
        for words in VENVS[venv][:1], VENVS[venv]:
            subprocess.run([str(python), "-m", "pip", "install", "--quiet", *words], check=True)
        done.touch()
    return str(python)


def run(peer: Peer, venvs: Path) -> dict[str, float]:
    """One row's figures.

    Raises:
        UserError: it ended, or told no steps in time; with the last words of its output.
    """
    told: list[tuple[float, float]] = []

    def hear(line: str) -> None:
        found = re.search(peer.counts, line)
        if found and (steps := float(found.group(1).replace(",", ""))):
            told.append((time.monotonic(), peer.scale * steps))

    with started(peer, venvs, hear) as processes:
        begun_s = time.monotonic()
        while not told or time.monotonic() - told[0][0] < WARM_UP_S + SECONDS:
            processes.check(late=not told and time.monotonic() - begun_s > START_S)
            time.sleep(0.2)
        return {"agent_steps_per_s": round(rate(told), 1), "private_mb": round(private_mb(processes.pid))}


class Processes:
    """A system that was started, and what it last said."""

    def __init__(self, process: subprocess.Popen[str], hear: Callable[[str], None]) -> None:
        self._process, self._lines = process, deque[str](maxlen=30)
        self._reader = threading.Thread(target=self._read, args=(hear,), daemon=True)
        self._reader.start()
        self.pid = process.pid

    def _read(self, hear: Callable[[str], None]) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.append(line)
            hear(line)

    def check(self, late: bool = False) -> None:
        """Raises UserError when it has ended, or is `late`; with the last words of its output."""
        if late or self._process.poll() is not None:
            self._reader.join(5.0)
            raise UserError("".join(self._lines) or f"no steps within {START_S:g} s")


@contextlib.contextmanager
def started(peer: Peer, venvs: Path, hear: Callable[[str], None]) -> Iterator[Processes]:
    """A system whose every line `hear` is told; its processes end with the block."""
    folder = tempfile.mkdtemp()
    ours = {"PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        [python_of(peer.venv, venvs), *(word.replace("RUN", f"{folder}/run") for word in peer.words)],
        cwd=folder if peer.venv else None,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
        env={**os.environ, **ours, **({"PYTHONPATH": str(HERE), "RAY_DEDUP_LOGS": "0"} if peer.venv else {})},
    )
    try:
        yield Processes(process, hear)
    finally:
        for sent, wait_s in ((signal.SIGINT, 10.0), (signal.SIGKILL, 5.0)):
            try:
                os.killpg(process.pid, sent)
                process.wait(wait_s)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue
        shutil.rmtree(folder, ignore_errors=True)


def rate(told: list[tuple[float, float]]) -> float:
    """Steps per second between the first and the last word of the last SECONDS."""
    late = [each for each in told if each[0] >= told[-1][0] - SECONDS]
    (first_s, first), (last_s, last) = late[0], late[-1]
    if last_s <= first_s:
        raise UserError(f"steps were told only once in {SECONDS:g} s")
    return (last - first) / (last_s - first_s)


def private_mb(pid: int) -> float:
    """Of a process and its descendants."""
    processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    return sum(each.memory_full_info().uss for each in processes if each.is_running()) / 1e6


def cpu_s(pid: int) -> float:
    """Processor time of a process and its descendants: what has ended is counted by who waited for it."""
    total_s = 0.0
    with contextlib.suppress(psutil.NoSuchProcess):
        for process in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                total_s += sum(process.cpu_times()[:4])  # user, system, and both of its children
    return total_s


def speed(options: argparse.Namespace, where: Mapping[str, Any]) -> None:
    """Appends the rows that are missing of this machine, round by round; our own are measured at each commit."""

    def key(row: Mapping[str, Any]) -> tuple[Any, ...]:
        return row["processor"], row["round"], row["system"], row["system"].startswith("ours") and row["commit"]

    done = {key(row) for row in rows_of(ROWS)}
    until_s = time.monotonic() + options.seconds
    for number in range(options.rounds):
        for name, peer in peers(options.cleanrl).items():
            row = {"round": number, "system": name, **where}
            if key(row) in done or (options.only and not re.search(options.only, name)):
                continue
            if time.monotonic() > until_s:
                print("the same command goes on from here")
                return
            try:
                found = run(peer, options.venvs)
            except UserError as error:
                print(f"{name}: {error}", file=sys.stderr)
                continue
            row |= {**found, "cores": len(os.sched_getaffinity(0))}
            print(json.dumps(row), flush=True)
            add_row(ROWS, row)


def page() -> None:
    """The table, of the newest row's processor: medians of the turns (a round at one commit) in which the fastest other
    ran too, and of the ratios to it in them."""
    newest = rows_of(ROWS)[-1]
    here = [row for row in rows_of(ROWS) if row["processor"] == newest["processor"]]
    others = [row for row in here if not row["system"].startswith("ours")]
    if not others or len(here) == len(others):
        print("the page stays as it is until ours and others are measured on this processor")
        return
    fastest = max(others, key=lambda row: row["agent_steps_per_s"])["system"]
    base = {turn(row): row["agent_steps_per_s"] for row in here if row["system"] == fastest}
    rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
    shown = [row for row in here if turn(row) in base]
    for row in shown:
        rows[row["system"]].append(row)
    table = []
    for name, mine in rows.items():
        rates = [row["agent_steps_per_s"] for row in mine]
        ratios = [row["agent_steps_per_s"] / base[turn(row)] for row in mine]
        memory = max(row["private_mb"] for row in mine)
        line = [name, str(len(rates)), *told(rates, ",.0f"), *told(ratios, ".2f"), f"{memory:,.0f}"]
        table.append((statistics.median(rates), line))
    speeds, ratios_told = ("agent steps/s", "from … to"), ("× the fastest other", "ratios from … to")
    head = ["system", "rounds", *speeds, *ratios_told, "private memory, MB"]
    renew(HERE / "README.md", shown[-1]["made"], markdown(head, [line for _, line in sorted(table, reverse=True)]))


def turn(row: Mapping[str, Any]) -> tuple[str, int]:
    """What ran one after the other."""
    return row["commit"], row["round"]


def told(values: list[float], how: str) -> tuple[str, str]:
    """(median, range)."""
    return format(statistics.median(values), how), f"{min(values):{how}} to {max(values):{how}}"


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("speed", "page"))
    parser.add_argument("--cleanrl", type=Path, default=Path("cleanrl"), help="a checkout of CleanRL")
    parser.add_argument("--venvs", type=Path, default=Path.home() / ".cache" / "dba3c" / "peers")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="a pattern of names")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no further run after so many")
    options = parser.parse_args()
    if options.what == "speed":
        now = facts("python results/peers/measure.py speed --cleanrl DIR")
        where = {
            "processor": now["host"]["processor"],
            "commit": str(now["source"].get("commit", "unknown"))[:12],
            "made": made_by(now),
        }
        speed(options, where)
    page()


if __name__ == "__main__":
    main()
