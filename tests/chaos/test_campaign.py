"""A minute of the campaign, always the same; `make chaos` runs it for longer, with a seed of its own each time."""

import re
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.timeout(900)  # of a machine that is busy with other things; its own waits are bounded
def test_a_minute_of_random_faults_loses_nothing_and_falsifies_nothing() -> None:
    command = [sys.executable, "-m", "tests.chaos", "--minutes", "1", "--seed", "853697931"]
    campaign = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert campaign.returncode == 0, campaign.stdout + campaign.stderr
    assert ": 0 findings" in campaign.stdout
    done = r"(\d+) lives, (\d+) faults, (\d+) steps replayed bit by bit, (\d+) checkpoints"
    counts = re.search(done, campaign.stdout)
    assert counts and all(int(count) > 0 for count in counts.groups()), campaign.stdout
