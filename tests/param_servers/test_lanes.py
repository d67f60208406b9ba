"""Lanes: one gradient of several processes, and what happens when one of them is gone. The processes are real.

That the exchanges agree with one process whatever lanes a worker has is in test_modes_agree.py.
"""

import gc
import os
import signal
import time
from multiprocessing import active_children
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import torch

from param_servers import lanes
from param_servers.config import ExchangeConfig, OptimizerConfig
from param_servers.errors import ConfigError, LaneLost, RunStopped
from param_servers.lanes import ALONE, run_in_lanes
from param_servers.layout import FlatLayout
from param_servers.replica import LocalExchange
from param_servers.timeouts import Timeouts
from tests.waiting import wait_until

NUMEL = 10
TIMEOUTS = Timeouts(step_timeout_s=20)
SGD = OptimizerConfig(optimizer="sgd", learning_rate="1")


def local(stop_at=3):
    return LocalExchange(
        layout=FlatLayout.of({"all": (NUMEL,)}),
        initial_parameters=torch.zeros(NUMEL),
        optimizer_config=SGD,
        exchange_config=ExchangeConfig(exchange="local"),
        should_stop=lambda step, data_points: "enough" if step >= stop_at else None,
    )


def loop(exchange, gradient):
    """Push the same until the run is over; (its reason, the steps that were pulled, the receipts)."""
    steps, receipts = [], []
    try:
        while True:
            pulled = exchange.pull()
            steps.append(pulled.step)
            receipts.append(exchange.push(gradient, pulled.step, 2))
    except RunStopped as stopped:
        return stopped.reason, steps, receipts


def test_every_lane_sees_the_same_steps_receipts_and_end(tmp_path: Path):
    def main(lane):
        exchange = lane.exchange(local, NUMEL)
        reason, steps, receipts = loop(exchange, torch.full((NUMEL,), lane.index + 1.0))
        said = f"{reason} {steps} {[(receipt.accepted, receipt.step) for receipt in receipts]}"
        (tmp_path / str(lane.index)).write_text(said)
        return reason

    assert run_in_lanes(3, main, timeouts=TIMEOUTS) == "enough"
    expected = "enough [0, 1, 2] [(True, 1), (True, 2), (True, 3)]"
    assert [(tmp_path / str(lane)).read_text() for lane in range(3)] == [expected] * 3


def test_the_update_is_of_the_mean_and_all_data_points_are_counted():
    def main(lane):
        exchange = lane.exchange(lambda: local(stop_at=9), NUMEL)
        for _ in range(2):
            pulled = exchange.pull()
            exchange.push(torch.arange(NUMEL) + lane.index * 10.0, pulled.step, lane.index + 1)
        pulled = exchange.pull()
        assert torch.equal(pulled.parameters, -2 * (torch.arange(NUMEL) + 15.0))
        return str(pulled.data_points)

    assert run_in_lanes(4, main, timeouts=TIMEOUTS) == str(2 * (1 + 2 + 3 + 4))


def test_a_gradient_that_is_part_of_a_graph_is_as_good_as_its_values():
    def main(lane):
        exchange = lane.exchange(lambda: local(stop_at=9), NUMEL)
        exchange.push(torch.ones(NUMEL, requires_grad=True) * 2, exchange.pull().step, 1)
        return str(exchange.pull().parameters.tolist() == [-2.0] * NUMEL)

    assert run_in_lanes(2, main, timeouts=TIMEOUTS) == "True"


def test_pulled_parameters_stay_what_they_are_until_the_lane_itself_pulls_again(tmp_path: Path):
    def main(lane):
        exchange = lane.exchange(lambda: local(stop_at=9), NUMEL)
        pulled = exchange.pull()
        for step in range(3):
            exchange.push(torch.ones(NUMEL), pulled.step, 1)
            if lane.index == 0:
                pulled = exchange.pull()
                (tmp_path / str(step)).touch()
            else:
                wait_until((tmp_path / str(step)).exists, "lane 0 has pulled the next ones")
                assert torch.equal(pulled.parameters, torch.full((NUMEL,), -float(step)))
                pulled = exchange.pull()
        return "done"

    assert run_in_lanes(2, main, timeouts=TIMEOUTS) == "done"


