"""Presets: functions from an environment id and the number of workers to a complete configuration, of which
launch.cli.configuration fits lanes, environments and, of Atari's own, the learning rate.

First this system's own (breakout, atari, breakout_cluster, dba3c_paper, classic), then those of environment families
(football, vizdoom, mujoco), then other systems' recipes on this one: IMPALA's V-trace, R2D2 and SAC as in SEED RL, and
PPO in workers.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from dba3c.algorithms.config import AlgorithmConfig
from dba3c.central_config import CentralConfig, ReplayConfig
from dba3c.config import NetworkConfig, RunConfig, TrainConfig
from dba3c.environments.atari_protocols import with_protocol
from dba3c.environments.config import EnvironmentConfig, stop_score
from dba3c.errors import UserError, did_you_mean
from dba3c.runs.host_facts import is_quick_in_bfloat16
from param_servers.config import ExchangeConfig, OptimizerConfig
from param_servers.errors import ConfigError

SMALL_CLUSTER_WORKERS = 8
"""From this many workers on, one in twelve is a backup worker (the 2017 system: 5 of 65)."""
ENVIRONMENTS_A_LANE, MOST_ENVIRONMENTS = 16, 240
"""Of the presets breakout and atari."""
CLUSTER_ENVIRONMENTS = 720
"""Of breakout_cluster, in all."""
ONE_LEARNER = ExchangeConfig(exchange="local")
PPO_DATA_POINTS = 10_000_000
"""Of the paper's Atari runs: 40 M frames."""
OF_ONE_FAMILY = ("breakout", "atari", "breakout_cluster", "dba3c_paper", "football", "vizdoom")
"""Presets that train no environments of other families."""
MUJOCO = (
    "Ant", "HalfCheetah", "Hopper", "Humanoid", "HumanoidStandup", "InvertedDoublePendulum", "InvertedPendulum",
    "Pusher", "Reacher", "Swimmer", "Walker2d",
)  # fmt: skip
"""Gymnasium's own, of any version."""


