"""What of a machine's processors a process has used, with the programs that it started."""

import multiprocessing
import shutil
import subprocess
import sys
import time
from contextlib import closing

import numpy as np

from dba3c.environments.config import EnvironmentConfig
from dba3c.environments.factory import make_vector_environment
from dba3c.metrics.processor_time import ProcessorTime
from dba3c.runs.lock import process_started

GIVE_UP_S = 60.0


def taken_until(processor_time: ProcessorTime, least_s: float) -> None:
    """Beside what this process needs itself."""
    total_s, own_s, deadline_s = 0.0, time.process_time(), time.monotonic() + GIVE_UP_S
    while (total_s := total_s + processor_time.take()) - (time.process_time() - own_s) < least_s:
        assert time.monotonic() < deadline_s, f"{total_s} s are counted"
        time.sleep(0.05)


def test_a_program_that_was_started_counts_and_so_does_what_it_starts():
    processor_time = ProcessorTime()
    busy = subprocess.Popen(["/bin/sh", "-c", f"{sys.executable} -c 'while True: pass' & wait"], start_new_session=True)
    try:
        taken_until(processor_time, least_s=1.0)
    finally:
        subprocess.run(["pkill", "-KILL", "-s", str(busy.pid)], check=True)
        busy.wait(timeout=GIVE_UP_S)


def test_a_program_whose_name_is_cut_within_a_letter_counts(tmp_path):
    engine = shutil.copy(sys.executable, tmp_path / "симулятор")  # 18 bytes, of which the kernel keeps 15
    processor_time = ProcessorTime()
    busy = subprocess.Popen([engine, "-S", "-c", "while True: pass"], env={"PYTHONHOME": sys.base_prefix})
    try:
        taken_until(processor_time, least_s=0.1)
        assert process_started(busy.pid)
    finally:
        busy.kill()
        busy.wait(timeout=GIVE_UP_S)


def test_a_lane_does_not_count_for_it_writes_down_its_own():
    processor_time, taken_s = ProcessorTime(), 0.0
    lane = multiprocessing.get_context("fork").Process(target=burn, args=(1.0,), name="lane-1", daemon=True)
    lane.start()
    while lane.is_alive():
        taken_s += processor_time.take()
        lane.join(0.5)
    assert lane.exitcode == 0 and taken_s + processor_time.take() < 0.5


def burn(seconds: float) -> None:
    while time.process_time() < seconds:
        pass


def test_an_environment_in_a_process_of_its_own_counts():
    config = EnvironmentConfig(env_id="CartPole-v1", environment_processes=True)
    with closing(make_vector_environment(config, 2, seed=1)) as envs:
        envs.reset()
        processor_time, played_s, here_s = ProcessorTime(), 0.0, time.process_time()
        deadline_s = time.monotonic() + GIVE_UP_S
        while played_s <= 1.2 * (time.process_time() - here_s) + 0.1:
            assert time.monotonic() < deadline_s
            for _ in range(200):
                envs.step(np.zeros(2, np.int64))
            played_s += processor_time.take()
