"""Draws every figure of `results/` again, from the data beside it: ``python results/plot.py [FOLDER …]``."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from architectures.costs import ARCHITECTURES, plot_costs, read_csv
from games import beside_ppo
from games import measure as seven_games
from games.measure import CPU_HOURS, MEAN_OF_GAMES
from matplotlib.axes import Axes
from peers import scores as peers_scores

sys.path.insert(0, str(Path(__file__).resolve().parent / "cluster"))
import headline
from figures import draw as draw_cluster

from dba3c.benchmarks import batch_size
from dba3c.errors import UserError
from dba3c.studies.curve import Curve, load_curve
from dba3c.studies.figures import (
    IDEAL,
    PALETTE,
    aggregate,
    begin_y_at_zero,
    finish,
    new_figure,
    new_panels,
    plot_learning_curves,
    random_to,
    save,
)
from dba3c.studies.page import rows_of
from dba3c.studies.results import read_results
from dba3c.studies.statistics import interquartile_mean
from dba3c.studies.study import NETWORK_SIZES

HERE = Path(__file__).resolve().parent
CORE_HOURS_AND_MEAN = ("core-hours of processor time, all roles", f"mean score of the last {MEAN_OF_GAMES} games")
"""Not core-hours held: long runs shared their machine with other work."""


# -- learning curves ---------------------------------------------------------------------------------------------------


def learning(
    figures: Mapping[str, str], runs: Mapping[str, str], optional: Collection[str] = (), **options: Any
) -> Callable[[Path], None]:
    """Figures (name → axis), a line for each label of `runs` (folders, as patterns below this one), but for those of
    `optional` labels of which there are none."""

    def draw(folder: Path) -> None:
        found = {label: sorted(path for one in runs[label].split() for path in HERE.glob(one)) for label in runs}
        if lost := [label for label, paths in found.items() if not paths and label not in optional]:
            raise UserError(f"there is no run of {', '.join(lost)} below {HERE}")
        groups = {label: [load_curve(path) for path in paths] for label, paths in found.items() if paths}
        for name, x in figures.items():
            plot_learning_curves(groups, folder / name, x=x, **options)

    return draw


BOTH = {"learning_curve": CPU_HOURS, "learning_curve_frames": "frames"}
LONG_RUNS = {"workers + servers, actor-critic": "breakout_2cores", "central inference, V-trace": "breakout_central"}
R2D2 = {"summed over time, clip 40": "sum", "averaged over time, clip 80": "mean"}


def r2d2_loss(folder: Path) -> None:
    for task in ("remember", "balance_blind"):
        runs = {label: f"{folder.name}/{task}/{name}-*" for label, name in R2D2.items()}
        learning({task: "frames"}, runs, statistic="mean")(folder)


def breakout_lanes(folder: Path) -> None:
    """The preset's seeds, and beside them what was tried against their falls."""
    preset = {"one worker, two lanes": "breakout_lanes/nstep/seed-*"}
    learning({"learning_curve": CPU_HOURS}, preset | {"two workers, two servers": "breakout_2cores"}, goal=300.0)(
        folder
    )
    tried = {
        "RMSprop remembers 10 updates (decay 0.9)": "breakout_lanes/nstep-decay-0.9/seed-*",
        "images normalised": "breakout_lanes/nstep-normalized/seed-* games/Breakout/seed-0",
        "1,120 and 1,200 samples an update": "batch_size/nstep-rmsprop-1[12]*/seed-*",
    }
    learning({"falls": "frames"}, {"the preset, 160 samples": preset["one worker, two lanes"], **tried}, goal=300.0)(
        folder
    )


def algorithms(folder: Path) -> None:
    """A figure for each environment, with its goal; HalfCheetah's is what SAC has published."""
    played: dict[str, tuple[float | None, dict[str, str]]] = {
        "cartpole": (475.0, {"actor-critic (preset classic)": "classic-CartPole"}),
        "acrobot": (-100.0, {"actor-critic (preset classic)": "classic-Acrobot"}),
        "lunarlander": (200.0, {"actor-critic (classic)": "classic-LunarLander", "PPO": "ppo-LunarLander"}),
        "pendulum": (None, {"SAC (preset sac)": "sac-Pendulum"}),
        "halfcheetah": (9635.0, {"PPO (preset mujoco)": "mujoco-HalfCheetah", "SAC (preset sac)": "sac-HalfCheetah"}),
        "vizdoom": (75.0, {"actor-critic, LSTM (preset vizdoom)": "vizdoom-basic"}),
        "pong": (20.0, {"R2D2, of all exploration rates": "r2d2-Pong"}),
    }
    for name, (goal, runs) in played.items():
        patterns = {label: f"{folder.name}/{run}/seed-*" for label, run in runs.items()}
        learning({name: "frames"}, patterns, goal=goal)(folder)


