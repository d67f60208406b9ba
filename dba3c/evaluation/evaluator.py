"""Evaluation: full games with a checkpoint, what is kept of them, and the role that plays them with each new one.

    evaluations/step-N-ACTIONS.json      protocol, seed, hashes, every game's score and length, and their summary
    evaluations/step-N-ACTIONS-I.json    games of the stream of seeds I, where that is not 0: one share of several

lie beside `checkpoints/`, not in it: a checkpoint's files are those of its manifest, and old ones are deleted.
"""

import dataclasses
import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dba3c.algorithms.policies import Actions
from dba3c.config import TrainConfig
from dba3c.environments.factory import make_vector_environment
from dba3c.environments.protocol import Episode
from dba3c.errors import UserError, warn_on_stderr, writing
from dba3c.evaluation.full_games import GamesAbandoned, make_player, play_full_games, protocol_for, quotas, stream_seeds
from dba3c.metrics.writer import MetricsWriter
from dba3c.roles import RunProcess
from dba3c.runs.checkpoints import CheckpointWatch, Policy
from dba3c.runs.ending import LOOK_S, Overtime, RunEnd, evaluating
from dba3c.runs.files import write_atomically, write_once
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
            kept = _games_at(path, self.parameters_sha256)
        if (games := len(self.scores)) < kept or (kept and self.unfinished):
            cut = f" and {self.unfinished} unfinished" if self.unfinished else ""
            warn_on_stderr(f"{path} stays as it is: it has {kept} games of these parameters, this one {games}{cut}")
            return path
        fields = dataclasses.asdict(self)
        fields["summary"]["interval_95_of"] = "iqm"
        write_atomically(path, json.dumps(fields, indent=1, allow_nan=False) + "\n")
        return path


def _games_at(path: Path, parameters_sha256: str) -> int:
    """How many games a whole evaluation of these parameters that is kept there has; 0: there is none.

    Raises:
        OSError: one is there, or may be, and cannot be read.
    """
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        whole = kept["parameters_sha256"] == parameters_sha256 and not kept.get("unfinished")
        return len(kept["scores"]) if whole else 0
    except (FileNotFoundError, ValueError, LookupError, TypeError):
        return 0


def evaluate(
    config: TrainConfig,
    policy: Policy,
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
        player = make_player(config, environments, policy, protocol.actions, action_seed)
        played = play_full_games(player, environments, games, on_game=on_game, should_stop=should_stop)
    finally:
        environments.close()
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
        wall_s=round(time.monotonic() - started_s, 3),
    )


