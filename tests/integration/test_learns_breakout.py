"""A few minutes of real Atari through servers and workers: the last games must clearly beat the first."""

from pathlib import Path

import numpy as np
import pytest

from tests.integration.runs import Run, episodes

AGENT_STEPS = 400_000
GAMES = 50


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_breakout_scores_at_least_double_within_400_000_agent_steps(tmp_path: Path) -> None:
    """Prototypes scored 1 to 2 in their first games and 5 to 8 after so many steps; 3 and a doubling leave a margin."""
    folder = tmp_path / "run"
    words = ("breakout", "--workers", "2", "--servers", "2", "--envs-per-worker", "16", "--seed", "1", "--track")
    frames = str(4 * AGENT_STEPS)
    with Run("train", *words, "--total-frames", frames, "--run-dir", str(folder), folder=folder) as run:
        code, output = run.wait(2300)
    assert code == 0, output
    scores = [episode["score"] for episode in episodes(folder, workers=2)]
    first, last = np.mean(scores[:GAMES]), np.mean(scores[-GAMES:])
    assert first < 3
    assert last >= max(3.0, 2 * first), f"first {GAMES} games {first:.2f}, last {GAMES} games {last:.2f}"
