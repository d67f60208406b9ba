"""What records add up to, computed by hand."""

import math

import pytest

from dba3c.metrics.charts import ChartInterval, Point
from dba3c.metrics.facts import Life, RunFacts
from dba3c.metrics.summary import RecentSums, RunSummary

TWO_LIVES = RunFacts("run", stop_games=3, lives=(Life(0.0, 8.0), Life(100.0, 8.0)))
FACTS = RunFacts("run", stop_games=3, lives=(Life(0.0, 8.0),))


def record(kind, time_s, role="worker", rank=0, step=1, **fields):
    return {"kind": kind, "time_s": time_s, "step": step, "role": role, "rank": rank, "incarnation": 0, **fields}


def summary_of(*records, facts=FACTS):
    summary = RunSummary(facts)
    for each in records:
        summary.add(each)
        summary.judge()
    return summary


def test_games_of_one_process_are_not_weighed_against_the_steps_of_another():
    workers = range(40)
    facts = RunFacts("run", stop_games=3, lives=(Life(0.0, 8.0),))
    lucky = [record("episode", 0.5, rank=rank, score=0.93, length_steps=20) for rank in workers for _ in range(2)]
    summary = summary_of(*lucky, *(record("step", 1.0, rank=rank, agent_steps=480) for rank in workers), facts=facts)
    assert summary.life_mean is None and summary.best_mean is None  # 8 % of the steps lie in games that have ended


def test_games_of_one_lane_are_not_weighed_against_the_steps_of_another():
    lanes = [f"worker-0.{lane}" for lane in range(12)]
    lucky = [record("episode", 0.5, file=lane, score=0.93, length_steps=20) for lane in lanes for _ in range(5)]
    summary = summary_of(*lucky, *(record("step", 1.0, file=lane, agent_steps=1000) for lane in lanes))
    assert summary.life_mean is None and summary.best_mean is None  # a tenth of the steps


def test_games_before_a_roll_back_do_not_count_for_the_stop_score():
    before = [record("episode", 1.0, score=300.0, length_steps=10) for _ in range(3)]
    served = [record("server", 2.0, "server", step=1900, data_points_total=304_000)]
    after = [record("server", 3.0, "server", step=1001, data_points_total=160_160)]
    summary = summary_of(*before, record("step", 1.5, agent_steps=30), *served)
    assert summary.life_mean == 300.0
    for each in (*after, *(record("episode", 4.0, score=1.0, length_steps=10) for _ in range(2))):
        summary.add(each)
    summary.add(record("step", 5.0, agent_steps=20))
    summary.judge()
    assert summary.life_mean is None and summary.best_mean == 300.0
    summary.add(record("episode", 6.0, score=1.0, length_steps=10))
    summary.add(record("step", 7.0, agent_steps=10))
    summary.judge()
    assert summary.life_mean == 1.0


def test_of_games_that_go_on_after_a_roll_back_only_what_was_played_since_counts():
    played = [record("step", 1.0, agent_steps=29_700), record("server", 2.0, "server", data_points_total=304_000)]
    summary = summary_of(*played, record("server", 3.0, "server", data_points_total=160_160))
    for _ in range(3):
        summary.add(record("episode", 4.0, score=400.0, length_steps=9_950))
    summary.add(record("step", 5.0, agent_steps=300))
    summary.judge()
    assert summary.life_mean is None  # 150 of 300 steps
    summary.add(record("episode", 6.0, score=400.0, length_steps=150))
    summary.add(record("step", 7.0, agent_steps=20))
    summary.judge()
    assert summary.life_mean == 400.0


def games(*scores, **fields):
    return [record("episode", float(i), score=score, length_steps=1, **fields) for i, score in enumerate(scores)]


def test_the_mean_is_of_the_last_games_and_the_best_is_kept():
    after_each = [
        each for game in games(9.0, 1.0, 2.0, 3.0) for each in (game, record("step", game["time_s"], agent_steps=1))
    ]
    summary = summary_of(*after_each)
    scores = summary.scores
    assert (scores.mean, scores.max, scores.best, summary.best_mean, scores.count) == (2.0, 3.0, 9.0, 4.0, 4)