def recipes(folder: Path) -> None:
    """A figure for each game."""
    told = {
        "PPO, 2 workers × 32 environments × 128 steps, 2 epochs": "recipes/ppo-{}/seed-*",
        "PPO, 2 lanes × 32 environments × 32 steps, 3 epochs": "recipes/ppo-256-{}/seed-*",
        "that PPO, images normalised": "recipes/ppo-256-normalized-{}/seed-*",
        "PPO, 2 lanes × 64 environments × 32 steps, 3 epochs of 4": "recipes/ppo-1024-{}/seed-*",
        "PPO, 2 lanes × 8 environments × 128 steps, 4 epochs": "recipes/ppo-512-{}/seed-*",
        "V-trace over 20 steps, 2 lanes × 16 environments": "recipes/vtrace-{}/seed-*",
        "actor-critic over 5 steps, 2 lanes × 16 environments": "recipes/nstep-{}/seed-*",
        "the same, entropy cost 0.001 instead of 0.01": "recipes/nstep-entropy-0.001-{}/seed-*",
        "the actor-critic, images normalised": "recipes/nstep-normalized-{}/seed-*",
    }
    some = ("/ppo-", "normalized", "entropy")
    in_one_game = [label for label, pattern in told.items() if any(word in pattern for word in some)]
    for game, goal in (("Pong", 20.0), ("Boxing", 98.0)):
        runs = {label: pattern.format(game) for label, pattern in told.items()}
        learning({game.lower(): CPU_HOURS}, runs, in_one_game, goal=goal)(folder)


def score(axes: Axes, curve: Curve, x: str, **look: Any) -> None:
    """The mean score where it is one of enough games."""
    known = curve.column("progress/games") >= MEAN_OF_GAMES
    axes.plot(curve.column(x)[known], curve.column("score/mean")[known], linewidth=1.4, **look)


def games(folder: Path) -> None:
    """A panel for each game, whose scores share no axis: a thin line for each seed, a thick one for their mean. The
    last panel: human-normalised scores of all of them."""
    found = seven_games.trained(folder)
    figure, panels = new_panels(len(found) + 1, 4, 2.5, *CORE_HOURS_AND_MEAN, sharex=True)
    for axes, (env_id, runs) in zip(panels, found.items(), strict=False):
        goal = seven_games.GOALS[env_id]
        anew = [run.line for run in runs if run.recipe == seven_games.RECIPE]
        for run in runs:  # those of the preset before are pale, until they are made anew
            colour = PALETTE[0] if run.recipe == seven_games.RECIPE else "0.7"
            axes.plot(*run.line, linewidth=1.0, color=colour, alpha=0.6 if len(anew) > 1 else 1.0)
        if len(anew) > 1:
            mean = aggregate(anew, "mean")
            axes.plot(mean.x, mean.centre, linewidth=1.8, color=PALETTE[0])
        axes.axhline(goal, **IDEAL)
        random_to(axes, runs[0].curve, goal)
        whose = "PPO, 10 M steps" if env_id in seven_games.PPO_SCORES else "DBA3C"
        counts = {"actor-critic": len(anew), "PPO": len(runs) - len(anew)}
        told = ", ".join(f"{count} {recipe}" for recipe, count in counts.items() if count)
        axes.set_title(f"{runs[0].game} ({whose}: {goal:,.0f})\n{told}", fontsize=8)
    human_normalised(panels[len(found)], found)
    told = (
        "A line for each run. Blue: the preset atari, an actor-critic. Grey: PPO, which it was before.\n"
        "Sticky actions off. Dashed: the published score; the axes begin at the score of random actions. "
        "Band: 95 % bootstrap over the two seeds of each game."
    )
    figure.suptitle(told, fontsize=9)
    save(figure, folder / "games")
    beside_ppo.draw(folder)


