"""Evaluation: full games with a checkpoint, what is kept of them, and the role that plays them with each new one.

    evaluations/step-N-ACTIONS.json      protocol, seed, hashes, every game's score and length, and their summary
    evaluations/step-N-ACTIONS-I.json    games of the stream of seeds I, where that is not 0

lie beside `checkpoints/`, not in it: a checkpoint's files are those of its manifest, and old ones are deleted.
"""

import contextlib
import dataclasses
import hashlib
import json
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dba3c.algorithms.policies import Actions
from dba3c.config import TrainConfig
from dba3c.environments.factory import make_vector_environment
from dba3c.environments.protocol import EnvironmentFailed, Episode
from dba3c.errors import UserError, warn_on_stderr, writing
from dba3c.evaluation.full_games import (
    EndlessGame,
    GamesAbandoned,
    make_player,
    play_full_games,
    protocol_for,
    stream_seeds,
)
from dba3c.metrics.writer import MetricsWriter
from dba3c.roles import RunProcess
from dba3c.runs.checkpoints import FOLDER_AWAY, CheckpointWatch, TrainedParameters
from dba3c.runs.ending import LOOK_S, Overtime, RunEnd
from dba3c.runs.files import write_atomically
from dba3c.runs.folder import RunFolder
from dba3c.studies.statistics import ScoreSummary, human_normalised, summarise

FOLDER = "evaluations"
DEFAULT_NUM_ENVS = 10


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

    @property
    def human_normalised(self) -> float | None:
        """The mean score, 0 for random actions' and 1 for a person's; None where a person's is not known."""
        return human_normalised(self.env_id, self.summary.mean)

    def path(self, folder: RunFolder) -> Path:
        """Where `save` puts it."""
        stream = f"-{self.seed_index}" if self.seed_index else ""
        return folder.path / FOLDER / f"step-{self.checkpoint_step}-{self.actions}{stream}.json"

    def save(self, folder: RunFolder) -> Path:
        """Write it atomically into the run's folder, in place of one of the same step, actions and stream; one of these
        parameters and more games stays there, if all of them were played to their ends."""
        path = self.path(folder)
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            found = _read(path)
        whole = found.get("parameters_sha256") == self.parameters_sha256 and not found["unfinished"]
        kept = len(found["scores"]) if whole else 0
        if (games := len(self.scores)) < kept or (kept and self.unfinished):
            cut = f" and {self.unfinished} unfinished" if self.unfinished else ""
            warn_on_stderr(f"{path} stays as it is: it has {kept} games of these parameters, this one {games}{cut}")
            return path
        fields = dataclasses.asdict(self)
        fields["summary"]["interval_95_of"] = "iqm"
        write_atomically(path, json.dumps(fields, indent=1, allow_nan=False) + "\n")
        return path


