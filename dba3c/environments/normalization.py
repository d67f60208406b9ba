"""Observations minus their running mean, over their running deviation: what MuJoCo's references train on.

    x' = clip((x − mean) / sqrt(variance + 1e-8), −10, 10)        of pixels 0…255: + 25, and ±5

as in OpenAI Baselines' VecNormalize, with mean and variance over every observation of the training view so far, merged
batch by batch (Chan, Golub & LeVeque 1979). In images a background that never moves is 0 then, and a ball stands out. A
pixel's deviation counts as five levels at least: with Sample Factory's 0.8 Assault and Seaquest were learned more
slowly than without any of this, with 20 Pong was; with one deviation for all pixels Pong stayed at 6 (results/recipes).
They belong to the policy and lie beside the checkpoints:

observations/worker-0.json    {"2000": {"count": …, "mean": […], "squares": […]}, …}: by the checkpoint's step

Every process (a worker's lane, an actor) normalises by what its own environments have shown, and keeps a snapshot for
each checkpoint's step. A resumed one goes on from its own; an evaluation and a film, which never change them, and one
that was not there before take those of all that then played, merged as if one had seen everything; it weighs them as
one process's, since all are merged again later.
"""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Space

from dba3c.environments.protocol import Transition, VectorEnvironment
from dba3c.environments.spaces import MixedSpace, NormalizedImage, is_image
from dba3c.errors import UserError

FOLDER = "observations"
Stored = dict[str, Any]
_CLIP, _EPSILON = 10.0, 1e-8
_PIXEL_CLIP, _PIXEL_EPSILON = 5.0, 25.0


class RunningStatistics:
    """Mean and variance (of the population) of all rows seen, per component, in float64."""

    def __init__(self, size: int) -> None:
        self.count = 0.0
        self.mean = np.zeros(size)
        self.squares = np.zeros(size)  # sum of squared distances from the mean

    @property
    def variance(self) -> np.ndarray:
        """Variance [D]; 1 before two rows were seen."""
        return self.squares / self.count if self.count > 1 else np.ones_like(self.mean)

    def update(self, rows: np.ndarray) -> None:
        """Merge `rows` [N ≥ 1, D]."""
        mean = rows.mean(axis=0, dtype=np.float64)
        self._add(float(len(rows)), mean, ((rows - mean) ** 2).sum(axis=0, dtype=np.float64))

    def merge(self, stored: Stored) -> None:
        """As if this had also seen what `to_dict` told of. Raises `UserError` where it is of another size."""
        if stored["count"]:
            self._add(float(stored["count"]), np.array(stored["mean"]), np.array(stored["squares"]))

    def _add(self, count: float, mean: np.ndarray, squares: np.ndarray) -> None:
        if mean.shape != self.mean.shape:
            raise UserError(f"observation statistics of {len(mean)} numbers, but observations have {len(self.mean)}")
        total, shift = self.count + count, mean - self.mean
        self.squares += squares + shift**2 * (self.count * count / total)
        self.mean += shift * (count / total)
        self.count = total

    def normalize(self, rows: np.ndarray) -> np.ndarray:
        """`rows` [N, D] normalised, float32."""
        scaled = (rows - self.mean) / np.sqrt(self.variance + _EPSILON)
        return np.clip(scaled, -_CLIP, _CLIP).astype(np.float32)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, for a process's file of statistics: see `statistics_of`."""
        return {"count": self.count, "mean": self.mean.tolist(), "squares": self.squares.tolist()}


class PixelStatistics(RunningStatistics):
    """Those of a frame's pixels, which are bytes before and after: as `NormalizedImage` has them."""

    def normalize(self, rows: np.ndarray) -> np.ndarray:
        """`rows` uint8 [N, C, H, W], of one frame or several, normalised: uint8."""
        levels_per_unit = NormalizedImage.LEVELS / np.sqrt(self.variance + _PIXEL_EPSILON)
        levels = rows.reshape(-1, self.mean.size) * levels_per_unit.astype(np.float32)
        levels += (NormalizedImage.ZERO + 0.5 - self.mean * levels_per_unit).astype(np.float32)  # rounded, not cut
        reach = _PIXEL_CLIP * NormalizedImage.LEVELS
        np.clip(levels, NormalizedImage.ZERO - reach, NormalizedImage.ZERO + reach, out=levels)
        return levels.astype(np.uint8).reshape(rows.shape)

    def to_dict(self) -> dict[str, Any]:
        """To five digits, a third of the bytes: every lane keeps 7,056 pixels' for each checkpoint."""
        exact = super().to_dict()
        rounded = {name: [float(f"{number:.5g}") for number in exact[name]] for name in ("mean", "squares")}
        return rounded | {"count": self.count}


