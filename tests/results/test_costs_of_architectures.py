"""What a run costs, read from its records: hand-made ones, so that every number is known."""

import json
from dataclasses import asdict

import pytest
from architectures.costs import cost_of, plot_costs, read_csv, table

from dba3c.algorithms.config import AlgorithmConfig
from dba3c.central_config import CentralConfig
from dba3c.config import TrainConfig
from dba3c.environments.config import EnvironmentConfig
from dba3c.errors import UserError
from dba3c.runs.folder import RunFolder
from dba3c.studies.page import write_rows
from param_servers.config import ExchangeConfig

WORKERS = TrainConfig(exchange=ExchangeConfig(exchange="async", num_workers=2, num_servers=1))
CENTRAL = TrainConfig(
    algorithm=AlgorithmConfig(algorithm="vtrace"),
    exchange=ExchangeConfig(exchange="local"),
    central=CentralConfig(mode="central", actors=1),
)


def written(path, config, **processes):
    """A run of 20 s in which each process (role_rank) writes these fields once a second; the first 10 s are slow."""
    with RunFolder.create(path, config.to_json()) as folder:
        folder.metrics.mkdir(exist_ok=True)
        for name, records in processes.items():
            role, rank = name.split("_")  # rank.lane, but for the first lane
            with (folder.metrics / f"{role}-{rank}.jsonl").open("w") as file:
                number = int(rank.partition(".")[0])
                for second in range(21):
                    share = 0.1 if second <= 10 else 1.0
                    for kind, fields in records.items():
                        common = {"kind": kind, "time_s": 1000.0 + second, "step": 10 * second, "role": role, "rank": 0}
                        numbers = {
                            k: v * share if k in ("agent_steps", "frames", "cpu_s") else v for k, v in fields.items()
                        }
                        file.write(json.dumps({**common, "rank": number, "window_s": 1.0, **numbers}) + "\n")
        return folder


def test_steps_and_processor_time_are_those_of_the_last_seconds_of_all_processes(tmp_path):
    step = {"agent_steps": 500, "frames": 2000, "cpu_s": 0.8}
    folder = written(
        tmp_path / "run", WORKERS, worker_0={"step": step}, worker_1={"step": step}, server_0={"server": {"cpu_s": 0.1}}
    )
    audit = folder.audit / "commits.jsonl"
    audit.parent.mkdir(exist_ok=True)
    lines = [{"kind": "commit", "step": i, "staleness": [lag]} for i, lag in enumerate([0, 1, 1, 1, 5])]
    audit.write_text("".join(json.dumps(line) + "\n" for line in lines))
    cost = cost_of(folder.path, "async-servers", "small", seconds=8)
    assert cost.agent_steps_per_s == 1000 and cost.frames_per_s == 4000
    assert cost.cores_used == pytest.approx(1.7)
    assert cost.core_s_per_million_frames == pytest.approx(1e6 * 1.7 / 4000)
    assert cost.lag_p50 == 1 and 4 < cost.lag_p99 <= 5
    with pytest.raises(UserError, match="trained for 20 s, which is less than half of 45 s"):
        cost_of(folder.path, "async-servers", "small", seconds=45)


def test_lanes_of_a_worker_add_up(tmp_path):
    lane = {"step": {"agent_steps": 500, "frames": 2000, "cpu_s": 0.8}}
    config = TrainConfig(
        exchange=ExchangeConfig(exchange="allreduce", num_workers=2),
        environment=EnvironmentConfig(lanes=3, envs_per_worker=12),
    )
    names = [f"worker_{rank}" for rank in range(2)] + [f"worker_{rank}.{i}" for rank in range(2) for i in (1, 2)]
    cost = cost_of(written(tmp_path / "run", config, **dict.fromkeys(names, lane)).path, "sync-allreduce", "small", 8)
    assert cost.agent_steps_per_s == 6 * 500 and cost.cores_used == pytest.approx(6 * 0.8)


def test_of_a_learner_and_its_actors_only_the_actors_count_steps_and_two_kinds_of_records_count_time_once(tmp_path):
    learner = {"cpu_s": 0.5, "policy_lag_p50": 1.0, "policy_lag_p99": 3.0}
    actor = {"agent_steps": 600, "frames": 2400, "cpu_s": 0.4}
    folder = written(
        tmp_path / "run", CENTRAL,
        learner_0={"step": learner, "server": {"cpu_s": 0.1}}, actor_0={"step": actor},
    )  # fmt: skip
    cost = cost_of(folder.path, "central", "nature", seconds=8)
    assert cost.agent_steps_per_s == 600
    assert cost.cores_used == pytest.approx(1.0)
    assert (cost.lag_p50, cost.lag_p99) == (1.0, 3.0)
    write_rows(tmp_path / "costs.csv", [asdict(cost)])
    assert read_csv(tmp_path / "costs.csv") == [cost]
    assert "| nature | central inference | 600 | 2,400 |" in table([cost])
    assert {path.name for path in plot_costs([cost], tmp_path)} == {"speed.png", "speed.svg", "cost.png", "cost.svg"}
