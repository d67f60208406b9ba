"""Training for a stated time in processes of its own, without a launcher: for measurements."""

from __future__ import annotations

import time
from multiprocessing import get_context
from pathlib import Path

from dba3c.config import TrainConfig
from dba3c.runs.run_folder import RunFolder

START_TIMEOUT_S = 60.0
END_TIMEOUT_S = 60.0


def play(path: str, role: str, rank: int) -> None:
    """The body of one process."""
    import torch

    from dba3c.assembly.place import Place
    from dba3c.roles import ROLES

    torch.set_num_threads(1)
    folder = RunFolder.open(path)
    ROLES[role](Place(folder, TrainConfig.from_json(folder.config_text()), rank, 0))


def train_for(config: TrainConfig, path: Path, seconds: float) -> None:
    """Servers and workers of ``config`` train in the folder at ``path`` for ``seconds`` after the first record.

    Raises:
        TimeoutError: no worker wrote a record in time, or a process did not end in time.
    """
    servers = config.exchange.num_servers if config.exchange.exchange in ("servers", "async") else 0
    roles = [("server", i) for i in range(servers)] + [("worker", i) for i in range(config.exchange.num_workers)]
    with RunFolder.create(path / "run", config.to_json()) as folder:
        processes = [
            get_context("spawn").Process(
                target=play, args=(str(folder.path), role, rank), daemon=True, name=f"{role} {rank}"
            )
            for role, rank in roles
        ]
        for process in processes:
            process.start()
        _wait_for_records(folder)
        time.sleep(seconds)
        folder.request_stop("measured long enough")
        deadline_s = time.monotonic() + END_TIMEOUT_S
        for process in processes:
            process.join(max(0.0, deadline_s - time.monotonic()))
        late = [process.name for process in processes if process.is_alive()]
        for process in processes:
            process.kill()
        if late:
            raise TimeoutError(f"{', '.join(late)} did not end within {END_TIMEOUT_S:.0f} s")


def _wait_for_records(folder: RunFolder) -> None:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while not any(file.stat().st_size for file in folder.metrics.glob("worker-*.jsonl")):
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"no worker wrote a record within {START_TIMEOUT_S:.0f} s")
        time.sleep(0.1)
