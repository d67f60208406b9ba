"""Train the preset's network with memory and keep its curve here: ``python results/vizdoom/run.py RUN_FOLDER``.

Ends at the stop score, or after 8 minutes. Writes ``small_lstm/`` with the processor time of all processes and engines,
and redraws the figure.
"""

import argparse
import json
import resource
import subprocess
import sys
from pathlib import Path

from dba3c.studies.curve import downsample

HERE = Path(__file__).resolve().parent

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", help="the run's folder")
    run = parser.parse_args().run
    words = ["train", "vizdoom/basic", "--workers", "2", "--servers", "1", "--max-hours", "0.13", "--run-dir", run]
    ended = subprocess.run([sys.executable, "-m", "launch", *words], check=False).returncode
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    downsample(run, HERE / "small_lstm", rows=150)
    minutes = {"processor_core_minutes": round((used.ru_utime + used.ru_stime) / 60, 2), "exit_code": ended}
    (HERE / "small_lstm" / "processor_time.json").write_text(json.dumps(minutes) + "\n")
    subprocess.run([sys.executable, str(HERE.parent / "plot.py"), HERE.name], check=True)
    print(minutes)
