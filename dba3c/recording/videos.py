"""Video files out of pictures, one at a time: H.264 in mp4, and GIFs small enough for a README; a panel beside them.

mp4 is encoded by the ffmpeg that the package imageio-ffmpeg carries, GIFs by Pillow. A game of half an hour has 54,000
pictures (5 GB): neither writer keeps them. Pictures are uint8 [H, W, 3]; files appear whole or not at all.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import subprocess
from collections.abc import Generator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import imageio_ffmpeg
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from dba3c.algorithms.policies import Decision
from dba3c.errors import UserError, writing
from dba3c.studies.statistics import score_text
from param_servers.errors import first_line

_QUALITY = 7  # of imageio-ffmpeg's 1 … 10: no blocks to be seen in pixel graphics
_FFMPEG_END_S = 120.0
_LEAST_DECODED_PER_S = 10.0
GIF_LIMIT_BYTES = 2_000_000
_GIF_MOST_PICTURES = 600
_GIF_LARGEST_WIDTH = 240
_GIF_LEAST_HEIGHT = 100
_GIF_COLOURS = 32
_GIF_LEAST_PICTURES = 40
_GIF_SHORTEST_S = 1 / 15
_GIF_LONGEST_S = 1 / 10
_GIF_SLOWEST_S = 1.0  # equal pictures in a row become one, which lasts 655 s at most
_LEAST_HEIGHT = 400
_LARGEST_WIDTH = 16_384  # of H.264's encoder
_BACKGROUND = (24, 26, 31)
_TEXT = (224, 226, 230)
_BAR = (0, 114, 178)  # Okabe and Ito's blue and orange: told apart by everyone
_TAKEN = (230, 159, 0)


class Mp4Writer:
    """Writes an mp4 at `path`, in an existing folder; use it with `with`. An exception inside leaves no file."""

    def __init__(self, path: Path, pictures_per_s: float) -> None:
        self.path = path
        self.pictures = 0
        self._pictures_per_s = pictures_per_s
        self._temporary = _beside(path, ".mp4")
        self._shape: tuple[int, ...] = ()
        self._ffmpeg: Generator[None, Any, None] | None = None

    def add(self, picture: np.ndarray) -> None:
        """The next picture. Raises UserError when it is of another size, or ffmpeg stopped taking them."""
        self._shape = self._shape or picture.shape
        if picture.shape != self._shape:
            sizes = f"{list(picture.shape)} after {list(self._shape)}"
            raise UserError(f"cannot encode {self.path}: a film has pictures of one size, and got {sizes}")
        try:
            if self._ffmpeg is None:
                self._ffmpeg = self._start(picture)
            self._ffmpeg.send(np.ascontiguousarray(picture))
        except RuntimeError as error:  # of imageio-ffmpeg: there is none
            raise UserError(f"cannot encode {self.path}: {first_line(error)}") from error
        except OSError as error:
            raise UserError(f"cannot encode {self.path}: ffmpeg ended after {self.pictures} pictures") from error
        self.pictures += 1

    def __enter__(self) -> Mp4Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if self._ffmpeg is not None:
                self._ffmpeg.close()  # waits for ffmpeg
            if kind is None:
                self._publish()
        finally:
            with contextlib.suppress(OSError):  # what refused the film refuses this, too, and was named
                self._temporary.unlink()

    def _start(self, picture: np.ndarray) -> Generator[None, Any, None]:
        height, width = picture.shape[:2]
        writer: Generator[None, Any, None] = imageio_ffmpeg.write_frames(
            str(self._temporary),
            (width, height),
            fps=self._pictures_per_s,
            quality=_QUALITY,
            codec="libx264",
            macro_block_size=1,
            ffmpeg_log_level="error",
            ffmpeg_timeout=_FFMPEG_END_S,
            # even sides, since H.264's colours are halved; one thread: the cores are the workers'; the index first: a
            # browser plays it while it loads
            output_params=["-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2", "-threads", "1", "-movflags", "+faststart"],
        )
        writer.send(None)
        return writer

    def _publish(self) -> None:
        # ffmpeg's exit code is not handed on: a full disk shows in the number of pictures
        written = 0
        if self._temporary.exists():
            timeout_s = _FFMPEG_END_S + self.pictures / _LEAST_DECODED_PER_S
            try:
                written = _pictures_in(self._temporary, timeout_s)
            except subprocess.TimeoutExpired:
                raise UserError(
                    f"cannot write {self.path}: its {self.pictures} pictures were not counted within {timeout_s:.0f} s"
                ) from None
            except (OSError, subprocess.CalledProcessError):
                pass  # what it holds is no film: none of its pictures was written
        if written != self.pictures or written == 0:
            raise UserError(f"cannot write {self.path}: {written} of {self.pictures} pictures were encoded")
        with writing(self.path):
            os.replace(self._temporary, self.path)


def _pictures_in(path: Path, timeout_s: float) -> int:
    """As `imageio_ffmpeg.count_frames_and_secs`, whose ffmpeg reads this process's input: it takes what is meant for
    others, and on a terminal stops a job in the background."""
    words = [imageio_ffmpeg.get_ffmpeg_exe(), "-nostdin", "-i", str(path), "-map", "0:v:0", "-f", "null", "-"]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, check=True)
    found = re.findall(rb"frame=\s*(\d+)", done.stderr)
    return int(found[-1]) if found else 0


def enlarge(picture: np.ndarray) -> np.ndarray:
    """The picture times the smallest whole factor that makes it 400 high, or as wide as can be; pixels kept sharp."""
    factor = min(-(-_LEAST_HEIGHT // picture.shape[0]), (_LARGEST_WIDTH - FILM_PANEL.width) // picture.shape[1])
    return picture.repeat(factor, axis=0).repeat(factor, axis=1) if factor > 1 else picture


def shrink(picture: np.ndarray) -> np.ndarray:
    """The picture as a GIF shows it: at most 240 wide, and what is smaller than 100 high enlarged."""
    factor = -(-_GIF_LEAST_HEIGHT // picture.shape[0])
    image = Image.fromarray(picture.repeat(factor, axis=0).repeat(factor, axis=1))
    image.thumbnail((_GIF_LARGEST_WIDTH, 2 * _GIF_LARGEST_WIDTH), Image.Resampling.BOX)
    return np.asarray(image)


class GifWriter:
    """Keeps every k-th picture of a game of any length, k doubling as it grows, and saves them below a limit.

    A game that needs few pictures is shown at its own speed; otherwise a second shows ten of them.
    """

    def __init__(self, pictures_per_s: float) -> None:
        self._pictures_per_s = pictures_per_s
        self._every = max(1, int(pictures_per_s * _GIF_SHORTEST_S))
        self._kept: list[Image.Image] = []
        self._seen = 0

    def add(self, picture: np.ndarray) -> None:
        """The next picture; all of one size."""
        if self._seen % self._every == 0:
            self._kept.append(Image.fromarray(picture))
        self._seen += 1
        if len(self._kept) > _GIF_MOST_PICTURES:
            self._thin_out()

    def save(self, path: Path, limit_bytes: int = GIF_LIMIT_BYTES) -> int:
        """Write about `limit_bytes` at most; returns the number of pictures. Leaves out pictures first, then pixels.

        Raises:
            UserError: there are no pictures, or the file cannot be written.
        """
        if not self._kept:
            raise UserError(f"no pictures for {path}")
        temporary = _beside(path, ".gif")
        try:
            with writing(path):
                while self._encode(temporary) > limit_bytes and self._kept[0].width > 1:
                    if len(self._kept) >= 2 * _GIF_LEAST_PICTURES:
                        self._thin_out()
                    else:
                        self._kept = [image.reduce(2) for image in self._kept]
                os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        return len(self._kept)

    def _thin_out(self) -> None:
        self._kept = self._kept[::2]
        self._every *= 2

    def _encode(self, path: Path) -> int:
        """Write the kept pictures with one palette of their own; returns the file's bytes."""
        sample = self._kept[:: max(1, len(self._kept) // 16)]
        # the rarest colours, a ball's, must not be averaged away: median cut on unscaled pictures keeps them
        palette = Image.fromarray(np.concatenate([np.asarray(image) for image in sample])).quantize(_GIF_COLOURS)
        frames = [image.quantize(palette=palette, dither=Image.Dither.NONE) for image in self._kept]
        longest_s = min(_GIF_SLOWEST_S, max(_GIF_LONGEST_S, 1 / self._pictures_per_s))
        duration_s = min(self._every / self._pictures_per_s, longest_s)
        ends_ms = [10 * round(100 * duration_s * number) for number in range(len(frames) + 1)]  # GIFs know whole 10 ms
        durations_ms = [end - start for start, end in pairwise(ends_ms)]
        frames[0].save(path, save_all=True, append_images=frames[1:], duration=durations_ms, loop=0, optimize=False)
        return path.stat().st_size


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(f".{path.stem}-{os.getpid()}-{secrets.token_hex(4)}{suffix}")


class PanelSize(NamedTuple):
    """Of an overlay's panel, in pixels."""

    width: int
    margin: int
    line: int
    font: int
    least_bar: int


FILM_PANEL = PanelSize(width=190, margin=10, line=18, font=13, least_bar=12)
GIF_PANEL = PanelSize(width=120, margin=6, line=13, font=10, least_bar=8)


class Overlay:
    """A panel beside the picture: score, value, and how likely the policy finds each action.

    `action_names`: of a discrete action space, else empty.
    """

    def __init__(self, action_names: list[str], size: PanelSize = FILM_PANEL) -> None:
        self._action_names = action_names
        self._size = size
        self._font = ImageFont.load_default(size.font)

    def beside(self, picture: np.ndarray, score: float, step: int, decision: Decision | None) -> np.ndarray:
        """The picture [H, W, 3] with a panel at its right: uint8 [H, W + the panel's width, 3].

        `decision`: what the player (of one environment) did; None before the first step.
        """
        margin, line_height = self._size.margin, self._size.line
        panel = Image.new("RGB", (self._size.width, picture.shape[0]), _BACKGROUND)
        draw = ImageDraw.Draw(panel)
        lines = [f"score  {score_text(score)}", f"step   {step}"]
        if decision is not None and decision.value is not None:
            lines.append(f"value  {float(decision.value[0]):.2f}")
        for row, line in enumerate(lines):
            draw.text((margin, margin + row * line_height), line, fill=_TEXT, font=self._font)
        if decision is not None and decision.probabilities is not None and self._action_names:
            top = margin + len(lines) * line_height + line_height // 2
            self._draw_bars(draw, top, decision, picture.shape[0])
        return np.concatenate((picture, np.asarray(panel)), axis=1)

    def _draw_bars(self, draw: ImageDraw.ImageDraw, top: int, decision: Decision, height: int) -> None:
        """A bar per action with its probability, the taken one in another colour; closer together where many are."""
        assert decision.probabilities is not None
        size, probabilities = self._size, decision.probabilities[0].tolist()
        pitch = min(2 * size.line, max(size.least_bar, (height - top - size.margin) // len(probabilities)))
        longest = size.width - 2 * size.margin
        for index, (name, probability) in enumerate(zip(self._action_names, probabilities, strict=True)):
            y = top + index * pitch
            colour = _TAKEN if index == int(decision.actions[0]) else _BAR
            draw.rectangle((size.margin, y, size.margin + round(longest * probability), y + pitch - 3), fill=colour)
            middle = y + (pitch - 3) / 2
            draw.text((size.margin + 3, middle), name, fill=_TEXT, font=self._font, anchor="lm")
            right = size.width - size.margin - 1
            draw.text((right, middle), f"{probability:.0%}", fill=_TEXT, font=self._font, anchor="rm")
