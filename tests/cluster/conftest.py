"""A real Slurm of many nodes on this machine, for the tests of this folder (make test-cluster)."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from param_servers.benchmarks.hosts import HOST_PREFIX, Namespaces
from tests.cluster import leftovers

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
NODES = 71
SMALL = 5
NAMESPACES = 8
PATIENCE_S = 1200.0
"""Bound of every wait: 64 ranks start in a minute and a half on two idle cores, and in 10 on busy ones."""


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.cluster)
            if "cluster" in getattr(item, "fixturenames", ()):  # one lab of 71 nodes, not one in each worker
                item.add_marker(pytest.mark.xdist_group("71 nodes"))
            item.add_marker(pytest.mark.timeout(2 * PATIENCE_S))
            if os.environ.get("DBA3C_TEST_CLUSTER") != "1":
                item.add_marker(pytest.mark.skip(reason="needs a Slurm on this machine: make test-cluster"))


class Job:
    """One submitted job: its output, its run folder, its end."""

    def __init__(self, cluster: Cluster, number: str, folder: Path) -> None:
        self.cluster, self.number, self.folder = cluster, number, folder

    @property
    def output(self) -> str:
        return "".join(path.read_text(errors="replace") for path in sorted(self.folder.glob(f"*-{self.number}*.out")))

    @property
    def run_dir(self) -> Path:
        return self.folder / "run"

    def lives(self) -> list[dict]:
        path = self.run_dir / "meta.json"
        return json.loads(path.read_text())["lives"] if path.exists() else []

    def commits(self) -> list[dict]:
        return [record for record in self.records("audit/commits.jsonl") if record["kind"] == "commit"]

    def newest_step(self) -> int:
        """-1 before the first commit."""
        return max((commit["step"] for commit in self.commits()), default=-1)

    def members(self) -> list[list[int]]:
        """[worker, incarnation, …] of the newest commit's members."""
        commits = self.commits()
        return commits[-1]["members"] if commits else []

    def records(self, name: str) -> list[dict]:
        path = self.run_dir / name
        return [json.loads(line) for line in path.read_text().split("\n")[:-1]] if path.exists() else []

    def nodes(self) -> list[str]:
        """In the order of the ranks."""
        listed = self.cluster.run("squeue", "-h", "-j", self.number, "-o", "%N")
        return self.cluster.run("scontrol", "show", "hostnames", listed).split()

    def wait_until(self, condition: Callable[[], bool], what: str, timeout_s: float = PATIENCE_S) -> None:
        give_up_s = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < give_up_s, f"waited {timeout_s:.0f} s for {what}; the job said:\n{self.output}"
            time.sleep(0.2)

    def wait_for_commits(self, number: int) -> None:
        self.wait_until(lambda: len(self.commits()) >= number, f"{number} steps")

    def wait_for_life(self, number: int) -> None:
        """Until a requeued job has begun its next life; Slurm would hold it for two minutes.

        Not in the same second: its nodes would refuse the credential, as that of the job that they have just killed.
        """
        hastened = False

        def begun() -> bool:
            nonlocal hastened
            shown = self.cluster.run("scontrol", "show", "job", self.number)
            if "Reason=BeginTime" in shown and not hastened:
                self.cluster.run("scontrol", "update", f"jobid={self.number}", "starttime=now+5")
                hastened = True
            ended = re.search(r"JobState=(COMPLETED|FAILED|CANCELLED|TIMEOUT|NODE_FAIL)\b", shown)
            assert not ended, f"it ended before life {number}:\n{shown}\nThe job said:\n{self.output}"
            return len(self.lives()) == number

        self.wait_until(begun, f"life {number}")

    def wait_for_end(self, timeout_s: float = PATIENCE_S) -> dict[str, str]:
        """Exit code and state of the job when it has ended and its nodes are idle again."""
        self.wait_until(lambda: not self.cluster.run("squeue", "-h", "-j", self.number), "the job's end", timeout_s)
        shown = self.cluster.run("scontrol", "show", "job", self.number)
        return dict(re.findall(r"(JobState|ExitCode|Restarts)=(\S+)", shown))


class Cluster:
    """Slurm's own programs, talking to this lab."""

    def __init__(self, folder: Path, namespace: str = "") -> None:
        self.folder = folder
        self.namespace = ["ip", "netns", "exec", namespace] if namespace else []
        self.environ = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf"), "DBA3C_VENV": sys.prefix}
        self.environ["PATH"] = f"{Path(sys.executable).parent}:{self.environ['PATH']}:/usr/sbin"

    def run(self, *command: str, cwd: Path | None = None, check: bool = True, **environ: str) -> str:
        answer = subprocess.run(
            [*self.namespace, *command],
            env={**self.environ, **environ},
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert answer.returncode == 0 or not check, f"{command}: {answer.stderr}"
        return answer.stdout.strip()

    def submit(self, script: str, folder: Path, *options: str, args: str = "", preset: str = "CartPole-v1") -> Job:
        """The committed script, unchanged; what is trained is reduced through the environment."""
        environ = self.small(script, folder, args, preset)
        said = self.run("sbatch", *options, str(ROOT / "slurm" / script), cwd=folder, **environ)
        return Job(self, said.split()[-1], folder)

    @staticmethod
    def small(script: str, folder: Path, args: str = "", preset: str = "CartPole-v1") -> dict[str, str]:
        """The variables by which a script trains something small."""
        few = "--envs-per-actor 2" if script == "central_inference.sh" else "--envs-per-worker 2 --lanes 1"
        args = f"{few} --join-timeout-s {PATIENCE_S:.0f} --step-timeout-s 300 {args}"
        return {"DBA3C_PRESET": preset, "DBA3C_ARGS": args, "DBA3C_RUN_DIR": str(folder / "run")}

    def controller_log(self) -> str:
        return (self.folder / "log" / "slurmctld.log").read_text(errors="replace")

    def kill_node(self, node: str) -> None:
        self.run(str(HERE / "kill_node.sh"), node, str(self.folder))

    def revive_node(self, node: str) -> None:
        self.run(str(HERE / "revive_node.sh"), node, str(self.folder))


def lab(folder: Path, nodes: int, prefix: str = "") -> Iterator[Cluster]:
    (folder / leftovers.OWNER).write_text(str(os.getpid()))
    log = folder / "lab.log"
    with log.open("w") as output:
        up = [str(HERE / "lab_up.sh"), str(nodes), str(folder), prefix]
        code = subprocess.run(up, stdout=output, stderr=output, stdin=subprocess.DEVNULL, timeout=300).returncode
    try:
        assert code == 0, log.read_text()
        yield Cluster(folder, f"{prefix}{nodes + 1}" if prefix else "")
    finally:
        subprocess.run([str(HERE / "lab_down.sh"), str(folder)], check=True, timeout=60)


@pytest.fixture(scope="session", autouse=True)
def nothing_left_over() -> None:
    if os.environ.get("DBA3C_TEST_CLUSTER") == "1":
        leftovers.clear()


@pytest.fixture
def small_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """5 nodes for one test, which may break them."""
    yield from lab(tmp_path_factory.mktemp("small-lab"), SMALL)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """71 nodes of 12 cores."""
    yield from lab(tmp_path_factory.mktemp("lab"), NODES)


@pytest.fixture
def slow_network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """8 nodes, each in a network namespace of its own behind 100 Mbit/s."""
    with Namespaces(NAMESPACES + 1, rate_mbit=100):
        yield from lab(tmp_path_factory.mktemp("slow-lab"), NAMESPACES, HOST_PREFIX)
