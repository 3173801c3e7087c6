"""The content of records: how a switch, a pin, evidence and a listing are written, and which events they become.

Evidence names the definition of its server: replicas with another definition, in the middle of a change of the
configuration, learn nothing from it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, unquote

from holdfast.core.lifecycle.events import Event, PeerRecovered, PeerTripped
from holdfast.core.replicas.records import FleetRecord

__all__ = [
    "evidence_event",
    "evidence_key",
    "evidence_value",
    "listing_key",
    "pin_key",
    "pinned_tool",
    "record_value",
    "switch_key",
]

_STATUSES = frozenset({"transient", "permanent", "denied"})
LONGEST_REASON = 500
"""Characters of a reason that are shared."""
LONGEST_WAIT = 600.0
"""Seconds. A peer may postpone the next try by this much; the slowest schedule of a hub is faster."""


def switch_key(server: str) -> str:
    """The key of the record that says whether a server is disabled."""
    return f"switch/{quote(server, safe='')}"


def pin_key(server: str, tool: str) -> str:
    """The key of the record with the approved version of a tool."""
    return f"pin/{quote(server, safe='')}/{quote(tool, safe='', errors='surrogatepass')}"


def evidence_key(server: str) -> str:
    """The key of the record with the latest evidence about a server."""
    return f"evidence/{quote(server, safe='')}"


def listing_key(server: str) -> str:
    """The key of the record with the hash of a server's listing."""
    return f"listing/{quote(server, safe='')}"


def pinned_tool(key: str) -> tuple[str, str]:
    """The server and the tool of a ``pin_key``; the tool is empty for other keys with a server."""
    _, server, *tool = key.split("/")
    return unquote(server), unquote(tool[0], errors="surrogatepass") if tool else ""


def record_value(record: FleetRecord) -> Mapping[str, Any]:
    """The value of a record; empty if it is not an object."""
    try:
        read = json.loads(record.value)
    except ValueError:
        return {}
    return read if isinstance(read, dict) else {}


def evidence_value(event: Event, definition: str) -> dict[str, object]:
    """What is written about an event."""
    if isinstance(event, PeerTripped):
        told: dict[str, object] = {
            "up": False,
            "status": event.status,
            "reason": event.reason[:LONGEST_REASON],
            "attempts": event.attempts,
            "retry_in": round(event.retry_in, 3),
            "parked": event.parked,
            "unreachable": event.unreachable,
            "answers": event.answers,
            "by_calls": event.by_calls,
        }
        return {"definition": definition, **told}
    return {"definition": definition, "up": True}


def evidence_event(record: FleetRecord, definition: str) -> Event | None:
    """The event that a peer's evidence is for the machine; None if it concerns another definition."""
    told = record_value(record)
    if told.get("definition") != definition:
        return None
    if told.get("up") is True:
        return PeerRecovered()
    try:
        status = told["status"]
        return PeerTripped(
            status=status if status in _STATUSES else "transient",
            reason=str(told["reason"])[:LONGEST_REASON],
            attempts=max(0, int(told["attempts"])),
            retry_in=min(max(0.0, float(told["retry_in"])), LONGEST_WAIT),
            parked=told["parked"] is True,
            unreachable=told["unreachable"] is True,
            answers=told["answers"] is True,
            by_calls=told["by_calls"] is True,
        )
    except (KeyError, TypeError, ValueError):
        return None
