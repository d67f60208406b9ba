"""What the queue of long learning runs is made of (`run_queue.py`): each run, and the words that train it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from games.measure import GOALS, STICKY, STICKY_GAMES, name_of

from dba3c.errors import UserError
from dba3c.studies.study import StudyPoint, StudyRun

HERE = Path(__file__).resolve().parent
RUNS = HERE.parent / "runs" / "queue"
UNDER_WAY = HERE / "under_way"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One run: what is asked (`topic`), what is tried (`name`), and the words of `dba3c train` for it."""

    topic: str
    name: str
    seed: int
    core_hours: float
    words: tuple[str, ...]
    window_s: float = 10.0
    """Between two points of its curve."""
    is_kept: bool = False
    """Whether its agent is, which somebody may film or evaluate; a curve is enough of what was only tried."""
    must_have: tuple[tuple[str, str, object], ...] = ()
    """(section, option, value) of its configuration without which a run is none of it, as of a preset that was another
    one before."""

    @property
    def label(self) -> str:
        return f"{self.topic}/{self.name}/seed-{self.seed}"

    @property
    def run(self) -> StudyRun:
        budget = ("--max-core-hours", f"{self.core_hours:g}", "--metrics-window-s", f"{self.window_s:g}")
        words = (*self.words, *budget, *ALL)
        return StudyRun(point=StudyPoint(name=self.name, words=words), seed=self.seed, folder=RUNS / self.label)

    @property
    def results(self) -> Path:
        return HERE / self.label

    @property
    def packed(self) -> Path:
        return UNDER_WAY / f"{self.topic}--{self.name}--seed-{self.seed}.tar.xz"


def options(text: str) -> tuple[str, ...]:
    return tuple(text.split())


ALL = options("--checkpoint-every-steps 2000 --keep-checkpoints 2 --step-timeout-s 900")

LONG_PPO = (
    "LunarLander-v3 --total-frames 600000 --stop-score 1000 --algorithm ppo --rollout-length 256"
    " --envs-per-worker 16 --ppo-epochs 4 --ppo-minibatches 32 --trace-lambda 0.98 --discount 0.999 --entropy-cost 0.01"
    " --learning-rate linear:7e-4->7e-5@1000000"
)
"""For games of hundreds of steps whose reward comes at their end: four of ten seeds of LunarLander reached 200 after
0.34 to 0.56 M steps."""
R2D2_OF_A_LAPTOP = (
    "ALE/Pong-v5 --preset r2d2 --protocol v4-no-sticky --stop-score 21 --envs-per-actor 16"
    " --unroll-length 20 --burn-in 10 --replay-batch 16 --replay-ratio 4 --replay-start 10000 --target-every-steps 250"
    " --discount 0.99 --learning-rate 3e-4 --epsilon 1e-4"
)
"""With the preset's 64 sequences of 40 + 100 steps an update took about 13 core-seconds: 550 in two core-hours, and
the target network is copied at every 2,500th. With 16 of 10 + 20 steps it takes 0.5. A gradient's norm is 0.5 then,
3e-4 for an element, hence the smaller ε."""
LANES = "--exchange local --workers 1 --lanes 2"

PPO_256 = options(
    f"{LANES} --algorithm ppo --rollout-length 32 --envs-per-worker 64 --ppo-epochs 3 --ppo-minibatches 8"
    " --trace-lambda 0.95 --optimizer adam --learning-rate linear:5e-4->5e-5@4e6 --epsilon 1e-5"
)
NSTEP = options(f"{LANES} --rollout-length 5 --envs-per-worker 32")
RECIPES = {
    "ppo": options(
        "--algorithm ppo --rollout-length 128 --envs-per-worker 32 --ppo-epochs 2 --ppo-minibatches 8"
        " --trace-lambda 0.95 --optimizer adam --learning-rate linear:5e-4->5e-5@4e6 --epsilon 1e-5"
    ),
    "vtrace": options(
        f"{LANES} --algorithm vtrace --rollout-length 20 --envs-per-worker 32 --learning-rate linear:7e-4->7e-5@4e6"
    ),
    "nstep": NSTEP,
    "nstep-entropy-0.001": (*NSTEP, "--entropy-cost", "0.001"),
    "nstep-normalized": (*NSTEP, "--normalize-observations"),
    "ppo-256": PPO_256,
    "ppo-256-normalized": (*PPO_256, "--normalize-observations"),
    "ppo-1024": options(
        f"{LANES} --algorithm ppo --rollout-length 32 --envs-per-worker 128 --ppo-epochs 3 --ppo-minibatches 4"
        " --trace-lambda 0.95 --optimizer adam --learning-rate linear:5e-4->5e-5@8e6 --epsilon 1e-5"
    ),
    "ppo-512": options(
        f"{LANES} --algorithm ppo --network nature --rollout-length 128 --envs-per-worker 16 --ppo-epochs 4"
        " --ppo-minibatches 4 --trace-lambda 0.95 --optimizer adam --learning-rate linear:2.5e-4->2.5e-5@2.5e6"
        " --epsilon 1e-5"
    ),
}
"""Each on top of the preset `breakout`: the small network, no sticky actions; `ppo` with two workers and
two servers, the others with one worker of two lanes, which learns the same from less processor time. The one that won
is the preset `atari`, `nstep-normalized`: its runs are those of the topic games. `ppo-256` was the preset before, at
the end `ppo-256-normalized`. `ppo-512` has the hyperparameters of Sample Factory's Atari example, which was
far ahead of all of ours in Pong, but normalizes neither inputs nor returns."""


