"""Studies and sweeps as Slurm job arrays: every run is done once, and submitting it again leaves it alone."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from tests.cluster.conftest import Cluster, Job

DBA3C = (sys.executable, "-m", "launch")
SMALL = ("--total-frames", "2000", "--envs-per-worker", "2", "--lanes", "1", "--track")


def submitted(cluster: Cluster, text: str, folder: Path) -> str:
    """What an array said that was printed, submitted as its user would, and has ended."""
    script = folder / "array.sbatch"
    script.write_text(text + "\n")
    job = Job(cluster, cluster.run("sbatch", str(script), cwd=folder).split()[-1], folder)
    job.wait_for_end()
    return job.output


def test_a_study_runs_as_a_job_array_and_is_not_run_twice(small_cluster: Cluster, tmp_path: Path) -> None:
    command = (*DBA3C, "study", "scaling", "--into", str(tmp_path / "study"))
    declared = (*command, "--env", "CartPole-v1", "--values", "1", "2", "--seeds", "1", "--slurm", "--time", "00:20:00")
    text = small_cluster.run(*declared, "--", *SMALL)
    for left_alone in (0, 2):
        said = submitted(small_cluster, text, tmp_path)
        assert "2 of 2 runs are finished" in small_cluster.run(*command, "--list"), said
        assert said.count("finished, left alone") == left_alone
        assert "stay idle" not in said  # the nodes that a smaller run does not need were given back
        assert "is lost" not in said  # no task takes another's nodes for its own
    for n in (1, 2):  # workers, and as many servers on nodes of their own
        meta = json.loads((tmp_path / "study" / f"workers-{n}" / "seed-0" / "meta.json").read_text())
        assert meta["lives"][0]["topology"]["nodes"] == 2 * n


def test_a_sweep_runs_as_a_job_array_and_then_says_which_point_was_best(small_cluster: Cluster, tmp_path: Path) -> None:
    into = ("--into", str(tmp_path / "sweep"))
    command = (*DBA3C, "sweep", *into)
    varied = ("--learning-rate", "1e-3", "1e-2", "--seeds", "1", "--time", "00:20:00")
    text = small_cluster.run(*DBA3C, "sweep", "CartPole-v1", *SMALL, *varied, "--slurm", *into)
    said = submitted(small_cluster, text, tmp_path)
    assert "2 of 2 runs are finished" in small_cluster.run(*command, "--list"), said
    told = small_cluster.run(*command)
    assert re.search(r"^best: learning-rate 1e-[23]$", told, re.M) and "1 of 1" in told
    assert (tmp_path / "sweep" / "figures" / "points.png").exists()


def test_the_trials_of_a_search_are_tasks_that_share_one_journal(small_cluster: Cluster, tmp_path: Path) -> None:
    optuna = pytest.importorskip("optuna")
    folder = tmp_path / "search"
    command = (*DBA3C, "sweep", "--into", str(folder))
    drawn = ("--learning-rate", "1e-4..1e-2", "--search", "optuna", "--trials", "3", "--seeds", "1")
    words = ("CartPole-v1", *SMALL, *drawn, "--slurm", "--time", "00:20:00", "--into", str(folder))
    text = small_cluster.run(*DBA3C, "sweep", *words)
    said = submitted(small_cluster, text, tmp_path)
    assert "3 of 3 runs are finished" in small_cluster.run(*command, "--list"), said
    backend = optuna.storages.journal.JournalFileBackend(str(folder / "optuna.journal"))
    trials = optuna.load_study(study_name="sweep", storage=optuna.storages.JournalStorage(backend)).trials
    assert sorted(trial.user_attrs["task"] for trial in trials) == [0, 1, 2]
    assert {trial.state.name for trial in trials} == {"COMPLETE"}, said
    assert len({trial.params["learning-rate"] for trial in trials}) == 3
    told = small_cluster.run(*command)
    assert re.search(r"^best: trial-00[0-2]: learning-rate ", told, re.M)
