"""The log's words for each record; the record itself goes with the line, for a log that programs read."""

from __future__ import annotations

import logging
from typing import Any

from holdfast.core.breaker import Tripped
from holdfast.hub.records import (
    BreakerChanged,
    CallEnded,
    CloseFailed,
    HubRecord,
    Missed,
    OfOneClient,
    Published,
    RetryPlanned,
    ToolApproved,
    ToolChanged,
    Transition,
)

__all__ = ["write_to_log"]

log = logging.getLogger("holdfast.hub")

SURPRISING = ("denied", "timed_out")
"""The outcomes of calls that leave no other trace; failures do, by what they do to the server's state."""


def write_to_log(record: HubRecord) -> None:
    """One line for each record that a person may want to see; a changed configuration is told where it is read."""
    if isinstance(record, CallEnded):
        _write_call(record)
    elif isinstance(record, OfOneClient):
        _write(logging.DEBUG, record, "%s, one client's own: %s", record.server, record.record)
    else:
        _write_state(record)


def _write_state(record: HubRecord) -> None:
    match record:
        case Transition():
            words = "%s: %s -> %s (%s)" + (": %s" if record.reason else "%s")
            step = (record.server, record.old.value, record.new.value, record.cause, record.reason)
            _write(logging.INFO, record, words, *step)
        case RetryPlanned():
            _write(logging.INFO, record, "%s: attempt %d in %.1f s", record.server, record.attempt, record.delay)
        case BreakerChanged(server=server, change=Tripped() as trip):
            words = "%s: breaker open for %.0f s after %d failures (%d calls refused since)"
            _write(logging.WARNING, record, words, server, trip.retry_in, trip.failures, trip.refused)
        case BreakerChanged(server=server, change=change):
            _write(logging.INFO, record, "%s: breaker closed (%d calls refused meanwhile)", server, change.refused)
        case CloseFailed():
            words = "%s: an old connection did not close cleanly: %s"
            _write(logging.WARNING, record, words, record.server, record.error)
        case Published():
            kinds = ", ".join(record.kinds) or "nothing"
            _write(logging.DEBUG, record, "catalog %d: %s of %s changed", record.version, kinds, record.server)
        case ToolChanged():
            so = ": it is held until the change is approved" if record.held else ""
            words = "%s: the tool %s is not what it was when it was first seen%s"
            _write(logging.WARNING, record, words, record.server, record.tool, so)
        case ToolApproved():
            _write(logging.INFO, record, "%s: the change of the tool %s is approved", record.server, record.tool)
        case Missed():
            _write(logging.WARNING, record, "a listener was too slow for %d records", record.count)


def _write_call(ended: CallEnded) -> None:
    level = logging.WARNING if ended.outcome in SURPRISING else logging.DEBUG
    if log.isEnabledFor(level):
        words = "%s: %s %s after %.3f s" + (": %s" if ended.reason else "%s")
        _write(level, ended, words, ended.server, ended.method, ended.outcome, ended.seconds, ended.reason)


def _write(level: int, record: HubRecord, words: str, *args: Any) -> None:
    log.log(level, words, *args, extra={"record": record})