def test_scores_may_be_negative():
    summary = summary_of(*games(-21.0, -20.0, -19.0, -21.0), record("step", 9.0, agent_steps=4))
    assert (summary.scores.best, summary.best_mean) == (-19.0, -20.0)


def test_a_mean_is_best_only_among_those_of_all_games_not_of_the_shortest_of_a_life():
    first = summary_of(*games(20.0, 20.0, 20.0), record("step", 3.0, agent_steps=4), facts=TWO_LIVES)
    assert first.best_mean is None  # a quarter of the steps lie in games that go on
    first.add(record("episode", 4.0, score=11.0, length_steps=1))
    first.add(record("step", 5.0, agent_steps=1))
    first.judge()
    assert first.best_mean == 17.0
    for score in (30.0, 30.0, 30.0):
        first.add(record("episode", 101.0, score=score, length_steps=1))
    first.add(record("step", 102.0, agent_steps=9))
    first.judge()
    assert (first.best_mean, first.life_mean) == (17.0, None)


def test_a_score_that_was_not_a_number_is_no_game_but_is_counted_as_not_finite():
    summary = summary_of(record("episode", 1.0, score=None, length_steps=1, not_finite={"score": 1}))
    assert summary.scores.mean is None and summary.not_finite == {"score": 1}


def test_frames_are_what_was_stepped_and_data_points_are_what_the_servers_committed():
    summary = summary_of(
        record("step", 1.0, agent_steps=100, frames=253, data_points=60),
        record("step", 1.0, rank=1, agent_steps=100, frames=397, data_points=100),
    )
    assert (summary.frames, summary.data_points) == (650.0, 160.0)
    summary.add(record("server", 2.0, role="server", data_points_total=128))
    assert summary.data_points == 128.0


def test_rates_are_over_the_time_that_the_windows_cover():
    summary = summary_of(
        *(record("step", float(t), agent_steps=50, data_points=40, window_s=1.0) for t in range(1, 31))
    )
    assert summary.per_second(30.0, "agent_steps") == pytest.approx(50.0)
    assert summary.per_second(31.0, "agent_steps") == pytest.approx(50.0)  # the next window is not over
    assert summary.per_second(35.0, "agent_steps") == pytest.approx(5 * 50.0 / 9)


def test_processor_time_that_an_event_has_told_is_part_of_the_rate():
    summary = summary_of(
        record("step", 1.0, cpu_s=1.0, window_s=1.0),
        record("event", 1.5, cpu_s=0.5, event="checkpoint", message="written"),
        record("step", 2.0, cpu_s=0.5, window_s=1.0),
    )
    assert summary.per_second(2.0, "cpu_s") == pytest.approx(1.0)
    assert summary.cpu_hours == pytest.approx(2.0 / 3600)


def test_windows_longer_than_the_horizon_still_give_a_rate():
    recent = RecentSums()
    for time_s in (60.0, 120.0, 180.0):
        recent.add(time_s, {"agent_steps": 600.0}, window_s=60.0)
    assert recent.per_second(239.0, "agent_steps") == pytest.approx(1800 / 180)
    assert recent.per_second(290.0, "agent_steps") == pytest.approx(1200 / 170)  # overdue for 50 s


def test_one_long_window_does_not_slow_the_rates_down_for_ever():
    recent = RecentSums()
    recent.add(60.0, {"commits": 1.0}, window_s=60.0)  # the wait for the workers
    for time_s in range(61, 81):
        recent.add(float(time_s), {"commits": 20.0}, window_s=1.0)
    assert recent.per_second(80.0, "commits") == pytest.approx(20.0)


@pytest.mark.parametrize(("lanes", "window_s"), [(1, 1.0), (12, 1.0), (12, 12.0), (2, 10.0)])
def test_windows_of_lanes_that_end_one_after_the_other_add_up_to_the_rate_of_all(lanes, window_s):
    recent, shown = RecentSums(), []
    ends = sorted((window_s * (turn + (lane + 1) / lanes), lane) for turn in range(40) for lane in range(lanes))
    for end_s, lane in ends:
        recent.add(end_s, {"agent_steps": 100.0 / lanes * window_s}, window_s, whose=lane)
        if end_s > 20 * window_s:
            shown.append(recent.per_second(end_s, "agent_steps"))
    assert shown == pytest.approx([100.0] * len(shown))


