"""What `dba3c.benchmarks.environments` measured, as a table, as data and as a README."""

from __future__ import annotations

import json
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from dba3c.runs import host_facts

LIMIT = 0.03
"""The factory should add less than this share of CPU time to the native vector environment."""


class Rate(NamedTuple):
    """Agent steps per second of wall time and per second of CPU time."""

    per_second: float
    per_core: float


@dataclass(frozen=True)
class Family:
    """One family's repeats; `native` is empty where nothing native plays the same."""

    name: str
    env_id: str
    num_envs: int
    ours: list[Rate]
    native: list[Rate]

    @property
    def added(self) -> float | None:
        """Median over the repeats of what the factory adds to the native CPU seconds per step; 0.03 is 3 %."""
        if not self.native:
            return None
        pairs = zip(self.native, self.ours, strict=True)
        return statistics.median(bare.per_core / ours.per_core - 1 for bare, ours in pairs)


def table(families: list[Family]) -> str:
    """Markdown: medians of the repeats."""
    rows = [
        "| family | environments | agent steps/s | per core | native, per core | factory adds |",
        "|---|---|---|---|---|---|",
    ]
    for family in families:
        ours = statistics.median(rate.per_core for rate in family.ours)
        per_second = statistics.median(rate.per_second for rate in family.ours)
        native = f"{statistics.median(rate.per_core for rate in family.native):,.0f}" if family.native else "–"
        added = "–" if family.added is None else f"{family.added:+.1%}"
        rows.append(
            f"| {family.name} (`{family.env_id}`) | {family.num_envs} | {per_second:,.0f} | {ours:,.0f} "
            f"| {native} | {added} |"
        )
    return "\n".join(rows)


def write_results(
    folder: Path, families: list[Family], missing: dict[str, str], command: str, seconds: float, repeats: int
) -> None:
    """`environments.json` and `README.md` in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    facts: dict[str, Any] = {
        "host": host_facts.host(),
        "versions": host_facts.versions(),
        "source": host_facts.git_commit(),
    }
    data = {
        "command": command,
        **facts,
        "skipped": missing,
        "families": [
            {
                "name": family.name,
                "env_id": family.env_id,
                "num_envs": family.num_envs,
                "factory": [rate._asdict() for rate in family.ours],
                "native": [rate._asdict() for rate in family.native],
                "added": family.added,
            }
            for family in families
        ],
    }
    (folder / "environments.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    text = _readme(families, missing, command, seconds, repeats, facts)
    (folder / "README.md").write_text(text, encoding="utf-8")


def _readme(
    families: list[Family], missing: dict[str, str], command: str, seconds: float, repeats: int, facts: dict[str, Any]
) -> str:
    host, versions, source = facts["host"], facts["versions"], facts["source"]
    over = [f"{family.name} ({family.added:+.1%})" for family in families if (family.added or 0) >= LIMIT]
    verdict = f"Over {LIMIT:.0%}: {', '.join(over)}." if over else f"Every family is under {LIMIT:.0%}."
    skipped = "".join(f"\nNot measured: {name}: {reason}" for name, reason in missing.items())
    commit = str(source.get("commit", "unknown"))[:12] + (" with uncommitted changes" if source.get("dirty") else "")
    named = ("python", "ale-py", "gymnasium", "mujoco", "vizdoom", "gfootball")
    packages = ", ".join(f"{name} {versions[name]}" for name in named if name in versions)
    machine = f"{host['usable_cores']} cores of {host['processor']}, {host['memory_gib']} GiB"
    return f"""# Environments: agent steps/s of every family

    {command.strip()}

{table(families)}

Random actions, nothing else; medians of {repeats} repeats of {seconds:g} s, families in turn.
- *Per core*: per second of CPU time of the process, its threads and its child processes, so it sizes a cluster:
  workers × cores × this, less inference and learning.
- *Native*: ale-py's own vector environment, or Gymnasium's `SyncVectorEnv` over the same environments,
  on the same seeds and actions.
- *Factory adds*: median of the repeats' ratios of CPU time per step; what the protocol of `docs/environments.md`
  costs (checks, whole-game scores, named failures).

{verdict}{skipped}

{time.strftime("%Y-%m-%d", time.gmtime())}, {machine}; {packages}; commit {commit}.
Raw numbers: `environments.json`.
"""
