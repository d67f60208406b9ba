"""One process of a run: ``python -m launch.role --run-dir RUN --role worker --rank 3``.

And before there is any, one that builds what they will build (`check`).
"""

import argparse
import errno
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from dba3c import roles
from dba3c.assembly.model import check_buildable
from dba3c.central.learner import check_trainable
from dba3c.config import TrainConfig, replace_options
from dba3c.environments.protocol import EnvironmentFailed
from dba3c.errors import (
    RUN_BROKEN_EXIT,
    RUN_ENDED_BROKEN_EXIT,
    RUN_TAKEN_OVER_EXIT,
    USER_ERROR_EXIT,
    UserError,
)
from dba3c.own_code import ANYTHING, ignore_here
from dba3c.recording.cameras import check_filmable
from dba3c.roles import PER_START, ROLES, RunProcess
from dba3c.runs.ending import TRAINING_ROLES, FolderUnreadable
from dba3c.runs.files import checkpoint_steps
from dba3c.runs.folder import RunFolder
from dba3c.workers.worker import check_own_code
from launch.cluster.launchers import REPLACES_VARIABLE
from launch.cluster.network import LISTEN_HOST_VARIABLE
from launch.local.child import exit_with_parent, has_c_handler, is_orphan
from launch.local.resources import given_cores, said_threads
from launch.output import harmless_output
from param_servers.errors import (
    CheckpointError,
    ConfigError,
    Diverged,
    LastStepsLost,
    ParamServersError,
    RunBroken,
    Superseded,
    told,
)

FOLDER_TIMEOUT_S = 30.0
"""Longest wait for the launcher's run folder to appear (a shared file system may be slow)."""
COPIES_OF_A_CHECKPOINT = 3
"""In parameters' sizes: they and two moments."""
SPARE_BYTES = 64_000_000
"""For everything else in a run's folder."""


@harmless_output()
def main(argv: Sequence[str] | None = None) -> int:
    """Be the role that the arguments name; 0 when the run ended as asked. What it prints goes to its log."""
    parser = argparse.ArgumentParser(prog="python -m launch.role")
    parser.add_argument("--run-dir", required=True)
    parser.add_argument("--role", required=True, choices=sorted(ROLES))
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--incarnation", type=int, default=None)
    parser.add_argument("--launch-id", default="")
    arguments = parser.parse_args(argv)
    name = f"{arguments.role} {arguments.rank}"
    try:
        folder = RunFolder.open(arguments.run_dir, wait_s=FOLDER_TIMEOUT_S, launch_id=arguments.launch_id)
        folder.end_process_when_lost()
        stop_on_signal(folder, name)
        config = folder.train_config()
        exit_with_parent(config.exchange.timeouts.stop_s)
        by_hand = arguments.incarnation is None  # an actor that nobody announced: no later life repeats its games
        incarnation = PER_START * folder.life_number() if by_hand else arguments.incarnation
        if host := os.environ.get(LISTEN_HOST_VARIABLE):  # this node's
            config = replace_options(config, listen_host=host)
        process = RunProcess(folder, config, arguments.rank, incarnation)
        reason = play(arguments.role, process)
    except EnvironmentFailed as error:
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
            return crashed(name, error)
        exchange = process.config.exchange
        print(f"{name} cannot listen on {exchange.listen_host}:{exchange.port}: {error.strerror}", file=sys.stderr)
        return USER_ERROR_EXIT
    except Superseded as error:
        print(f"{name}: {error}", file=sys.stderr, flush=True)
        return RUN_TAKEN_OVER_EXIT
    except ParamServersError as error:
        print(f"{name}: {error}", file=sys.stderr, flush=True)
        exchange = process.config.exchange
        servers_ended_it = isinstance(error, RunBroken) and exchange.has_servers
        servers_ended_it &= not isinstance(error, FolderUnreadable)  # a fault of this machine, not of the run
        alone = isinstance(error, Diverged) and exchange.exchange == "local"  # its checkpoint would diverge as well
        if not servers_ended_it and not alone and not isinstance(error, LastStepsLost):
            return RUN_BROKEN_EXIT
        code = RUN_ENDED_BROKEN_EXIT
    except ANYTHING as error:
        return crashed(name, error)
    else:
        print(f"{name}: {reason}", flush=True)
        code = 0
    if arguments.role in (*TRAINING_ROLES, "evaluator"):
        try:
            folder.note_left(arguments.role, arguments.rank)
        except UserError as error:  # a full disk: evaluator and monitor wait a little longer
            print(f"{name}: {error}", file=sys.stderr, flush=True)
    return code


