"""Messages between a worker and an environment's own process: when a slow answer counts as none."""

import os
import select
import time

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
    outlet.write(messages.HEADER.pack(messages.STEPPED, len(payload)) + payload[:256])
    rest, select_now = [payload[256:512], payload[512:]], select.select

    def select_of_a_sender_that_writes_only_when_waited_for(handles, _, __, left_s):
        if left_s > 0 and rest and not select_now(handles, [], [], 0)[0]:
            outlet.write(rest.pop(0))
        return select_now(handles, [], [], left_s)

    monkeypatch.setattr(messages.select, "select", select_of_a_sender_that_writes_only_when_waited_for)
    passed_s = time.monotonic() - 1.0
    assert messages.receive(inlet.fileno(), passed_s, patience_s=60.0).payload == payload
    with pytest.raises(TimeoutError):
        messages.receive(inlet.fileno(), passed_s, patience_s=60.0)


def test_an_answer_that_does_not_go_on_times_out(pipe):
    inlet, outlet = pipe
    outlet.write(messages.HEADER.pack(messages.STEPPED, 100) + b"half")
    with pytest.raises(TimeoutError):
        messages.receive(inlet.fileno(), time.monotonic() - 1.0, patience_s=0.0)
