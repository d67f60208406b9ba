"""How many gradients experience is worth."""

from dba3c.central.replay import ReplayDebt


def updates(debt: ReplayDebt) -> int:
    count = 0
    while debt.owes:
        debt.paid()
        count += 1
    return count


def test_nothing_is_owed_before_the_start() -> None:
    debt = ReplayDebt(start=100, ratio=2.0, per_update=10)
    debt.gathered(99)
    assert not debt.owes


def test_after_the_start_each_step_is_sampled_ratio_times() -> None:
    debt = ReplayDebt(start=100, ratio=2.0, per_update=10)
    debt.gathered(100)
    assert updates(debt) == 1
    debt.gathered(50)
    assert updates(debt) == 9  # 50 steps × 2 = 100 samples, 10 of them taken before
    one_by_one = 0
    for _ in range(100):
        debt.gathered(1)
        one_by_one += updates(debt)
    assert one_by_one == 20