def test_a_short_window_of_one_lane_takes_no_other_lane_s_away():
    recent, both = RecentSums(), {"agent_steps": 500.0}
    for turn in range(1, 20):
        recent.add(10.0 * turn, both, window_s=10.0, whose=0)
        recent.add(10.0 * turn + 5.0, both, window_s=10.0, whose=1)
    recent.add(191.0, {"agent_steps": 50.0}, window_s=1.0, whose=0)
    recent.add(195.0, both, window_s=10.0, whose=1)
    assert recent.per_second(195.0, "agent_steps") == pytest.approx(100.0, rel=0.25)
    assert recent.horizon_s == 30.0


def test_a_clock_that_is_set_back_leaves_the_rates_as_they_are():
    recent = RecentSums()
    for time_s in (*range(7201, 7221), *range(3601, 3621)):  # an hour back
        recent.add(float(time_s), {"commits": 20.0}, window_s=1.0)
        assert recent.per_second(float(time_s), "commits") == pytest.approx(20.0)
    assert recent.per_second(20.0, "commits") == pytest.approx(20.0)  # back again, and no record since


def test_in_central_inference_active_workers_are_its_actors_also_when_learners_count_themselves():
    actors = [record("step", 100.0, role="actor", rank=rank) for rank in range(4)]
    learner = record("server", 101.0, role="learner", active_workers=1)
    assert summary_of(*actors).active_workers(101.0) == summary_of(*actors, learner).active_workers(101.0) == 4


@pytest.mark.parametrize("ended_s", [3600.0, math.inf], ids=["with an end", "killed"])
def test_a_record_whose_clock_is_behind_adds_no_time_between_two_lives(ended_s):
    lives = (Life(0.0, 12.0, is_over=True, ended_s=ended_s), Life(90_000.0, 12.0))
    late = record("event", 89_998.0, event="joined", message="here")
    summary = summary_of(record("step", 3600.0), late, facts=RunFacts("run", lives=lives))
    assert summary.hours() == pytest.approx((1.0, 12.0))


def test_lives_that_are_shorter_than_clocks_may_differ_count_where_their_ends_were_noted():
    lives = (Life(0.0, 1.0, is_over=True, ended_s=5.0), Life(6.0, 1.0, is_over=True, ended_s=11.0), Life(12.0, 1.0))
    records = [record("step", time_s) for time_s in (5.0, 11.0, 17.0)]
    assert summary_of(*records, facts=RunFacts("run", lives=lives)).hours() == pytest.approx((15 / 3600, 15 / 3600))


def test_active_workers_are_what_the_server_says_while_it_speaks():
    summary = summary_of(
        record("step", 100.0, rank=0), record("step", 99.0, rank=1), record("step", 80.0, rank=2),
        record("server", 100.0, role="server", active_workers=3),
    )  # fmt: skip
    assert summary.active_workers(101.0) == 3
    assert summary.active_workers(109.5) == 3
    assert summary_of(record("step", 100.0), record("step", 80.0, rank=2)).active_workers(101.0) == 1


def test_a_worker_of_windows_of_a_minute_is_active_between_its_records():
    worker, server = record("step", 60.0, window_s=60.0), record("server", 60.0, role="server", window_s=60.0)
    for summary in (summary_of(worker), summary_of({**server, "active_workers": 1})):
        assert (summary.active_workers(119.0), summary.active_workers(60.0 + 3 * 60.0 + 1)) == (1, 0)


def test_dropped_gradients_and_section_shares_are_known_by_worker():
    summary = summary_of(
        record("step", 1.0, accepted=3, dropped=1, sections_s={"environment": 3.0, "waiting": 1.0}),
        record("step", 1.0, rank=1, accepted=2, rejected=2, sections_s={"learning": 2.0}),
    )
    first, second = summary.workers()
    assert first.dropped_share(2.0) == 0.25 and second.dropped_share(2.0) == 0.0
    assert first.section_shares(2.0) == {"environment": 0.75, "waiting": 0.25}
    assert first.section_shares(1000.0) == {"environment": 0.75, "waiting": 0.25}
    assert summary.total("dropped") == 1 and summary.total("rejected") == 2


