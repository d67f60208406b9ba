"""Nothing is waited for or tried without end. Who waits for whom, how long, and who gives up first is one table.

A user sets four numbers (`ExchangeConfig`); all others follow from them here and nowhere else. Whoever decides about
others (server 0 about workers and servers, the chief about ranks, a supervisor about processes) gives up before anybody
does who waits for that decision: so it is said once, by the one who knows, who is missing, and nobody leaves for
nothing.

Behind the table: when and how often something is tried again, on which clock, and how to leave what hangs behind.
"""

import math
import queue
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from param_servers.errors import PeerLost

NAP_S = 0.5
"""Longest sleep of a loop between two looks at the clock."""
NOTICE_S = 2.0
"""At least this much later than a decision ends the wait for it: naps of both sides, the way, a busy machine."""
MARGIN_S = 5.0
"""What is added to a wait so that it outlasts another."""
LONGEST_S = 1e9
"""Thirty years: beyond what a float can tell apart, a margin would change nothing."""

HANDSHAKE_S = 10.0
"""A link whose handshake takes longer is lost."""
LINGER_S = 2.0
"""For some of a closing link's last words to leave, and then for its peer to close, too."""
LAST_WORDS_S = 5.0
"""For a chief to tell everybody how the run has ended; a server waits at least as long to hear it."""
GOODBYE_S = 1.0
"""For a worker to say that it leaves."""
CLOSE_S = 10.0
"""For what is still being written at the end of a process: whoever needs it has waited for it before."""
ROLL_CALL_S = 5.0
"""After a sum has failed: who is still there?"""
GRACE_S = 1.0
"""Longer than a library's own timeout, where it has one: its message says more."""


