"""Films of games: one full game with a checkpoint as mp4 (and GIF), and the role that films as a run goes on.

videos/step-N.mp4             a game of the checkpoint of step N
videos/step-N-ACTIONS-I.mp4   one of other actions, or of another stream of seeds, than the recorder's
videos/step-N.mp4.json        its score, length, protocol, seed and the parameters' hash
"""

import contextlib
import json
import shlex
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from dba3c.algorithms.policies import Actions, Decision
from dba3c.config import TrainConfig
from dba3c.environments.protocol import Transition
from dba3c.errors import UserError, warn_on_stderr, writing
from dba3c.evaluation.full_games import GamesAbandoned, make_player, play_full_games, protocol_for, stream_seeds
from dba3c.metrics.writer import MetricsWriter
from dba3c.recording.cameras import make_camera
from dba3c.recording.videos import FILM_PANEL, GIF_PANEL, GifWriter, Mp4Writer, Overlay, enlarge, shrink
from dba3c.roles import RunProcess
from dba3c.runs.checkpoints import CheckpointWatch, TrainedParameters
from dba3c.runs.ending import RunEnd
from dba3c.runs.files import checkpoint_steps, write_atomically
from dba3c.runs.folder import RunFolder


@dataclass(frozen=True, kw_only=True)
class RecordedGame:
    """What a film shows."""

    checkpoint_step: int
    env_id: str
    protocol: str
    seed: int
    """The run's."""
    seed_index: int
    """Which of the run's streams of recording seeds; the same index films the same game."""
    parameters_sha256: str
    score: float
    length_steps: int
    truncated: bool
    pictures: int
    pictures_per_s: float


def film_of(
    folder: RunFolder,
    config: TrainConfig,
    trained: TrainedParameters,
    actions: Actions | None = None,
    seed_index: int = 0,
) -> Path:
    """Where a run's film goes; without actions and stream, the recorder's own."""
    other = protocol_for(config, actions).actions != protocol_for(config).actions
    stream = f"-{seed_index}" if seed_index else ""
    return folder.videos / f"step-{trained.step}{f'-{actions}' if other else ''}{stream}.mp4"


def shows(film: Path, trained: TrainedParameters) -> bool:
    """Whether the film is there and of these parameters, as far as it says: after a roll-back a step is made anew. What
    cannot be read is not replaced."""
    try:
        told = json.loads(film.with_name(film.name + ".json").read_text(encoding="utf-8"))
        return film.exists() and told.get("parameters_sha256", trained.sha256) == trained.sha256
    except (FileNotFoundError, ValueError, AttributeError):
        return False
    except OSError as error:
        warn_on_stderr(f"{film}: {error}")
        return True


