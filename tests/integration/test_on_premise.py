"""launch/containers/on_premise.sh as a lab without a scheduler runs it: the same script says learner or actor."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.runs import records
from tests.ports import free_port

SCRIPT = Path(__file__).resolve().parents[2] / "launch" / "containers" / "on_premise.sh"
ARGS = "--total-frames 3000 --envs-per-actor 2 --batch-unrolls 4 --unroll-length 5"
NETWORK = {"a": "10.79.0.1", "b": "10.79.0.2"}


@pytest.fixture
def hosts() -> Iterator[dict[str, list[str]]]:
    """Two hosts as Debian installs them, each 127.0.1.1 to itself: name → what precedes a command to run it there."""
    ip = shutil.which("ip", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if ip is None or os.geteuid() != 0:
        pytest.skip("needs root and iproute2: two hosts are two network namespaces")
    names = {host: f"dba3c-{os.getpid()}-{host}" for host in NETWORK}

    def run(*words: str) -> None:
        subprocess.run([ip, *words], check=True, capture_output=True, text=True, timeout=20)

    try:
        try:
            for name in names.values():
                run("netns", "add", name)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no network namespace can be made here: {error.stderr.strip()}")
        run("-n", names["a"], "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", names["b"])
        for host, name in names.items():
            for words in (["addr", "add", f"{NETWORK[host]}/24", "dev", "eth0"], ["link", "set", "eth0", "up"]):
                run("-n", name, *words)
            run("-n", name, "link", "set", "lo", "up")
            others = "".join(f"{address} {other}\n" for other, address in NETWORK.items() if other != host)
            own = Path("/etc/netns") / name  # what `ip netns exec` shows as /etc there
            own.mkdir(parents=True)
            (own / "hosts").write_text(f"127.0.0.1 localhost\n127.0.1.1 {host}\n{others}")
        named = ["sh", "-c", 'hostname "$0" && exec "$@"']
        yield {host: [ip, "netns", "exec", name, "unshare", "--uts", *named, host] for host, name in names.items()}
    finally:
        for name in names.values():
            subprocess.run([ip, "netns", "del", name], check=False, capture_output=True, timeout=20)
            shutil.rmtree(Path("/etc/netns") / name, ignore_errors=True)


@pytest.mark.timeout(240)
def test_a_chief_whose_own_name_is_loopback_to_itself_tells_the_others_its_address(
    hosts: dict[str, list[str]], tmp_path: Path
) -> None:
    environ = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "RUN_DIR": f"{tmp_path}/run",
    }
    environ["DBA3C_ARGS"] = "--total-frames 500 --envs-per-worker 2 --join-timeout-s 60"
    shape = [str(SCRIPT), "server", "CartPole-v1", "1", "7000", "a"]
    ranks = []
    for host, words in (("b", [shape[0], "worker", *shape[2:], "0"]), ("a", shape)):
        with (tmp_path / f"{host}.log").open("wb") as output:
            ranks.append(subprocess.Popen([*hosts[host], *words], env=environ, stdout=output, stderr=output))
    try:
        codes = [rank.wait(200) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert codes == [0, 0], "".join((tmp_path / f"{host}.log").read_text() for host in hosts)
    assert json.loads((tmp_path / "run" / "rendezvous" / "server-0.json").read_text())["host"] == NETWORK["a"]


@pytest.mark.timeout(240)
def test_one_script_is_the_learner_and_its_actors_and_the_learner_listens_where_it_was_told(tmp_path: Path) -> None:
    port = str(free_port())
    run_dir = tmp_path / "run"
    environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "DBA3C_ARGS": ARGS}
    environ["RUN_DIR"] = str(run_dir)
    shape = ["CartPole-v1", "2", port, "127.0.0.1"]
    logs = [tmp_path / f"{index}.log" for index in range(3)]
    ranks = []
    for log, words in zip(logs, (["actor", *shape, "0"], ["actor", *shape, "1"], ["learner", *shape]), strict=True):
        with log.open("wb") as output:  # the learner last: the actors wait for it
            ranks.append(subprocess.Popen([SCRIPT, *words], env=environ, stdout=output, stderr=output))
    try:
        codes = [rank.wait(200) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert codes == [0, 0, 0], "".join(log.read_text() for log in logs)
    assert "3 = 1 learner + 2 actors" in logs[2].read_text()
    assert json.loads((run_dir / "rendezvous" / "learner-0.json").read_text())["port"] == int(port)
    joined = [record["message"] for record in records(run_dir, "learner", 0) if record.get("event") == "joined"]
    assert {line[:7] for line in joined if line.startswith("actor")} == {"actor 0", "actor 1"}
    assert json.loads((run_dir / "meta.json").read_text())["lives"][0]["ended"]["outcome"] == "finished"