def recipe(name: str, game: str, seed: int = 0, core_hours: float = 0.75) -> Entry:
    env_id = f"ALE/{game}-v5"
    words = (env_id, "--preset", "breakout", *RECIPES[name], "--stop-score", f"{GOALS[env_id]:g}")
    return Entry(topic="recipes", name=f"{name}-{game}", seed=seed, core_hours=core_hours, words=words)


ATARI = (("algorithm", "algorithm", "actor_critic"), ("environment", "normalize_observations", True))
"""The preset `atari` was PPO before, at first without normalised images."""


def game(env_id: str, seed: int = 0, core_hours: float = 1.5) -> Entry:
    """The preset for all games, to the score that was published of this one."""
    words = (env_id, "--preset", "atari", *options(LANES), "--stop-score", f"{GOALS[env_id]:g}")
    return Entry(
        topic="games",
        name=name_of(env_id),
        seed=seed,
        core_hours=core_hours,
        words=words,
        is_kept=True,
        must_have=ATARI,
    )


def sticky(env_id: str, core_hours: float = 1.5) -> Entry:
    """The same with sticky actions, as ALE's own ids have it."""
    plain = game(env_id, core_hours=core_hours)
    return replace(plain, name=plain.name + STICKY, words=(*plain.words, "--protocol", "v5"))


def batch(
    samples: int,
    learning_rate: float,
    optimizer: str = "rmsprop",
    seed: int = 0,
    core_hours: float = 1.5,
    is_kept: bool = False,
) -> Entry:
    """5-step actor-critic on Breakout to a mean of 300, `samples` in an update."""
    envs, rest = divmod(samples, 5)
    if rest or envs % 2:
        raise UserError(f"{samples} samples are not 2 lanes x environments x 5 steps")
    words = options(
        f"ALE/Breakout-v5 --preset breakout {LANES} --rollout-length 5 --envs-per-worker {envs} --optimizer {optimizer}"
        f" --learning-rate linear:{learning_rate:g}->{learning_rate / 10:g}@20e6 --stop-score 300"
    )
    name = f"nstep-{optimizer}-{samples}-{learning_rate:g}"
    return Entry(topic="batch_size", name=name, seed=seed, core_hours=core_hours, words=words, is_kept=is_kept)


def batch_ppo(samples: int, learning_rate: float, seed: int = 0, core_hours: float = 1.5) -> Entry:
    """PPO on Breakout to a mean of 300, `samples` in a minibatch: 8 of 32 steps of all environments, 3 epochs."""
    words = options(
        f"ALE/Breakout-v5 --preset breakout {LANES} --algorithm ppo --rollout-length 32"
        f" --envs-per-worker {samples // 4} --ppo-epochs 3 --ppo-minibatches 8 --trace-lambda 0.95"
        f" --optimizer adam --epsilon 1e-5 --learning-rate linear:{learning_rate:g}->{learning_rate / 10:g}@8e6"
        " --stop-score 300"
    )
    name = f"ppo-adam-{samples}-{learning_rate:g}"
    return Entry(topic="batch_size", name=name, seed=seed, core_hours=core_hours, words=words)


def breakout(seed: int, core_hours: float = 1.0) -> Entry:
    """The preset's batch of 160 samples, in one worker of two lanes and without servers, to a mean of 300."""
    words = options(f"ALE/Breakout-v5 --preset breakout {LANES} --envs-per-worker 32 --stop-score 300")
    return Entry(topic="breakout_lanes", name="nstep", seed=seed, core_hours=core_hours, words=words, is_kept=True)


def damped(epsilon: str, learning_rate: float, seed: int = 0, core_hours: float = 1.0) -> Entry:
    """The same with RMSprop's steps bounded where a gradient has been small for long: scores of 90 to 185 fell to 5
    within 120 updates (results/breakout_2cores, results/breakout_lanes).

    Its ε of 1e-5 lets such an element move by 10 × the learning rate. The others' root mean square is 6e-5 at the
    beginning (a gradient's norm of 0.05 / √677,429) and 1e-3 at a score of 150: an ε of 1e-3 damped the beginning to a
    score of 2 at 0.6 M agent steps, where 1e-5 had 10, and was given up there.
    """
    before = breakout(seed, core_hours)
    words = options(f"--epsilon {epsilon} --learning-rate linear:{learning_rate:g}->{learning_rate / 10:g}@20e6")
    return replace(before, name=f"nstep-epsilon-{epsilon}", words=(*before.words, *words), is_kept=False)


