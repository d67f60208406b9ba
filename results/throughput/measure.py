"""Whole training runs beside what the machine can do at most: agent steps of Breakout for a second of a core.

    python results/throughput/measure.py          (about 4 minutes a round, on an idle machine)

In turn, round by round:

    emulator    ALEInterface.act × 4 with random actions: no screen, no vector environment
    matrices    the product of two matrices of 1024 × 1024
    loop        a worker with a lane for each core: no launcher, no monitor
    run         `dba3c train breakout`, as anybody starts it

The first two run on all cores at once. All are counted per second of processor time, which what else a machine does
(a virtual one's host, too) can slow but not take. A core's limit is a raw step and then the multiplications and
additions of the network's forward and backward pass at the rate of the matrices: nothing is observed, copied, stacked,
chosen or optimized. Appends to rows.jsonl, and writes the table of README.md; `page` writes it alone.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import ale_py
import numpy as np
import torch
from gymnasium import spaces
from torch.utils.flop_counter import FlopCounterMode

from dba3c.assembly.model import Spaces, build_model
from dba3c.config import TrainConfig
from dba3c.metrics.reader import whole_run
from dba3c.runs.folder import RunFolder
from dba3c.studies.page import add_row, facts, made_by, markdown, renew, rows_of
from launch.cli.options import parse_train
from launch.local.resources import thread_environment

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from peers.measure import cpu_s

HERE = Path(__file__).resolve().parent
ROWS = HERE / "rows.jsonl"
CORES = os.cpu_count() or 1
WHERE = ("processor", "commit", "date")
CASES = {
    "small, bfloat16, 16 environments a core (the preset)": "--precision bfloat16",
    "nature, bfloat16, 64": f"--network nature --envs-per-worker {64 * CORES} --precision bfloat16",
    "nature, float32, 64": f"--network nature --envs-per-worker {64 * CORES} --precision float32",
}
SECTIONS = ("environment", "inference", "learning", "pushing", "waiting")
FRAME_SKIP = 4
SECONDS, WARM_UP_S, LIMIT_S = 15.0, 8.0, 5.0
START_TIMEOUT_S = END_TIMEOUT_S = 60.0
MATRIX = 1024
BATCH = 64


# -- the limit ---------------------------------------------------------------------------------------------------------


def raw_steps_per_s(seed: int) -> float:
    """Of the emulator in this process."""
    ale = ale_py.ALEInterface()
    ale.setInt("random_seed", seed)
    ale.loadROM(ale_py.roms.get_rom_path("breakout"))
    actions = np.random.default_rng(seed).choice(ale.getMinimalActionSet(), size=10_000)
    steps, started_s = 0, time.process_time()
    while time.process_time() < started_s + LIMIT_S:
        for action in actions[:500]:
            for _ in range(FRAME_SKIP):
                ale.act(action)
            if ale.game_over():
                ale.reset_game()
        steps += 500
    return steps / (time.process_time() - started_s)


def flop_per_s(precision: str) -> float:
    """Of matrices of this precision on one thread; the best product, since others' work can only slow it."""
    torch.set_num_threads(1)
    a = torch.randn(MATRIX, MATRIX, dtype=getattr(torch, precision))
    took_s, until_s = [], time.process_time() + LIMIT_S / 2
    while time.process_time() < until_s:
        started_s = time.process_time()
        a @ a
        took_s.append(time.process_time() - started_s)
    return float(2 * MATRIX**3 / min(took_s))


def flop_per_step(config: TrainConfig) -> float:
    """Forward and backward pass of the network, for one observation."""
    model = build_model(config, Spaces(spaces.Box(0, 255, (4, 84, 84), np.uint8), spaces.Discrete(4)))
    model.network.load(model.parameters)
    with FlopCounterMode(display=False) as counter:
        output = model.network.forward(np.zeros((BATCH, 4, 84, 84), np.uint8), ())
        (output.value.sum() + output.policy_logits.sum()).backward()
    return counter.get_total_flops() / BATCH


# -- training ----------------------------------------------------------------------------------------------------------


def loop(words: Sequence[str]) -> dict[str, Any]:
    """A worker by itself."""
    with temporary() as path:
        config = parse_train(["breakout", *words, "--metrics-window-s", "0.5"]).config(CORES)
        with RunFolder.create(path, config.to_json()) as folder:
            command = ["-m", "launch.role", "--run-dir", str(path), "--role", "worker"]
            environ = {**os.environ, **thread_environment(1, os.environ)}  # as its launcher would start it
            process = subprocess.Popen([sys.executable, *command], stdout=subprocess.DEVNULL, env=environ)
            return measured(process, folder, lambda: folder.request_stop("measured long enough"))


