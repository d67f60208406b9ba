"""Evaluation: full games with a checkpoint, and the role that plays them with each new one."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

from dba3c.checkpoints import Policy
from dba3c.config import TrainConfig
from dba3c.construction import Spaces
from dba3c.environments.factory import make_vector_environment
from dba3c.environments.protocol import Episode
from dba3c.errors import UserError
from dba3c.evaluation_protocol import protocol_for, stream_seeds
from dba3c.evaluation_result import Evaluation, evaluated_policies, evaluation_of
from dba3c.full_games import GamesAbandoned, play_full_games
from dba3c.metrics import MetricsWriter
from dba3c.observation_statistics import use_statistics
from dba3c.players import Actions, make_player
from dba3c.run_folder import RunFolder
from dba3c.run_watch import LOOK_S, CheckpointWatch, RunEnd

DEFAULT_NUM_ENVS = 10


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
        on_game, should_stop: see `play_full_games`.

    Raises:
        UserError: the policy is of another network, or the environment cannot be played.
        GamesAbandoned: `should_stop` gave a reason.
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
        use_statistics(environments, policy.observation_statistics, f"checkpoint step-{policy.step}")
        spaces = Spaces(environments.observation_space, environments.action_space)
        player = make_player(config, spaces, policy, protocol.actions, action_seed)
        played = play_full_games(player, environments, games, on_game=on_game, should_stop=should_stop)
    finally:
        environments.close()
    return evaluation_of(config, policy, protocol, played, seed_index, num_envs, time.monotonic() - started_s)


def run_evaluator(
    folder: RunFolder,
    config: TrainConfig,
    rank: int,
    *,
    incarnation: int = 0,
    num_envs: int = DEFAULT_NUM_ENVS,
    look_s: float = LOOK_S,
    say: Callable[[str], None] | None = None,
) -> str:
    """The evaluation node's whole life: play `evaluation_games` with each new checkpoint until the run ends.

    A checkpoint that comes while another is played waits; of several that wait the newest is taken and the others are
    named. When the mean of at least `stop_games` games reaches the stop score, the run is asked to end.

    Returns:
        The reason the run ended.

    Raises:
        RunBroken: the launch is gone without a word.
        UserError: the checkpoints are of another network, or the environment cannot be played.
    """
    say = say or (lambda line: print(f"evaluator {rank}: {line}", flush=True))
    metrics = MetricsWriter(folder, "evaluator", rank, incarnation)
    run_end = RunEnd(folder, look_s=look_s)

    def tell(line: str) -> None:
        say(line)
        metrics.record_event("evaluation", line)

    done = evaluated_policies(folder)
    watch = CheckpointWatch(folder, run_end, is_done=lambda policy: policy.sha256 in done, say=tell, look_s=look_s)
    games = config.run.evaluation_games
    if config.run.stop_score is not None and games < config.run.stop_games:
        tell(f"will not stop the run: {games} games are fewer than the {config.run.stop_games} of the stop rule")
    try:
        while (policy := watch.wait()) is not None:
            if watch.passed_over:
                tell(f"passed over steps {', '.join(map(str, watch.passed_over))}: {policy.step} is newer")
            try:
                evaluation = evaluate(config, policy, games=games, num_envs=num_envs, should_stop=run_end)
            except GamesAbandoned as gave_up:
                tell(f"step {policy.step}: gave up after {gave_up.played} of {games} games, since the run ended")
                break
            report(evaluation, metrics, say)
            try:
                evaluation.save(folder)
            except UserError as error:  # a full disk: the record above has the statistics
                tell(str(error))
            stop_when_solved(evaluation, folder, config, tell)
    finally:
        metrics.close()
    return run_end() or "the run has ended"


def report(evaluation: Evaluation, metrics: MetricsWriter, say: Callable[[str], None]) -> None:
    """One `evaluation` record, and one line for people."""
    summary = evaluation.summary
    metrics.record_evaluation(
        evaluation.checkpoint_step,
        checkpoint_step=evaluation.checkpoint_step,
        games=summary.games,
        mean=summary.mean,
        median=summary.median,
        iqm=summary.iqm,
        interval_95=summary.interval_95 or (float("nan"), float("nan")),
        max=summary.max,
    )
    for failure in evaluation.environment_failures:
        metrics.record_event("environment", failure)
    say(f"step {evaluation.checkpoint_step}: {summary} ({evaluation.wall_s:.0f} s)")


def stop_when_solved(
    evaluation: Evaluation, folder: RunFolder, config: TrainConfig, tell: Callable[[str], None]
) -> None:
    """Ask the run to end when the mean of enough games reaches the stop score."""
    summary, stop_score = evaluation.summary, config.run.stop_score
    if stop_score is None or summary.games < config.run.stop_games or summary.mean < stop_score:
        return
    reason = (
        f"evaluation of step {evaluation.checkpoint_step}: mean {summary.mean:.4g} of {summary.games} full games "
        f"reached the stop score {stop_score:g}"
    )
    if folder.request_stop(reason):
        tell(reason)
