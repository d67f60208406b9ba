"""Options that a run would not read are refused, whoever else reads them."""

from __future__ import annotations

import pytest

from dba3c.config import option_names
from dba3c.errors import UserError
from launch.cli.belonging import ALGORITHMS, MODES
from launch.cli.options import parse_train
from launch.cli.ranks import train
from launch.cluster.launchers import LaunchPlace

POLICY_GRADIENT = "--algorithm actor_critic or vtrace or ppo"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (
            "breakout --mode central --algorithm r2d2 --network resnet_lstm",
            f"--network: an option of {POLICY_GRADIENT} only, and this run learns by r2d2",
        ),
        (
            "--preset sac --entropy-cost .5 --network=resnet",
            f"--entropy-cost, --network: options of {POLICY_GRADIENT} only, and this run learns by sac",
        ),
        (
            "--preset sac --memory-size 64 --burn_in 7 --n-step 9",
            "--burn-in, --memory-size, --n-step: options of --algorithm r2d2 only, and this run learns by sac",
        ),
        (
            "--preset r2d2 --polyak .3 --hidden-size 3",
            "--hidden-size, --polyak: options of --algorithm sac only, and this run learns by r2d2",
        ),
        (
            "--preset r2d2 --ppo-epochs 3",
            "--ppo-epochs: an option of --algorithm ppo only, and this run learns by r2d2",
        ),
        (
            "breakout --replay-start 7",
            "--replay-start: an option of --algorithm r2d2 or sac only, and this run learns by actor_critic",
        ),
        (
            "breakout --mode central --rollout-length 50 --envs-per-worker 64",
            "--envs-per-worker, --rollout-length: options of --mode worker only, and this run's mode is central",
        ),
        (
            "breakout --unroll-length 50 --actors 7",
            "--actors, --unroll-length: options of --mode central only, and this run's mode is worker",
        ),
        (
            "--preset sac --batch-unrolls 3",
            "--batch-unrolls: an option of --mode central --algorithm vtrace only, "
            "and this run's mode is central and it learns by sac",
        ),
    ],
)
def test_an_option_that_would_do_nothing_is_refused_with_whose_it_is(words: str, why: str) -> None:
    with pytest.raises(UserError) as refused:
        parse_train(words.split(), cores=2)
    assert str(refused.value) == why


@pytest.mark.parametrize(
    "words",
    [
        "breakout --mode central --network resnet_lstm --unroll-length 9 --batch-unrolls 4 --entropy-cost 0",
        "breakout --envs-per-worker 4 --rollout-length 3 --algorithm vtrace --value-cost 1",
        "--preset sac --hidden-size 8 --polyak .1 --replay-start 9 --actors 1",
        "--preset r2d2 --memory-size 8 --n-step 3 --replay-ratio 1 --inference-thread shared",
        "--preset ppo --ppo-epochs 2 --trace-lambda .9 --network small",
    ],
)
def test_whoever_reads_an_option_takes_it(words: str) -> None:
    parse_train(words.split(), cores=2)


def test_actors_of_a_launch_that_has_none_are_refused_too() -> None:
    place = LaunchPlace(
        launcher="torchrun", rank=0, world_size=4, local_rank=0, node_rank=0, tasks_per_node=(4,), launch_id="x"
    )
    with pytest.raises(UserError, match="--actors: an option of --mode central only"):
        train(["breakout", "--actors", "3"], place, "dba3c train")


def test_the_tables_name_options_that_there_are_and_each_once() -> None:
    named = [option for options in (*MODES.values(), *ALGORITHMS.values()) for option in options]
    assert set(named) <= option_names().keys()
    assert len(named) == len(set(named))
