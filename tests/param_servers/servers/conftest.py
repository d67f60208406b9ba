import pytest

from param_servers.servers import cut_through
from param_servers.wire import even_push


@pytest.fixture(autouse=True)
def _sizes_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    """A simulation passes on parts of a few bytes; tests after it must not."""
    for name in ("LEAST_BYTES", "LEAST_PART", "PART_MULTIPLE", "ALL_WINDOWS", "SHORT_SLICE", "LEAST_LEAD"):
        monkeypatch.setattr(cut_through, name, getattr(cut_through, name))
    for name in ("LEAST_LEAD_BYTES", "FIRST_PIECE_BYTES"):
        monkeypatch.setattr(even_push, name, getattr(even_push, name))
