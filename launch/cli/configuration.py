"""What the words of `dba3c train` say, made to fit the cores or ranks that there are: a configuration, and a topology.

What the user counted must add up, what a preset counted gives way. Lanes follow from cores, environments from both: a
worker has a lane for each of its cores, and a lane at least one environment. So a preset that counts environments for
all workers together gets more of them where there are more cores than that, and its update more samples: how many is
said, and whether it has been shown to learn.
"""

import difflib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from dba3c.config import TrainConfig, refuse_normalized_replay, refuse_unread, replace_options
from dba3c.environments.atari_protocols import with_protocol
from dba3c.environments.config import check_env_id
from dba3c.errors import UserError, did_you_mean, warn_on_stderr
from dba3c.resuming import environments_of, rate_for
from launch.cli.presets import (
    PPO_DATA_POINTS,
    PRESETS,
    environments_for,
    fitting_preset,
    in_one_worker,
    preset,
    with_central_inference,
)
from launch.cluster.launchers import LaunchPlace
from launch.cluster.topology import Topology, fit
from param_servers.config import ExchangeConfig

WITH_BACKUP_WORKERS = ("servers", "majority")
"""Exchanges that can have them."""
WITHOUT_SERVERS = ("local", "allreduce", "majority")
SEVERAL_WORKERS = {
    "exchange", "collective_backend", "num_workers", "num_gradients", "num_backup_workers", "num_servers",
    "max_staleness", "min_workers",
}  # fmt: skip
"""Options that speak of several workers, or of servers."""
COUNTS = ("num_workers", "num_gradients", "num_backup_workers", "actors")
"""Options that the ranks must add up to; in central inference `num_workers` are the learners."""
SHOWN_SAMPLES = {
    "breakout": (160, 1_200, "results/batch_size"),
    "atari": (160, 160, "results/games"),
    "breakout_cluster": (3_600, 3_600, "results/batch_size"),
}
"""Of presets: the fewest and the most samples in an update from which it was shown to learn, and where that is. The
learning rate of these goes with the number of environments: see `rate_for`."""
SHOWN_WITHIN = 1.5
"""A size is as good as a shown one when it is at most so many times as large, or as small."""
WITH_THEIR_OWN_BATCH = ("dba3c_paper",)
"""Presets that stand for a published number of environments."""


