"""What an exchange takes of the processors, not dilated: python results/cluster/processors.py (2 minutes, idle).

Time dilation makes processors D times too fast. So each scene of the part `to_score` is run once more by as many
processes, which compute nothing, on this machine's loopback without a limit: their processor time of a step is what
they would need on a host of their own, but for what sharing two cores costs them (switches, colder caches).
Writes processors.jsonl; `headline.composed` takes no step to be shorter than this.
"""

from __future__ import annotations

import json
import statistics
from typing import Any

import torch
from headline import PROCESSORS, SAME_EXCHANGE
from lab import Scene
from plan import Row, to_score

from dba3c.studies.page import add_row, facts
from param_servers.benchmarks.exchange import Case, run

STEPS = 20


def measure(scene: Scene) -> dict[str, Any]:
    """Milliseconds of processor in a step: of the busiest server (0 without servers), and of the median worker."""
    case = Case(scene.exchange, scene.megabytes, scene.workers, scene.backup, scene.servers, 0, STEPS, scene.colocated)
    load = run(case).workers[0].load
    assert load is not None
    of_step_ms = [1e3 * seconds / STEPS for seconds in load.cpu_s]
    return {
        **{name: getattr(scene, name) for name in SAME_EXCHANGE},
        "server_ms": round(max(of_step_ms[: scene.servers], default=0.0), 2),
        "worker_ms": round(statistics.median(of_step_ms[scene.servers :]), 2),
    }


def main() -> None:
    """See the module."""
    torch.set_num_threads(1)
    made = facts("")
    where = {"date": made["date"], "commit": made["source"]["commit"], "processor": made["host"]["processor"]}
    scenes = {row.scene._replace(gbit=0.0) for row in to_score("small") if isinstance(row, Row)}
    for scene in sorted(scenes):
        line = {**measure(scene), **where}
        print(json.dumps(line), flush=True)
        add_row(PROCESSORS, line)


if __name__ == "__main__":
    main()
