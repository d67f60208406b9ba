"""A stage for the inference service."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.dba3c.central.stage import B, Stage


@pytest.fixture
def stage() -> Iterator[Callable[..., Stage]]:
    stages: list[Stage] = []

    def make(target: int = B, timeout_s: float = 60.0) -> Stage:
        stages.append(Stage(target, timeout_s))
        return stages[-1]

    yield make
    for made in stages:
        made.service.hub.shut()
        for actor in made.actors:
            actor.hub.shut()