class Timeouts:
    """The table, all in seconds, that follows from the four numbers that a user sets; see `ExchangeConfig`."""

    def __init__(
        self,
        *,
        step_timeout_s: float = 60.0,
        join_timeout_s: float = 300.0,
        reconnect_timeout_s: float = 300.0,
        checkpoint_timeout_s: float = 120.0,
        told_once: bool = False,
    ) -> None:
        """`told_once`: the library that sums takes one patience for all sums, the first among them (Horovod)."""
        # -- any link
        self.silence_s = max(step_timeout_s, 1.0)
        """A host that acknowledges no bytes for so long is gone."""
        self.alive_every_s = step_timeout_s / 8
        """Who decides, and who is decided about, says so often that it lives."""

        # -- server 0, or the chief of a majority, decides
        self.join_s = join_timeout_s
        """For a server, or the ranks of a majority, to come, at the start."""
        self.first_step_s = max(join_timeout_s, 2 * step_timeout_s)
        """For the first step of a term: workers may still be starting, or have to end a step of the term before."""
        self.server_return_s = reconnect_timeout_s
        """For a server that was lost to come back."""
        self.disk_s = checkpoint_timeout_s
        """For all servers to load the checkpoint that they go on from, with those of undone steps out of the way; for
        the checkpoint at the end, in all exchanges, with the one that is still being written before it."""
        self.step_s = step_timeout_s
        """For every other step, after which workers without a gradient are expelled; for one sum of ranks."""
        self.hold_s = self.step_s / 4
        """For the slowest of a step's slices, while those far ahead of it are not read: then they still have time."""
        self.stop_after_s = min(30.0, self.server_return_s)
        """For a lost server whose return undoes committed steps, before a request to stop is obeyed: one that is
        started again is there sooner, and then nothing is lost that was not lost with it."""
        self.server_silence_s = self.step_s / 2
        """Without a word for so long when a step is late: it is not the workers' fault but that server's."""
        self.group_s = 2 * self.step_s + 2 * GRACE_S
        """The chief: for a step, and for all ranks to leave a group; a rank may be in the sum, or the group, before."""
        self.first_group_s = max(self.first_step_s, self.group_s)
        """The chief: for the first step of a group."""

        # -- the other servers, workers and ranks wait
        self.start_s = self.join_s + MARGIN_S
        """For server 0 (the learner, the chief) at the start."""
        self.other_start_s = self.start_s + self.join_s + MARGIN_S
        """Of a worker for the other servers, at the start: server 0 may come last, and then waits for them itself."""
        self.return_s = self.silence_s + self.server_return_s + MARGIN_S
        """For a server whose link broke: server 0 may notice the loss later, and then waits."""
        self.first_sum_s = max(self.join_s, self.step_s, self.disk_s) + MARGIN_S
        """A rank: for the others until the first step of an all-reduce. Rank 0 may be reading a checkpoint, others may
        wait for their actors or fill their replay."""
        self.sum_s = self.first_sum_s if told_once else self.step_s
        """A rank: for the others in any other sum."""
        self.chief_silence_s = 2 * self.step_s
        """For a word of server 0, or of the chief."""
        self.answer_s = self.first_step_s + self.server_return_s + 2 * self.disk_s + MARGIN_S
        """Of a worker for parameters or an answer, on links that hold. Server 0 may use up all its waits in a row: the
        disk's for a checkpoint that is being published, and again for going back to it."""
        self.lane_s = max(self.answer_s, self.other_start_s) + 2 * self.step_s
        """Another lane of a worker: for a word of lane 0, which may be at its start or in any of its waits, and then in
        those for the other lanes."""
        self.actor_answer_s = self.answer_s + MARGIN_S
        """Of an actor: its learner waits as a worker does, and answers nobody meanwhile."""
        self.actor_start_s = self.other_start_s + MARGIN_S
        """Of an actor for its learner, which answers nobody before it has the servers' first parameters."""
        self.first_survivor_s = self.disk_s + 2 * MARGIN_S
        """Of the other survivors of an MPI all-reduce, for the one that writes the last checkpoint."""
        self.comm_turn_s = max(self.start_s, 5 * (self.step_s + GRACE_S), self.disk_s) + MARGIN_S
        """A rank's main thread: for a sign of life of its comm thread, whose longest turns are these."""
        self.comm_leave_s = self.step_s + self.disk_s + 2 * MARGIN_S
        """A rank's main thread, at its end: for its comm thread to leave the sum that it may be in and, of rank 0, to
        write a last checkpoint."""
        self.last_words_s = max(LAST_WORDS_S, self.step_s / 2)
        """A server, at its end: for all that it has sent to arrive, the parameters of a whole step before its last
        word."""
        self.chief_leave_s = LAST_WORDS_S + MARGIN_S
        """Rank 0, at its end: for the chief to have told everybody."""

        # -- processes
        self.servers_end_s = self.answer_s + self.disk_s + MARGIN_S
        """Who has forked a whole run: for its servers to end when all workers, or another server, have ended."""
        self.stop_s = max(self.sum_s, self.stop_after_s) + self.disk_s + self.last_words_s + MARGIN_S
        """A supervisor: from a request to stop to the end, with a checkpoint."""
        self.drain_s = self.disk_s + self.last_words_s + MARGIN_S
        """A supervisor, or who has forked a whole run: from the end of who decides to the end of all; in an all-reduce
        one of them still writes."""


T = TypeVar("T")


class Redial:
    """When to try again to reach a peer: bounded in time, growing apart, and jittered so that 64 do not knock at once.

    Times are seconds on the caller's clock.

    Args:
        timeout_s: after this long without success it is given up.
        seed: of the jitter.
    """

    FIRST_S, MOST_S = 0.05, 2.0

    def __init__(self, timeout_s: float, seed: int) -> None:
        self._timeout_s, self._reason = timeout_s, "no address known"
        self._random = random.Random(seed)
        self._since_s: float | None = None
        self._next_s, self._wait_s = 0.0, self.FIRST_S
        self._dialling = False

    def attempt(self, resolve: Callable[[], tuple[str, int] | None], now_s: float, what: str) -> tuple[str, int] | None:
        """Where to dial now; None while that is under way, or it is not yet time.

        Raises:
            PeerLost: it was tried in vain for too long; `what`: "worker 3 cannot reach server 0".
        """
        if self._dialling:
            return None
        if self._since_s is None:
            self._since_s = now_s
        if now_s - self._since_s > self._timeout_s:
            raise PeerLost(f"{what} for {self._timeout_s:g} s: {self._reason}")
        if now_s < self._next_s:
            return None
        address = resolve()
        if address is None:
            self.failed("no address known", now_s)
        self._dialling = address is not None
        return address

    def succeeded(self, timeout_s: float) -> None:
        """Connected: patience starts anew, and from now on is this long."""
        self._timeout_s, self._since_s, self._wait_s = timeout_s, None, self.FIRST_S
        self._dialling = False

    def begin_anew(self) -> None:
        """Nobody has tried: who waits next dials at once, with all patience."""
        self._since_s, self._next_s, self._wait_s, self._dialling = None, 0.0, self.FIRST_S, False

    def failed(self, reason: str, now_s: float) -> None:
        """It could not be dialled, or the link is lost."""
        self._reason, self._dialling = reason, False
        if self._since_s is None:
            self._since_s = now_s
        self._next_s = now_s + self._wait_s * self._random.uniform(0.5, 1.0)
        self._wait_s = min(self.MOST_S, self._wait_s * 2)


