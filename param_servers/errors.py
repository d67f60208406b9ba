"""What can go wrong in `param_servers`; every message is one line that names the peer or the file and says why."""

import re


class ParamServersError(Exception):
    """Base of every error raised by this package."""


class ConfigError(ParamServersError, ValueError):
    """Settings that cannot be; the message says which, and the arithmetic."""


class BadMessage(ParamServersError):
    """A frame or a handshake that must not be believed: wrong magic, version, kind, length or proof."""


class PeerLost(ParamServersError):
    """A peer that is needed did not answer within the stated time; the message names it and the time."""


class Refused(ParamServersError):
    """The other side turned this process away (wrong secret, other layout, superseded incarnation, expelled)."""


class Superseded(ParamServersError):
    """A newer process has this one's place in the run, which goes on without this one."""


class RunBroken(ParamServersError):
    """The run ended because it could not go on as declared (e.g. with fewer live workers than `min_workers`)."""


class Diverged(RunBroken):
    """No gradient has been finite for too long, and the next one would not be, either."""


HAS_DIVERGED = "it has diverged"
"""The last words of every `Diverged`'s message: studies know it by them."""


class LastStepsLost(RunBroken):
    """The run has ended, and its last checkpoint could not be written."""


class LaneLost(ParamServersError):
    """A lane of this worker died, failed or was silent for too long: the worker cannot go on, but may be begun anew."""


class CheckpointError(ParamServersError):
    """A checkpoint that is torn, does not match its manifest, or belongs to another layout."""


class CheckpointUnreadable(ParamServersError):
    """The file system does not let a checkpoint be read; nothing is known about its content."""


class RunStopped(Exception):
    """The run has ended as asked. Not an error: the worker's loop leaves through it.

    Attributes:
        reason: one line, e.g. "score 300 reached" or "1000000 data points".
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def first_line(error: BaseException) -> str:
    """What a library raised, which may be anything, and a C++ back trace after it; no password of an address."""
    return re.sub(r"//[^/\s]+@", "//", (str(error).strip() or type(error).__name__).splitlines()[0])[:300]


def told(error: BaseException) -> str:
    """One line on any error: this package's and the system's speak for themselves, of others the kind is said too."""
    said = " ".join(str(error).split())
    speaks = isinstance(error, (ParamServersError, OSError)) and said
    return said if speaks else f"{type(error).__name__}: {said}".rstrip(": ")