def record_game(
    config: TrainConfig,
    trained: TrainedParameters,
    path: Path,
    *,
    gif: Path | None = None,
    overlay: bool = False,
    actions: Actions | None = None,
    seed_index: int = 0,
    should_stop: Callable[[], str | None] = lambda: None,
    on_step: Callable[[int, float], None] = lambda step, score: None,
) -> RecordedGame:
    """Play one full game with a policy in the evaluation view and film it.

    Args:
        path: the mp4; PATH.json beside it says what it shows.
        gif: where to put a GIF of at most 2 MB.
        overlay: draw score, value and action probabilities beside the game, in both.
        actions: "sampled" or "greedy"; None as the protocol has it.
        on_step: called with each agent step and the score so far.

    Raises:
        UserError: the policy is of another network, the environment cannot be drawn, or the file not written.
        GamesAbandoned: `should_stop` gave a reason; no file is left.
    """
    environment_seed, action_seed = stream_seeds(config.run.seed, "recording", seed_index)
    protocol = protocol_for(config, actions)
    for file in (path, gif):
        if file is not None:
            with writing(file):
                file.parent.mkdir(parents=True, exist_ok=True)
    camera = make_camera(protocol.environment, environment_seed)
    score, steps = 0.0, 0
    try:
        player = make_player(config, camera.environments, trained, protocol.actions, action_seed)
        small = GifWriter(camera.pictures_per_s)
        with Mp4Writer(path, camera.pictures_per_s) as video, _one_thread():
            films = [(enlarge, FILM_PANEL, video.add), *([(shrink, GIF_PANEL, small.add)] if gif is not None else [])]
            panels = [Overlay(camera.action_names, size) for _, size, _ in films]

            def show(observation: np.ndarray, transition: Transition | None, decision: Decision | None) -> None:
                nonlocal score, steps
                if transition is not None:
                    if transition.failures:
                        raise UserError(f"the game cannot be filmed: {transition.failures[0]}")
                    score, steps = score + float(transition.gained[0]), steps + 1
                    if transition.episodes:  # an environment may tell the score of a whole game with its last step
                        score = transition.episodes[0].score
                on_step(steps, score)
                for picture in camera.pictures(observation):
                    for (resized, _, add), panel in zip(films, panels, strict=True):
                        shown = resized(picture)
                        add(panel.beside(shown, score, steps, decision) if overlay else shown)

            played = play_full_games(player, camera.environments, 1, on_step=show, should_stop=should_stop)
    finally:
        camera.environments.close()
    (episode,) = played.episodes
    game = RecordedGame(
        checkpoint_step=trained.step,
        env_id=config.environment.env_id,
        protocol=protocol.name,
        seed=config.run.seed,
        seed_index=seed_index,
        parameters_sha256=trained.sha256,
        score=episode.score,
        length_steps=episode.length_steps,
        truncated=episode.truncated,
        pictures=video.pictures,
        pictures_per_s=camera.pictures_per_s,
    )
    if gif is not None:
        small.save(gif)
    # last: a later life films again what has none
    write_atomically(path.with_name(path.name + ".json"), json.dumps(asdict(game), indent=1) + "\n")
    return game


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """One observation is too little for several threads: where cores are busy they wait 20 ms for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def recorder(process: RunProcess) -> str:
    """The recording node's whole life: film a game of every `recording_every`-th checkpoint until the run ends.

    The first checkpoint it sees is filmed, and then the newest as soon as `recording_every` have come since; one that
    an earlier life filmed is not filmed again.

    Returns:
        The reason the run ended.

    Raises:
        RunBroken: the launch is gone without a word.
    """
    folder, config = process.folder, process.config
    metrics = MetricsWriter.of(process, "recorder")
    run_end = RunEnd(folder)

    def tell(line: str, step: int | None = None, film: str = "") -> None:
        print(f"recorder {process.rank}: {line}", flush=True)
        metrics.record_event("recording", line, step, film)

    watch = CheckpointWatch(folder.checkpoints, run_end, say=tell)
    due, tried = 1, False
    try:
        while (trained := watch.wait()) is not None:
            due -= 1 + len(watch.passed_over)
            path = film_of(folder, config, trained)
            if due > 0:
                continue
            due, tried = config.run.recording_every, True
            if shows(path, trained):
                continue
            try:
                gif = path.with_suffix(".gif")  # what trackers show
                game = record_game(config, trained, path, gif=gif, should_stop=run_end)
                line = f"step {trained.step}: filmed a game of {game.score:,.10g} points in {path.name}"
                tell(line, trained.step, str(gif.relative_to(folder.path)))
            except UserError as error:  # a full disk, say: the run goes on, and so do the films when it can be
                tell(f"step {trained.step}: no film: {error}")
            except GamesAbandoned:
                tell(f"step {trained.step}: gave up the film, since the run ended")
        if not tried and (steps := checkpoint_steps(folder.checkpoints)):
            by_hand = f"`dba3c record {shlex.quote(str(folder.path))}`"
            tell(f"the run ended before anything was filmed: {by_hand} films step {steps[-1]}")
    finally:
        metrics.close()
    return run_end() or "the run has ended"