def test_the_lanes_behind_one_that_is_gone_hear_of_the_end_too(tmp_path: Path):
    def main(lane):
        exchange = lane.exchange(lambda: local(stop_at=1), NUMEL)
        exchange.push(torch.ones(NUMEL), exchange.pull().step, 1)
        if lane.index == 0:
            wait_until(lambda: "lane-1" not in [each.name for each in active_children()], "lane 1 is gone")
        if lane.index != 1:
            (tmp_path / str(lane.index)).write_text(loop(exchange, torch.ones(NUMEL))[0])
        return "done"

    assert run_in_lanes(3, main, timeouts=TIMEOUTS) == "done"
    assert [(tmp_path / lane).read_text() for lane in "02"] == ["enough"] * 2


@pytest.mark.parametrize("bad", [torch.full((NUMEL,), float("nan")), torch.ones(1), torch.ones(NUMEL - 1)])
@pytest.mark.parametrize("whose", [0, 1])
def test_a_gradient_that_is_not_finite_or_of_another_length_is_refused_in_every_lane(bad, whose):
    def main(lane):
        exchange = lane.exchange(local, NUMEL)
        pulled = exchange.pull()
        receipt = exchange.push(bad if lane.index == whose else torch.ones(NUMEL), pulled.step, 1)
        assert (receipt.accepted, receipt.reason) == (False, "non-finite")
        return "done"

    assert run_in_lanes(2, main, timeouts=TIMEOUTS) == "done"


def test_numbers_are_added_over_all_lanes():
    def main(lane):
        assert lane.total((lane.index, 0.5)) == [3.0, 1.5]
        return "done"

    assert run_in_lanes(3, main, timeouts=TIMEOUTS) == "done"
    assert ALONE.total((7.0,)) == [7.0]


def first_lane_hears(other, tmp_path, timeouts=TIMEOUTS):
    """What lane 0 of two raises when `other(exchange)` is what lane 1 does after a pull."""
    pid = tmp_path / "1"

    def main(lane):
        (tmp_path / str(lane.index)).write_text(str(os.getpid()))
        wait_until(lambda: pid.exists() and pid.read_text(), "lane 1, whose silence counts from lane 0's push on")
        exchange = lane.exchange(lambda: local(stop_at=1000), NUMEL)
        pulled = exchange.pull()
        if lane.index == 1:
            other(exchange)
        exchange.push(torch.ones(NUMEL), pulled.step, 1)
        return "went on"

    with pytest.raises(LaneLost) as lost:
        run_in_lanes(2, main, timeouts=timeouts)
    return str(lost.value)


def test_a_killed_lane_is_named_with_its_signal(tmp_path: Path):
    line = first_lane_hears(lambda exchange: os.kill(os.getpid(), signal.SIGKILL), tmp_path)
    assert line == "lane 1 died (exit code -9)"


def test_a_lane_that_raises_is_named_with_its_reason(tmp_path: Path):
    def fail(exchange):
        raise ArithmeticError("a game that cannot count")

    assert first_lane_hears(fail, tmp_path) == "lane 1 failed: ArithmeticError: a game that cannot count"


@pytest.mark.parametrize("pulls", ["unread", "unsent"])
def test_a_lane_that_fails_between_two_pulls_is_named_with_its_reason(tmp_path: Path, pulls):
    """As in PPO, where lane 0 pulls again before it hears of the others."""

    def main(lane):
        exchange = lane.exchange(lambda: local(stop_at=1000), NUMEL)
        if lane.index:
            if pulls == "unsent":
                exchange.pull()
                (tmp_path / "pulled").touch()
            else:
                wait_until((tmp_path / "told").exists, "lane 0 has told its pull")
            raise ArithmeticError("a game that cannot count")
        exchange.pull()
        if pulls == "unsent":
            wait_until((tmp_path / "pulled").exists, "lane 1 has pulled")
            wait_until(lambda: "lane-1" not in [lane.name for lane in active_children()], "lane 1 is gone")
            exchange.pull()
        (tmp_path / "told").touch()
        lane.total([1.0])
        return "went on"

    with pytest.raises(LaneLost) as lost:
        run_in_lanes(2, main, timeouts=TIMEOUTS)
    assert str(lost.value) == "lane 1 failed: ArithmeticError: a game that cannot count"


