"""Sample Factory's own Atari example, with full games told; importing ale_py makes gymnasium 0.29 know its games."""

from __future__ import annotations

import sys

import ale_py
import full_games
from sf_examples.atari.train_atari import main

assert ale_py.__version__
assert full_games

if __name__ == "__main__":
    sys.exit(main())
