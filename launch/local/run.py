"""A whole run on this machine: every role a process, one supervisor, one picture of how it goes."""

from __future__ import annotations

import secrets
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from dba3c.config import TrainConfig
from dba3c.errors import USER_ERROR_EXIT, UserError
from dba3c.metrics.watch import watched
from dba3c.metrics.writer import MetricsWriter
from dba3c.runs.ending import before_the_first_update, note_end
from dba3c.runs.folder import RunFolder, checkpoint_steps
from launch.local.child import Child, describe_exit
from launch.local.fork_server import ForkServer
from launch.local.machine_check import check_machine
from launch.local.processes import first_incarnation, role_processes, topology_of
from launch.local.supervisor import Supervisor, say_to_stderr
from param_servers.errors import RunBroken

CHECK_TIMEOUT_S = 600.0
"""For building the network and an environment, and trying own code once: a shared file system may be slow."""


@contextmanager
def all_of_a_process(folder: RunFolder) -> Iterator[None]:
    """Beside a run that its process is there for: it is shown, and the process ends when the folder is taken over."""
    folder.end_process_when_lost(say_to_stderr)
    with watched(folder):
        yield


def train(
    config: TrainConfig,
    run_dir: Path,
    *,
    resume: bool,
    command: str,
    launch_id: str = "",
    run_name: str = "",
    beside: Callable[[RunFolder], AbstractContextManager[None]] = all_of_a_process,
    environ: Mapping[str, str] | None = None,
    told: Sequence[str] = (),
) -> int:
    """Train until the run ends; returns the exit code.

    Args:
        launch_id, run_name: as in `LaunchPlace`, where a launcher started this and may start it again.
        beside: entered while the roles run.
        environ: of the roles; None: this process's.
        told: lines about the run, printed once it is not refused.

    Raises:
        UserError: the run folder is in use, or holds another run.
    """
    RunFolder.refuse_launch(run_dir, resume)
    env_id = config.environment.env_id
    print(f"{env_id} in {run_dir}: looking whether it can be trained here, which takes seconds", flush=True)
    check_machine(config, sum(topology_of(config).values()))
    with ForkServer(environ=environ) as fork_server:
        refuse_unbuildable(fork_server, config, run_dir, resume)
        launch_id = launch_id or secrets.token_hex(4)
        shape = {**topology_of(config), **({"run_name": run_name} if run_name else {})}
        life = {"launcher": "local", "topology": shape, "launch_id": launch_id, "command": command}
        with RunFolder.launch(run_dir, config.to_json(), resume, **life) as folder:
            print("\n".join([f"run folder: {folder.path}", *told]), flush=True)
            metrics = MetricsWriter(folder, "launcher", 0)
            first = first_incarnation(folder.path, rank=0)
            processes = role_processes(config, folder.path, launch_id, first)
            supervisor = Supervisor(
                fork_server, folder.path, processes, folder.request_stop,
                on_event=metrics.record_event, stop_timeout_s=config.exchange.timeouts.stop_s,
            )  # fmt: skip
            code = 1
            try:
                with beside(folder):
                    code = supervisor.run()
            finally:
                reason = note_end(folder, code, supervisor.cause)
                metrics.close()
            if code == 0 and not max(checkpoint_steps(folder.checkpoints), default=0):
                reason += f", {before_the_first_update(config)}"
            print(f"run {'ended' if code == 0 else 'failed'}: {reason}; folder: {folder.path}", flush=True)
            return code


def refuse_unbuildable(fork_server: ForkServer, config: TrainConfig, run_dir: Path, resume: bool) -> None:
    """`launch.local.check`, in a process of its own: this one needs no torch.

    Raises:
        UserError: a network, environment or checkpoint that cannot be, or no room for checkpoints.
        RunBroken: it may be well, but could not be looked at, or not within `CHECK_TIMEOUT_S`.
    """
    ended: Future[int] = Future()
    with tempfile.TemporaryDirectory(prefix="dba3c-") as place:
        words = [config.to_json(), str(run_dir), "resume" if resume else ""]
        child = Child(
            fork_server, "launch.local.check:main", words, Path(place) / "said", ended.set_result, signal.SIGKILL
        )
        try:
            code = ended.result(CHECK_TIMEOUT_S)
        except NotYet:
            child.signal(signal.SIGKILL)
            raise RunBroken(f"the check of what is to run did not end within {CHECK_TIMEOUT_S:g} s") from None
        except BaseException:
            child.signal(signal.SIGKILL)
            raise
        said = child.tail().splitlines()
    why = "" if code == 0 else said.pop() if said else f"the check of what is to run ended: {describe_exit(code)}"
    for warning in said:
        print(warning, file=sys.stderr)
    if why:
        raise (UserError if code == USER_ERROR_EXIT else RunBroken)(why)