def evaluator(process: RunProcess, *, look_s: float = LOOK_S, say: Callable[[str], None] | None = None) -> str:
    """The evaluation node's whole life: play with each new checkpoint until the run ends, then with its last one.

    Several evaluators share the `evaluation_games` of each checkpoint: as many shares as evaluators, each with its own
    stream of seeds and its own file; the statistics are of all shares that are there. Who has begun a checkpoint goes
    on with it until each share is taken (`take`): none is left with some of its games, whoever is at which, and nobody
    waits for another. Of several checkpoints that wait the newest is taken and the others are named. When the mean of
    at least `stop_games` games reaches the stop score, the run is asked to end.
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

    games = quotas(config.run.evaluation_games, max(1, config.run.evaluators)).tolist()  # of each share
    actions = protocol_for(config).actions
    done = [evaluated_policies(folder, count, actions, share) for share, count in enumerate(games)]
    watch = CheckpointWatch(
        folder.checkpoints,
        run_end,
        is_done=lambda policy: all(policy.sha256 in played for played in done),
        say=tell,
        look_s=look_s,
    )
    if config.run.stop_score is not None and config.run.evaluation_games < config.run.stop_games:
        few = f"{config.run.evaluation_games} games are fewer than the {config.run.stop_games} of the stop rule"
        tell(f"will not stop the run: {few}")

    def play(policy: Policy) -> None:
        if watch.passed_over:
            tell(f"passed over steps {', '.join(map(str, watch.passed_over))}: {policy.step} is newer")
        overtime.step = policy.step
        own_first = sorted(range(len(games)), key=lambda share: share != rank)
        for share in own_first:
            ours = policy.sha256 not in done[share] and take(folder, policy, share, rank, tell)
            if ours and not play_share(policy, share):
                return

    def play_share(policy: Policy, share: int) -> bool:
        """Whether there was time for all of its games."""
        try:
            played = evaluate(config, policy, games=games[share], seed_index=share, should_stop=overtime)
        except GamesAbandoned as why:
            none = f"none of {games[share]} games had ended when {why}"
            tell(f"step {policy.step}: {none}; {by_hand(folder, policy.step)}")
            return False
        try:
            played.save(folder)
        except UserError as error:  # a full disk: the record below has the statistics
            tell(str(error))
        summary, unfinished = together(folder, played, len(games))
        report(played, summary, unfinished, metrics, say)
        if not unfinished:
            stop_when_solved(summary, policy.step, folder, config, tell)
        return not played.unfinished

    try:
        with evaluating(folder, rank, tell):
            while (policy := watch.wait()) is not None:
                play(policy)
            if not run_end.finished:
                tell(f"the checkpoint that the run ends with is not played with ({run_end()}); {by_hand(folder)}")
                return run_end() or "the run has ended"
            tell(
                f"the run has ended ({run_end()}): playing {sum(games)} games with its last checkpoint, for at most "
                f"{overtime.budget_s:.0f} s; Ctrl-C ends that"
            )
            while not overtime.training_has_ended() and overtime() is None:
                time.sleep(look_s)
            while (last := watch.newest_unseen()) is None and watch.unreadable is not None and overtime() is None:
                time.sleep(look_s)
            if last is None:
                unread = "" if watch.unreadable is None else f" and could be read; {by_hand(folder, watch.unreadable)}"
                tell(f"there is no checkpoint that was not played with{unread}")
            else:
                play(last)
    finally:
        metrics.close()
    return run_end() or "the run has ended"


def take(folder: RunFolder, policy: Policy, share: int, rank: int, say: Callable[[str], None]) -> bool:
    """Whether this evaluator is to play a share of a checkpoint's games: it is the first of this life to ask for it, or
    was (and has died since). Where the folder cannot be asked, each plays the share of its own number."""
    name = f"evaluating-{policy.step}-{policy.sha256[:12]}-{share}"
    try:
        first = write_once(folder.rendezvous / f"{name}.json", json.dumps({"rank": rank}) + "\n")
        return first or (folder.published(name) or {}).get("rank") == rank
    except UserError as error:
        say(str(error))
        return share == rank


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


def evaluated_policies(folder: RunFolder, games: int, actions: Actions, seed_index: int = 0) -> set[str]:
    """SHA-256 of the parameters with which so many games of a stream were played with such actions, in this life of the
    run or before."""
    found = map(_read, sorted((folder.path / FOLDER).glob(f"step-*-{actions}*.json")))
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


def by_hand(folder: RunFolder, step: int | None = None) -> str:
    """What plays the games that were not."""
    which = "" if step is None else f" --step {step}"
    return f"`dba3c evaluate {folder.path}{which}` does it"


def report(
    share: Evaluation, summary: ScoreSummary, unfinished: int, metrics: MetricsWriter, say: Callable[[str], None]
) -> None:
    """One `evaluation` record, and one line for people."""
    metrics.record_evaluation(
        share.checkpoint_step,
        checkpoint_step=share.checkpoint_step,
        games=summary.games,
        unfinished=unfinished,
        mean=summary.mean,
        median=summary.median,
        iqm=summary.iqm,
        interval_95=summary.interval_95,
        max=summary.max,
    )
    for failure in share.environment_failures:
        metrics.record_event("environment", failure)
    left = f"; {unfinished} had not ended, which favours short games" if unfinished else ""
    say(f"step {share.checkpoint_step}: {summary} ({share.wall_s:.0f} s{left})")


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
