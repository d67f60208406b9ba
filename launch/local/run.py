"""A whole run on this machine: every role a process, one supervisor, one picture of how it goes."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from dba3c.assembly.model import check_buildable
from dba3c.config import TrainConfig
from dba3c.metrics.watch import watched
from dba3c.metrics.writer import MetricsWriter
from dba3c.runs.ending import before_the_first_update, note_end
from dba3c.runs.folder import RunFolder, checkpoint_steps
from dba3c.workers.own_code_check import check_own_code
from launch.local.processes import first_incarnation, role_processes, topology_of
from launch.local.supervisor import Supervisor, say_to_stderr


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
    check_buildable(config, run_dir / "checkpoints" if resume else None)
    check_own_code(config)
    launch_id = launch_id or secrets.token_hex(4)
    shape = {**topology_of(config), **({"run_name": run_name} if run_name else {})}
    life = {"launcher": "local", "topology": shape, "launch_id": launch_id, "command": command}
    with RunFolder.launch(run_dir, config.to_json(), resume, **life) as folder:
        print("\n".join([f"run folder: {folder.path}", *told]), flush=True)
        metrics = MetricsWriter(folder, "launcher", 0)
        first = first_incarnation(folder.path, rank=0)
        processes = role_processes(config, folder.path, launch_id, first)
        supervisor = Supervisor(
            folder.path, processes, folder.request_stop,
            on_event=metrics.record_event, environ=environ, stop_timeout_s=config.exchange.timeouts.stop_s,
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
