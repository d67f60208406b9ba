"""A graph for each step while acting, or one pass over all steps afterwards: µs per agent step, without emulation.

    python results/throughput/backward.py          (about 2 minutes on an idle core)

Rollouts of 5 steps of random frames, one thread, medians of ROUNDS in turn. Writes backward.json, and the page's table.
"""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from dba3c.algorithms.config import AlgorithmConfig
from dba3c.assembly.model import Spaces, build_model
from dba3c.benchmarks.inference import BlankEnvironment
from dba3c.config import NetworkConfig, TrainConfig
from dba3c.metrics.writer import Sections
from dba3c.studies.page import facts, made_by, markdown, renew
from dba3c.workers.collector import Collector
from dba3c.workers.gradients import gradients_of

HERE = Path(__file__).resolve().parent
NETWORKS = (("small", "bfloat16"), ("small", "float32"), ("nature", "bfloat16"), ("nature", "float32"))
ENVS, LENGTH, WARM_UP, ROUNDS = (1, 4, 16, 32, 64), 5, 3, 20
SPACES = Spaces(spaces.Box(0, 255, (4, 84, 84), np.uint8), spaces.Discrete(4))


def step_us(network: str, precision: str, num_envs: int) -> dict[str, float]:
    """Of both ways, in turn."""
    config = TrainConfig(
        network=NetworkConfig(network=network, precision=precision), algorithm=AlgorithmConfig(rollout_length=LENGTH)
    )
    took_s: dict[str, list[float]] = {"graphs": [], "one pass": []}
    ways: dict[str, Any] = {}
    for way in took_s:
        model = build_model(config, SPACES)
        model.network.load(model.parameters)
        gradients = gradients_of(config.algorithm, model.network, 1 if way == "one pass" else 1000)
        environments: Any = BlankEnvironment(num_envs)
        kept = gradients.keeps_observations
        ways[way] = gradients, Collector(environments, model.network, LENGTH, keep_observations=kept)
    generator = torch.Generator()
    for _ in range(WARM_UP + ROUNDS):
        for way, (gradients, collector) in ways.items():
            start_s = time.perf_counter()
            for part, _ in gradients.parts(collector.collect(generator, Sections()), generator):
                gradients.of(part, 0)
            took_s[way].append(time.perf_counter() - start_s)
    return {way: statistics.median(each[WARM_UP:]) * 1e6 / LENGTH / num_envs for way, each in took_s.items()}


def main() -> None:
    """See the module."""
    torch.set_num_threads(1)
    rows = []
    for network, precision in NETWORKS:
        for num_envs in ENVS:
            rows.append({"network": network, "precision": precision, "environments": num_envs})
            rows[-1] |= {way: round(us, 1) for way, us in step_us(network, precision, num_envs).items()}
            print(rows[-1], flush=True)
    made = facts("python results/throughput/backward.py")
    (HERE / "backward.json").write_text(json.dumps({**made, "rows": rows}, indent=1) + "\n")
    cells = [[*row.values(), f"{row['one pass'] / row['graphs']:.2f}"] for row in rows]
    header = ["network", "precision", "environments", "a graph for each step, µs", "one pass, µs", "ratio"]
    renew(HERE / "README.md", made_by(made), markdown(header, cells))


if __name__ == "__main__":
    main()