def breakout(env_id: str, workers: int) -> TrainConfig:
    """Atari tuned for one machine: the 5-step actor-critic, the small network, no sticky actions.

    On two cores 32 environments, which all workers share: updates of 160 samples. With more lanes see
    `environments_for` and `dba3c.resuming.rate_for`.
    """
    exchange = local_servers(workers)
    environment = EnvironmentConfig(env_id=env_id, envs_per_worker=max(4, 32 // exchange.gradients_per_step))
    return TrainConfig(
        environment=replace(with_protocol(environment, "v4-no-sticky"), episodic_life=True),
        network=NetworkConfig(network="small", precision=_quicker_precision()),
        algorithm=AlgorithmConfig(rollout_length=5, entropy_cost="0.01"),
        optimizer=OptimizerConfig(
            optimizer="rmsprop", learning_rate="linear:7e-4->7e-5@20e6", decay=0.99, epsilon=1e-5, clip_norm=0.5
        ),
        exchange=exchange,
    )


def atari(env_id: str, workers: int) -> TrainConfig:
    """Any Atari game on one machine: `breakout` with normalised images (results/recipes, results/games)."""
    config = breakout(env_id, workers)
    return replace(config, environment=replace(config.environment, normalize_observations=True))


def breakout_cluster(env_id: str, workers: int) -> TrainConfig:
    """Atari tuned for many cores: `breakout` with updates of 3,600 samples.

    720 environments, one for each core of 60 nodes, are shared by all workers, however many there are. So more nodes
    are quicker at the same updates (results/batch_size).
    """
    config = breakout(env_id, workers)
    envs = max(1, CLUSTER_ENVIRONMENTS // config.exchange.gradients_per_step)
    return replace(config, environment=replace(config.environment, envs_per_worker=envs))


def dba3c_paper(env_id: str, workers: int) -> TrainConfig:
    """The recipe of 2017 (arXiv 1801.02852): RGB, 5-step returns, Adam 1e-3, β 0.8 and 0.75, clipping by each tensor's
    average norm, entropy 0.01, the DBA3C network, sticky actions and random frame skip, 60 of 65 workers' gradients.

    But for the batch: a worker's was 32 samples out of a queue that 10 simulators filled, so 1,920 made an update. Here
    it is one rollout, 5 steps of 6 environments: 30 samples, 1,800 in an update.
    """
    del workers  # the paper's shape; --workers, --servers and --backup-workers change it
    return TrainConfig(
        environment=with_protocol(EnvironmentConfig(env_id=env_id, envs_per_worker=6), "2017"),
        network=NetworkConfig(network="dba3c"),
        algorithm=AlgorithmConfig(rollout_length=5, value_cost=1.0, entropy_cost="0.01"),
        optimizer=OptimizerConfig(
            optimizer="adam",
            learning_rate="1e-3",
            beta1=0.8,
            beta2=0.75,
            epsilon=1e-8,
            clip_rule="average_per_tensor",
            clip_norm=0.1,
        ),
        exchange=ExchangeConfig(exchange="servers", num_workers=65, num_servers=4, num_backup_workers=5),
        run=RunConfig(evaluators=1, recorders=1),
    )


def classic(env_id: str, workers: int) -> TrainConfig:
    """Small problems (CartPole, LunarLander, your own): 8-step rollouts, Adam, the MLP, or the small network where
    observations are images."""
    exchange = local_servers(workers)
    return TrainConfig(
        environment=EnvironmentConfig(env_id=env_id, envs_per_worker=max(2, 16 // exchange.gradients_per_step)),
        network=NetworkConfig(network="auto"),
        algorithm=AlgorithmConfig(rollout_length=8, trace_lambda=0.95, entropy_cost="0"),
        optimizer=OptimizerConfig(
            optimizer="adam", learning_rate="linear:3e-3->3e-4@400000", epsilon=1e-5, clip_norm=0.5
        ),
        exchange=exchange,
    )


def football(env_id: str, workers: int) -> TrainConfig:
    """PPO on 115 numbers with checkpoint rewards: small updates (64 steps of 8 environments a worker, 4 epochs).

    γ 0.993 and the entropy cost are those of the environment's authors (arXiv 1907.11180). For the map add
    `--football-observation extracted --network football`.
    """
    return TrainConfig(
        environment=EnvironmentConfig(
            env_id=env_id,
            envs_per_worker=8,
            football_observation="simple115v2",
            football_rewards="scoring,checkpoints",
        ),
        network=NetworkConfig(network="auto"),
        algorithm=AlgorithmConfig(
            algorithm="ppo", rollout_length=64, discount=0.993, trace_lambda=0.95, entropy_cost="0.003"
        ),
        optimizer=OptimizerConfig(optimizer="adam", learning_rate="5e-4", epsilon=1e-5, clip_norm=0.5),
        exchange=ExchangeConfig(exchange="servers", num_workers=workers, num_servers=1),
    )


def vizdoom(env_id: str, workers: int) -> TrainConfig:
    """The actor-critic with an LSTM behind the small network: 10-step rollouts of 16 environments, rewards / 100.

    γ 0.97: a game of `basic` is won in ten or twenty steps, and waiting costs. Learning rate: at 1e-3, which the small
    network without memory likes, the LSTM had not learned `basic` in 785 k steps; at 3e-4 it takes 160 k.
    """
    return TrainConfig(
        environment=EnvironmentConfig(env_id=env_id, envs_per_worker=max(4, 16 // max(1, workers)), reward_scale=0.01),
        network=NetworkConfig(network="small_lstm", precision=_quicker_precision()),
        algorithm=AlgorithmConfig(rollout_length=10, discount=0.97, trace_lambda=0.95, entropy_cost="0.005"),
        optimizer=OptimizerConfig(optimizer="adam", learning_rate="3e-4", epsilon=1e-5, clip_norm=0.5),
        exchange=ExchangeConfig(exchange="servers", num_workers=workers, num_servers=1),
    )


def mujoco(env_id: str, workers: int) -> TrainConfig:
    """PPO with a Gaussian policy and normalised observations (arXiv 1707.06347, table 3): 10 epochs of minibatches of
    64, clip 0.2, λ 0.95, Adam 3e-4, which falls to 1e-5 here.

    The paper's 2,048 steps of one environment are 256 steps of 8 in each worker here: n workers average n minibatches.
    OpenAI Baselines also divides rewards by the running deviation of the return; here they are scaled by a constant.
    """
    return TrainConfig(
        environment=EnvironmentConfig(env_id=env_id, envs_per_worker=8, normalize_observations=True, reward_scale=0.1),
        network=NetworkConfig(network="mlp"),
        algorithm=AlgorithmConfig(
            algorithm="ppo",
            rollout_length=256,
            trace_lambda=0.95,
            entropy_cost="0",
            ppo_epochs=10,
            ppo_minibatches=32,
        ),
        optimizer=OptimizerConfig(optimizer="adam", learning_rate="linear:3e-4->1e-5@1e6", epsilon=1e-5, clip_norm=0.5),
        exchange=ExchangeConfig(exchange="servers", num_workers=workers, num_servers=1),
    )


def impala(env_id: str, workers: int) -> TrainConfig:
    """V-trace with SEED's settings (arXiv 1910.06591): 32 unrolls of 20 (short games), γ 0.99, baseline cost 0.5,
    entropy cost 0.00025, Adam 4.8e-4 with β1 0 and ε 3.125e-7; its residual network, without the LSTM."""
    environment, image = _environment(env_id)
    return TrainConfig(
        environment=environment,
        network=NetworkConfig(network="resnet" if image else "auto"),
        algorithm=AlgorithmConfig(algorithm="vtrace", entropy_cost="0.00025"),
        optimizer=OptimizerConfig(
            optimizer="adam", learning_rate="4.8e-4", beta1=0.0, epsilon=3.125e-7, clip_rule="none"
        ),
        exchange=ONE_LEARNER,
        central=CentralConfig(mode="central", actors=workers, unroll_length=20, batch_unrolls=32),
    )


def r2d2(env_id: str, workers: int) -> TrainConfig:
    """R2D2 with SEED's settings (arXiv 1910.06591): 64 sequences of 40 + 100 steps, γ 0.997, 5-step returns, replay
    ratio 1.5, Adam 4.8e-4 with ε 1e-3, gradients clipped at a norm of 40.

    Rewards are not clipped: values are rescaled by h(x) instead (Kapturowski et al. 2019, section 2.3). Smaller than
    SEED's: the replay, 200,000 steps here, and the number of environments. Otherwise than SEED's: sticky actions and
    each game's minimal set of actions, as all presets here; torch's Adam, whose ε stands behind the correction of its
    bias, not before it: first steps are larger than Keras's.
    """
    environment, _ = _environment(env_id)
    return TrainConfig(
        environment=replace(environment, clip_reward=False),
        algorithm=AlgorithmConfig(algorithm="r2d2", discount=0.997),
        optimizer=OptimizerConfig(optimizer="adam", learning_rate="4.8e-4", epsilon=1e-3, clip_norm=40.0),
        exchange=ONE_LEARNER,
        central=CentralConfig(mode="central", actors=workers, unroll_length=100),
        replay=ReplayConfig(replay_capacity=200_000, replay_start=20_000),
    )


def sac(env_id: str, workers: int) -> TrainConfig:
    """SAC (arXiv 1812.05905): batch 256, a million transitions, τ 0.005, one gradient per agent step."""
    return TrainConfig(
        environment=EnvironmentConfig(env_id=env_id),
        algorithm=AlgorithmConfig(algorithm="sac", discount=0.99),
        optimizer=OptimizerConfig(optimizer="adam", learning_rate="3e-4", epsilon=1e-8, clip_rule="none"),
        exchange=ONE_LEARNER,
        central=CentralConfig(mode="central", actors=workers, envs_per_actor=4, unroll_length=5),
        replay=ReplayConfig(replay_batch=256, replay_ratio=256.0),
    )


def ppo(env_id: str, workers: int) -> TrainConfig:
    """PPO as its paper plays Atari (arXiv 1707.06347, table 5): 128 steps of 8 environments, 3 epochs of 4 minibatches,
    λ 0.95, value coefficient 1, entropy 0.01, ε from 0.1 and the learning rate from 2.5e-4 to 0 in 10 M data points,
    where the run ends.

    That is one worker's; with n workers a minibatch has n × 256 samples. Not the table's: Adam's ε of 1e-5 and clipping
    the gradient at a norm of 0.5, which are OpenAI Baselines', and the sticky actions of the protocol v5.
    """
    environment, image = _environment(env_id)
    return TrainConfig(
        environment=replace(environment, envs_per_worker=8),
        network=NetworkConfig(network="nature" if image else "auto"),
        algorithm=AlgorithmConfig(
            algorithm="ppo",
            rollout_length=128,
            trace_lambda=0.95,
            value_cost=2.0,  # of ½(V − target)², where the paper has the whole square
            entropy_cost="0.01",
            policy_clip=f"linear:0.1->0@{PPO_DATA_POINTS}",
            ppo_epochs=3,
        ),
        optimizer=OptimizerConfig(
            optimizer="adam", learning_rate=f"linear:2.5e-4->0@{PPO_DATA_POINTS}", epsilon=1e-5, clip_norm=0.5
        ),
        exchange=ExchangeConfig(exchange="servers", num_workers=workers, num_servers=1),
    )


def environments_for(lanes: int) -> int:
    """In all, of the presets `breakout` and `atari`: 16 for each lane, so that none steps a handful, at least 32 and at
    most 240, which make updates of 1,200 samples.

    Updates of 480 to 1,200 samples took as many agent steps to a mean of 300 as those of 160, and so much fewer
    updates; those of 1,920 half as many steps again (results/batch_size).
    """
    return min(MOST_ENVIRONMENTS, ENVIRONMENTS_A_LANE * max(2, lanes))


def in_one_worker(config: TrainConfig) -> TrainConfig:
    """A preset for one core, with all cores of a machine: as many lanes, which add up their gradients in memory.

    On two cores 1.03 to 1.31 times as fast as two workers with two servers (results/lanes). The preset that stands
    for a published number of workers keeps them.
    """
    if config.exchange.num_workers > 1:
        return config
    return replace(config, exchange=replace(config.exchange, exchange="local", num_servers=1))


def with_central_inference(config: TrainConfig, actors: int) -> TrainConfig:
    """The same agent on the same environments with central inference: so many actors, one learner, V-trace.

    The learner answers in one thread and learns in another, and on a small machine lives on what the actors leave.
    """
    if config.central.mode == "central":
        return config
    envs = config.environment.envs_per_worker * config.exchange.gradients_per_step
    return replace(
        config,
        algorithm=replace(config.algorithm, algorithm="vtrace", trace_lambda=1.0),
        exchange=replace(config.exchange, exchange="local", num_workers=1, num_gradients=None, num_backup_workers=None),
        central=CentralConfig(
            mode="central",
            actors=actors,
            envs_per_actor=max(2, envs // actors // 2 * 2),
            batch_unrolls=16,
        ),
    )


def local_servers(workers: int) -> ExchangeConfig:
    """So many workers, 2 servers, and backup workers where there are enough workers to spare."""
    backup = workers // 12 + 1 if workers >= SMALL_CLUSTER_WORKERS else 0
    return ExchangeConfig(exchange="servers", num_workers=workers, num_servers=2, num_backup_workers=backup)


def _quicker_precision() -> Literal["float32", "bfloat16"]:
    """Of convolutions on this machine's processor (--device cuda has --precision): a run of `breakout` is 4 times as
    fast in float32 where bfloat16 is emulated, 1.1 times on an Intel without AMX."""
    return "bfloat16" if is_quick_in_bfloat16() else "float32"


def _environment(env_id: str) -> tuple[EnvironmentConfig, bool]:
    """The environment, Atari by its v5 protocol, and whether it shows images."""
    environment = EnvironmentConfig(env_id=env_id)
    if environment.family == "atari":
        return with_protocol(environment, "v5"), True
    return environment, environment.family in ("vizdoom", "football")


PRESETS: dict[str, tuple[Callable[[str, int], TrainConfig], str]] = {
    "impala": (impala, "ALE/Breakout-v5"),
    "r2d2": (r2d2, "ALE/Breakout-v5"),
    "sac": (sac, "Pendulum-v1"),
    "ppo": (ppo, "ALE/Breakout-v5"),
    "breakout": (breakout, "ALE/Breakout-v5"),
    "breakout_cluster": (breakout_cluster, "ALE/Breakout-v5"),
    "atari": (atari, "ALE/Pong-v5"),
    "dba3c_paper": (dba3c_paper, "ALE/Breakout-v5"),
    "classic": (classic, "CartPole-v1"),
    "football": (football, "football/academy_empty_goal_close"),
    "vizdoom": (vizdoom, "vizdoom/basic"),
    "mujoco": (mujoco, "HalfCheetah-v5"),
}
"""Each with the environment it is for when none is named."""


def preset(name: str | None, env_id: str | None, workers: int) -> TrainConfig:
    """The named preset for an environment; without a name the one that fits it, without an environment its own.

    Raises:
        UserError: no such preset (the close ones are named), or it is for other environments.
    """
    if name is None:
        env_id = env_id or EnvironmentConfig().env_id
        name = fitting_preset(env_id)
    if name not in PRESETS:
        raise UserError(f"no preset is called {name!r}; {did_you_mean(name, PRESETS)}")
    made, own = PRESETS[name]
    env_id = env_id or own
    family = EnvironmentConfig(env_id=own).family
    if name in OF_ONE_FAMILY and EnvironmentConfig(env_id=env_id).family != family:
        what = "Atari games" if family == "atari" else f"{family}/<scenario>"
        fits = fitting_preset(env_id)
        raise UserError(f"the preset {name} is for {what}, and {env_id} is none: --preset {fits} fits it")
    try:
        config = made(env_id, workers)
    except ConfigError as error:  # no worker, say
        raise UserError(str(error)) from None
    return replace(config, run=replace(config.run, stop_score=stop_score(env_id)))


def fitting_preset(env_id: str) -> str:
    """The name of the preset that fits an environment."""
    family = EnvironmentConfig(env_id=env_id).family
    if family in PRESETS:
        return family
    return "mujoco" if family == "gymnasium" and env_id.split("-v")[0] in MUJOCO else "classic"