def test_a_rejected_gradient_is_counted_once_where_a_worker_is_its_own_server():
    told_twice = [record("step", 1.0, accepted=8, rejected=2), record("server", 1.0, commits=8, rejected=2)]
    assert summary_of(*told_twice).total("rejected") == 2
    assert summary_of(*told_twice).workers()[0].totals["commits"] == 8


def test_core_hours_are_summed_over_lives_without_the_time_between_them():
    facts = RunFacts("run", lives=(Life(0.0, 4.0), Life(100_000.0, 8.0)))
    summary = summary_of(record("step", 3600.0), record("step", 101_800.0), facts=facts)
    assert summary.hours() == pytest.approx((1.5, 1 * 4.0 + 0.5 * 8.0))


def test_processor_time_is_of_all_processes_whatever_they_record():
    summary = summary_of(
        record("step", 1.0, cpu_s=1800.0),
        record("evaluation", 2.0, role="evaluator", cpu_s=3600.0),
        record("event", 3.0, role="recorder", message="filmed", cpu_s=900.0),
        record("event", 4.0, message="joined", cpu_s=900.0),
    )
    assert summary.cpu_hours == 2.0


def test_a_resumed_run_goes_on_from_its_checkpoints_step():
    facts = RunFacts("run", lives=(Life(0.0, 1.0), Life(50.0, 1.0)))
    summary = summary_of(record("step", 10.0, step=90), record("step", 11.0, step=80), facts=facts)
    summary.add(record("event", 55.0, event="joined", message="worker 0"))
    assert summary.step == 90  # until the next life says where it begins
    summary.add(record("step", 60.0, step=81))
    assert summary.step == 81


def test_servers_that_roll_back_within_a_life_take_the_step_with_them():
    told = [
        record("server", 10.0, role="server", step=900, data_points_total=9000),
        record("server", 10.1, role="server", rank=1, step=899, data_points_total=8990),  # its window ended earlier
    ]
    summary = summary_of(*told)
    assert summary.step == 900
    summary.add(record("server", 20.0, role="server", step=801, data_points_total=8010))
    assert (summary.step, summary.data_points) == (801, 8010)
    summary.add(record("step", 21.0, step=802))
    assert summary.step == 802


def points_of(*records, now_s, facts=FACTS):
    summary = RunSummary(facts)
    interval = ChartInterval(summary)
    for each in records:
        interval.add(each)
    return interval.take(now_s), interval


def test_means_are_weighted_by_how_many_gradients_a_record_stands_for():
    point, _ = points_of(
        record("step", 1.0, count=3, loss_total=1.0),
        record("step", 1.0, rank=1, count=2, loss_total=5.0, not_finite={"loss_total": 1}),
        now_s=1.0,
    )
    assert point["loss/total"] == (3 * 1.0 + 1 * 5.0) / 4


def test_delays_are_reduced_by_least_mean_and_most():
    point, _ = points_of(
        record("step", 1.0, count=1, staleness_min=0, staleness_mean=1.0, staleness_max=4),
        record("step", 1.0, rank=1, count=1, staleness_min=1, staleness_mean=2.0, staleness_max=2),
        now_s=1.0,
    )
    assert [point[f"gradient/delay_{name}"] for name in ("min", "mean", "max")] == [0.0, 1.5, 4.0]


def test_norms_of_shards_are_added_as_norms():
    point, _ = points_of(
        record("server", 1.0, role="server", count=1, update_norm=3.0),
        record("server", 1.0, role="server", rank=1, count=1, update_norm=4.0),
        now_s=1.0,
    )
    assert point["optimizer/update_norm"] == 5.0


def test_the_online_score_is_of_the_games_since_the_last_point():
    _, interval = points_of(*games(10.0, 20.0), now_s=2.0)
    for each in games(2.0, 4.0):
        interval.add(each)
    point = interval.take(4.0)
    assert point["score/online"] == 3.0 and point["score/mean"] == pytest.approx(26 / 3)
    assert "score/online" not in interval.take(5.0)


