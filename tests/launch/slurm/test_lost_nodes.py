"""A lost node's replacement: when it is asked for, and what it is told."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from dba3c.runs.folder import RunFolder
from launch.cluster.launchers import detect
from launch.slurm.job import NODES_LOOK_S, SUBMIT_TRIES, LostNodes

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


SHOWN = (
    "JobId=7 JobName=breakout Account=(null) QOS=normal Partition=short ExcNodeList=n[8-9] NodeList=n[1-2] NumNodes=2 "
    "MinMemoryNode=4G MinTmpDiskNode=0 Features=a|b Reservation=ours TresPerNode=gres/gpu:2,gres/shard:4\n"
)


class FakeSlurm:
    """Answers as Slurm would; the first look finds all nodes there."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
        run_dir: Path,
        environ: Mapping[str, str] = JOB,
    ) -> None:
        monkeypatch.setattr("launch.slurm.controller.ask", self.ask)
        self.now_s, self.looked = 0.0, "n[1-3]|1:02:03\n"
        self.named, self.submit = "", (0, "8\n")
        self._said: list[str] = []
        self._capsys = capsys
        self.asked: list[list[str]] = []
        self.environ: Mapping[str, str] = {}
        self.nodes = LostNodes(environ, run_dir, ["dba3c", "train", "x y"], clock=lambda: self.now_s)

    @property
    def said(self) -> list[str]:
        self._said += self._capsys.readouterr().out.splitlines()
        return self._said

    def ask(
        self, command: Sequence[str], *, environ: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        code, text = 0, ""
        if command[:3] == ["scontrol", "show", "hostnames"]:
            text = {"n[1-3]": "n1\nn2\nn3", "n[1-2]": "n1\nn2"}.get(command[3], command[3])
            return subprocess.CompletedProcess(command, 0, text, "")
        self.asked.append(list(command))
        self.environ = environ or self.environ
        if command[0] == "sbatch":
            code, text = self.submit
        elif command[0] == "squeue":
            text = self.named if "--me" in command else self.looked
        elif command[0] == "scontrol":
            text = SHOWN
        return subprocess.CompletedProcess(command, code, text, text)

    def look(self) -> list[str]:
        """The programs that one look asks."""
        before = len(self.asked)
        self.now_s += NODES_LOOK_S
        self.nodes.look()
        return [command[0] for command in self.asked[before:]]

    def submitted(self) -> list[str]:
        return [word for command in self.asked if command[0] == "sbatch" for word in command if "--job-name" in word]


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], run_dir: Path) -> FakeSlurm:
    return FakeSlurm(monkeypatch, capsys, run_dir)


def test_a_lost_node_is_replaced_once_and_its_replacement_ends_with_the_run(slurm: FakeSlurm) -> None:
    assert slurm.look() == ["squeue"]
    slurm.nodes.look()  # at once: Slurm is not asked again
    assert len(slurm.asked) == 1
    slurm.looked = "n[1-2]|1:02:03\n"
    assert slurm.look() == ["squeue", "squeue", "scontrol", "sbatch"]
    assert slurm.said == ["node n3 is lost; job 8 takes its place as soon as a node is free"]
    assert not [name for name in slurm.environ if name.startswith("SLURM_")]
    slurm.named = "6 another job\n8 breakout-7-0-n3\n"
    assert slurm.look() == ["squeue", "squeue"]
    slurm.nodes.end()
    assert slurm.asked[-1] == ["scancel", "8"]


def test_a_replacement_is_told_whose_place_it_takes(slurm: FakeSlurm) -> None:
    environ = slurm.nodes.environment("n3")
    second_task = {**environ, "SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_NTASKS": "2"}
    place = detect(second_task)
    assert (place.rank, place.world_size, place.tasks_per_node) == (5, 6, (2, 2, 2))
    assert (place.launch_id, place.address) == ("7-0", "10.0.0.1")


def test_a_replacement_is_a_node_of_the_same_kind_for_the_time_that_is_left(slurm: FakeSlurm) -> None:
    options = slurm.nodes.options("n3", "1:02:03", SHOWN)
    wanted = {"--nodes=1", "--ntasks-per-node=2", "--cpus-per-task=4", "--time=1:02:03", "--partition=short"}
    wanted |= {"--qos=normal", "--mem=4G", "--constraint=a|b", "--gres=gpu:2,shard:4", "--reservation=ours"}
    assert wanted | {"--exclude=n[8-9]"} <= set(options)
    assert not [option for option in options if "(null)" in option]


