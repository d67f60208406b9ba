"""Calls of the C library that Python lacks, or that some Pythons lack."""

import ctypes
import os

LIBC = ctypes.CDLL(None, use_errno=True)  # loaded here: between fork and exec is no place to load libraries
PR_SET_PDEATHSIG = 1  # linux/prctl.h
_MFD_CLOEXEC = 1  # linux/memfd.h


def nameless_file(name: str) -> int:
    """A descriptor of a file in memory, which is gone with the last process that has it; `name` is for /proc alone.

    Not `os.memfd_create`, which a Python that was built for an old libc (conda's) lacks.

    Raises OSError: this machine gives none.
    """
    descriptor: int = LIBC.memfd_create(name.encode(), _MFD_CLOEXEC)
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return descriptor