def evaluate(
    config: TrainConfig,
    trained: TrainedParameters,
    *,
    games: int,
    actions: Actions | None = None,
    seed_index: int = 0,
    num_envs: int = DEFAULT_NUM_ENVS,
    env_threads: int | None = None,
    on_game: Callable[[Episode], None] = lambda episode: None,
    should_stop: Callable[[], str | None] = lambda: None,
) -> Evaluation:
    """Play `games` full games with a policy of the run that `config` describes.

    Args:
        actions: "sampled" or "greedy"; None as the protocol has it.
        num_envs: environments at once, at most one per game. Part of what the seed means: environment i plays the
            games that its own seed gives.
        env_threads: C++ threads for Atari; None as configured.
        on_game, should_stop: see `play_full_games`; games that had not ended are counted as `unfinished`.

    Raises:
        UserError: the policy is of another network, or the environment cannot be played.
        GamesAbandoned: `should_stop` gave a reason, and no game had ended.
    """
    if games < 1 or num_envs < 1:
        raise UserError(f"games and environments must be at least 1, not {games} and {num_envs}")
    started_s = time.monotonic()
    protocol = protocol_for(config, actions)
    num_envs = min(num_envs, games)
    environment_seed, action_seed = stream_seeds(config.run.seed, "evaluation", seed_index)
    threads = config.environment.env_threads if env_threads is None else env_threads
    environment = dataclasses.replace(protocol.environment, env_threads=threads)
    environments = make_vector_environment(environment, num_envs, environment_seed, view="evaluation")
    try:
        player = make_player(config, environments, trained, protocol.actions, action_seed)
        played = play_full_games(player, environments, games, on_game=on_game, should_stop=should_stop)
    finally:
        environments.close()
    scores = [episode.score for episode in played.episodes]
    return Evaluation(
        checkpoint_step=trained.step,
        data_points=trained.data_points,
        env_id=config.environment.env_id,
        protocol=protocol.name,
        actions=protocol.actions,
        seed=config.run.seed,
        seed_index=seed_index,
        num_envs=num_envs,
        config_sha256=hashlib.sha256(config.to_json().encode()).hexdigest(),
        parameters_sha256=trained.sha256,
        scores=scores,
        lengths_steps=[episode.length_steps for episode in played.episodes],
        truncated=[episode.truncated for episode in played.episodes],
        summary=summarise(scores),
        unfinished=played.unfinished,
        environment_failures=played.failures,
        agent_steps=played.agent_steps,
        wall_s=round(time.monotonic() - started_s, 3),
    )


def evaluator(process: RunProcess, *, look_s: float = LOOK_S, say: Callable[[str], None] | None = None) -> str:
    """The evaluation node's whole life: play with each new checkpoint until the run ends, then with its last one.

    Of several checkpoints that wait the newest is taken and the others are named. When the mean of at least
    `stop_games` games reaches the stop score, the run is asked to end.
    After the end there is `Overtime`, none when the run was stopped: games that have not ended then are counted.

    Returns:
        The reason the run ended.

    Raises:
        RunBroken: the launch is gone without a word.
        UserError: the checkpoints are of another network, or the environment cannot be played.
    """
    folder, config, rank = process.folder, process.config, process.rank
    say = say or (lambda line: print(f"evaluator {rank}: {line}", flush=True))
    metrics = MetricsWriter.of(process, "evaluator")
    run_end = RunEnd(folder, look_s=look_s)
    overtime = Overtime(folder, config, run_end)

    def tell(line: str) -> None:
        say(line)
        metrics.record_event("evaluation", line)

    games = config.run.evaluation_games
    done = evaluated_policies(folder, games, protocol_for(config).actions)
    watch = CheckpointWatch(
        folder.checkpoints, run_end, is_done=lambda trained: trained.sha256 in done, say=tell, look_s=look_s
    )
    if config.run.stop_score is not None and games < config.run.stop_games:
        few = f"{games} games are fewer than the {config.run.stop_games} of the stop rule"
        tell(f"will not stop the run: {few}")

    has_played = False

    def play(trained: TrainedParameters) -> None:
        nonlocal has_played
        if watch.passed_over:
            tell(f"passed over steps {', '.join(map(str, watch.passed_over))}: {trained.step} is newer")
        overtime.step = trained.step
        try:
            played = evaluate(config, trained, games=games, should_stop=overtime)
        except GamesAbandoned as why:
            tell(f"step {trained.step}: none of {games} games had ended when {why}; {by_hand(folder, trained.step)}")
            return
        except EndlessGame as why:  # of this checkpoint's; the next one may play otherwise
            tell(f"step {trained.step}: not evaluated: {why}")
            return
        except UserError as why:  # bad input, but where it has played: then what its environment needs is away
            if not has_played or isinstance(why, EnvironmentFailed):
                raise
            tell(f"step {trained.step}: not evaluated: {why}; {by_hand(folder, trained.step)}")
            return
        has_played = True
        report(played, metrics, say)
        if not played.unfinished:
            stop_when_solved(played.summary, trained.step, folder, config, tell)
        try:  # last: what is there was told, and is not played again by the next life of this role
            played.save(folder)
        except UserError as error:  # a full disk: the record has the statistics
            tell(str(error))

    try:
        while (trained := watch.wait()) is not None:
            play(trained)
        if not run_end.finished:
            tell(f"the checkpoint that the run ends with is not played with ({run_end()}); {by_hand(folder)}")
            return run_end() or "the run has ended"
        tell(
            f"the run has ended ({run_end()}): playing {games} games with its last checkpoint, for at most "
            f"{overtime.budget_s:.0f} s; Ctrl-C ends that"
        )
        while not overtime.training_has_ended() and overtime() is None:
            time.sleep(look_s)
        while (last := watch.newest_unseen()) is None and watch.unreadable is not None and overtime() is None:
            time.sleep(look_s)
        if last is None:
            step = None if watch.unreadable == FOLDER_AWAY else watch.unreadable
            unread = "" if watch.unreadable is None else f" and could be read; {by_hand(folder, step)}"
            tell(f"there is no checkpoint that was not played with{unread}")
        else:
            play(last)
    finally:
        metrics.close()
    return run_end() or "the run has ended"


