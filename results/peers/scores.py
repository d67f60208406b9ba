"""Other systems' scores against core-hours of processor time, beside ours: Breakout and Pong.

    python results/peers/scores.py run --cleanrl DIR    (25 minutes on 2 cores for each system and game)
    python results/peers/scores.py page                 writes scores.png and the table of README.md from scores.jsonl

One run after the other, as in measure.py, until its processes have used CORE_HOURS of processor time, however many
cores that were. A score is a full game's, unclipped, all lives: told by the emulator (full_games.py) where the system
tells another. A curve is the mean of the last GAMES games, as ours are; ours are runs that lie in results/.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dba3c.errors import UserError
from dba3c.studies.curve import Curve, load_curve
from dba3c.studies.figures import line_of, new_panels, random_to, save
from dba3c.studies.page import add_row, facts, markdown, renew, rows_of

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from peers.measure import START_S, Peer, cpu_s, peers, started

HERE = Path(__file__).resolve().parent
FILE = HERE / "scores.jsonl"
CORE_HOURS, GAMES, POINTS = 0.75, 50, 150
GOALS = {"Breakout": 300.0, "Pong": 20.0}
LOOK_S = 1.0
OURS = {
    "Breakout": {
        "ours, preset breakout, float32": "peers/breakout",
        "ours, preset breakout, bfloat16": "breakout_lanes/nstep/seed-3",
        "ours, preset atari, bfloat16": "breakout_lanes/nstep-normalized/seed-0",
        "ours, PPO, images 0 to 1, bfloat16": "peers/ppo-Breakout/seed-0",
        "ours, PPO, images 0 to 1, float32": "recipes/ppo-256-Breakout/seed-0",
    },
    "Pong": {
        "ours, preset breakout, bfloat16": "recipes/nstep-Pong/seed-0",
        "ours, preset atari, bfloat16": "recipes/nstep-normalized-Pong/seed-0",
        "ours, preset atari, float32": "peers/atari-Pong-float32/seed-0",
        "ours, PPO, images normalised, bfloat16": "recipes/ppo-256-normalized-Pong/seed-0",
        "ours, PPO, images 0 to 1, bfloat16": "peers/ppo-Pong/seed-0",
    },
}
"""Our runs of each game, from results/."""
UNDRAWN = "images 0 to 1"
"""Of what our presets were before: in the table only."""
SYSTEMS = {
    "CleanRL PPO + EnvPool (4 epochs)": r"episodic_return=\[?(-?[\d.]+)",
    "Stable-Baselines3 PPO (4 epochs)": r"score (-?[\d.]+) steps",
    "Stable-Baselines3 A2C": r"score (-?[\d.]+) steps",
    "Sample Factory APPO": r"full game (-?[\d.]+)",
    "RLlib IMPALA": r"full game (-?[\d.]+)",
}
"""How a line tells a full game's score."""


@dataclass
class Told:
    """What a system has said so far."""

    peer: Peer
    score: str
    steps: float = 0.0
    new: deque[float] = field(default_factory=deque)
    """Scores of games that are in no point yet."""

    def hear(self, line: str) -> None:
        if found := re.search(self.peer.counts, line):
            self.steps = self.peer.scale * float(found.group(1).replace(",", ""))
        if found := re.search(self.score, line):
            self.new.append(float(found.group(1)))


def play(name: str, game: str, seed: int, cleanrl: Path, venvs: Path) -> dict[str, object]:
    """One run's row, until CORE_HOURS are used.

    Raises:
        UserError: it ended, or told no steps in time; with the last words of its output.
    """
    peer = peers(cleanrl, game, seed)[name]
    told, last = Told(peer, SYSTEMS[name]), deque[float](maxlen=GAMES)
    points: list[tuple[float, float, float]] = []
    used, games = 0.0, 0
    with started(peer, venvs, told.hear) as processes:
        begun_s = time.monotonic()
        while used < CORE_HOURS:
            processes.check(late=not told.steps and time.monotonic() - begun_s > START_S)
            time.sleep(LOOK_S)
            used = max(used, cpu_s(processes.pid) / 3600)
            while told.new:
                last.append(told.new.popleft())
                games += 1
            if last and used >= len(points) * CORE_HOURS / POINTS:
                points.append((round(used, 4), told.steps, round(statistics.fmean(last), 3)))
    hours, steps, scores = zip(*points, strict=True)
    return {
        "system": name, "game": game, "seed": seed, "games": games, **where(),
        "core_hours": hours, "agent_steps": steps, "score": scores,
    }  # fmt: skip


def where() -> dict[str, str]:
    """The date, the commit and the machine, for a row."""
    now = facts("")
    commit, processor = str(now["source"].get("commit", "unknown"))[:12], now["host"]["processor"]
    return {"date": now["date"], "commit": commit, "processor": processor}


