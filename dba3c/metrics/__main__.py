"""`python -m dba3c.metrics RUN`: the monitor process of a run."""

from __future__ import annotations

import argparse
import sys

from dba3c.errors import UserError
from dba3c.metrics.process import monitor_process


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m dba3c.metrics", description=__doc__)
    parser.add_argument("run", help="the run's folder")
    parser.add_argument("--quiet", action="store_true", help="print nothing about the run's progress")
    arguments = parser.parse_args()
    try:
        monitor_process(arguments.run, show=not arguments.quiet)
    except UserError as error:
        print(f"dba3c: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
