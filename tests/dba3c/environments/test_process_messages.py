"""Messages between a worker and an environment's own process: when a slow answer counts as none."""

import os
import select
import threading
import time

import pytest

from dba3c.environments import process_messages as messages


@pytest.fixture
def pipe():
    """(read end, write end) as file objects, closed afterwards."""
    ends = os.pipe()
    with open(ends[0], "rb", buffering=0) as inlet, open(ends[1], "wb", buffering=0) as outlet:
        yield inlet, outlet


def test_an_answer_that_began_in_time_is_read_to_its_end_after_the_deadline(pipe):
    inlet, outlet = pipe
    payload = bytes(range(256)) * 4096
    sender = threading.Thread(target=messages.send, args=(outlet.fileno(), messages.STEPPED, payload), daemon=True)
    sender.start()
    select.select([inlet], [], [])  # it has begun
    passed_s = time.monotonic() - 1.0
    assert messages.receive(inlet.fileno(), passed_s, patience_s=60.0).payload == payload
    sender.join(timeout=60)
    with pytest.raises(TimeoutError):
        messages.receive(inlet.fileno(), passed_s, patience_s=60.0)


def test_an_answer_that_does_not_go_on_times_out(pipe):
    inlet, outlet = pipe
    outlet.write(messages.HEADER.pack(messages.STEPPED, 100) + b"half")
    with pytest.raises(TimeoutError):
        messages.receive(inlet.fileno(), time.monotonic() - 1.0, patience_s=0.0)
