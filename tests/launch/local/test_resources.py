"""Cores come from affinity, control groups and Slurm."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dba3c.errors import UserError
from dba3c.runs.host_facts import available_memory_bytes, cgroup_quota_cores, is_quick_in_bfloat16
from launch.local import resources
from launch.local.resources import (
    bind_to_own_cores,
    cores_of_all_ranks,
    given_cores,
    thread_environment,
)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def control_groups(tmp_path: Path, files: dict[str, str], self_cgroup: str) -> Path:
    """Where they are mounted; beside it, "self" says which is this process's."""
    root = tmp_path / "cgroup"
    root.mkdir()
    for name, text in files.items():
        write(root / name, text)
    write(tmp_path / "self", self_cgroup)
    return root


@pytest.mark.parametrize(
    ("files", "self_cgroup", "cores"),
    [
        ({}, "0::/\n", None),
        ({"cpu.max": "max 100000\n"}, "0::/\n", None),
        ({"cpu.max": "150000 100000\n"}, "0::/\n", 1.5),
        ({"job_3/step_0/cpu.max": "max 100000", "job_3/cpu.max": "400000 100000"}, "0::/job_3/step_0\n", 4.0),
        ({"cpu.max": "200000 100000"}, "0::/a/path/of/the/host\n", 2.0),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, "3:cpu,cpuacct:/\n", None),
        ({"cpu/s/cpu.cfs_quota_us": "300000", "cpu/s/cpu.cfs_period_us": "100000"}, "3:cpu:/s\n", 3.0),
    ],
)  # fmt: skip
def test_the_quota_of_a_control_group_is_read_in_both_versions(
    files: dict[str, str], self_cgroup: str, cores: float | None, tmp_path: Path
) -> None:
    root = control_groups(tmp_path, files, self_cgroup)
    assert cgroup_quota_cores(root, tmp_path / "self") == cores


@pytest.mark.parametrize(
    ("files", "self_cgroup", "limit"),
    [
        ({"memory.max": "max"}, "0::/\n", None),
        ({"job_3/step_0/memory.max": "max", "job_3/memory.max": "1000000"}, "0::/job_3/step_0\n", 1_000_000),
        ({"memory/s/memory.limit_in_bytes": "2000000"}, "5:memory:/s\n", 2_000_000),
    ],
)
def test_the_memory_of_a_process_is_what_the_machine_has_left_or_its_control_group_may_take(
    files: dict[str, str], self_cgroup: str, limit: int | None, tmp_path: Path
) -> None:
    root = control_groups(tmp_path, files, self_cgroup)
    found = available_memory_bytes(root, tmp_path / "self")
    assert found == limit if limit else 1e7 < found < 1e15


def test_the_least_of_what_was_given_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "affinity_cores", lambda: list(range(24)))
    monkeypatch.setattr(resources, "_cores_of_the_launcher", lambda environ: 24)
    monkeypatch.setattr(resources, "cgroup_quota_cores", lambda: 12.5)
    assert given_cores({}) == 12
    assert given_cores({}, local_world_size=4) == 3
    assert given_cores({"SLURM_CPUS_PER_TASK": "6"}, local_world_size=4) == 6
    assert given_cores({"SLURM_CPUS_PER_TASK": "64"}) == 12
    assert given_cores({}, local_world_size=100) == 1
    whole_task = {"SLURM_CPUS_PER_TASK": "12", "SLURM_CPUS_ON_NODE": "12"}
    assert given_cores(whole_task, local_world_size=4) == 3  # srun torchrun --nproc-per-node 4
    assert given_cores({**whole_task, "SLURM_CPUS_PER_TASK": "3"}, local_world_size=4) == 3
    parts = {"SLURM_HET_SIZE": "2", "SLURM_NTASKS_HET_GROUP_0": "1", "SLURM_NTASKS_HET_GROUP_1": "4"}
    parts |= {"SLURM_CPUS_PER_TASK_HET_GROUP_0": "8", "SLURM_CPUS_PER_TASK_HET_GROUP_1": "2"}
    parts |= {"SLURM_CPUS_PER_TASK": "2"}  # a step's is that of its last part
    assert [given_cores({**parts, "SLURM_PROCID": str(rank)}) for rank in range(5)] == [8, 2, 2, 2, 2]
    with pytest.raises(UserError, match="SLURM_CPUS_PER_TASK should be a number from 1 on, it is 'all'"):
        given_cores({"SLURM_CPUS_PER_TASK": "all"})
    with pytest.raises(UserError, match="SLURM_PROCID should be a number from 0 on, it is 'first'"):
        given_cores({**parts, "SLURM_PROCID": "first"})


