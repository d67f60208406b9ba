"""Agent steps/s of a worker's loop beside the floors under it: ``python results/throughput/measure.py``.

Side by side, in turn, ``repeats`` times:

    emulation   environments with random actions, nothing else
    floor       emulation, one forward pass that chooses the actions, one backward pass through it, nothing else
    local       the whole worker loop in one process: collecting, loss, clipping, optimizer, metrics
    servers     the whole loop with parameter servers and workers as processes

``local`` is compared with one floor process, ``servers`` with as many floor processes at once as it has workers. The
medians and the median of the pairwise ratios are printed; run it on an idle machine.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro

from dba3c import roles
from dba3c.algorithms.agent import Agent
from dba3c.assembly.model import build_model, spaces_of
from dba3c.config import AlgorithmConfig, NetworkConfig, RunConfig, TrainConfig
from dba3c.environments.atari.protocols import atari_v4_no_sticky
from dba3c.environments.config import EnvironmentConfig
from dba3c.environments.factory import make_vector_environment
from dba3c.environments.protocol import VectorEnvironment
from dba3c.roles import RunProcess
from dba3c.runs.folder import RunFolder
from param_servers.config import ExchangeConfig

WARM_UP_S = 3.0
START_TIMEOUT_S = 60.0
END_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Arguments:
    """What to measure."""

    env: str = "ALE/Breakout-v5"
    network: str = "nature"
    precision: str = "bfloat16"
    envs_per_worker: int = 64
    rollout_length: int = 5
    workers: int = 2
    servers: int = 2
    seconds: float = 15.0
    """Measured time of each point, after a warm-up."""
    repeats: int = 3
    json: Path | None = None
    """Write the measurements here as well."""

    def config(self, exchange: ExchangeConfig) -> TrainConfig:
        """The configuration that is measured, differing only in the exchange."""
        environment = EnvironmentConfig(env_id=self.env, envs_per_worker=self.envs_per_worker)
        if environment.family == "atari":
            environment = replace(atari_v4_no_sticky(environment), episodic_life=True)
        return TrainConfig(
            environment=environment,
            network=NetworkConfig(network=self.network, precision=self.precision),  # type: ignore[arg-type]
            algorithm=AlgorithmConfig(rollout_length=self.rollout_length),
            exchange=exchange,
            run=RunConfig(track=()),
        )


def emulation(config: TrainConfig, environments: VectorEnvironment, agent: Agent) -> Callable[[], int]:
    """One random step of all environments; returns the agent steps it took."""
    random = np.random.default_rng(0)
    del agent

    def step() -> int:
        environments.step(random.integers(environments.action_space.n, size=environments.num_envs))  # type: ignore[attr-defined]
        return environments.num_envs

    return step


def floor(config: TrainConfig, environments: VectorEnvironment, agent: Agent) -> Callable[[], int]:
    """T steps chosen by one forward pass each, and one backward pass through them; nothing is learned."""
    observation: Any = environments.reset(0)

    def rollout() -> int:
        nonlocal observation
        total = torch.zeros(())
        for _ in range(config.algorithm.rollout_length):
            output = agent.forward(observation, ())
            observation = environments.step(output.policy_logits.argmax(-1).numpy()).observation
            total = total + output.value.sum() + output.policy_logits.sum()
        agent.network.zero_grad(set_to_none=True)
        total.backward()  # type: ignore[no-untyped-call]
        return config.algorithm.rollout_length * environments.num_envs

    return rollout


FLOORS = {"emulation": emulation, "floor": floor}


def floor_process(kind: str, config: TrainConfig, index: int, seconds: float, results: Any) -> None:
    """Step as fast as possible for a while and report agent steps/s."""
    torch.set_num_threads(1)
    environments = make_vector_environment(config.environment, config.environment.envs_per_worker, index)
    environments.reset(index)
    step = FLOORS[kind](config, environments, build_model(config, spaces_of(config)).network)
    until_s = time.monotonic() + WARM_UP_S
    while time.monotonic() < until_s:
        step()
    started_s, steps = time.monotonic(), 0
    while time.monotonic() < started_s + seconds:
        steps += step()
    results.put(steps / (time.monotonic() - started_s))
    environments.close()


def measure_floor(kind: str, config: TrainConfig, processes: int, seconds: float) -> float:
    """Agent steps/s of that many floor processes at once."""
    context = get_context("spawn")
    results = context.Queue()
    started = [
        context.Process(target=floor_process, args=(kind, config, index, seconds, results), daemon=True)
        for index in range(processes)
    ]
    for process in started:
        process.start()
    rates = [results.get(timeout=WARM_UP_S + seconds + 60) for _ in started]
    for process in started:
        process.join(timeout=30)
    return float(sum(rates))


def play(path: str, role: str, rank: int) -> None:
    """The body of one process."""
    torch.set_num_threads(1)
    folder = RunFolder.open(path)
    roles.play(role, RunProcess(folder, TrainConfig.from_json(folder.config_text()), rank, 0))


def train_for(config: TrainConfig, path: Path, seconds: float) -> None:
    """Servers and workers of ``config`` train in the folder at ``path`` for ``seconds`` after the first record.

    Raises:
        TimeoutError: no worker wrote a record in time, or a process did not end in time.
    """
    servers = config.exchange.num_servers if config.exchange.exchange in ("servers", "async") else 0
    roles = [("server", i) for i in range(servers)] + [("worker", i) for i in range(config.exchange.num_workers)]
    with RunFolder.create(path / "run", config.to_json()) as folder:
        processes = [
            get_context("spawn").Process(
                target=play, args=(str(folder.path), role, rank), daemon=True, name=f"{role} {rank}"
            )
            for role, rank in roles
        ]
        for process in processes:
            process.start()
        _wait_for_records(folder)
        time.sleep(seconds)
        folder.request_stop("measured long enough")
        deadline_s = time.monotonic() + END_TIMEOUT_S
        for process in processes:
            process.join(max(0.0, deadline_s - time.monotonic()))
        late = [process.name for process in processes if process.is_alive()]
        for process in processes:
            process.kill()
        if late:
            raise TimeoutError(f"{', '.join(late)} did not end within {END_TIMEOUT_S:.0f} s")


def _wait_for_records(folder: RunFolder) -> None:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while not any(file.stat().st_size for file in folder.metrics.glob("worker-*.jsonl")):
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"no worker wrote a record within {START_TIMEOUT_S:.0f} s")
        time.sleep(0.1)


def measure_training(config: TrainConfig, seconds: float) -> tuple[float, dict[str, float]]:
    """Agent steps/s of a real training run in processes of its own, and its workers' shares of time by section."""
    with tempfile.TemporaryDirectory() as folder:
        train_for(config, Path(folder), WARM_UP_S + seconds)
        return rates_of(Path(folder) / "run", seconds)