def forgetful(decay: str, seed: int, core_hours: float = 1.0) -> Entry:
    """The same, bounded otherwise: a step of RMSprop is at most 1 / √(1 − decay) times the learning rate, 10 with the
    preset's 0.99, 3.2 with 0.9, and of ordinary gradients as large as before."""
    before = breakout(seed, core_hours)
    return replace(before, name=f"nstep-decay-{decay}", words=(*before.words, "--decay", decay), is_kept=False)


def normalized(seed: int, core_hours: float = 1.0) -> Entry:
    """The same with images normalised, as the preset `atari` has them."""
    before = breakout(seed, core_hours)
    words = (*before.words, "--normalize-observations")
    return replace(before, name="nstep-normalized", words=words, is_kept=False)


def algorithm(name: str, words: str, seeds: Iterable[int], core_hours: float) -> tuple[Entry, ...]:
    """A preset, on an environment that it is for: a run for each seed, all equally long where a stop score is out of
    reach, so that their curves have a common end."""
    return tuple(
        Entry(
            topic="algorithms", name=name, seed=seed, core_hours=core_hours, words=options(words), window_s=1.0,
            is_kept=True,
        )
        for seed in seeds
    )  # fmt: skip


def sqrt_rule(samples: int) -> float:
    """RMSprop's learning rate: 7e-4 at 160 samples, growing with the root of their number (rounded to two digits)."""
    return float(f"{7e-4 * (samples / 160) ** 0.5:.1e}")


QUEUE: tuple[Entry, ...] = (
    recipe("ppo", "Pong"),
    breakout(0),
    damped("1e-3", 1.5e-3, core_hours=0.23),
    *algorithm("classic-CartPole", "CartPole-v1 --total-frames 200000 --stop-score 1000", range(10), core_hours=0.1),
    *algorithm("classic-Acrobot", "Acrobot-v1 --total-frames 200000 --stop-score 1000", range(10), core_hours=0.1),
    *algorithm("classic-LunarLander", "LunarLander-v3 --total-frames 1500000", range(3), core_hours=0.3),
    *algorithm("ppo-LunarLander", LONG_PPO, range(3), core_hours=0.3),
    batch_ppo(2880, 1e-3, core_hours=6.0),
    breakout(1, core_hours=2.0),
    *(forgetful("0.9", seed) for seed in (0, 3)),
    *(recipe("nstep-normalized", name) for name in ("Assault", "StarGunner", "Seaquest", "SpaceInvaders")),
    recipe("ppo-256-normalized", "Breakout", core_hours=1.0),
    *(recipe("ppo-256-normalized", name) for name in ("Assault", "Boxing", "StarGunner", "SpaceInvaders", "Seaquest")),
    game("ALE/Pong-v5"),
    recipe("vtrace", "Pong"),
    game("ALE/Boxing-v5"),
    *(game(env_id) for env_id in GOALS if env_id not in ("ALE/Pong-v5", "ALE/Boxing-v5")),
    recipe("vtrace", "Boxing"),
    *(game(env_id, seed=1) for env_id in GOALS),
    *(sticky(env_id) for env_id in STICKY_GAMES),
    *algorithm("sac-Pendulum", "Pendulum-v1 --preset sac --total-frames 40000", range(3), core_hours=0.3),
    *algorithm("mujoco-HalfCheetah", "HalfCheetah-v5 --total-frames 1000000", range(3), core_hours=0.5),
    *algorithm("vizdoom-basic", "vizdoom/basic --total-frames 1200000", range(3), core_hours=0.3),
    *algorithm("ppo-LunarLander", LONG_PPO, range(3, 10), core_hours=0.3),
    *algorithm(
        "sac-HalfCheetah",
        "HalfCheetah-v5 --preset sac --total-frames 1000000 --stop-score 20000",
        range(1),
        core_hours=2.0,
    ),
    *algorithm("r2d2-Pong", R2D2_OF_A_LAPTOP, range(1), core_hours=2.0),
    batch(1120, sqrt_rule(1120)),
    damped("1e-4", 1e-3),
    batch(480, sqrt_rule(480)),
    batch(1920, sqrt_rule(1920)),
    *(batch(1200, sqrt_rule(1200), seed=seed) for seed in range(5)),
    *(batch(3600, sqrt_rule(3600), seed=seed, is_kept=True) for seed in range(2)),
    breakout(2, core_hours=2.0),
    recipe("nstep", "Pong"),
    recipe("nstep", "Boxing"),
    recipe("ppo-1024", "Pong"),
    recipe("ppo-512", "Pong"),
    recipe("nstep-entropy-0.001", "Boxing", core_hours=0.25),
    *(recipe("nstep-normalized", name) for name in ("Pong", "Boxing")),
    batch(7200, sqrt_rule(7200)),
    batch(1920, 1e-3, "adam"),
    breakout(3),
    breakout(4),
    *(normalized(seed) for seed in range(5)),
    batch(28_800, sqrt_rule(28_800), core_hours=6.0),
)
