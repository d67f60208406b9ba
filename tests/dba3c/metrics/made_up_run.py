"""Run folders for tests, written by the real writer on a made-up clock."""

from dba3c.environments.protocol import Episode
from dba3c.metrics import processor_time, writer
from dba3c.metrics.writer import MetricsWriter
from dba3c.runs.folder import RunFolder

START_S = 1_700_000_000.0
SCORE = sum([second for second in range(30) for _ in (0, 1)][-50:]) / 50  # of its last 50 games, after 30 s
CONFIG = {"environment": {"env_id": "ALE/Breakout-v5"}, "run": {"stop_score": 300.0, "stop_games": 50}}


class Clock:
    """Stands in for the time module of who writes metrics; moves when told to."""

    def __init__(self, now_s=START_S):
        self.now_s = now_s

    def time(self):
        return self.now_s

    monotonic = perf_counter = process_time = time

    def tells_writers(self, patched):
        for module in (writer, processor_time):
            patched.setattr(module, "time", self)


def step_values(late=False, **others):
    counts = {
        "accepted": not late,
        "dropped": late,
        "agent_steps": 160,
        "frames": 640,
        "data_points": 0 if late else 160,
    }
    losses = {"loss_total": 0.5, "loss_policy": 0.2, "loss_value": 0.3, "entropy": 1.25}
    return {**counts, **losses, "staleness_mean": late, "staleness_min": late, "staleness_max": late, **others}


def set_lives(run, *lives):
    """lives: (started_s, ended_s or None, cores)."""
    meta = run.meta()
    template = meta["lives"][0]
    meta["lives"] = [
        {
            **template,
            "started_s": started_s,
            "cores": cores,
            **({"ended": {"time_s": ended_s, "outcome": "finished", "reason": "x"}} if ended_s else {}),
        }
        for started_s, ended_s, cores in lives
    ]
    run._write_meta(meta)


def made_up_run(
    path, monkeypatch, seconds=30, workers=2, servers=2, config=CONFIG, score=float, finished=True, noted=""
):
    """Ten steps a second; a game a second and worker, of 1,600 steps and score `score(second)`; worker 1 is late in
    each tenth step."""
    clock = Clock()
    with monkeypatch.context() as patched:
        clock.tells_writers(patched)
        run = RunFolder.create(path, config, cores=workers)
        set_lives(run, (START_S, START_S + seconds if finished else None, workers))
        worker_writers = [MetricsWriter(run, "worker", rank) for rank in range(workers)]
        server_writers = [MetricsWriter(run, "server", rank) for rank in range(servers)]
        for tick in range(1, seconds * 10 + 1):
            clock.now_s = START_S + tick / 10
            for rank, writer in enumerate(worker_writers):
                late = rank == 1 and tick % 10 == 0
                timed = {"environment": 0.05, "inference": 0.02, "learning": 0.02, "waiting": 0.01}
                writer.record_step(tick, step_values(late), timed)
                if tick % 10 == 5:
                    writer.record_episode(tick, Episode(score(tick // 10), 1600, True, False))
            for writer in server_writers:
                figures = {"active_workers": workers, "commits": 1, "data_points_total": tick * 300, "update_norm": 3.0}
                writer.record_report({"step": tick, **figures, "sections_s": {"aggregating": 0.02, "waiting": 0.08}})
        worker_writers[0].record_event("checkpoint", f"checkpoint of step {tick} written", step=tick)
        if noted:
            worker_writers[0].record_event("note", noted, step=tick)
        scores = {"mean": 3.0, "median": 2.0, "iqm": 2.5, "max": 9.0}
        worker_writers[0].record_evaluation(tick, checkpoint_step=tick - 50, games=10, interval_95=(1.0, 4.0), **scores)
        for writer in (*worker_writers, *server_writers):
            writer.close()
    if finished:
        run.release()
    return run