def rates_of(folder: Path, seconds: float) -> tuple[float, dict[str, float]]:
    """Agent steps/s summed over workers and shares of their time, over the last ``seconds`` of a run."""
    rate = 0.0
    sections: dict[str, float] = {}
    for file in sorted(folder.glob("metrics/worker-*.jsonl")):
        records = [record for record in map(json.loads, file.open()) if record["kind"] == "step"]
        records = [record for record in records if record["time_s"] > records[-1]["time_s"] - seconds]
        rate += sum(r["agent_steps"] for r in records) / sum(r["window_s"] for r in records)
        for record in records:
            for name, spent_s in record["sections_s"].items():
                sections[name] = sections.get(name, 0.0) + spent_s
    total_s = sum(sections.values())
    return rate, {name: spent_s / total_s for name, spent_s in sections.items()}


def run(arguments: Arguments) -> dict[str, Any]:
    """All points in turn, repeated; the medians and the ratios."""
    local = arguments.config(ExchangeConfig(exchange="local"))
    servers = arguments.config(
        ExchangeConfig(exchange="servers", num_workers=arguments.workers, num_servers=arguments.servers)
    )
    rates: dict[str, list[float]] = {}
    shares: dict[str, dict[str, float]] = {}
    for repeat in range(arguments.repeats):
        for processes in sorted({1, arguments.workers}):
            for kind in FLOORS:
                rate = measure_floor(kind, local, processes, arguments.seconds)
                rates.setdefault(f"{kind} x{processes}", []).append(rate)
        for name, config in (("local", local), ("servers", servers)):
            rate, shares[name] = measure_training(config, arguments.seconds)
            rates.setdefault(name, []).append(rate)
        newest = ", ".join(f"{name} {values[-1]:,.0f}" for name, values in rates.items())
        print(f"repeat {repeat + 1} of {arguments.repeats}: {newest}", flush=True)
    ratios = {
        "local / floor x1": ratio(rates["local"], rates["floor x1"]),
        f"servers / floor x{arguments.workers}": ratio(rates["servers"], rates[f"floor x{arguments.workers}"]),
    }
    return {"arguments": asdict(arguments), "agent_steps_per_s": rates, "ratios": ratios, "sections": shares}


def ratio(above: list[float], below: list[float]) -> float:
    """Median of the ratios of the pairs measured one after the other."""
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


def main() -> None:
    """Measure, print, and write JSON when asked."""
    arguments = tyro.cli(Arguments, description=__doc__)
    found = run(arguments)
    print(f"\nagent steps/s, median of {arguments.repeats} (lowest … highest)")
    for name, values in found["agent_steps_per_s"].items():
        print(f"  {name:14} {statistics.median(values):8,.0f}   ({min(values):,.0f} … {max(values):,.0f})")
    for name, value in found["ratios"].items():
        print(f"  {name:22} {value:6.1%}")
    for name, shares in found["sections"].items():
        print(f"  {name} by section: " + ", ".join(f"{section} {share:.1%}" for section, share in shares.items()))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(found, indent=2, default=str) + "\n")


if __name__ == "__main__":
    main()
