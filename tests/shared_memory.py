"""Shared memory with a name, which outlives its processes: what lanes must not leave behind."""

import os


def named_memory() -> set[str]:
    """Blocks that Python, torch or we have named; semaphores of other tests come and go meanwhile."""
    return {name for name in os.listdir("/dev/shm") if name.startswith(("psm_", "torch_", "dba3c"))}
