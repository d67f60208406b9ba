"""Breakout with Stable-Baselines3's A2C or PPO as its Zoo has them: ``run_sb3.py a2c|ppo GAME STEPS SEED``.

Prints `steps N` about once a second and `score S steps N` for each full game (five lives, unclipped).
"""

from __future__ import annotations

import sys
import time

import ale_py
import gymnasium
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
from stable_baselines3.common.vec_env import VecFrameStack

gymnasium.register_envs(ale_py)


def falling(start: float):
    """From `start` to 0 over the run."""
    return lambda left: left * start


class Progress(BaseCallback):
    """What `measure.py` reads."""

    told_s = 0.0

    def _on_step(self) -> bool:
        for info in self.locals["infos"]:
            if "episode" in info:
                print(f"score {info['episode']['r']:g} steps {self.num_timesteps}", flush=True)
        if time.monotonic() - self.told_s > 1.0:
            self.told_s = time.monotonic()
            print(f"steps {self.num_timesteps}", flush=True)
        return True


def main(algorithm: str, game: str, steps: int, seed: int) -> None:
    """See the module."""
    envs = 16 if algorithm == "a2c" else 8
    env = VecFrameStack(make_atari_env(f"{game}NoFrameskip-v4", n_envs=envs, seed=seed), n_stack=4)
    if algorithm == "a2c":
        optimizer = {"optimizer_class": RMSpropTFLike, "optimizer_kwargs": {"eps": 1e-5}}
        model = A2C("CnnPolicy", env, ent_coef=0.01, vf_coef=0.25, policy_kwargs=optimizer, seed=seed)
    else:
        model = PPO(
            "CnnPolicy",
            env,
            n_steps=128,
            n_epochs=4,
            batch_size=256,
            learning_rate=falling(2.5e-4),
            clip_range=falling(0.1),
            vf_coef=0.5,
            ent_coef=0.01,
            seed=seed,
        )
    model.learn(steps, callback=Progress())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