def run(options: argparse.Namespace) -> None:
    """Appends the missing rows."""
    done = {(row["game"], row["system"], row["seed"]) for row in rows_of(FILE)}
    for game in options.games:
        for name in SYSTEMS:
            if (game, name, options.seed) in done or not re.search(options.only, name):
                continue
            try:
                row = play(name, game, options.seed, options.cleanrl.resolve(), options.venvs)
            except UserError as error:
                print(f"{name}, {game}: {error}", file=sys.stderr)
                continue
            print(name, game, row["games"], "games", row["score"][-1], flush=True)
            add_row(FILE, row)


def ours(game: str) -> dict[str, Curve]:
    """The curves of our runs of a game."""
    return {name: load_curve(HERE.parent / folder) for name, folder in OURS[game].items()}


def played() -> dict[str, list[dict[str, Any]]]:
    """The rows of each game that has some."""
    found = {game: [row for row in rows_of(FILE) if row["game"] == game] for game in GOALS}
    return {game: its for game, its in found.items() if its}


def page() -> None:
    """The table of where each was when its processor time was used, and the figure."""
    table = []
    for game, rows in played().items():
        lines = [
            (row["system"], row["score"][-1], "", row["agent_steps"][-1], row["games"], f"{row['processor']}, float32")
            for row in rows
        ]
        for name, curve in ours(game).items():
            hours = curve.column("progress/cpu_hours")
            at = int(np.searchsorted(hours, CORE_HOURS)) - 1
            reached = hours[curve.column("score/best_mean") >= GOALS[game]]
            at_goal = f"{GOALS[game]:g} after {reached[0]:.2f}, " if reached.size else ""
            ended = f" ({at_goal}its end)" if hours[-1] < CORE_HOURS else ""
            score, steps, games = (
                float(curve.column(each)[at]) for each in ("score/mean", "progress/data_points", "progress/games")
            )
            processor, precision = curve.meta["lives"][-1]["host"]["processor"], curve.config["network"]["precision"]
            lines.append((name, score, ended, steps, games, f"{processor}, {precision}"))
        for name, score, ended, steps, games, computed_by in sorted(lines, key=lambda line: -line[1]):
            table.append([game, name, f"{score:,.1f}{ended}", f"{steps / 1e6:.2f}", f"{games:,.0f}", computed_by])
    head = ["game", "system", f"score at {CORE_HOURS:g} core-hours", "million agent steps", "full games", "computed by"]
    renew(HERE / "README.md", "", markdown(head, table))
    draw(HERE)


def draw(folder: Path) -> None:
    """A panel for each game."""
    found = played()
    x_name, y_name = "core-hours of processor time", f"mean score of the last {GAMES} games"
    figure, panels = new_panels(len(found), len(found), 4.0, x_name, y_name)
    names = [name for name in dict.fromkeys([*OURS["Breakout"], *OURS["Pong"], *SYSTEMS]) if UNDRAWN not in name]
    looks = {name: line_of(index) for index, name in enumerate(names)}
    looks |= {name: {"color": line_of(index)["color"], "linestyle": "--"} for index, name in enumerate(SYSTEMS)}
    lines = {}
    for axes, (game, rows) in zip(panels, found.items(), strict=True):
        for name, curve in ours(game).items():
            if name not in looks:
                continue
            hours, score = curve.column("progress/cpu_hours"), curve.column("score/mean")
            lines[name] = axes.plot(hours, score, linewidth=1.8, **looks[name])[0]
            best = max(float(np.nanmax(score[hours <= CORE_HOURS])), *(max(row["score"]) for row in rows))
            random_to(axes, curve, best)
        for row in rows:
            look = looks[row["system"]]
            lines[row["system"]] = axes.plot(row["core_hours"], row["score"], linewidth=1.2, **look)[0]
        axes.set_xlim(0, CORE_HOURS)
        axes.set_title(f"{game} (goal {GOALS[game]:g}), sticky actions off, one seed each", fontsize=9)
    drawn = [name for name in names if name in lines]
    figure.legend([lines[name] for name in drawn], drawn, loc="outside right center", frameon=False, fontsize=8)
    save(figure, folder / "scores")


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "page"))
    parser.add_argument("--cleanrl", type=Path, default=Path("cleanrl"), help="a checkout of CleanRL")
    parser.add_argument("--venvs", type=Path, default=Path.home() / ".cache" / "dba3c" / "peers")
    parser.add_argument("--games", nargs="+", choices=GOALS, default=list(GOALS))
    parser.add_argument("--only", default="", help="a pattern of names")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.what == "run":
        run(options)
    page()


if __name__ == "__main__":
    main()
