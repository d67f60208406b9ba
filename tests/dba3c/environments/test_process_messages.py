"""Messages between a worker and an environment's own process: when a slow answer counts as none."""

import os
import select
import time
from types import SimpleNamespace

import pytest

from dba3c.environments import process_messages as messages


@pytest.fixture
def pipe():
    """(read end, write end) as file objects, closed afterwards."""
    ends = os.pipe()
    with open(ends[0], "rb", buffering=0) as inlet, open(ends[1], "wb", buffering=0) as outlet:
        yield inlet, outlet


def test_an_answer_that_began_in_time_is_read_to_its_end_after_the_deadline(pipe, monkeypatch):
    inlet, outlet = pipe
    payload = bytes(range(256)) * 3
    outlet.write(messages.HEADER.pack(messages.STEPPED, len(payload)))
    rest, now_s = [payload[:256], payload[256:512], payload[512:]], 1000.0

    def select_of_a_sender_that_writes_in_50_s(handles, _, __, left_s):
        nonlocal now_s
        if not select.select(handles, [], [], 0)[0]:
            now_s += min(left_s, 50.0)
            if left_s > 50.0 and rest:
                outlet.write(rest.pop(0))
        return select.select(handles, [], [], 0)

    monkeypatch.setattr(messages, "select", SimpleNamespace(select=select_of_a_sender_that_writes_in_50_s))
    monkeypatch.setattr(messages, "time", SimpleNamespace(monotonic=lambda: now_s))
    assert messages.receive(inlet.fileno(), deadline_s=999.0, patience_s=60.0).payload == payload
    assert now_s == 1150.0
    with pytest.raises(TimeoutError):
        messages.receive(inlet.fileno(), deadline_s=999.0, patience_s=60.0)


def test_an_answer_that_does_not_go_on_times_out(pipe):
    inlet, outlet = pipe
    outlet.write(messages.HEADER.pack(messages.STEPPED, 100) + b"half")
    with pytest.raises(TimeoutError):
        messages.receive(inlet.fileno(), time.monotonic() - 1.0, patience_s=0.0)
