from param_servers.awake_clock import AwakeClock


def test_time_does_not_pass_while_the_process_is_stopped() -> None:
    reads = iter([100.0, 101.0, 102.9, 110.0, 111.0, 120.0])
    clock = AwakeClock(2.0, lambda: next(reads))
    assert [round(clock.now_s(), 6) for _ in range(2)] == [101.0, 102.9]
    assert clock.slept_s == 0.0 and clock.now_s() - clock.woke_s == 0.0
    assert round(clock.slept_s, 6) == 7.1
    assert round(clock.now_s(), 6) == 103.9
    assert round(clock.now_s() - clock.woke_s, 6) == 0.0 and clock.slept_s == 9.0
