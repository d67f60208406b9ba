"""When does central inference win?  python results/simulation/central.py  (a minute; then results/plot.py)

Simulates central.csv from agent_costs.json: what one core takes to step, infer and learn, for each size of network.
Those are measured:  python results/simulation/central.py --runs FOLDER  reads them from the run folders that
`results/architectures/measure.py --runs FOLDER` has left, of its workers + servers. Other networks' costs, of a run in
FOLDER/sync-servers-NETWORK/seed-0, are for who else reads them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dba3c.runs.folder import RunFolder
from dba3c.simulation.calibration import calibrate
from dba3c.simulation.cluster import Cluster
from dba3c.simulation.simulate import AgentCosts, compare
from dba3c.studies.page import write_rows
from dba3c.studies.study import NETWORK_SIZES

HERE = Path(__file__).resolve().parent
COSTS = HERE / "agent_costs.json"
NODES = (2, 4, 16, 64)
NODE_CORES = 12
LEARNER_CORES = (12, 25, 50, 100, 200, 500, 1000, 2000, 5000)
"""12: a node like the others. An accelerator is worth as many cores as it is faster than one, network by network."""
CLUSTER = Cluster(bytes_per_s=10e9 / 8, latency_s=50e-6, wire_efficiency=0.95, message_s=5e-6)
COLUMNS = ("network", "nodes", "learner_cores", "workers_per_s", "central_per_s")


def measured(folder: Path) -> dict[str, dict[str, Any]]:
    """Seconds for one agent step of one environment, M, and the run that says so."""
    costs = {}
    for path in sorted(folder.glob("sync-servers-*/seed-0")):
        network = path.parent.name.removeprefix("sync-servers-")
        calibration = calibrate([path])
        life = RunFolder.open(path).meta()["lives"][0]
        costs[network] = {
            "costs": asdict(calibration.costs),
            "model_bytes": calibration.work.model_bytes,
            "gradients": calibration.steps,
            "host": life["host"],
            "source": life["source"],
        }
    return costs


def rows(costs: dict[str, dict[str, Any]]) -> Iterator[Sequence[object]]:
    """Data points per second of both, for each network, number of nodes and speed of the learner's node."""
    for network in NETWORK_SIZES:
        known = costs[network]
        for nodes in NODES:
            for speed in LEARNER_CORES:
                agent = AgentCosts(**known["costs"])
                found = compare(CLUSTER, agent, known["model_bytes"], nodes, NODE_CORES, speed)
                yield network, nodes, speed, f"{found.workers_per_s:.5g}", f"{found.central_per_s:.5g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, help="renew the costs of these runs' networks in agent_costs.json")
    runs = parser.parse_args().runs
    costs = json.loads(COSTS.read_text(encoding="utf-8"))
    if runs is not None:
        if not (found := measured(runs)):
            parser.error(f"there is no sync-servers-NETWORK/seed-0 in {runs}")
        costs |= found
        COSTS.write_text(json.dumps(costs, indent=1) + "\n", encoding="utf-8")
    write_rows(HERE / "central.csv", [dict(zip(COLUMNS, row, strict=True)) for row in rows(costs)])


if __name__ == "__main__":
    main()
