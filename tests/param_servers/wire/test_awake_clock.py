from param_servers.wire.awake_clock import AwakeClock


def test_time_hardly_passes_while_the_process_is_stopped() -> None:
    reads = iter([100.0, 101.0, 102.9, 110.0, 111.0, 120.0])
    clock = AwakeClock(2.0, lambda: next(reads))
    assert [round(clock.now_s(), 6) for _ in range(2)] == [101.0, 102.9]
    assert clock.slept_s == 0.0 and clock.now_s() - clock.woke_s == 0.0
    assert round(clock.slept_s, 6) == 7.1
    assert round(clock.now_s(), 6) == 104.15
    assert round(clock.now_s() - clock.woke_s, 6) == 0.0 and clock.slept_s == 9.0


def test_time_passes_also_for_a_process_that_is_always_late() -> None:
    reads = iter(range(0, 3000, 3))
    clock = AwakeClock(2.0, lambda: float(next(reads)))
    assert [clock.now_s() for _ in range(100)][-1] == 25.0
