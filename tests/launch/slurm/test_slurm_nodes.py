"""A lost node's replacement: when it is asked for, and what it is told."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from dba3c.runs.run_folder import RunFolder
from launch.cluster.launchers import detect
from launch.cluster.nodelist import expand
from launch.slurm.nodes import LOOK_S, SUBMIT_TRIES, LostNodes, rank_environment, sbatch_options, script_text

JOB = {
    "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-3]", "SLURM_NTASKS_PER_NODE": "2", "SLURM_CPUS_PER_TASK": "4",
    "SLURM_JOB_NAME": "breakout", "SLURM_JOB_PARTITION": "short", "SLURM_STEP_ID": "0", "HOME": "/home/a",
}  # fmt: skip


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    folder = RunFolder.create(tmp_path / "run", {}, launch_id="7-0")
    folder.publish("server-0", {"host": "10.0.0.1", "port": 1})
    folder.release()
    return folder.path


class FakeSlurm(LostNodes):
    nodes_left = "n[1-3]"
    refuses = False

    def __init__(self, run_dir: Path) -> None:
        self.now_s, self.said, self.asked = 0.0, [], []  # type: ignore[var-annotated]
        super().__init__(JOB, run_dir, ["dba3c", "train", "x y"], say=self.said.append, clock=lambda: self.now_s)

    def _slurm(
        self, command: Sequence[str], environ: Mapping[str, str] | None = None, script: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        self.asked.append((command[0], environ, script))
        if command[0] == "sbatch" and self.refuses:
            return subprocess.CompletedProcess(command, 1, "", "no hours left\n")
        if any(word.startswith("--name=") for word in command):
            return subprocess.CompletedProcess(command, 0, "", "")
        answers = {"squeue": f"{self.nodes_left}|1:02:03", "sbatch": "8"}
        return subprocess.CompletedProcess(command, 0, answers.get(command[0], "") + "\n", "")

    def look_later(self) -> None:
        self.now_s += LOOK_S
        self.look()


def test_a_lost_node_is_replaced_once_and_its_replacement_ends_with_the_run(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launch.slurm.nodes.hostnames", expand)
    slurm = FakeSlurm(run_dir)
    slurm.look_later()
    slurm.look()  # at once: Slurm is not asked again
    assert [asked[0] for asked in slurm.asked] == ["squeue"]
    slurm.nodes_left = "n[1-2]"
    slurm.look_later()
    slurm.look_later()
    assert [asked[0] for asked in slurm.asked] == ["squeue"] * 2 + ["sbatch", "squeue"]
    assert slurm.said == ["node n3 is lost; job 8 takes its place as soon as a node is free"]
    environ = slurm.asked[2][1]
    assert {name for name in environ if name.startswith("SLURM_")} == set()
    slurm.end()
    assert slurm.asked[-1][0] == "scancel"


def test_a_replacement_is_told_whose_place_it_takes(run_dir: Path) -> None:
    environ = rank_environment(JOB, run_dir, number=2, nodes=3)
    second_task = {
        **environ,
        "DBA3C_REPLACES_RANK": "5",
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": "1",
        "SLURM_NTASKS": "2",
    }
    place = detect(second_task)
    assert (place.rank, place.world_size, place.tasks_per_node, place.node_rank) == (5, 6, (2, 2, 2), 2)
    assert (place.launch_id, place.address) == ("7-0", "10.0.0.1")


def test_a_replacement_is_a_node_of_the_same_kind_for_the_time_that_is_left(run_dir: Path) -> None:
    options = sbatch_options(JOB, run_dir, "n3", "1:02:03")
    wanted = {"--nodes=1", "--ntasks-per-node=2", "--cpus-per-task=4", "--partition=short", "--time=1:02:03"}
    assert wanted <= set(options)


def test_a_replacement_s_tasks_are_the_lost_ranks_in_order(tmp_path: Path) -> None:
    text = script_text(JOB, ["sh", "-c", 'echo "$DBA3C_REPLACES_RANK $1"', "rank", "x y"])
    fake = tmp_path / "srun"
    fake.write_text('#!/bin/sh\nwhile [ "${1#--}" != "$1" ]; do shift; done\nexport SLURM_PROCID=1\nexec "$@"\n')
    fake.chmod(0o755)
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin", "DBA3C_REPLACES_RANK": "4"}
    said = subprocess.run(["bash"], input=text, env=environ, capture_output=True, text=True, timeout=30, check=True)
    assert said.stdout == "5 x y\n"


def test_an_array_s_task_asks_for_itself_and_believes_one_line_only(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launch.slurm.nodes.hostnames", expand)
    asked: list[Sequence[str]] = []
    answers = {"squeue": "n[1-3]|1:00\nn4|1:00\n", "sbatch": "8\n"}

    def answer(command: Sequence[str], *_: object, **__: object) -> subprocess.CompletedProcess[str]:
        asked.append(command)
        return subprocess.CompletedProcess(command, 0, answers[command[0]], "")

    monkeypatch.setattr("launch.slurm.tools.ask", answer)
    task = {**JOB, "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "2"}  # the last task has the array's own number
    said: list[str] = []
    lost_nodes = LostNodes(task, run_dir, ["dba3c"], say=said.append, clock=lambda: LOOK_S * len(asked))
    lost_nodes.look()
    assert "--jobs=7_2" in asked[0]
    assert said == []  # two lines: whose nodes are these?
    answers["squeue"] = "n[1-2]|1:00\n"
    lost_nodes.look()
    assert said == ["node n3 is lost; job 8 takes its place as soon as a node is free"]


def test_a_refused_replacement_leaves_the_others_to_the_next_look(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launch.slurm.nodes.hostnames", expand)
    asked: list[str] = []
    submitted: list[str] = []
    ended: list[str] = []

    def answer(command: Sequence[str], *_: object, **__: object) -> subprocess.CompletedProcess[str]:
        asked.append(command[0])
        if command[0] == "scancel":
            ended.extend(command[1:])
        if command[0] == "sbatch":
            submitted.append(next(word for word in command if word.startswith("--job-name=")))
            return subprocess.CompletedProcess(command, 124, "", "too slow")
        known = any(word.startswith("--jobs=") for word in command)
        named = [word for word in command if word.startswith("--name=") and word.count(",") == 1]
        return subprocess.CompletedProcess(command, 0, "n1|1:00\n" if known else "8\n9\n" * len(named), "")

    monkeypatch.setattr("launch.slurm.tools.ask", answer)
    lost_nodes = LostNodes(JOB, run_dir, ["dba3c"], say=lambda _: None, clock=lambda: LOOK_S * len(asked))
    lost_nodes.look()
    assert asked == ["squeue", "sbatch"]
    lost_nodes.look()
    lost_nodes.look()
    assert asked[2:] == ["squeue", "sbatch", "squeue", "squeue", "sbatch"]  # is the job there that was not confirmed?
    assert [name[-2:] for name in submitted] == ["n2", "n3", "n2"]
    asked.clear()
    lost_nodes.end()  # both had been done, though never confirmed
    assert asked == ["squeue", "scancel"] and ended == ["8", "9"]


def test_a_replacement_that_slurm_does_not_confirm_is_asked_for_again_and_found(run_dir: Path) -> None:
    class SlowSlurm(FakeSlurm):
        submitted: str | None = None

        def _slurm(
            self, command: Sequence[str], environ: Mapping[str, str] | None = None, script: str | None = None
        ) -> subprocess.CompletedProcess[str]:
            if command[0] == "sbatch":
                self.asked.append((command[0], environ, script))
                return subprocess.CompletedProcess(command, 124, "", "too slow")
            if any(word.startswith("--name=") for word in command):
                assert f"--job{command[3][1:]}" in sbatch_options(JOB, run_dir, "n3", "1")
                return subprocess.CompletedProcess(command, 0, self.submitted or "", "")
            return super()._slurm(command, environ, script)

    slurm = SlowSlurm(run_dir)
    slurm.nodes, slurm.nodes_left = ["n1", "n2", "n3"], "n[1-2]"
    slurm.look_later()
    slurm.look_later()
    slurm.submitted = "9\n"
    slurm.look_later()
    assert slurm.said[-2:] == [
        "node n3 is lost and cannot be replaced (try 2 of 5): too slow",
        "node n3 is lost; job 9 takes its place as soon as a node is free",
    ]
    slurm.end()
    assert slurm.asked[-1][0] == "scancel"


def test_a_replacement_that_is_refused_again_and_again_is_given_up(run_dir: Path) -> None:
    slurm = FakeSlurm(run_dir)
    slurm.nodes, slurm.nodes_left, slurm.refuses = ["n1", "n2", "n3"], "n[1-2]", True
    for _ in range(SUBMIT_TRIES + 3):
        slurm.look_later()
    assert [asked[0] for asked in slurm.asked].count("sbatch") == SUBMIT_TRIES
    assert slurm.said[-1] == "node n3 is lost and cannot be replaced (try 5 of 5): no hours left"


@pytest.mark.parametrize("answer", ["p[1-|1:00\n", "", "\n"])
def test_an_answer_that_cannot_be_read_is_no_loss(run_dir: Path, monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    monkeypatch.setattr("launch.slurm.nodes.hostnames", expand)
    asked: list[str] = []

    def ask(command: Sequence[str], *_: object, **__: object) -> subprocess.CompletedProcess[str]:
        asked.append(command[0])
        return subprocess.CompletedProcess(command, 0, answer, "")

    monkeypatch.setattr("launch.slurm.tools.ask", ask)
    LostNodes(JOB, run_dir, ["dba3c"]).look()
    assert asked == ["squeue"]


def test_a_list_of_nodes_that_cannot_be_read_does_not_keep_a_job_from_starting(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launch.slurm.nodes.hostnames", expand)
    said: list[str] = []
    assert LostNodes({**JOB, "SLURM_JOB_NODELIST": "p[1-"}, run_dir, ["dba3c"], say=said.append).nodes == []
    assert said[0].startswith("a lost node will not be replaced: not a node list")