def test_an_array_s_task_asks_for_itself_and_believes_one_line_only(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    task = {**JOB, "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "2"}  # the last task has the array's own number
    slurm = FakeSlurm(monkeypatch, capsys, run_dir, task)
    slurm.looked = "n[1-3]|1:00\nn4|1:00\n"
    slurm.look()
    assert "--jobs=7_2" in slurm.asked[0]
    assert slurm.said == []  # two lines: whose nodes are these?
    slurm.looked = "n[1-2]|1:00\n"
    slurm.look()
    assert slurm.said == ["node n3 is lost; job 8 takes its place as soon as a node is free"]


def test_a_refused_replacement_leaves_the_others_to_the_next_look_and_one_not_confirmed_is_found(
    slurm: FakeSlurm,
) -> None:
    slurm.looked, slurm.submit = "n1|1:00\n", (124, "too slow")
    for _ in range(3):
        assert slurm.look() == ["squeue", "squeue", "scontrol", "sbatch"]
    assert [name[-2:] for name in slurm.submitted()] == ["n2", "n3", "n2"]
    assert slurm.said[0] == "node n2 is lost and cannot be replaced (try 1 of 5): too slow"
    slurm.named = "8 breakout-7-0-n2\n9 breakout-7-0-n3\n"
    assert slurm.look() == ["squeue", "squeue"]
    slurm.nodes.end()  # both had been done, though never confirmed
    assert slurm.asked[-1] == ["scancel", "8", "9"]


def test_a_replacement_that_is_refused_again_and_again_is_given_up(slurm: FakeSlurm) -> None:
    slurm.looked, slurm.submit = "n[1-2]|1:00\n", (1, "no hours left")
    for _ in range(SUBMIT_TRIES + 3):
        slurm.look()
    assert len(slurm.submitted()) == SUBMIT_TRIES
    assert slurm.said[-1] == "node n3 is lost and cannot be replaced (try 5 of 5): no hours left"


def test_a_lost_node_of_a_heterogeneous_job_is_not_replaced(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], run_dir: Path
) -> None:
    slurm = FakeSlurm(monkeypatch, capsys, run_dir, {**JOB, "SLURM_HET_SIZE": "2"})
    slurm.looked = "n[1-2]|1:00\n"
    assert slurm.look() == []


@pytest.mark.parametrize("answer", ["p[1-|1:00\n", "n[7-9]|1:00\n", "", "\n"])
def test_an_answer_that_cannot_be_read_is_no_loss(slurm: FakeSlurm, answer: str) -> None:
    slurm.looked = answer
    assert slurm.look() == ["squeue"]


def test_nodes_that_slurm_did_not_name_at_first_are_looked_for_when_it_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], run_dir: Path
) -> None:
    away = lambda command, **_: subprocess.CompletedProcess(command, 1, "", "controller is away")  # noqa: E731
    with monkeypatch.context() as patched:
        patched.setattr("launch.slurm.controller.ask", away)
        nodes = LostNodes(JOB, run_dir, ["dba3c"], clock=lambda: slurm.now_s)
    slurm = FakeSlurm(monkeypatch, capsys, run_dir)
    slurm.nodes = nodes
    assert not nodes.nodes and slurm.look() == ["squeue"]
    assert nodes.nodes == ["n1", "n2", "n3"]


@pytest.mark.parametrize(
    ("printed", "told"), [("", "a job that Slurm did not name"), ("our site: hello\n8;cluster\n", "job 8")]
)
def test_an_sbatch_that_says_more_or_nothing_ends_no_run(
    printed: str, told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], run_dir: Path
) -> None:
    slurm = FakeSlurm(monkeypatch, capsys, run_dir)
    slurm.submit, slurm.looked = (0, printed), "n[1-2]|1:02:03\n"
    slurm.look()
    assert slurm.said == [f"node n3 is lost; {told} takes its place as soon as a node is free"]