def statistics_for(env_id: str, space: Space[Any], frames: int) -> tuple[RunningStatistics, Box]:
    """New statistics for observations of `space`, in which so many frames are stacked, and the space of the normalised
    ones. Raises `UserError` where they are neither vectors nor images."""
    if not isinstance(space, Box) or isinstance(space, MixedSpace):
        raise UserError(f"normalize_observations is for vectors or images; {env_id} has {space}")
    if is_image(space):
        return PixelStatistics(math.prod(space.shape) // frames), NormalizedImage(space.shape)
    return RunningStatistics(space.shape[0]), Box(-_CLIP, _CLIP, space.shape, np.float32)


class NormalizedObservations:
    """A `VectorEnvironment` whose observations are normalised; `statistics` is what it has seen, `raw` the newest
    observation as it was.

    `frames`: how many are stacked in an observation, along its first dimension.
    """

    def __init__(self, env_id: str, envs: VectorEnvironment, view: str, frames: int) -> None:
        self.num_envs = envs.num_envs
        self.observation_space: Space[Any]
        self.statistics, self.observation_space = statistics_for(env_id, envs.observation_space, frames)
        self.action_space: Space[Any] = envs.action_space
        self._newest = self.observation_space.shape[0] // frames
        self._envs = envs
        self._learns = view == "training"

    def reset(self) -> np.ndarray:
        self._shown = self._normalized(self._envs.reset(), np.ones(self.num_envs, bool))
        return self._shown

    def step(self, actions: np.ndarray) -> Transition:
        transition = self._envs.step(actions)
        self._shown = self._normalized(transition.observation, transition.first)
        return transition._replace(observation=self._shown)

    def close(self) -> None:
        self._envs.close()

    def _normalized(self, observation: np.ndarray, first: np.ndarray) -> np.ndarray:
        """Of a stack the newest frame alone, and all where a game begins: the others are the last one's, as who keeps
        or sends each frame once takes them to be."""
        self.raw = observation
        newest = observation[:, -self._newest :]
        if self._learns:
            self.statistics.update(newest.reshape(self.num_envs, -1))
        elif not self.statistics.count:  # clipped only, they would look normalized
            raise UserError(
                "normalize_observations without a run's statistics; an agent that was loaded normalizes by itself: "
                "make its environments of a configuration with normalize_observations False"
            )
        if first.all() or newest.shape == observation.shape:
            return self.statistics.normalize(observation)
        shown = np.empty_like(observation)
        shown[:, : -self._newest] = self._shown[:, self._newest :]
        shown[:, -self._newest :] = self.statistics.normalize(newest)
        if first.any():
            shown[first] = self.statistics.normalize(observation[first])
        return shown


def statistics_of(run: Path, step: int, name: str | None = None, life: int = 0) -> Stored | None:
    """The statistics that belong to the checkpoint of `step`: of the process `name` if it played then, else of all that
    did, merged.

    Each process's newest snapshot that is not later than the checkpoint counts, or everybody's oldest where all are
    later. Of an earlier life than others' is who plays no more, as after a resume with fewer lanes. None where there
    are none.

    Where others' files are read, too, `step` is there: that of the newest snapshot among them.

    life: the number of the one that `name` asks in. Where it played in the one before, the others' files are not read:
    each of 768 lanes would read 768 images' statistics.
    """
    own = (read_snapshots(run / FOLDER / f"{name}.json") if name and life else None) or {}
    newest = own.get(max((s for s in own if s <= step), default=-1))
    if newest is not None and newest.get("life", 0) >= life - 1:
        return {key: newest[key] for key in ("count", "mean", "squares")}
    try:  # from Python 3.12 on, glob finds nothing in a folder that cannot be read
        files = sorted(path for path in (run / FOLDER).iterdir() if path.suffix == ".json")
    except FileNotFoundError:
        return None
    kept_by_all = {path.stem: snapshots for path in files if (snapshots := read_snapshots(path))}
    until_then = {who: [s for s in snapshots if s <= step] for who, snapshots in kept_by_all.items()}
    steps = {who: max(then) for who, then in until_then.items() if then}
    steps = steps or {who: min(snapshots) for who, snapshots in kept_by_all.items()}
    of_all = {who: kept_by_all[who][of] for who, of in steps.items()}
    newest_life = max((stored.get("life", 0) for stored in of_all.values()), default=0)
    playing = {who: stored for who, stored in of_all.items() if stored.get("life", 0) == newest_life}
    if not playing:
        return None
    counted = [name] if name in playing else list(playing)
    merged = RunningStatistics(len(playing[counted[0]]["mean"]))
    for who in counted:
        merged.merge(playing[who])
    if name is not None:  # who begins with others' weighs them as one process: all of them are merged again later
        merged.count /= len(counted)
        merged.squares /= len(counted)
    return merged.to_dict() | {"step": max(steps[who] for who in counted)}


def use_statistics(environments: VectorEnvironment, stored: Stored | None, checkpoint: str) -> None:
    """Let environments of the evaluation view normalise by `stored`; nothing where they do not normalise.

    Raises:
        UserError: they do, and the run kept no statistics.
    """
    if isinstance(environments, NormalizedObservations):
        environments.statistics.merge(kept(stored, checkpoint))


def kept(stored: Stored | None, checkpoint: str) -> Stored:
    """The statistics. Raises UserError where the run of the checkpoint kept none."""
    if stored is None:
        raise UserError(f"{checkpoint}: its run kept no observation statistics, which its observations need")
    return stored


def read_snapshots(path: Path) -> dict[int, Stored] | None:
    """One process's snapshots by step, None where it has none. Raises UserError when the file is another's."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    try:
        return {int(step): stored for step, stored in json.loads(text).items()}
    except (ValueError, AttributeError) as error:
        raise UserError(f"{path} is not a file of observation statistics: {error}") from error
