"""What the hub's tests share: no event may ever meet a state that forbids it."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from holdfast.wire import process


@pytest.fixture(autouse=True)
def no_illegal_transition() -> Iterator[None]:
    """Fail a test in which the lifecycle's table forbade an event: the hub goes on, but the table has a gap."""
    told: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            told.append(record.getMessage())

    listener = Listener(logging.ERROR)
    hub = logging.getLogger("holdfast.hub")
    hub.addHandler(listener)
    yield
    hub.removeHandler(listener)
    assert told == []


@pytest.fixture
def brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stubborn children are given less time to end by themselves, so that the test ends sooner."""
    monkeypatch.setattr(process, "POLITE_SECONDS", 0.3)