@pytest.mark.parametrize("reason", ["file \udcff", "xx" + "é" * 40_000])
def test_a_lane_s_reason_is_told_whatever_characters_it_has_and_however_many(tmp_path: Path, reason):
    def fail(exchange):
        raise ArithmeticError(reason)

    assert first_lane_hears(fail, tmp_path).startswith(f"lane 1 failed: ArithmeticError: {reason[:4]}")


def test_a_silent_lane_is_named_within_the_step_timeout_and_killed(tmp_path: Path):
    line = first_lane_hears(lambda exchange: signal.pause(), tmp_path, Timeouts(step_timeout_s=1))
    assert line == "lane 1 has been silent for 1 s"
    assert not Path(f"/proc/{(tmp_path / '1').read_text()}").exists()


def test_all_lanes_together_have_the_step_timeout_of_one(tmp_path: Path):
    def main(lane):
        exchange = lane.exchange(lambda: local(stop_at=1000), NUMEL)
        pulled = exchange.pull()
        if lane.index:
            wait_until((tmp_path / "pushes").exists, "lane 0 waits")
            time.sleep((0.0, 3.0, 6.5)[lane.index])  # not for a condition: each is within 4 s of the one before
        (tmp_path / "pushes").touch()
        exchange.push(torch.ones(NUMEL), pulled.step, 1)
        return "went on"

    with pytest.raises(LaneLost, match="has been silent for 4 s"):
        run_in_lanes(3, main, timeouts=Timeouts(step_timeout_s=4))


def test_lanes_need_nothing_that_a_python_built_for_an_old_libc_lacks(monkeypatch: pytest.MonkeyPatch):
    for name in [name for name in vars(os) if name.startswith(("memfd_", "MFD_"))]:
        monkeypatch.delattr(os, name)
    assert run_in_lanes(2, lambda lane: str(lane.exchange(local, NUMEL).pull().step), timeouts=TIMEOUTS) == "0"


def test_lanes_that_hang_at_the_end_are_waited_for_together(monkeypatch: pytest.MonkeyPatch):
    def main(lane):
        if lane.index:
            signal.pause()
        return "done"

    waits_s: dict[int, float] = {}  # the first for each lane
    join = BaseProcess.join

    def noted(process: BaseProcess, timeout: float | None = None) -> None:
        waits_s.setdefault(process.pid, timeout)
        join(process, timeout)

    monkeypatch.setattr(lanes, "CLOSE_S", 3.0)
    monkeypatch.setattr(BaseProcess, "join", noted)
    assert run_in_lanes(12, main, timeouts=TIMEOUTS) == "done"
    assert len(waits_s) == 11 and sum(waits_s.values()) <= 3.0


def test_lanes_die_with_lane_0(tmp_path: Path):
    def main(lane):
        exchange = lane.exchange(lambda: local(stop_at=1000), NUMEL)
        exchange.pull()
        (tmp_path / str(lane.index)).write_text(str(os.getpid()))
        if lane.index == 0:
            files = [tmp_path / "1", tmp_path / "2"]
            wait_until(lambda: all(file.exists() and file.read_text() for file in files), "the others' pids")
            os.kill(os.getpid(), signal.SIGKILL)
        signal.pause()  # as one that hangs in its game does
        return ""

    worker = os.fork()
    if not worker:
        try:
            run_in_lanes(3, main, timeouts=TIMEOUTS)
        finally:  # nothing of a test goes on in a fork
            os._exit(1)
    assert os.waitpid(worker, 0)[1] == signal.SIGKILL
    for lane in (1, 2):  # orphans come to this process, the nearest subreaper
        pid = int((tmp_path / str(lane)).read_text())
        assert os.waitpid(pid, 0) == (pid, signal.SIGKILL)


