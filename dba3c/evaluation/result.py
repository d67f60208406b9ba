"""What one evaluation found, as it is written down.

    evaluations/step-N-ACTIONS.json      protocol, seed, hashes, every game's score and length, and their summary
    evaluations/step-N-ACTIONS-I.json    games of the stream of seeds I, where that is not 0: evaluator I's share

They lie beside `checkpoints/`, not in it: a checkpoint's files are those of its manifest, and old ones are deleted.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dba3c.config import TrainConfig
from dba3c.errors import UserError
from dba3c.evaluation.full_games import PlayedGames
from dba3c.evaluation.players import Actions
from dba3c.evaluation.protocol import EvaluationProtocol
from dba3c.runs.atomic_files import write_atomically
from dba3c.runs.checkpoints import Policy
from dba3c.runs.run_folder import RunFolder
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
    unfinished: int
    """Games that had not ended when there was no more time; long ones are among them."""
    environment_failures: list[str]
    agent_steps: int
    wall_s: float

    def path(self, folder: RunFolder) -> Path:
        """Where `save` puts it."""
        stream = f"-{self.seed_index}" if self.seed_index else ""
        return folder.path / FOLDER / f"step-{self.checkpoint_step}-{self.actions}{stream}.json"

    def save(self, folder: RunFolder) -> Path:
        """Write it atomically into the run's folder; one of the same step, actions and stream is replaced."""
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
        unfinished=played.unfinished,
        environment_failures=played.failures,
        agent_steps=played.agent_steps,
        wall_s=round(wall_s, 3),
    )


def together(folder: RunFolder, share: Evaluation, evaluators: int) -> tuple[ScoreSummary, int]:
    """(summary, unfinished games) of all evaluators' shares of a checkpoint that are there by now, `share` among them.

    Each evaluator writes its share before it looks for the others', so whoever comes last sees all of them.
    """
    scores, unfinished = list(share.scores), share.unfinished
    for index in set(range(evaluators)) - {share.seed_index}:
        fields = _read(dataclasses.replace(share, seed_index=index).path(folder))
        if fields.get("parameters_sha256") == share.parameters_sha256:
            scores += [float(score) for score in fields["scores"]]
            unfinished += int(fields["unfinished"])
    return summarise(scores), unfinished


def evaluated_policies(folder: RunFolder, games: int, seed_index: int = 0) -> set[str]:
    """SHA-256 of the parameters with which so many games of a stream were played, in this life of the run or before."""
    found = map(_read, sorted((folder.path / FOLDER).glob("step-*.json")))
    whole = (one for one in found if one.get("seed_index") == seed_index and not one.get("unfinished"))
    return {str(one["parameters_sha256"]) for one in whole if len(one["scores"]) >= games}


def _read(path: Path) -> dict[str, Any]:
    """An evaluation's fields; {} where there is none, or none of ours: then it is played again."""
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        ours = {"parameters_sha256": str(fields["parameters_sha256"]), "unfinished": int(fields.get("unfinished", 0))}
        return {**ours, "seed_index": fields["seed_index"], "scores": list(map(float, fields["scores"]))}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
