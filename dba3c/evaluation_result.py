"""What one evaluation found, as it is written down.

    evaluations/step-N-ACTIONS.json    protocol, seed, hashes, every game's score and length, and their summary

They lie beside `checkpoints/`, not in it: a checkpoint's files are those of its manifest, and old ones are deleted.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dba3c.atomic_files import write_atomically
from dba3c.checkpoints import Policy
from dba3c.config import TrainConfig
from dba3c.errors import UserError
from dba3c.evaluation_protocol import EvaluationProtocol
from dba3c.full_games import PlayedGames
from dba3c.players import Actions
from dba3c.run_folder import RunFolder
from dba3c.studies.statistics import ScoreSummary, summarise

FOLDER = "evaluations"


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The full games of one checkpoint. Lists are in the order of the games' fixed numbers."""

    checkpoint_step: int
    data_points: int
    env_id: str
    protocol: str
    actions: Actions
    seed: int
    """The run's."""
    seed_index: int
    """Which of the run's streams of evaluation seeds; the same index plays the same games."""
    num_envs: int
    config_sha256: str
    parameters_sha256: str
    scores: list[float]
    """Unclipped, of whole games."""
    lengths_steps: list[int]
    truncated: list[bool]
    """Whether a time limit ended the game."""
    summary: ScoreSummary
    environment_failures: list[str]
    agent_steps: int
    wall_s: float

    def path(self, folder: RunFolder) -> Path:
        """Where `save` puts it."""
        return folder.path / FOLDER / f"step-{self.checkpoint_step}-{self.actions}.json"

    def save(self, folder: RunFolder) -> Path:
        """Write it atomically into the run's folder; an evaluation of the same step and actions is replaced."""
        path = self.path(folder)
        try:
            path.parent.mkdir(exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot make the folder {path.parent}: {error.strerror}") from error
        fields = dataclasses.asdict(self)
        fields["summary"]["interval_95_of"] = "iqm"
        write_atomically(path, json.dumps(fields, indent=1, allow_nan=False) + "\n")
        return path


def evaluation_of(
    config: TrainConfig,
    policy: Policy,
    protocol: EvaluationProtocol,
    played: PlayedGames,
    seed_index: int,
    num_envs: int,
    wall_s: float,
) -> Evaluation:
    """What was played, with everything it must be quoted with."""
    scores = [episode.score for episode in played.episodes]
    return Evaluation(
        checkpoint_step=policy.step,
        data_points=policy.data_points,
        env_id=config.environment.env_id,
        protocol=protocol.name,
        actions=protocol.actions,
        seed=config.run.seed,
        seed_index=seed_index,
        num_envs=num_envs,
        config_sha256=hashlib.sha256(config.to_json().encode()).hexdigest(),
        parameters_sha256=policy.sha256,
        scores=scores,
        lengths_steps=[episode.length_steps for episode in played.episodes],
        truncated=[episode.truncated for episode in played.episodes],
        summary=summarise(scores),
        environment_failures=played.failures,
        agent_steps=played.agent_steps,
        wall_s=round(wall_s, 3),
    )


def evaluated_policies(folder: RunFolder) -> set[str]:
    """SHA-256 of the parameters that were evaluated already, in this life of the run or an earlier one."""
    hashes = set()
    for path in sorted((folder.path / FOLDER).glob("step-*.json")):
        try:
            fields: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            hashes.add(str(fields["parameters_sha256"]))
        except (OSError, ValueError, KeyError, TypeError):
            continue  # not one of ours, or a broken one: then it is evaluated again
    return hashes
