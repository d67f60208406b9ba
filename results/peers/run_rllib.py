"""Breakout with RLlib's IMPALA or PPO as its tuned examples have it: ``run_rllib.py impala|ppo GAME STEPS SEED``.

Prints `steps N` after each iteration; `full_games` prints the scores.
"""

from __future__ import annotations

import sys

import ale_py
import gymnasium
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.connectors.env_to_module.frame_stacking import FrameStackingEnvToModule
from ray.rllib.connectors.learner.frame_stacking import FrameStackingLearner
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.env.wrappers.atari_wrappers import wrap_atari_for_new_api_stack
from ray.tune.registry import register_env

WORKERS = 2
ENVS_PER_WORKER = 8


def make_env(config):
    import full_games  # noqa: F401  (in the process that steps)

    gymnasium.register_envs(ale_py)
    game = gymnasium.make(
        f"ALE/{config['game']}-v5", frameskip=1, repeat_action_probability=0.0, full_action_space=False
    )
    return wrap_atari_for_new_api_stack(game, dim=84, framestack=None)


def main(algorithm: str, game: str, steps: int, seed: int) -> None:
    """See the module."""
    register_env("atari", make_env)
    config = IMPALAConfig() if algorithm == "impala" else PPOConfig()
    config = (
        config.environment("atari", env_config={"game": game}, clip_rewards=True)
        .env_runners(
            num_env_runners=WORKERS,
            num_envs_per_env_runner=ENVS_PER_WORKER,
            env_to_module_connector=lambda env=None, spaces=None, device=None: FrameStackingEnvToModule(num_frames=4),
        )
        .learners(num_learners=0)
        .rl_module(
            model_config=DefaultModelConfig(
                conv_filters=[[32, 8, 4], [64, 4, 2], [64, 3, 1]],
                conv_activation="relu",
                head_fcnet_hiddens=[512],
                vf_share_layers=True,
            )
        )
        .debugging(seed=seed)
    )
    if algorithm == "impala":
        config = config.training(
            learner_connector=lambda spaces=None, space=None: FrameStackingLearner(num_frames=4),
            lr=[[0, 5e-4], [20_000_000, 1e-12]],
            grad_clip=40.0,
            entropy_coeff=0.01,
            vf_loss_coeff=0.5,
            train_batch_size_per_learner=500,
        )
    else:
        config = config.training(
            learner_connector=lambda spaces=None, space=None: FrameStackingLearner(num_frames=4),
            lr=2.5e-4,
            gamma=0.99,
            lambda_=0.95,
            clip_param=0.1,
            vf_clip_param=10.0,
            vf_loss_coeff=0.5,
            entropy_coeff=0.01,
            train_batch_size_per_learner=2048,
            minibatch_size=256,
            num_epochs=4,
            grad_clip=0.5,
        )
    trainer = config.build_algo()
    done = 0
    while done < steps:
        runners = trainer.train()["env_runners"]
        done = int(runners.get("num_env_steps_sampled_lifetime", done))  # not told before the first rollout is in
        print(f"steps {done}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
