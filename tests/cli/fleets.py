"""A fleet in which every status occurs once, as the control API tells of it."""

from __future__ import annotations

from holdfast.control.models import Activity, BreakerView, Change, LastError, Server
from tests.cli.hub_peer import NOW, server

BUSY = Activity(
    step=10,
    until=NOW,
    calls=(0, 0, 1, 2, 3, 5, 8, 13, 21, 34, 21, 13, 8, 5, 3, 2, 1, 0, 4, 4),
    errors=(0, 0, 0, 0, 0, 0, 0, 0, 4, 21, 4, 0, 0, 0, 0, 0, 0, 0, 0, 1),
    milliseconds=(None, 3.25),
)


def fleet() -> tuple[Server, ...]:
    """One of each, in no order."""
    return (
        server(
            "calendar",
            "permanent",
            reason="the command `calender-mcp` was not found",
            summary="MCP server 'calendar' is unavailable: the command `calender-mcp` was not found. "
            "Tools from this server will not work.",
            action="correct `command` in its definition; the hub reads the file again by itself",
            command="holdfast list",
            retry_in=241,
        ),
        server("notes", tools=2, prompts=1, activity=BUSY, calls_total=148, errors_total=30),
        server("archive", "idle", tools=4, verified=False),
        server(
            "vault",
            "denied",
            transport="http",
            target="https://vault.example.com/mcp",
            reason="it answered 401",
            summary="MCP server 'vault' denied access: it answered 401. It will not be retried: log in or ask for "
            "access to change that.",
            action="log in again",
            command="holdfast login vault",
        ),
        server("scratch", "disabled", summary="It is switched off.", since=NOW - 90_000),
        server(
            "ticker",
            "transient",
            tools=1,
            reason="its process exited with code 1",
            summary="MCP server 'ticker' is starting up and not ready yet — it will be retried.",
            since=NOW - 3,
            attempts=2,
            attempts_allowed=5,
            retry_in=3.6,
            breaker=BreakerView(state="open", retry_in=52),
            last_error=LastError(at=NOW - 3, text="its process exited with code 1"),
            calls_total=3,
            errors_total=3,
            reconnects_total=4,
            timeline=(
                Change(at=NOW - 60, old="connecting", new="connected", cause="DialSucceeded", generation=1),
                Change(
                    at=NOW - 3,
                    old="connected",
                    new="reconnecting",
                    cause="TransportLost",
                    reason="its process exited with code 1",
                    generation=1,
                ),
            ),
        ),
    )