class Restarts:
    """How often something that fails may be begun again: at most `most` times within `window_s`. A rate, so that
    neither a run of weeks uses it up nor something that always fails goes on for ever.
    """

    def __init__(self, most: int, window_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.most, self.window_s = most, window_s
        self.total = 0
        self._clock = clock
        self._times_s: deque[float] = deque()

    @property
    def recent(self) -> int:
        while self._times_s and self._clock() - self._times_s[0] >= self.window_s:
            self._times_s.popleft()
        return len(self._times_s)

    def take(self) -> bool:
        """Count one more; False, and not counted, when it would be one too many."""
        if self.recent >= self.most:
            return False
        self._times_s.append(self._clock())
        self.total += 1
        return True

    def __str__(self) -> str:
        return f"{self.recent} of {self.most} within {self.window_s / 3600:g} h"


class AwakeClock:
    """Time that hardly passes while this process is stopped (SIGSTOP, a suspended machine): nobody is late for what it
    was not there to hear.

    Args:
        longest_s: longest time between two readings of a process that runs; when more has passed, it was stopped.
        clock: a monotonic one.
    """

    def __init__(self, longest_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._longest_s, self._clock = longest_s, clock
        self._read_s = clock()
        self._all_slept_s = 0.0
        self.slept_s, self.woke_s = 0.0, -math.inf
        """How long the process was stopped the last time, and when on this clock it went on."""

    def now_s(self) -> float:
        """Seconds on this clock; to be read again and again."""
        read_s = self._clock()
        gap_s, self._read_s = read_s - self._read_s, read_s
        stopped = gap_s > self._longest_s
        if stopped:
            self._all_slept_s += gap_s - self._longest_s / 8  # even a process that never runs in time gets on
        now_s = read_s - self._all_slept_s
        if stopped:
            self.slept_s, self.woke_s = gap_s, now_s
        return now_s


def clock_of_a_loop(patience_s: float = math.inf) -> AwakeClock:
    """For who has so much patience at least, and looks at the clock at least each `NAP_S` unless it was stopped."""
    return AwakeClock(min(patience_s, 8 * NAP_S))


class LeavableThread:
    """Does one piece of work after the other in a thread of its own, which can be left behind when it hangs.

    A ThreadPoolExecutor's cannot: the interpreter waits for its threads before it ends, for ever if need be.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._work: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Begin `work` when all before is done. Raises RuntimeError: no thread can be started here."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            thread.start()
            self._thread = thread
        future: Future[T] = Future()
        self._work.put((future, work))
        return future

    def close(self, timeout_s: float) -> None:
        """Let it do what was begun, and wait for that at most so long."""
        self._work.put(None)
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while (entry := self._work.get()) is not None:
            future, work = entry
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)
            del entry, future, work  # which may hold a model: they are not kept until there is more to do


def within(timeout_s: float, work: Callable[[], T]) -> T:
    """The result of `work`, which runs in a thread of its own; that thread is left behind when it takes too long.

    For calls that have no bound of their own, as torch's store when its host is stopped.

    Raises:
        TimeoutError: it took longer than `timeout_s`.
        What `work` raises.
    """
    thread = LeavableThread("within")
    future = thread.submit(work)
    thread.close(0.0)
    for _ in range(4):  # while this process is stopped, one of them passes
        if wait([future], timeout_s / 4).done:
            return future.result()
    raise TimeoutError(f"no answer within {timeout_s:g} s")