def evaluated_policies(folder: RunFolder, games: int, actions: Actions) -> set[str]:
    """SHA-256 of the parameters with which so many games of the first stream were played with such actions, in this
    life of the run or before."""
    policies = set()
    for path in (folder.path / FOLDER).glob(f"step-*-{actions}.json"):
        with contextlib.suppress(OSError):  # its games are played again
            found = _read(path)
            if not found.get("unfinished", 1) and len(found["scores"]) >= games:
                policies.add(found["parameters_sha256"])
    return policies


def _read(path: Path) -> dict[str, Any]:
    """What is kept of an evaluation; {} where there is none, or none of ours.

    Raises:
        OSError: one is there, or may be, and cannot be read.
    """
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        ours = {"parameters_sha256": str(fields["parameters_sha256"]), "unfinished": int(fields.get("unfinished", 0))}
        return {**ours, "scores": list(map(float, fields["scores"]))}
    except (FileNotFoundError, ValueError, LookupError, TypeError, AttributeError):
        return {}


def by_hand(folder: RunFolder, step: int | None = None) -> str:
    """What plays the games that were not."""
    which = "" if step is None else f" --step {step}"
    return f"`dba3c evaluate {shlex.quote(str(folder.path))}{which}` does it"


def report(played: Evaluation, metrics: MetricsWriter, say: Callable[[str], None]) -> None:
    """One `evaluation` record, and one line for people."""
    summary = played.summary
    metrics.record_evaluation(
        played.checkpoint_step,
        checkpoint_step=played.checkpoint_step,
        games=summary.games,
        unfinished=played.unfinished,
        mean=summary.mean,
        median=summary.median,
        iqm=summary.iqm,
        interval_95=summary.interval_95,
        max=summary.max,
    )
    for failure in played.environment_failures:
        metrics.record_event("environment", failure)
    left = f"; {played.unfinished} had not ended, which favours short games" if played.unfinished else ""
    say(f"step {played.checkpoint_step}: {summary} ({played.wall_s:.0f} s{left})")


def stop_when_solved(
    summary: ScoreSummary, step: int, folder: RunFolder, config: TrainConfig, tell: Callable[[str], None]
) -> None:
    """Ask the run to end when the mean of enough games reaches the stop score."""
    stop_score = config.run.stop_score
    if stop_score is None or summary.games < config.run.stop_games or summary.mean < stop_score:
        return
    reason = (
        f"evaluation of step {step}: mean {summary.mean:,.10g} of {summary.games} full games "
        f"reached the stop score {stop_score:,.10g}"
    )
    try:
        if folder.request_stop(reason, finished=True):
            tell(reason)
    except UserError as error:  # a full disk: the next evaluation asks again
        tell(str(error))
