"""A panel beside the picture: score, value, and how likely the policy finds each action."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from dba3c.evaluation.players import Choice

_WIDTH = 190
_MARGIN = 10
_LINE = 18
_BACKGROUND = (24, 26, 31)
_TEXT = (224, 226, 230)
_BAR = (0, 114, 178)  # Okabe and Ito's blue and orange: told apart by everyone
_TAKEN = (230, 159, 0)


class Overlay:
    """Draws the panel. `action_names`: of a discrete action space, else empty."""

    def __init__(self, action_names: list[str]) -> None:
        self._action_names = action_names
        self._font = ImageFont.load_default(13)

    def beside(self, picture: np.ndarray, score: float, step: int, choice: Choice | None) -> np.ndarray:
        """The picture [H, W, 3] with a panel at its right: uint8 [H, W + 190, 3].

        `choice`: what the player (of one environment) did; None before the first step.
        """
        panel = Image.new("RGB", (_WIDTH, picture.shape[0]), _BACKGROUND)
        draw = ImageDraw.Draw(panel)
        lines = [f"score  {score:g}", f"step   {step}"]
        if choice is not None and choice.value is not None:
            lines.append(f"value  {float(choice.value[0]):.2f}")
        for row, line in enumerate(lines):
            draw.text((_MARGIN, _MARGIN + row * _LINE), line, fill=_TEXT, font=self._font)
        if choice is not None and choice.probabilities is not None and self._action_names:
            self._draw_bars(draw, _MARGIN + (len(lines) + 1) * _LINE, choice, picture.shape[0])
        return np.concatenate((picture, np.asarray(panel)), axis=1)

    def _draw_bars(self, draw: ImageDraw.ImageDraw, top: int, choice: Choice, height: int) -> None:
        """A bar per action, the taken one in another colour; closer together where there are many."""
        assert choice.probabilities is not None
        probabilities = choice.probabilities[0].tolist()
        pitch = min(2 * _LINE, max(12, (height - top - _MARGIN) // len(probabilities)))
        longest = _WIDTH - 2 * _MARGIN
        for index, (name, probability) in enumerate(zip(self._action_names, probabilities, strict=True)):
            y = top + index * pitch
            colour = _TAKEN if index == int(choice.actions[0]) else _BAR
            draw.rectangle((_MARGIN, y, _MARGIN + round(longest * probability), y + pitch - 3), fill=colour)
            draw.text((_MARGIN + 3, y + (pitch - 3) / 2), name, fill=_TEXT, font=self._font, anchor="lm")
