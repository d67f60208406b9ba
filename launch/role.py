"""One process of a run: ``python -m launch.role --run-dir RUN --role worker --rank 3``."""

from __future__ import annotations

import argparse
import errno
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from dba3c import roles
from dba3c.config import TrainConfig, replace_options
from dba3c.environments.protocol import EnvironmentFailed
from dba3c.errors import RUN_BROKEN_EXIT, RUN_ENDED_BROKEN_EXIT, USER_ERROR_EXIT, UserError
from dba3c.roles import ROLES, RunProcess
from dba3c.runs.ending import TRAINING_ROLES
from dba3c.runs.folder import RunFolder
from launch.cluster.network import LISTEN_HOST_VARIABLE, free_port
from launch.local.child import exit_with_parent
from launch.local.resources import given_cores
from launch.output import harmless_output
from param_servers.errors import CheckpointError, ConfigError, LaneLost, LastStepsLost, ParamServersError, RunBroken

FOLDER_TIMEOUT_S = 30.0
"""Longest wait for the launcher's run folder to appear (a shared file system may be slow)."""


def main(argv: Sequence[str] | None = None) -> int:
    """Be the role that the arguments name; 0 when the run ended as asked. What it prints goes to its log."""
    with harmless_output():
        return _be_the_role(argv)


def _be_the_role(argv: Sequence[str] | None) -> int:
    parser = argparse.ArgumentParser(prog="python -m launch.role")
    parser.add_argument("--run-dir", required=True)
    parser.add_argument("--role", required=True, choices=sorted(ROLES))
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--incarnation", type=int, default=0)
    parser.add_argument("--launch-id", default="")
    arguments = parser.parse_args(argv)
    name = f"{arguments.role} {arguments.rank}"
    exit_with_parent()
    try:
        folder = RunFolder.open(arguments.run_dir, wait_s=FOLDER_TIMEOUT_S, launch_id=arguments.launch_id)
        folder.end_process_when_lost()
        stop_on_signal(folder, name)
        config = TrainConfig.from_json(folder.config_text())
        process = RunProcess(folder, config, arguments.rank, arguments.incarnation)
        reason = play_where_it_can_listen(arguments.role, process, f"{arguments.launch_id}-{name}")
    except (EnvironmentFailed, LaneLost) as error:
        print(f"{name}: {error}", file=sys.stderr, flush=True)
        return RUN_BROKEN_EXIT
    except (UserError, ConfigError, CheckpointError) as error:
        print(f"{name}: {error}", file=sys.stderr, flush=True)
        return USER_ERROR_EXIT
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            print(f"{name}: {error}", file=sys.stderr, flush=True)
            return RUN_BROKEN_EXIT
        if error.errno not in (errno.EADDRINUSE, errno.EADDRNOTAVAIL):
            raise
        exchange = process.config.exchange
        print(f"{name} cannot listen on {exchange.listen_host}:{exchange.port}: {error.strerror}", file=sys.stderr)
        return USER_ERROR_EXIT
    except ParamServersError as error:
        print(f"{name}: {error}", file=sys.stderr, flush=True)
        servers_ended_it = isinstance(error, RunBroken) and process.config.exchange.exchange in ("servers", "async")
        if not servers_ended_it and not isinstance(error, LastStepsLost):
            return RUN_BROKEN_EXIT
        code = RUN_ENDED_BROKEN_EXIT
    else:
        print(f"{name}: {reason}", flush=True)
        code = 0
    if arguments.role in TRAINING_ROLES:
        try:
            folder.note_left(arguments.role, arguments.rank)
        except UserError as error:  # a full disk: the evaluators wait a little longer
            print(f"{name}: {error}", file=sys.stderr, flush=True)
    return code


def play_where_it_can_listen(role: str, process: RunProcess, job: str) -> str:
    """`play` on this node's address and, without --port, on a port derived from the job: a firewall can be told them.

    The port was free when it was probed; should another take it before this process does, the next one is tried.
    """
    host = os.environ.get(LISTEN_HOST_VARIABLE)
    if not host:
        return play(role, process)
    given = process.config.exchange.port
    for last in (False, False, True):
        port = given or free_port(host, job)
        here = replace(process, config=replace_options(process.config, listen_host=host, port=port))
        try:
            return play(role, here)
        except OSError as error:
            if given or last or error.errno != errno.EADDRINUSE:
                raise
    raise AssertionError("the last try returns or raises")


def play(role: str, process: RunProcess) -> str:
    """Run the role on its compute threads."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or threads_without_launcher(role, process.config)))
    return roles.play(role, process)


def threads_without_launcher(role: str, config: TrainConfig) -> int:
    """Where all roles share a machine one is best, but for a learner of a deep network, beside which actors need little
    (measured: results/architectures)."""
    deep = config.network.network.startswith("resnet")
    return max(1, given_cores(os.environ) // config.exchange.num_workers) if role == "learner" and deep else 1


def stop_on_signal(folder: RunFolder, name: str) -> None:
    """SIGTERM asks the whole run to end at a step boundary; SIGINT is the launcher's, which does the same."""

    def ask(signum: int, frame: Any) -> None:
        del frame
        folder.stop_here(f"{signal.Signals(signum).name} at {name}")

    signal.signal(signal.SIGTERM, ask)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


if __name__ == "__main__":
    sys.exit(main())
