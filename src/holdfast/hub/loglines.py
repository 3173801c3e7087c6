"""The log line of each record. The record itself goes with the line, for logs that programs read."""

from __future__ import annotations

import logging
from typing import Any

from holdfast.core.breaker import Tripped
from holdfast.core.lifecycle.table import State
from holdfast.hub.records import (
    BreakerChanged,
    CallEnded,
    CloseFailed,
    ConfigApplied,
    ConfigRefused,
    HubRecord,
    Missed,
    OfOneClient,
    Published,
    RetryPlanned,
    ToolApproved,
    ToolChanged,
    Transition,
)

__all__ = ["transition_text", "write_to_log"]

log = logging.getLogger("holdfast.hub")
reload_log = logging.getLogger("holdfast.reload")

SURPRISING = ("denied", "timed_out")
"""The outcomes of calls that leave no other line in the log; failures change the server's state, which is logged."""


def write_to_log(record: HubRecord) -> None:
    """Write one line for each record that a person may want to see."""
    if isinstance(record, CallEnded):
        _write_call(record)
    elif isinstance(record, OfOneClient):
        _write(logging.DEBUG, record, "%s, connection of one client: %s", record.server, record.record)
    elif isinstance(record, ConfigApplied | ConfigRefused):
        _write_config(record)
    else:
        _write_state(record)


def _write_state(record: HubRecord) -> None:
    match record:
        case Transition():
            _write(logging.INFO, record, "%s: %s", record.server, transition_text(record))
        case RetryPlanned():
            _write(
                logging.INFO, record, "%s: reconnect attempt %d in %.1f s", record.server, record.attempt, record.delay
            )
        case BreakerChanged(server=server, change=Tripped() as trip):
            words = "%s: breaker open for %.0f s after %d failures (%d calls refused since)"
            _write(logging.WARNING, record, words, server, trip.retry_in, trip.failures, trip.refused)
        case BreakerChanged(server=server, change=change):
            _write(
                logging.INFO,
                record,
                "%s: breaker closed (%d calls were refused while it was open)",
                server,
                change.refused,
            )
        case CloseFailed():
            words = "%s: an old connection did not close cleanly: %s"
            _write(logging.WARNING, record, words, record.server, record.error)
        case Published():
            kinds = ", ".join(record.kinds) or "nothing"
            _write(logging.DEBUG, record, "catalog version %d: %s of %s changed", record.version, kinds, record.server)
        case ToolChanged():
            held = "; it is held until the change is approved" if record.held else ""
            words = "%s: the tool %s changed since it was first seen%s"
            _write(logging.WARNING, record, words, record.server, record.tool, held)
        case ToolApproved():
            _write(logging.INFO, record, "%s: the change of the tool %s was approved", record.server, record.tool)
        case Missed():
            _write(logging.WARNING, record, "a listener was too slow and missed %d records", record.count)


def transition_text(record: Transition) -> str:
    """What happened, in words: ``lost: its process exited with code 3; reconnecting``."""
    because = f": {record.reason}" if record.reason else ""
    match record.new:
        case State.CONNECTED:
            return "connected"
        case State.CONNECTING:
            return f"{_START.get(record.cause, 'connecting')}{because}"
        case State.RECONNECTING:
            return f"{_LOSS.get(record.cause, 'connect failed')}{because}; reconnecting"
        case State.PERMANENTLY_FAILED:
            return f"parked{because}"
        case State.IDLE:
            return "idle: it starts at its next use"
        case State.DISCONNECTED:
            return _END.get(record.cause, "disconnected")
    return f"{record.new.value}{because}"


_START = {
    "ConfigChanged": "its configuration changed; connecting",
    "EnableRequested": "enabled; connecting",
    "LoginSucceeded": "logged in; connecting",
    "ReconnectRequested": "reconnect requested; connecting",
}
_LOSS = {
    "Faltered": "lost after repeated failures",
    "ReconnectRequested": "reconnect requested",
    "SessionExpired": "its session expired",
    "TransportLost": "lost",
}
_END = {"RemoveRequested": "removed from the configuration", "ShutdownRequested": "the hub stops"}


def _write_config(record: ConfigApplied | ConfigRefused) -> None:
    """One line for what was done, and one for each problem; the record goes with the last line."""
    if isinstance(record, ConfigApplied):
        reload_log.info("the configuration was changed: %s", record, extra={"record": record})
        return
    servers = ", ".join(record.servers)
    what = f"the new definition of {servers}" if servers else "the changed configuration"
    for problem in record.problems:
        reload_log.error("%s cannot be used: %s", what, problem)
    running = (
        f"the running definition of {', '.join(record.servers)}" if record.servers else "the running configuration"
    )
    reload_log.error("%s stays in force", running, extra={"record": record})


def _write_call(ended: CallEnded) -> None:
    level = logging.WARNING if ended.outcome in SURPRISING else logging.DEBUG
    if log.isEnabledFor(level):
        words = "%s: %s %s after %.3f s" + (": %s" if ended.reason else "%s")
        _write(level, ended, words, ended.server, ended.method, ended.outcome, ended.seconds, ended.reason)


def _write(level: int, record: HubRecord, words: str, *args: Any) -> None:
    log.log(level, words, *args, extra={"record": record})
