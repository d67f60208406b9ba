"""launch/containers/on_premise.sh as a lab without a scheduler runs it: the same script says learner or actor."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "launch" / "containers" / "on_premise.sh"
ARGS = "--total-frames 3000 --envs-per-actor 2 --batch-unrolls 4 --unroll-length 5"


@pytest.mark.timeout(240)
def test_one_script_is_the_learner_and_its_actors_and_the_learner_listens_where_it_was_told(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
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
    assert codes == [0, 0, 0], "".join(log.read_text() for log in logs)
    assert "3 = 1 learner + 2 actors" in logs[2].read_text()
    assert json.loads((run_dir / "rendezvous" / "learner-0.json").read_text())["port"] == int(port)
    assert json.loads((run_dir / "meta.json").read_text())["lives"][0]["ended"]["outcome"] == "finished"