def test_every_worker_has_its_own_charts():
    point, _ = points_of(
        *games(7.0, rank=3),
        record("step", 1.0, rank=3, accepted=1, frames=40, loss_total=0.5, window_s=1.0, sections_s={"waiting": 1.0}),
        now_s=1.0,
    )
    mine = {name: value for name, value in point.items() if name.startswith("worker-3/")}
    assert mine == {
        "worker-3/score": 7.0, "worker-3/frames_per_s": 40.0, "worker-3/dropped_share": 0.0,
        "worker-3/loss_total": 0.5, "worker-3/waiting_share": 1.0,
    }  # fmt: skip


def test_a_time_in_which_nothing_was_answered_has_no_share_of_dropped_gradients():
    summary = RunSummary(FACTS)
    interval = ChartInterval(summary)
    interval.add(record("step", 1.0, accepted=1, dropped=1))
    assert interval.take(1.0)["cluster/dropped_share"] == 0.5
    interval.add(record("step", 30.0))
    silent = interval.take(30.0)
    assert "cluster/dropped_share" not in silent and "worker-0/dropped_share" not in silent
    assert silent["cluster/dropped"] == 1


def test_a_rank_of_an_all_reduce_is_as_busy_as_its_steps_say_whatever_its_reports_time():
    point, _ = points_of(
        record("step", 1.0, accepted=1, sections_s={"environment": 0.7, "pushing": 0.3}),
        record("server", 1.0, commits=5, collective_s=0.23, applying_s=0.05, sections_s={}),
        now_s=1.0,
    )
    sections = {name: share for name, share in point.items() if name.startswith("sections/")}
    assert sections == {"sections/worker_environment": 0.7, "sections/worker_pushing": 0.3}


def test_an_event_of_who_takes_no_part_in_steps_is_drawn_at_the_run_s():
    interval = ChartInterval(RunSummary(FACTS))
    interval.add(record("step", 1.0, step=96, accepted=1))
    stopping = record("event", 2.0, role="monitor", step=0, event="stopping", message="mean score 300 reached 300")
    assert interval.add(stopping).step == 96
    assert interval.add(record("event", 2.0, role="server", step=40, event="checkpoint", message="written")).step == 40


def test_an_evaluation_is_drawn_at_the_step_of_its_checkpoint():
    evaluated = record("evaluation", 9.0, step=90, checkpoint_step=80, games=5, mean=3.0, iqm=None)
    point = ChartInterval(RunSummary(FACTS)).add(evaluated)
    drawn = {"evaluation/mean": 3.0, "evaluation/games": 5, "evaluation/checkpoint_step": 80}
    assert point == Point(drawn, 80, 9.0, of_evaluation=True)


def test_games_of_an_earlier_life_count_for_no_other_wherever_the_clock_is_set():
    facts = RunFacts("run", stop_games=3, lives=(Life(1000.0, 8.0), Life(900.0, 8.0)))  # set back between them
    told = [record("episode", 1010.0 + n, score=500.0, length_steps=1, life=0) for n in range(3)]
    told.append(record("step", 1020.0, agent_steps=3, life=0))
    summary = summary_of(*told, facts=facts)
    assert summary.life_mean is None and summary.best_mean == 500.0
    summary.add(record("event", 905.0, life=1, message="joined"))
    summary.judge()
    assert summary.life_mean is None
    for n in range(3):
        summary.add(record("episode", 906.0 + n, score=7.0, length_steps=1, life=1))
    summary.add(record("step", 910.0, agent_steps=3, life=1))
    summary.judge()
    assert summary.life_mean == 7.0


def test_hours_of_a_life_whose_clock_was_set_back_are_those_that_its_records_span():
    facts = RunFacts("run", lives=(Life(7200.0, 2.0, ended_s=10800.0), Life(3600.0, 4.0, ended_s=7200.0)))
    assert facts.hours([10800.0, 14400.0]) == (2.0, 6.0)  # as read: the second goes on where the first has ended
    forward = RunFacts("run", lives=(Life(0.0, 2.0, ended_s=3600.0), Life(7200.0, 4.0, ended_s=9000.0)))
    assert forward.hours([4000.0, 9100.0]) == (1.5, 4.0)