def test_memory_that_cannot_be_had_is_refused_with_the_arithmetic(monkeypatch: pytest.MonkeyPatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(ConfigError) as refused:
        run_in_lanes(2, lambda lane: str(lane.exchange(local, 1_000_000)), timeouts=TIMEOUTS)
    assert "2 lanes share 2 + 2 + 1 times 4.0 MB = 20 MB" in str(refused.value)


def test_a_killed_lane_is_noticed_at_once_though_a_fork_of_its_lives_on(tmp_path: Path) -> None:
    def main(lane):
        if lane.index == 1:
            helper = os.fork()
            if not helper:
                signal.pause()
            (tmp_path / "helper").write_text(str(helper))
            os.kill(os.getpid(), signal.SIGKILL)
        return lane.total([1.0])[0]

    try:
        with pytest.raises(LaneLost, match=r"^lane 1 died \(exit code -9\)$"):
            run_in_lanes(2, main, timeouts=TIMEOUTS)
    finally:
        os.kill(int((tmp_path / "helper").read_text()), signal.SIGKILL)


def test_what_lane_0_raises_ends_the_others():
    def main(lane):
        exchange = lane.exchange(local, NUMEL)
        exchange.pull()
        if lane.index == 0:
            raise ValueError("its own trouble")
        exchange.push(torch.ones(NUMEL), 0, 1)
        return ""

    with pytest.raises(ValueError, match="its own trouble"):
        run_in_lanes(3, main, timeouts=TIMEOUTS)


def test_the_process_that_ran_lanes_is_left_as_it_was() -> None:
    threads, affinity, frozen = torch.get_num_threads(), os.sched_getaffinity(0), gc.get_freeze_count()
    torch.set_num_threads(3)

    def main(lane):
        lane.exchange(local, NUMEL).close()
        return str(os.sched_getaffinity(0))

    try:
        said = run_in_lanes(2, main, timeouts=TIMEOUTS, cores=[min(affinity)] * 2)
        gc.collect()
        assert "memfd:lanes" not in Path("/proc/self/maps").read_text()
        assert said == str({min(affinity)})
        assert (torch.get_num_threads(), os.sched_getaffinity(0), gc.get_freeze_count()) == (3, affinity, frozen)
    finally:
        torch.set_num_threads(threads)


def test_a_lane_hears_sigterm_as_its_worker_does_whatever_the_worker_s_other_forks_do(tmp_path: Path) -> None:
    def main(lane):
        signal.raise_signal(signal.SIGTERM)
        return lane.total([1.0])[0]

    def note(signum, frame):
        (tmp_path / str(os.getpid())).touch()

    worker = os.fork()
    if not worker:  # what is done after forks cannot be taken back
        try:
            os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))
            signal.signal(signal.SIGTERM, note)
            os._exit(int(run_in_lanes(2, main, timeouts=TIMEOUTS)))
        finally:
            os._exit(99)
    assert os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]) == 2
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(("count", "cores"), [(0, ()), (-1, ()), (3, (0, 0))])
def test_no_lane_and_lanes_without_a_core_are_refused(count: int, cores: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="a worker has one lane or more, each with a core of its own"):
        run_in_lanes(count, lambda lane: "", timeouts=TIMEOUTS, cores=cores)


def test_more_numbers_than_a_message_holds_are_refused() -> None:
    with pytest.raises(ConfigError, match="at most 4,096 numbers at once, got 9,000"):
        ALONE.total([0.0] * 9000)
    most = [1.0] * 4096
    assert run_in_lanes(2, lambda lane: str(lane.total(most) == [2.0] * 4096), timeouts=TIMEOUTS) == "True"