def human_normalised(axes: Axes, found: Mapping[str, Sequence[seven_games.Trained]]) -> None:
    """The IQM over runs and games, and its interval once every game has two seeds.

    To where the first run ends that has not reached its goal: beyond, the line would be the others'.
    """
    runs = [run for its in found.values() for run in its]
    below = [run for env_id, its in found.items() for run in its if run.line[1].max() < seven_games.GOALS[env_id]]
    last = min(run.line[0, -1] for run in below) if below else max(run.line[0, -1] for run in runs)
    hours = np.linspace(max(run.line[0, 0] for run in runs), last, 50)
    scores = {env_id: np.stack([run.normalised(hours) for run in its]) for env_id, its in found.items()}
    axes.plot(hours, interquartile_mean(np.concatenate(list(scores.values()))), linewidth=1.8, color=PALETTE[1])
    if len(found) == len(seven_games.GOALS) and min(map(len, scores.values())) > 1:
        spreads = [seven_games.over_games([its[:, at].tolist() for its in scores.values()]) for at in range(len(hours))]
        axes.fill_between(hours, [s.low for s in spreads], [s.high for s in spreads], color=PALETTE[1], alpha=0.2)
    axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]), top=max(1.0, axes.get_ylim()[1]))
    axes.axhline(1.0, **IDEAL)
    ours = sum(run.recipe == seven_games.RECIPE for run in runs)
    told = f"IQM: {ours} runs actor-critic, {len(runs) - ours} PPO"
    axes.set_title(f"human-normalised (a person: 1)\n{told}", fontsize=8)


def architectures(folder: Path) -> None:
    """Bars of cost, score against core-hours for each size of network, and the two long runs."""
    plot_costs(read_csv(folder / "costs.csv"), folder)
    curves = {result.point.name: result.curves[0] for result in read_results(folder / "learning").points}
    figure, panels = new_panels(len(NETWORK_SIZES), len(NETWORK_SIZES), 3.2, *CORE_HOURS_AND_MEAN, sharex=True)
    for axes, network in zip(panels, NETWORK_SIZES, strict=True):
        for index, (architecture, label) in enumerate(ARCHITECTURES.items()):
            loss = "V-trace" if architecture == "central" else "actor-critic"
            if f"{architecture}-{network}" in curves:
                score(
                    axes, curves[f"{architecture}-{network}"], CPU_HOURS, color=PALETTE[index], label=f"{label}, {loss}"
                )
        axes.set_ylim(0, 21)  # one scale: all are far from the 300 of longer runs
        axes.set_title(f"Breakout, sticky actions off, 1 seed: {network} network", fontsize=8)
    lines = {line.get_label(): line for axes in panels for line in axes.get_lines()}
    figure.legend(handles=lines.values(), loc="outside upper center", ncols=len(lines), frameon=False, fontsize=8)
    save(figure, folder / "score_budget")
    learning({"score_cpu_hours": CPU_HOURS}, LONG_RUNS, goal=300.0)(folder)


# -- tables ------------------------------------------------------------------------------------------------------------

Row = dict[str, Any]


def table(path: Path, **only: str) -> list[Row]:
    """The rows of a CSV file that hold these cells."""
    return [row for row in rows_of(path) if all(row[name] == cell for name, cell in only.items())]


def series(rows: Sequence[Row], by: str, x: str) -> Iterator[tuple[int, str, list[float], list[Row]]]:
    """Index, value of the column `by`, places and rows of each line."""
    for index, value in enumerate(dict.fromkeys(row[by] for row in rows)):
        mine = [row for row in rows if row[by] == value]
        yield index, value, numbers(mine, x), mine


def numbers(rows: Sequence[Row], name: str) -> list[float]:
    return [float(row[name]) for row in rows]


def communication(folder: Path) -> None:
    """Gradients/s against the number of servers, and each step beside its bound."""
    rows = table(folder / "exchange.csv", rate_mbit="100.0")
    figure, axes = new_figure()
    for index, megabytes, x, mine in series([r for r in rows if r["exchange"] == "servers"], "megabytes", "servers"):
        for column, told, look in (("step_ms", "measured", {"marker": "o"}), ("bound_ms", "the wire's bound", IDEAL)):
            rates = [1e3 * float(row["workers"]) / float(row[column]) for row in mine]
            axes.plot(x, rates, **{**look, "color": PALETTE[index], "label": f"{megabytes} MB, {told}"})
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    finish(axes, "parameter servers (8 workers, 100 Mbit/s per host)", "gradients/s", x)
    axes.set_yticks([2, 5, 10, 20, 50], ["2", "5", "10", "20", "50"])
    axes.set_title("emulated hosts, one run a point", fontsize=9)
    save(figure, folder / "servers")

    figure, axes = new_figure()
    exchanges = ["all-reduce" if row["exchange"] == "allreduce" else f"k = {row['servers']}" for row in rows]
    names = [f"{exchange}\n{row['megabytes']} MB" for exchange, row in zip(exchanges, rows, strict=True)]
    axes.bar(range(len(rows)), numbers(rows, "over_bound"), color=PALETTE[0])
    axes.axhline(1.0, label="the lower bound", **IDEAL)
    axes.axhline(1.15, color=PALETTE[1], linestyle="--", linewidth=1.2, label="asked: 1.15")
    axes.set_xticks(range(len(rows)), names, fontsize=7)
    axes.set_xlabel("k servers, or all-reduce (8 workers)")
    axes.set_ylabel("step / lower bound")
    axes.set_ylim(0, 1.45)
    axes.legend(frameon=False, fontsize=8)
    save(figure, folder / "over_bound")