def test_ranks_that_their_launcher_has_bound_do_not_share_their_cores_once_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of = {0: {0, 1, 2, 3}, os.getppid(): set(range(8))}
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: of[pid])
    assert given_cores({}, local_world_size=2) == 4
    of[os.getppid()] = of[0]  # nobody is bound
    assert given_cores({}, local_world_size=2) == 2


def test_ranks_that_their_launcher_has_bound_together_share_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    of = {0: set(range(12)), os.getppid(): set(range(24))}  # mpirun binds more than two ranks to a socket each
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: of[pid])
    monkeypatch.setattr(resources, "cgroup_quota_cores", lambda: None)
    assert given_cores({}, local_world_size=8) == 3
    monkeypatch.setattr(resources, "cgroup_quota_cores", lambda: 8.0)
    assert given_cores({}, local_world_size=4) == 2


def test_ranks_that_were_bound_together_with_the_script_around_them_share_what_their_launcher_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of = {0: {0, 1, 2, 3}, os.getppid(): {0, 1, 2, 3}, 7: set(range(32))}  # mpirun --map-by slot:PE=4 ./run.sh
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: of[pid])
    monkeypatch.setattr(resources, "launcher_pid", lambda environ: 7)
    assert given_cores({}, local_world_size=8) == 4


def test_the_parts_of_a_heterogeneous_job_are_counted_with_their_own_cores() -> None:
    tasks = {"SLURM_NTASKS_HET_GROUP_0": "1", "SLURM_NTASKS_HET_GROUP_1": "16"}
    cores = {"SLURM_CPUS_PER_TASK_HET_GROUP_0": "24", "SLURM_CPUS_PER_TASK_HET_GROUP_1": "12"}
    assert cores_of_all_ranks({"SLURM_HET_SIZE": "2", **tasks, **cores}, 24, 17) == 24 + 16 * 12
    assert cores_of_all_ranks({"SLURM_HET_SIZE": "2"}, 24, 17) == 24 * 17
    assert cores_of_all_ranks({}, 12, 64) == 768


def test_the_user_s_own_thread_variables_stay() -> None:
    assert thread_environment(3, {"OMP_NUM_THREADS": "1"})["OMP_NUM_THREADS"] == "1"
    assert thread_environment(3, {"OMP_NUM_THREADS": "1"}, by_torchrun=True)["OMP_NUM_THREADS"] == "3"
    environment = thread_environment(3, {"MKL_NUM_THREADS": "7"})
    assert environment["OMP_NUM_THREADS"] == "3"
    assert environment["MKL_NUM_THREADS"] == "7"


def test_ranks_that_share_the_job_s_cores_take_a_part_each(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned: list[list[int]] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {2, 3, 4, 5})
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cores: pinned.append(cores))
    two = {"SLURM_CPUS_PER_TASK": "2"}
    assert [bind_to_own_cores(two, rank, 2) for rank in (0, 1)] == [[2, 3], [4, 5]]
    assert pinned == [[2, 3], [4, 5]]
    assert bind_to_own_cores({}, 0, 2) == []  # not Slurm: others may be here
    assert bind_to_own_cores({"SLURM_CPUS_PER_TASK": "4"}, 0, 2) == []  # Slurm has pinned each task
    assert bind_to_own_cores({"SLURM_CPUS_PER_TASK": "1"}, 0, 2) == []  # some of these cores are another job's
    assert bind_to_own_cores({"SLURM_CPUS_PER_TASK": "4"}, 0, 1) == []  # nobody to share with
    assert len(pinned) == 2


def test_a_core_is_really_taken() -> None:
    before = os.sched_getaffinity(0)
    if len(before) < 2:
        pytest.skip("one core")
    try:
        own = bind_to_own_cores({"SLURM_CPUS_PER_TASK": "1"}, 1, len(before))
        assert own == [sorted(before)[1]]
        assert os.sched_getaffinity(0) == set(own)
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.parametrize(
    ("line", "does"),
    [
        ("vendor_id\t: AuthenticAMD\nflags\t\t: fpu avx2 avx512f avx512_bf16 sha_ni\n", True),
        ("vendor_id\t: GenuineIntel\nflags\t\t: fpu avx2 avx512f avx512_bf16 amx_bf16 amx_tile\n", True),
        ("vendor_id\t: GenuineIntel\nflags\t\t: fpu avx2 avx512f avx512_bf16\n", False),
        ("Features\t: fp asimd bf16\n", False),
        ("flags\t\t: fpu avx2 avx512f avx512_vnni\n", False),
        (None, False),
    ],
)
def test_a_processor_that_is_quicker_in_bfloat16_says_so(line: str | None, does: bool, tmp_path: Path) -> None:
    if line is not None:
        write(tmp_path / "cpuinfo", f"processor\t: 0\n{line}")
    assert is_quick_in_bfloat16(tmp_path / "cpuinfo") is does
