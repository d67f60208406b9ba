"""From a launcher's rank to a configuration that fits, and to the processes that the rank runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from dba3c.errors import UserError
from launch.fitting import fit_config, run_dir_of_launch, take_counts
from launch.incarnations import first_incarnation
from launch.launchers import LaunchPlace
from launch.options import parse_train


def fitted(world_size: int, *words: str) -> str:
    place = LaunchPlace(launcher="srun", rank=1, world_size=world_size, tasks_per_node=(1,) * world_size)
    counts, rest = take_counts(words)
    config, topology = fit_config(parse_train(rest, cores=world_size).config, place, counts)
    if topology.learners:
        assert (config.exchange.num_workers, config.central.actors) == (topology.learners, topology.actors)
        return topology.arithmetic()
    assert config.exchange.num_workers == topology.workers
    assert config.exchange.gradients_per_step == (1 if config.exchange.exchange == "async" else topology.gradients)
    return topology.arithmetic()


@pytest.mark.parametrize(
    ("world_size", "words", "arithmetic"),
    [
        (71, "dba3c_paper", "71 = 4 servers + 1 evaluator + 1 recorder + 65 workers (60 gradients + 5 backup)"),
        (11, "dba3c_paper --gradients 3", "11 = 4 servers + 1 evaluator + 1 recorder + 5 workers (3 gradients + 2 backup)"),  # noqa: E501
        (64, "breakout --servers 4 --backup-workers 4", "64 = 4 servers + 60 workers (56 gradients + 4 backup)"),
        (64, "breakout --servers 4 --gradients 50", "64 = 4 servers + 60 workers (50 gradients + 10 backup)"),
        (8, "dba3c_paper", "8 = 4 servers + 1 evaluator + 1 recorder + 2 workers (2 gradients + 0 backup)"),
        (3, "ALE/Pong-v5 --servers 1 --workers 2", "3 = 1 server + 2 workers (2 gradients + 0 backup)"),
        (5, "breakout --mode central", "5 = 1 learner + 4 actors"),
        (4, "CartPole-v1 --exchange allreduce", "4 = 4 workers (4 gradients + 0 backup)"),
        (4, "CartPole-v1 --exchange async --servers 1", "4 = 1 server + 3 workers (3 gradients + 0 backup)"),
    ],
)  # fmt: skip
def test_a_preset_gives_way_to_the_ranks_there_are(world_size: int, words: str, arithmetic: str) -> None:
    assert fitted(world_size, *words.split()) == arithmetic


@pytest.mark.parametrize(
    ("world_size", "words", "message"),
    [
        (
            8,
            "breakout --servers 2 --workers 4",
            "srun started 8 ranks, but the options ask for 2 servers + 4 workers = 6",
        ),
        (8, "breakout --servers 2 --gradients 7", "7 gradients need as many workers, but 8 ranks leave 6"),
        (5, "dba3c_paper", "srun started 5 ranks, but 4 servers + 1 evaluator + 1 recorder leave none for a worker"),
        (2, "CartPole-v1 --exchange local", "exchange local is one process"),
        (8, "breakout --workers many", "--num-workers should be a number, it is 'many'"),
    ],
)
def test_what_the_user_gave_must_fit_exactly(world_size: int, words: str, message: str) -> None:
    with pytest.raises(UserError) as refused:
        fitted(world_size, *words.split())
    assert message in str(refused.value)


def test_the_ranks_of_a_launch_agree_on_a_run_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    config = parse_train(["breakout"], cores=2).config
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    place = LaunchPlace(launcher="mpirun", world_size=2, launch_id="prterun-host-77@1")
    assert str(run_dir_of_launch(config, place)) == "runs/breakout-prterun-host-77-1"
    monkeypatch.setenv("SLURM_JOB_ID", "17")  # a requeued job keeps its number, so its next life finds the folder
    assert str(run_dir_of_launch(config, place)) == "runs/breakout-17"
    monkeypatch.delenv("SLURM_JOB_ID")
    with pytest.raises(UserError, match="say --run-dir"):
        run_dir_of_launch(config, LaunchPlace(launcher="MPICH's mpirun", world_size=2))


def test_a_rank_that_is_started_again_takes_incarnations_of_its_own(tmp_path: Path) -> None:
    assert [first_incarnation(tmp_path, 3) for _ in range(3)] == [0, 100, 200]
    assert first_incarnation(tmp_path, 4) == 0