@dataclass(frozen=True, kw_only=True)
class TrainWords:
    """Train on an environment: dba3c train [ENV | PRESET] [OPTIONS].

    ENV is any Gymnasium id, or package.module:function. The defaults shown are those of the preset that fits it.
    """

    given: Mapping[str, Any]
    """The configuration's options that the words give, by the names of their fields."""

    preset: str | None = None
    """breakout, atari, breakout_cluster, dba3c_paper, classic, football, vizdoom, mujoco, impala, r2d2, sac or ppo;
    without it the one that fits the environment."""

    protocol: str | None = None
    """Atari: how the game is played, which its score is quoted with: v5, v4-no-sticky or 2017; without it the
    preset's."""

    resume: bool = False
    """Go on from the newest checkpoint of the run in --run-dir, or of this environment's newest run under runs/."""

    colocated_servers: bool = False
    """Of the ranks of srun, mpirun, torchrun, …: servers share theirs with workers. A matter of places only, so no part
    of the configuration."""

    def config(self, cores: int, without: Collection[str] = (), cores_per_worker: int | None = None) -> TrainConfig:
        """The preset, changed as the words say.

        Args:
            cores: how many workers a preset counts on, if the words count none.
            cores_per_worker: those of each rank. Without it all workers are on this machine and share `cores`; and
                where the words speak of no more than one, there is one, with a lane for each core.
            without: options that are left as the preset has them: see `fit_config`.

        Raises:
            UserError: anything that cannot be, in one line.
        """
        given = {name: value for name, value in self.given.items() if name not in without}
        if given.get("num_servers") == 0 and given.get("exchange") in WITHOUT_SERVERS:
            del given["num_servers"]  # it says what is so anyway
        config = preset(self.preset, given.get("env_id"), cores)
        if cores_per_worker is None and {config.central.mode, given.get("mode", "worker")} == {"worker"}:
            of_several = given.keys() & SEVERAL_WORKERS
            alone = not of_several or (of_several == {"exchange"} and given["exchange"] == "local")
            config = preset(self.preset, given.get("env_id"), 1 if alone else given.get("num_workers", cores))
            config = in_one_worker(config) if alone else config
        if given.get("mode") == "central":
            config = with_central_inference(config, cores)
        if self.protocol is not None:
            config = replace(config, environment=with_protocol(config.environment, self.protocol))
        workers = given.get("num_workers", config.exchange.num_workers)
        lanes = lanes_for(config, given, cores_per_worker or max(1, cores // max(1, workers)), self.preset)
        fitting = _backup_workers_that_can_be(config.exchange, given) | lanes
        if (groups := given.get("actor_groups")) and "envs_per_actor" not in given:  # what nobody counted gives way
            fitting["envs_per_actor"] = -(-config.central.envs_per_actor // groups) * groups
        if given.get("num_servers", 1) < 1:
            raise UserError("--servers must be at least 1; --exchange local, allreduce or majority has none")
        before = config if "envs_per_worker" in given else replace_options(config, **lanes)
        config = replace_options(config, **(fitting | given))
        if cores_per_worker is None and config.exchange.exchange != "async":
            made = config.exchange
            config = replace_options(config, **shared_anew(before, made.num_workers, made.gradients_per_step, self))
        config = self.with_its_length(self.with_its_rate(config))
        refuse_normalized_replay(config)
        refuse_unread(config, set(self.given) & (set(given) | set(without)))
        return config

    def with_its_rate(self, config: TrainConfig) -> TrainConfig:
        """With the learning rate that goes with so many environments, where the preset has one and none was given."""
        counted = self.given.keys() & {"learning_rate", "envs_per_worker"}
        counts = self.preset_of(config) in SHOWN_SAMPLES and self.is_synchronous(config)
        if counted or not counts or config.optimizer.optimizer != "rmsprop":
            return config
        return replace_options(config, learning_rate=rate_for(environments_of(config)))

    def with_its_length(self, config: TrainConfig) -> TrainConfig:
        """With as many frames as the preset's schedules fall over, whatever the frame skip, where none were given."""
        if self.preset_of(config) != "ppo" or "total_frames" in self.given:
            return config
        return replace_options(config, total_frames=round(PPO_DATA_POINTS * config.environment.frames_per_step))

    def grows_with_lanes(self, config: TrainConfig) -> bool:
        """Whether its environments are counted for each lane."""
        return self.preset_of(config) in ("breakout", "atari") and self.is_synchronous(config)

    def is_synchronous(self, config: TrainConfig) -> bool:
        """Whether an update is made of the gradients of several workers, or of all that one has."""
        in_workers = self.given.get("mode", config.central.mode) == "worker"
        return in_workers and self.given.get("exchange") != "async"

    def preset_of(self, config: TrainConfig) -> str:
        """The named preset, or the one that fits the environment."""
        return self.preset or fitting_preset(config.environment.env_id)


def words_of(env_or_preset: str | None, given: Mapping[str, Any], **own: Any) -> TrainWords:
    """What was said, by its first word and the options. `own`: those of `TrainWords` itself.

    Raises:
        UserError: the first word is nearly a preset; or it is an environment, and the options give one too.
    """
    if env_or_preset in PRESETS:
        if own.get("preset") not in (None, env_or_preset):  # another one is to learn what this one is for
            given = {"env_id": PRESETS[env_or_preset][1], **given}
        return TrainWords(given=given, **{**own, "preset": own.get("preset") or env_or_preset})
    if env_or_preset is not None:
        _refuse_mistyped_preset(env_or_preset)
        if "env_id" in given:
            raise UserError(f"two environments are given, {env_or_preset} and {given['env_id']}: say one")
    return TrainWords(given=given if env_or_preset is None else {"env_id": env_or_preset, **given}, **own)


def said_of_samples(said: TrainWords, config: TrainConfig) -> list[str]:
    """Lines for people: the samples of an update, and whether it has been shown to learn from so many."""
    name = said.preset_of(config)
    return [line for line in (samples_text(config), not_shown(config, name)) if line]


def _refuse_mistyped_preset(word: str) -> None:
    """Raise UserError for what is no environment, but nearly a preset."""
    if difflib.get_close_matches(word, PRESETS, cutoff=0.75):
        try:
            check_env_id(word)
        except UserError:
            raise UserError(f"no preset is called {word!r}; {did_you_mean(word, PRESETS)}") from None


def _backup_workers_that_can_be(exchange: ExchangeConfig, given: Mapping[str, Any]) -> dict[str, int | None]:
    """A preset's backup workers, if nobody asked for them, give way to what the words say."""
    backup = exchange.num_backup_workers
    if not backup or "num_backup_workers" in given:
        return {}
    if "num_gradients" in given:
        return {"num_backup_workers": None}  # all workers beyond these
    too_few = given.get("num_workers", backup + 1) <= backup
    possible = given.get("exchange", exchange.exchange) in WITH_BACKUP_WORKERS
    return {} if possible and not too_few else {"num_backup_workers": 0}


def sums_over_all_ranks(config: TrainConfig) -> bool:
    """Whether every rank that was started is a member of the sum: MPI and Horovod know no other group."""
    return config.exchange.exchange == "allreduce" and config.exchange.collective_backend in ("mpi", "horovod")


def fit_config(said: TrainWords, place: LaunchPlace, cores: int = 1) -> tuple[TrainConfig, Topology]:
    """The configuration and topology for as many ranks as there are: the counts that were said must fit them exactly.

    Args:
        cores: of each rank. A worker has a lane for each; an actor steps its games with as many threads.

    Raises:
        UserError: what was given contradicts the number of ranks; the message is the arithmetic.
    """
    counts = _counted(said, *COUNTS)
    config = said.config(place.world_size, without=(*COUNTS, "min_workers"), cores_per_worker=cores)
    exchange, run = config.exchange, config.run
    servers = exchange.num_servers if exchange.has_servers else 0
    players = place.world_size - run.evaluators - run.recorders
    if servers and servers >= players and "num_servers" not in said.given and not said.colocated_servers:
        servers = max(1, players // 2)  # nobody asked for so many that none is left for a worker
        config = replace_options(config, num_servers=servers)
        exchange = config.exchange
    if said.colocated_servers and (not servers or config.central.mode == "central"):
        what = f"exchange {exchange.exchange}, mode {config.central.mode}"
        raise UserError(f"--colocated-servers: a run of {what} has no servers beside workers")
    if sums_over_all_ranks(config) and run.evaluators + run.recorders:
        raise UserError(
            f"{exchange.collective_backend} sums over all {place.world_size} ranks, where an evaluator or a recorder "
            "has nothing to add: give --evaluators 0 --recorders 0, and use dba3c evaluate or record"
        )
    if config.central.mode == "central":
        topology = _central_topology(config, place, counts, servers)
        given = _counted(said, "num_gradients", "num_backup_workers", "min_workers")
        if config.environment.family == "atari":
            # an actor steps with a thread per core, and has at least one game for each in both of its groups
            beside = -(-topology.actors // topology.learners) if topology.colocated_actors else 1
            threads = said.given.get("env_threads", max(1, cores // beside))
            envs = max(config.central.envs_per_actor, config.central.actor_groups * threads)
            of_actor = {"env_threads": threads, "envs_per_actor": envs}
            given |= {name: number for name, number in of_actor.items() if name not in said.given}
        return replace_options(config, num_workers=topology.learners, actors=topology.actors, **given), topology
    if exchange.exchange == "local" and place.world_size > 1:
        raise UserError(f"exchange local is one worker, but {place.launcher} started {place.world_size} ranks")
    left = place.world_size - (0 if said.colocated_servers else servers) - run.evaluators - run.recorders
    backup_workers = counts.get("num_backup_workers")
    if backup_workers is None and "num_gradients" not in counts and exchange.backup_workers < left:
        backup_workers = exchange.backup_workers
    topology = fit(
        place.world_size,
        servers=servers,
        workers=counts.get("num_workers"),
        gradients=counts.get("num_gradients"),
        backup_workers=backup_workers,
        evaluators=run.evaluators,
        recorders=run.recorders,
        colocated_servers=said.colocated_servers,
        asynchronous=exchange.exchange == "async",
        started_by=place.launcher,
    )
    if exchange.exchange == "async":
        asked = {name: counts.get(name) for name in ("num_gradients", "num_backup_workers")}  # or refuses them
        return replace_options(config, num_workers=topology.workers, **asked), topology
    return of_topology(config, topology, said), topology


def _counted(said: TrainWords, *names: str) -> dict[str, Any]:
    """What was given of these options."""
    return {name: said.given[name] for name in names if said.given.get(name) is not None}


def of_topology(config: TrainConfig, topology: Topology, said: TrainWords) -> TrainConfig:
    """The configuration with so many workers and gradients, which share its environments: see `shared_anew`."""
    shaped = replace_options(
        config,
        num_workers=topology.workers,
        num_gradients=topology.gradients,
        num_backup_workers=topology.backup_workers,
        **_counted(said, "min_workers"),
        **shared_anew(config, topology.workers, topology.gradients, said),
    )
    return said.with_its_rate(shaped)


def _central_topology(config: TrainConfig, place: LaunchPlace, counts: Mapping[str, int], servers: int) -> Topology:
    run = config.run
    if not sums_over_all_ranks(config):  # where an actor has nothing to add, and sits beside its learner
        return fit(
            place.world_size,
            servers=servers,
            learners=counts.get("num_workers", config.exchange.num_workers),
            actors=counts.get("actors"),
            evaluators=run.evaluators,
            recorders=run.recorders,
            started_by=place.launcher,
        )
    learners = place.world_size
    if counts.get("num_workers", learners) != learners:
        raise UserError(
            f"{config.exchange.collective_backend} sums over all ranks, so each is a learner with actors beside it:"
            f" {counts['num_workers']} learners need as many ranks, not {place.world_size}"
        )
    return Topology(learners=learners, actors=counts.get("actors", config.central.actors), colocated_actors=True)


def lanes_for(config: TrainConfig, given: Mapping[str, Any], cores: int, preset: str | None) -> dict[str, int]:
    """`lanes`, and `envs_per_worker` that they can share evenly, for workers of `cores` each.

    Args:
        config: of `preset`.
        given: what the words say, which stays; environments that were counted bound the lanes, too.
    """
    if given.get("mode", config.central.mode) != "worker":
        return {}
    counted = "envs_per_worker" in given or preset in WITH_THEIR_OWN_BATCH
    envs = given.get("envs_per_worker", config.environment.envs_per_worker)
    if "lanes" in given:
        lanes = given["lanes"]
        if lanes > cores:
            warn_on_stderr(f"{lanes} lanes share the {cores} cores of a worker")
    elif counted:
        lanes = max(number for number in range(1, max(1, min(cores, envs)) + 1) if envs % number == 0)
    else:
        lanes = cores
    if counted or lanes < 1:
        return {"lanes": lanes}
    return {"lanes": lanes, "envs_per_worker": shared(envs, lanes)}


def shared(envs: float, lanes: int) -> int:
    """About so many environments of a worker that its lanes can share evenly, at least one for each."""
    return max(1, round(envs / lanes)) * lanes


def shared_anew(config: TrainConfig, workers: int, gradients: int, said: TrainWords) -> dict[str, int]:
    """`envs_per_worker` of so many workers, of which so many gradients make an update: in all as many environments as
    `config` has, or as are right for their lanes, of a preset whose size of an update was shown."""
    name, lanes = said.preset_of(config), config.environment.lanes
    if "envs_per_worker" in said.given or name not in SHOWN_SAMPLES or config.central.mode != "worker":
        return {}
    in_all = config.environment.envs_per_worker * config.exchange.gradients_per_step
    if said.grows_with_lanes(config):
        in_all = environments_for(lanes * workers)
    return {"envs_per_worker": shared(in_all / gradients, lanes)}


def samples_of(config: TrainConfig) -> int:
    """Samples in one update: of all gradients that make it."""
    gradients = config.exchange.gradients_per_step
    samples = gradients * config.environment.envs_per_worker * config.algorithm.rollout_length
    return samples // config.algorithm.ppo_minibatches if config.algorithm.algorithm == "ppo" else samples


def samples_text(config: TrainConfig) -> str:
    """One line for people: `56 gradients × 12 lanes × 1 environment × 5 steps = 3,360 samples an update`; "" where the
    learner, and not the number of workers, decides."""
    if config.central.mode != "worker":
        return ""
    lanes, envs = config.environment.lanes, config.environment.envs_per_lane
    parts = [(config.exchange.gradients_per_step, "gradient"), (lanes, "lane"), (envs, "environment")]
    parts.append((config.algorithm.rollout_length, "step"))
    text = " × ".join(f"{number} {noun}{'' if number == 1 else 's'}" for number, noun in parts)
    if config.algorithm.algorithm == "ppo":
        text += f" / {config.algorithm.ppo_minibatches} minibatches"
    return f"{text} = {samples_of(config):,} samples an update"


def not_shown(config: TrainConfig, preset: str | None) -> str:
    """One line where a preset is asked to learn from updates of another size than it was shown to; else ""."""
    if preset not in SHOWN_SAMPLES or config.central.mode != "worker":
        return ""
    samples, (fewest, most, where) = samples_of(config), SHOWN_SAMPLES[preset]
    if fewest / SHOWN_WITHIN <= samples <= most * SHOWN_WITHIN:
        return ""
    shown = f"{fewest:,}" if fewest == most else f"{fewest:,} to {most:,}"
    large = SHOWN_SAMPLES["breakout_cluster"][0]
    advice = f"; --preset breakout_cluster has {large:,}" if preset == "breakout" and samples > most else ""
    return f"{samples:,} samples an update: the preset {preset} was shown to learn with {shown} ({where}){advice}"
