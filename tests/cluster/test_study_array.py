"""A study as a Slurm job array: every run is done once, and submitting it again leaves it alone."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.cluster.conftest import Cluster, Job


def test_a_study_runs_as_a_job_array_and_is_not_run_twice(small_cluster: Cluster, tmp_path: Path) -> None:
    study = str(tmp_path / "study")
    command = (sys.executable, "-m", "launch.cli.main", "study", "scaling", "--into", study)
    declared = (*command, "--env", "CartPole-v1", "--values", "1", "2", "--seeds", "1", "--slurm", "--time", "00:20:00")
    text = small_cluster.run(*declared, "--", "--total-frames", "2000", "--envs-per-worker", "2", "--track")
    script = tmp_path / "array.sbatch"
    script.write_text(text + "\n")
    for submission in ("first", "again"):
        said = small_cluster.run("sbatch", str(script), cwd=tmp_path)
        job = Job(small_cluster, said.split()[-1], tmp_path)
        job.wait_for_end()
        listed = small_cluster.run(*command, "--list")
        assert "2 of 2 runs are finished" in listed, job.output
        assert job.output.count("finished, left alone") == (2 if submission == "again" else 0)
