"""The environments' benchmark runs and says what it skipped; how fast anything is, no test asks."""

import json
import subprocess
import sys
import time

from dba3c.benchmarks import environments as benchmark


def test_it_measures_in_turn_and_writes_what_it_measured(tmp_path, capsys):
    file = tmp_path / "rates.json"
    arguments = benchmark.Arguments(
        envs=2, seconds=0.05, repeats=2, only=("ale", "ale 2017", "classic control"), json=file
    )
    benchmark.main(arguments)
    rates = json.loads(file.read_text())
    assert list(rates) == ["ale, bare", "ale", "ale 2017", "classic control"]
    assert all(len(measured) == 2 and measured[0]["per_second"] > 0 for measured in rates.values())
    assert "the factory adds" in capsys.readouterr().out


def test_cpu_seconds_of_living_children_count():
    before_s = benchmark._cpu_s()
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        deadline_s = time.monotonic() + 60
        while benchmark._cpu_s() - before_s < 0.2:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
    finally:
        busy.kill()
        busy.wait(timeout=10)
