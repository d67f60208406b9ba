"""The command line: ``dba3c train ALE/Pong-v5 --workers 4``. One line for every mistake, and a non-zero exit.

The one place where a module is imported only when it is needed: help is quick, and only who computes has torch. The
ranks of a cluster, which only start processes, have not.
"""

import contextlib
import errno
import importlib
import importlib.metadata
import io
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Sequence

from dba3c.errors import RUN_BROKEN_EXIT, USER_ERROR_EXIT, UserError, did_you_mean
from launch.local.child import remembering_interrupts
from launch.output import harmless_output
from param_servers.errors import CheckpointError, ConfigError, ParamServersError

MAKE_WHAT_LASTS = ("train", "resume", "study", "sweep", "job", "evaluate", "record")
"""Commands whose work lies in a folder: they do it to its end, and exit as it ends, whoever reads what they print. What
the others print is their work, so they end with their reader, and fail where it cannot be written."""

COMMANDS = {
    "train": "launch.cli.runs:train",
    "resume": "launch.cli.runs:resume",
    "evaluate": "launch.cli.evaluate:evaluate",
    "record": "launch.cli.evaluate:record",
    "watch": "launch.cli.runs:watch",
    "stop": "launch.cli.runs:stop",
    "export": "launch.cli.runs:export",
    "study": "launch.cli.study:study",
    "sweep": "launch.cli.sweep:sweep",
    "plot": "launch.cli.plot:plot",
    "simulate": "launch.cli.simulate:simulate",
    "sbatch": "launch.cli.sbatch:sbatch",
    "job": "launch.cli.sbatch:job",
}
"""Each command's function."""

NO_ROOM = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "cannot write"),
    **dict.fromkeys((errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE), "the system refuses"),
}
"""Errors without a file's name that no code could have avoided."""

FEWEST_COLUMNS = 40
"""In fewer than a box's frame takes, tyro would look for room without an end."""

HELP = """dba3c: synchronous data-parallel reinforcement learning on CPU clusters

usage: dba3c COMMAND [OPTIONS]        (dba3c COMMAND --help lists a command's options; dba3c --version)

  train [ENV]    train on an environment: dba3c train ALE/Pong-v5 --preset atari --workers 4 --servers 2
  resume RUN     go on with a run from its newest checkpoint
  evaluate RUN   play full games with a checkpoint: mean, median, IQM with its interval
  record RUN     film a game of a checkpoint
  watch RUN      look at a live or finished run
  stop RUN       ask a run to end with a checkpoint
  export RUN     replay a run's metrics into TensorBoard, Neptune, MLflow or Weights & Biases
  study NAME     run a grid of runs: scaling, parameter_servers, stragglers, learning_curves, architectures, games
  sweep [ENV]    try options with several values each, or search: dba3c sweep CartPole-v1 --learning-rate 1e-3 3e-4
  plot STUDY     figures and a report of a study; dba3c plot RUN... draws learning curves of any runs
  simulate       what a cluster would do: how many servers and backup workers it needs
  sbatch PRESET  print a Slurm script
  job            what such a script runs: all ranks, lost nodes, the requeue
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    code = _main(argv)
    try:
        if sys.stdout is not None and not sys.stdout.closed:
            sys.stdout.flush()
    except OSError as error:  # Python would try again at its end, and say so at length
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            print(f"dba3c: cannot write: {error.strerror}", file=sys.stderr)
            return code or USER_ERROR_EXIT
    return code


def _main(argv: Sequence[str] | None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    if shutil.get_terminal_size().columns < FEWEST_COLUMNS:
        os.environ["COLUMNS"] = str(FEWEST_COLUMNS)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # of what its encoding lacks, as in PYTHONIOENCODING=latin-1
    if arguments and arguments[0] in MAKE_WHAT_LASTS and not _prints(arguments):
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # an ignored one is inherited: no exit code could be known
        with harmless_output(), remembering_interrupts():
            return _run(arguments)
    if sys.stdout is None:
        print("dba3c: cannot write: stdout is closed", file=sys.stderr)
        return USER_ERROR_EXIT
    with remembering_interrupts():
        return _run(arguments)


def _prints(arguments: Sequence[str]) -> bool:
    """Whether a script, or a list, is all the work of a command whose work lies in a folder else."""
    return not {"--slurm", "--list"}.isdisjoint(arguments)


def _run(arguments: Sequence[str]) -> int:
    try:
        name, words = arguments[0] if arguments else "", arguments[1:]
        if name in ("", "-h", "--help", "help"):
            print(HELP, end="")
            return 0 if name else USER_ERROR_EXIT
        if name == "--version":
            print(f"dba3c {importlib.metadata.version('dba3c')}")
            return 0
        if name not in COMMANDS:
            raise UserError(f"no command is called {name!r}; {did_you_mean(name, COMMANDS)}")
        module, function = COMMANDS[name].split(":")
        command: Callable[[Sequence[str]], int] = getattr(importlib.import_module(module), function)
        return command(words)
    except (UserError, ConfigError, CheckpointError) as error:
        print(f"dba3c: {error}", file=sys.stderr)
        return USER_ERROR_EXIT
    except ParamServersError as error:
        print(f"dba3c: {error}", file=sys.stderr)
        return RUN_BROKEN_EXIT
    except BrokenPipeError:
        if name in MAKE_WHAT_LASTS and not _prints(arguments):  # whose output harms nobody: another pipe has broken
            raise
        return 0
    except OSError as error:  # a folder of somebody else, a name too long; without a file it is no user's mistake
        if error.filename is None and error.errno == errno.ENOENT and not _is_somewhere():
            print("dba3c: the current directory was deleted: cd to one that is there", file=sys.stderr)
            return USER_ERROR_EXIT
        if error.filename is None and error.errno not in NO_ROOM:
            raise
        print(f"dba3c: {error.filename or NO_ROOM[error.errno]}: {error.strerror}", file=sys.stderr)
        return USER_ERROR_EXIT
    except KeyboardInterrupt:  # where nothing has begun that a checkpoint could save
        print("dba3c: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT


def _is_somewhere() -> bool:
    """Whether the current directory is still there."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    return True