def crashed(name: str, error: BaseException) -> int:
    """The traceback, and last a line of its own: what libraries say at exit comes behind."""
    traceback.print_exception(error)
    print(f"{name}: {told(error)}", file=sys.stderr, flush=True)
    return RUN_BROKEN_EXIT


def play(role: str, process: RunProcess) -> str:
    """Run the role on its compute threads."""
    torch.set_num_threads(said_threads(os.environ) or threads_without_launcher(role, process.config))
    return roles.play(role, process)


def threads_without_launcher(role: str, config: TrainConfig) -> int:
    """Where all roles share a machine one is best, but for a learner of a deep network, beside which actors need little
    (measured: results/architectures)."""
    deep = config.network.network.startswith("resnet")
    return max(1, given_cores(os.environ) // config.exchange.num_workers) if role == "learner" and deep else 1


def stop_on_signal(folder: RunFolder, name: str) -> None:
    """SIGTERM asks the whole run to end at a step boundary; SIGINT is the launcher's, which does the same. A launcher's
    death sends it, too: a run that is cut off by that has failed, however well it is saved.

    But for a lost node's replacement, a job of its own that may be preempted alone: SIGTERM only ends its processes.
    """

    role = os.getpid()  # a worker's other lanes are its forks: to them a parent that is no launcher says nothing

    def ask(signum: int, frame: Any) -> None:
        failed = os.getpid() == role and is_orphan()
        folder.stop_here(f"{signal.Signals(signum).name} at {name}", failed=failed)

    if REPLACES_VARIABLE not in os.environ:
        signal.signal(signal.SIGTERM, ask)
    warning = () if has_c_handler(signal.SIGUSR1) else (signal.SIGUSR1,)  # Slurm's to a whole step: the rank obeys it
    ignore_here(signal.SIGINT, *warning)


def check(words: Sequence[str]) -> int:
    """Build once what the roles of a run will build, before it is started, so that what cannot be is one line.

    Words: the configuration as JSON, the run's folder, "resume" or "", and the file for the line that says why not.
    """
    text, run_dir, goes_on, why_not = words
    torch.set_num_threads(1)
    try:
        config = TrainConfig.from_json(text)
        parameters = check_buildable(config, Path(run_dir) / "checkpoints" if goes_on else None)
        check_own_code(config)
        if config.central.mode == "central":
            check_trainable(replace_options(config, device="cpu"))
        if config.run.recorders:
            check_filmable(config.environment)
        check_disk(Path(run_dir), parameters, config.exchange.checkpoints_kept)
    except (UserError, ConfigError, CheckpointError, ParamServersError) as error:
        Path(why_not).write_bytes(" ".join(str(error).split()).encode("utf-8", "surrogateescape"))
        return USER_ERROR_EXIT if isinstance(error, (UserError, ConfigError, CheckpointError)) else RUN_BROKEN_EXIT
    except ANYTHING as error:
        traceback.print_exception(error)
        Path(why_not).write_bytes(told(error).encode("utf-8", "surrogateescape"))
        return RUN_BROKEN_EXIT
    return 0


def check_disk(run_dir: Path, parameters: int, keep: int) -> None:
    """Raise UserError where there is no room for as many checkpoints as are kept, those that are there among them, and
    one that is being written."""
    there = next(path for path in (run_dir.absolute(), *run_dir.absolute().parents) if path.exists())
    checkpoint = 4 * parameters * COPIES_OF_A_CHECKPOINT
    more = 1 + max(0, keep - len(checkpoint_steps(run_dir / "checkpoints")))
    needed, disk = more * checkpoint + SPARE_BYTES, shutil.disk_usage(there)
    if disk.total and disk.free < needed:  # some file systems say nothing of themselves: 0 of 0
        raise UserError(
            f"{there} has {disk.free / 1e6:,.0f} MB left, the run may need {needed / 1e6:,.0f}: {more} more "
            f"checkpoints of {checkpoint / 1e6:,.1f} MB and {SPARE_BYTES / 1e6:.0f} MB for records; see "
            f"--keep-checkpoints, --run-dir"
        )


if __name__ == "__main__":
    sys.exit(main())