def stragglers(folder: Path) -> None:
    """Gradients that count against the number of backup workers."""
    figure, axes = new_figure()
    for index, exchange, _, rows in series(table(folder / "stragglers.csv"), "exchange", "backup"):
        for style, (late, told) in zip(("--", "-"), (("False", "nobody late"), ("True", "stragglers")), strict=True):
            mine = [row for row in rows if row["stragglers"] == late]
            x, y = numbers(mine, "backup"), numbers(mine, "data_points_per_s")
            axes.plot(x, y, style, marker="o", markersize=4, color=PALETTE[index], label=f"{exchange}, {told}")
    axes.set_ylim(bottom=0)
    axes.set_title("emulated hosts, one run a point", fontsize=9)
    finish(axes, "backup workers (8 gradients make an update)", "gradients that count / s", x, handlelength=4)
    save(figure, folder / "stragglers")


def inference(folder: Path) -> None:
    for data in folder.glob("batch_size_*.csv"):
        batch_size.draw(batch_size.read(data), data.with_suffix(""))


def launch(folder: Path) -> None:
    """Step time over the size of the parameters, a line for each number of servers; of several runs the middle one."""
    runs: dict[tuple[int, float], list[Row]] = {}
    for row in sorted(rows_of(folder / "overhead.jsonl"), key=lambda row: float(row["step_ms"])):
        runs.setdefault((row["servers"], row["megabytes"]), []).append(row)
    rows = [runs[case][len(runs[case]) // 2] for case in sorted(runs)]
    sleep_ms = float(rows[0]["compute_ms"])
    figure, axes = new_figure()
    for index, servers, x, mine in series(rows, "servers", "megabytes"):
        axes.plot(x, numbers(mine, "step_ms"), marker="o", color=PALETTE[index], label=f"k = {servers}")
    axes.axhline(sleep_ms, label="the sleep", **IDEAL)
    axes.axhline(1.25 * sleep_ms, color="black", linestyle="--", label="1.25 × the sleep")
    axes.set_xscale("log")
    begin_y_at_zero(axes)
    x_name = f"parameters, MB ({rows[0]['workers']} workers that sleep {sleep_ms:.0f} ms, on two cores)"
    finish(axes, x_name, "ms a step", x)
    save(figure, folder / "overhead")


# -- simulated ---------------------------------------------------------------------------------------------------------


def draw_simulated(axes: Axes, x: Sequence[float], y: Sequence[float], label: str, index: int = 0) -> None:
    """A dotted line with hollow marks, and a legend that says that it is simulated."""
    colour = PALETTE[index % len(PALETTE)]
    axes.plot(
        x, y, ":", marker="o", markerfacecolor="white", markersize=5, color=colour, linewidth=1.4,
        label=f"{label} (SIMULATED)",
    )  # fmt: skip


def simulation(folder: Path) -> None:
    """The simulated counterparts of DBA3C's plots; central inference; the simulator beside measured steps."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    figure, axes = new_figure()
    for index, compute_ms, x, mine in series(table(folder / "scaling.csv", gbit="10"), "compute_ms", "workers"):
        draw_simulated(axes, x, numbers(mine, "minutes_to_300"), f"10 Gbit/s, {compute_ms} ms a batch", index)
    axes.plot(x, [config["minutes_of_one_worker"] / n for n in x], label="theoretical", **IDEAL)
    axes.plot([64], [config["reported_minutes"]], "*", color="black", markersize=12, label="DBA3C 2017 (reported)")
    finish(axes, "workers of 12 cores", "minutes to a mean score of 300", x, log=True)
    save(figure, folder / "scaling")

    figure, axes = new_figure()
    for index, compute_ms, x, mine in series(table(folder / "servers.csv", gbit="10"), "compute_ms", "servers"):
        draw_simulated(axes, x, numbers(mine, "as_in_2017_per_s"), f"{compute_ms} ms a batch", index)
    begin_y_at_zero(axes)
    axes.set_xscale("log", base=2)
    finish(axes, "parameter servers (65 workers, 60 gradients, 10 Gbit/s)", "data points/s", x)
    save(figure, folder / "servers")

    figure, axes = new_figure()
    rows = table(folder / "clusters.csv", gbit="10")
    for index, exchange, x, mine in series(rows, "exchange", "nodes"):
        draw_simulated(axes, x, numbers(mine, "efficiency"), exchange, index)
    axes.set_xscale("log", base=2)
    every_x = numbers(rows, "nodes")
    finish(axes, "nodes (10 Gbit/s, 100 ms a batch)", "data points/s per node, a worker alone = 1", every_x)
    save(figure, folder / "clusters")

    figure, axes = new_figure()
    rows = [{**row, "who": f"{row['network']} network, {row['nodes']} nodes"} for row in table(folder / "central.csv")]
    for index, who, x, mine in series([row for row in rows if row["nodes"] in ("4", "64")], "who", "learner_cores"):
        ratios = zip(numbers(mine, "central_per_s"), numbers(mine, "workers_per_s"), strict=True)
        draw_simulated(axes, x, [central / workers for central, workers in ratios], who, index)
    axes.axhline(1.0, label="equal", **IDEAL)
    axes.set_xscale("log")
    axes.set_yscale("log")
    finish(axes, "speed of the learner's node, in cores", "data points/s: central inference / workers", x)
    axes.tick_params(axis="x", labelsize=8)
    save(figure, folder / "central")


def gpu(folder: Path) -> None:
    runs = {
        "14 actors, one GPU: V-trace": "gpu/breakout",
        "16 lanes, no GPU: n-step actor-critic": "gpu/breakout_16_lanes",
    }
    learning({"score": "hours"}, runs, goal=300.0)(folder)
    batch_size.draw(batch_size.read(folder / "batch_size_cuda.csv"), folder / "batch_size_cuda")


def cluster(folder: Path) -> None:
    draw_cluster(folder)
    headline.draw(folder)


FIGURES: dict[str, Callable[[Path], None]] = {
    "algorithms": algorithms,
    "architectures": architectures,
    "breakout_2cores": learning(
        {"learning_curve": CPU_HOURS}, {"2 servers, 2 workers, small network": "breakout_2cores"}, goal=300.0
    ),
    "breakout_central": learning(
        BOTH,
        LONG_RUNS,
        goal=300.0,
    ),
    "batch_size": learning(
        {"score": "frames"},
        {
            "160 samples an update, n-step, RMSprop 7e-4": "breakout_lanes/nstep/seed-*",
            "320, V-trace, RMSprop 1e-3": "gpu/breakout",
            "480, n-step, RMSprop 1.2e-3": "batch_size/nstep-rmsprop-480-0.0012/seed-*",
            "1,120, n-step, RMSprop 1.9e-3": "batch_size/nstep-rmsprop-1120-0.0019/seed-*",
            "1,200, n-step, RMSprop 1.9e-3": "batch_size/nstep-rmsprop-1200-0.0019/seed-* gpu/breakout_16_lanes",
            "1,920, n-step, RMSprop 2.4e-3": "batch_size/nstep-rmsprop-1920-0.0024/seed-*",
            "2,880, PPO, Adam 1e-3": "batch_size/ppo-adam-2880-0.001/seed-*",
            "3,600, n-step, RMSprop 3.3e-3": "batch_size/nstep-rmsprop-3600-0.0033/seed-*",
        },
        goal=300.0,
    ),
    "cluster": cluster,
    "breakout_lanes": breakout_lanes,
    "communication": communication,
    "football": learning(
        {"learning_curve": "frames"},
        {"PPO, 2 workers × 8 environments": "football/seed_*"},
        goal=0.9,
    ),
    "games": games,
    "gpu": gpu,
    "inference": inference,
    "launch": launch,
    "learning_curves": learning(
        {"learning_curves": "frames"},
        {"CartPole, 2 workers, 2 servers": "learning_curves/learning/seed-*"},
        statistic="mean",
        goal=475.0,
    ),
    "peers": peers_scores.draw,
    "r2d2_loss": r2d2_loss,
    "recipes": recipes,
    "simulation": simulation,
    "stragglers": stragglers,
}
"""Folder → what draws its figures."""


def main(names: Sequence[str]) -> None:
    for name in names or FIGURES:
        print(name, flush=True)
        FIGURES[name](HERE / name)


if __name__ == "__main__":
    main(sys.argv[1:])
