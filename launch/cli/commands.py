"""The commands by name. Each imports what it needs only when it is called."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence

from dba3c.errors import UserError
from launch.cli.simulate import simulate
from launch.cli.study import plot, study
from launch.cli.viewing_commands import export, watch


def train(words: Sequence[str]) -> int:
    """dba3c train [ENV] [OPTIONS], alone or as one rank of srun, mpirun, torchrun, …"""
    from launch.cli import ranks
    from launch.cli.options import parse_train
    from launch.cluster.launchers import PLAIN, detect
    from launch.local import run as local
    from launch.local.resources import given_cores

    command = shlex.join(["dba3c", "train", *words])
    place = detect(os.environ)
    said = parse_train(words)
    if place != PLAIN:
        alone = place.world_size == 1 and not said.colocated_servers
        return ranks.train_alone(said, place, command) if alone else ranks.train(said, place, command)
    if said.colocated_servers:
        raise UserError(
            "--colocated-servers is for ranks (srun, mpirun, torchrun, …; docs/cluster.md): without a launcher "
            "all servers and workers are processes of this machine anyway"
        )
    return local.train(said.config(given_cores(os.environ)), resume=said.resume, command=command)


def resume(words: Sequence[str]) -> int:
    """dba3c resume RUN"""
    from dba3c.config import TrainConfig, replace_options
    from dba3c.runs.run_folder import RunFolder
    from launch.local import run as local

    if len(words) != 1:
        raise UserError("usage: dba3c resume RUN")
    folder = RunFolder.open(words[0])
    config = replace_options(TrainConfig.from_json(folder.config_text()), run_dir=folder.path)
    return local.train(config, resume=True, command=shlex.join(["dba3c", "resume", *words]))


def stop(words: Sequence[str]) -> int:
    """dba3c stop RUN"""
    from dba3c.runs.run_folder import RunFolder
    from launch.local.verdict import STOP_COMMAND
    from launch.slurm import first_node
    from launch.slurm.job import WARNING

    if len(words) != 1:
        raise UserError("usage: dba3c stop RUN")
    folder = RunFolder.open(words[0])
    status = folder.status()
    if status == "live" and folder.request_stop(STOP_COMMAND):
        print(f"asked {folder.path} to end with a checkpoint")
        return 0
    what = f"{folder.path} is not live: it is {status}"
    if status == "live":
        what = f"{folder.path} is ending already: {folder.stop_reason()}"
        if not what.endswith(WARNING):
            print(what)
            return 0
    job = first_node.next_life(folder.path)
    raise UserError(f"{what}, but {job}" if job else what)


def sbatch(words: Sequence[str]) -> int:
    """dba3c sbatch PRESET [OPTIONS]"""
    from launch.cli import sbatch as slurm

    return slurm.main(words)


def evaluate(words: Sequence[str]) -> int:
    """dba3c evaluate RUN"""
    from launch.cli.evaluate import run

    return run(words)


def record(words: Sequence[str]) -> int:
    """dba3c record RUN"""
    from launch.cli.record import run

    return run(words)


COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "train": train,
    "resume": resume,
    "stop": stop,
    "sbatch": sbatch,
    "watch": watch,
    "export": export,
    "plot": plot,
    "simulate": simulate,
    "study": study,
    "evaluate": evaluate,
    "record": record,
}