def run(
    words: Sequence[str], first: str = "worker", told: Callable[[RunFolder], dict[str, Any]] = lambda folder: {}
) -> dict[str, Any]:
    """All of what a user starts, `measured`; and what is `told` of its folder at the end."""
    with temporary() as path:
        command = ["-m", "launch", "train", "breakout", *words, "--metrics-window-s", "0.5", "--run-dir", str(path)]
        process = subprocess.Popen([sys.executable, *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        folder = RunFolder(path)
        return measured(process, folder, lambda: process.send_signal(signal.SIGINT), first) | told(folder)


@contextlib.contextmanager
def temporary() -> Iterator[Path]:
    """Where a run's folder will be."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder) / "run"


def measured(process: subprocess.Popen[bytes], folder: RunFolder, stop: Any, first: str = "worker") -> dict[str, Any]:
    """Agent steps/s and per second of a core, cores in use, and shares of the lanes' time, for SECONDS after a warm-up,
    which begins with what the role `first` records first.

    Raises TimeoutError: no step in time, or no end.
    """
    try:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while not any(file.stat().st_size for file in folder.metrics.glob(f"{first}-*.jsonl")):
            if process.poll() is not None:
                raise TimeoutError(f"{process.args} ended before its first step, with exit code {process.returncode}")
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"no step within {START_TIMEOUT_S:.0f} s of {process.args}")
            time.sleep(0.1)
        time.sleep(WARM_UP_S)
        start_s, used_s = time.time(), cpu_s(process.pid)
        time.sleep(SECONDS)
        end_s, used_s = time.time(), cpu_s(process.pid) - used_s
        stop()
        process.wait(END_TIMEOUT_S)
    finally:
        process.kill()
    steps = [record for record in whole_run(folder) if record["kind"] == "step" and "agent_steps" in record]
    steps = [record for record in steps if start_s < record["time_s"] <= end_s]
    spent_s: dict[str, float] = defaultdict(float)
    for record in steps:
        for section, seconds in record["sections_s"].items():
            spent_s[section] += seconds
    lasted_s, agent_steps = end_s - start_s, sum(record["agent_steps"] for record in steps)
    return {
        "agent_steps_per_s": round(agent_steps / lasted_s, 1),
        "per_core_s": round(agent_steps / used_s, 1),
        "cores": round(used_s / lasted_s, 3),
        "sections": {name: round(seconds / sum(spent_s.values()), 3) for name, seconds in spent_s.items()},
    }


# -- all of it ---------------------------------------------------------------------------------------------------------


def one_round() -> dict[str, Any]:
    """Limits and cases, in turn."""
    with get_context("spawn").Pool(CORES) as pool:
        raw = pool.map(raw_steps_per_s, range(CORES))
        rates = {name: pool.map(flop_per_s, [name] * CORES) for name in ("bfloat16", "float32")}
    row: dict[str, Any] = {"raw_steps_per_s": raw, "flop_per_s": rates, "cases": {}}
    for case, words in CASES.items():
        config = parse_train(["breakout", *words.split()]).config(CORES)
        flop, flop_s = flop_per_step(config), rates[config.network.precision]
        limit = statistics.mean(1 / (1 / steps + flop / rate) for steps, rate in zip(raw, flop_s, strict=True))
        found = {"loop": loop(words.split()), "run": run(words.split())}
        row["cases"][case] = {"flop_per_step": flop, "limit": round(limit, 1), **found}
        print(case, json.dumps(row["cases"][case]), flush=True)
    return row


def write_page(made: str) -> None:
    """Medians of the newest rounds, those of one processor, commit and day, and of ratios within rounds."""
    rows = rows_of(ROWS)
    rows = [row for row in rows if all(row.get(name) == rows[-1].get(name) for name in WHERE)]
    cells = []
    for case in rows[-1]["cases"]:
        mine = [row["cases"][case] for row in rows]
        rates = {way: [each[way]["per_core_s"] for each in mine] for way in ("loop", "run")}
        limits = [each["limit"] for each in mine]
        of_limit, of_loop = ([rate / most for rate, most in zip(rates["run"], other, strict=True)]
                             for other in (limits, rates["loop"]))  # fmt: skip
        cells.append([
            case, f"{mine[-1]['flop_per_step'] / 1e6:.0f}", spread(limits), spread(rates["loop"]), spread(rates["run"]),
            f"{statistics.median(of_limit):.0%}", f"{statistics.median(of_loop):.1%}",
            spread([1e6 / FRAME_SKIP / rate for rate in rates["run"]]),
            spread([each["run"]["agent_steps_per_s"] for each in mine]),
            f"{statistics.median(each['run']['cores'] for each in mine):.2f}",
        ])  # fmt: skip
    header = ["network, precision, environments a core", "MFLOP a step", "limit", "loop", "run", "of the limit"]
    more = ["run / loop", "core-seconds per million frames", "run, agent steps/s", "cores in use"]
    table = markdown([*header, *more], cells)
    machine = [
        ("ALEInterface.act × 4, steps per second", spread([statistics.mean(row["raw_steps_per_s"]) for row in rows])),
        *(
            (f"{name}, GFLOP/s", spread([statistics.mean(row["flop_per_s"][name]) / 1e9 for row in rows]))
            for name in ("bfloat16", "float32")
        ),
        ("rounds", str(len(rows))),
    ]
    sections = [
        [case, *(f"{found['run']['sections'][name]:.0%}" for name in SECTIONS)]
        for case, found in rows[-1]["cases"].items()
    ]
    spent = markdown(["a lane's time", *SECTIONS], sections)
    tables = (table, markdown(["a core of this machine", ""], machine), spent)
    renew(HERE / "README.md", made, *tables)


def spread(values: Sequence[float]) -> str:
    """The median, and from where to where."""
    middle = f"{statistics.median(values):,.0f}"
    return middle if len(values) == 1 else f"{middle} ({min(values):,.0f} to {max(values):,.0f})"


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("page",))
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    made = facts("python results/throughput/measure.py")
    where = made["host"]["processor"], made["source"].get("commit"), made["date"]
    for _ in range(0 if options.what else options.rounds):
        add_row(ROWS, {**one_round(), **dict(zip(WHERE, where, strict=True))})
    write_page("" if options.what else made_by(made))


if __name__ == "__main__":
    main()
