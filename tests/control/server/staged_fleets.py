"""Fleets of any size in known states, as a hub would tell of them: for the page, its pictures and its cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.control.models import Activity, BreakerView, Change, Server
from tests.cli.hub_peer import NOW, server

__all__ = ["all_down", "staged"]

GATEWAY = "https://gateway.internal"
SERVICES = (
    "github", "jira", "slack", "postgres", "grafana", "sentry", "stripe", "figma", "notion", "linear",
    "browser", "search", "files", "calendar", "kubernetes", "redis", "s3", "bigquery", "pagerduty", "confluence",
)  # fmt: skip
TEAMS = ("", "-eu", "-us", "-staging", "-billing", "-growth", "-data", "-mobile", "-infra", "-legal", "-research")
COMMANDS = (
    "npx -y @modelcontextprotocol/server-filesystem /srv/files",
    "uvx mcp-server-fetch --ignore-robots-txt",
    "/usr/bin/python3 /srv/mcp/tools/inventory.py --port 0",
    "docker run -i --rm ghcr.io/acme/ledger-mcp:2.4",
)


def staged(number: int) -> tuple[Server, ...]:
    """One fleet: of 100 servers, 18 are refused at one gateway, 3 want a login, 2 are broken, 7 come back."""
    return tuple(_one(index, name) for index, name in enumerate(_names(number)))


def all_down(number: int) -> tuple[Server, ...]:
    """No server is available: one gateway is gone."""
    return tuple(_refused(name) for name in _names(number))


def _names(number: int) -> Sequence[str]:
    return [f"{SERVICES[at % 20]}{_team(at // 20)}" for at in range(number)]


def _team(at: int) -> str:
    return TEAMS[at] if at < len(TEAMS) else f"-{at}"


def _one(index: int, name: str) -> Server:
    slot = (index * 37) % 100
    if slot < 18:
        return _refused(name)
    if slot < 21:
        return _wants_login(name)
    if slot < 23:
        return _broken(name)
    if slot < 30:
        return _coming(name)
    if slot < 31:
        return _held(name)
    if slot < 40:
        return _resting(name, disabled=slot < 34)
    return _up(index, name)


def _made(name: str, status: Any, **more: Any) -> Server:
    return server(name, status, **{"since": NOW - 1_260, **more})


def _refused(name: str) -> Server:
    return _made(
        name,
        "permanent",
        state="parked",
        transport="http",
        target=f"{GATEWAY}/{name}/mcp",
        cause="connection refused at gateway.internal",
        reason="connection refused at gateway.internal:443",
        summary=f"MCP server '{name}' is unavailable: connection refused at gateway.internal:443.",
        action="Check that the server runs, and that its address is right.",
        command=f"holdfast doctor {name} --config /home/me/mcp.json",
        failures=9,
        retry_in=41.0,
        timeline=_fell(1_260, "DialFailed", "parked"),
    )


def _wants_login(name: str) -> Server:
    return _made(
        name,
        "denied",
        state="denied",
        transport="http",
        target=f"https://{name}.example.com/mcp",
        cause="401 Unauthorized",
        reason="401 Unauthorized",
        summary=f"MCP server '{name}' denied access: 401 Unauthorized.",
        action="Log in; the hub then reconnects it.",
        command=f"holdfast login {name} --config /home/me/mcp.json",
        login=True,
        timeline=_fell(640, "DialFailed", "denied"),
    )


def _broken(name: str) -> Server:
    return _made(
        name,
        "permanent",
        state="parked",
        target=f"{name}-mcp --stdio",
        cause="the program was not found",
        reason=f"the program {name}-mcp was not found",
        summary=f"MCP server '{name}' cannot start: the program {name}-mcp was not found.",
        action="Install it, or correct `command` in its definition.",
        command=f"holdfast doctor {name} --config /home/me/mcp.json",
        timeline=_fell(3_000, "DialFailed", "parked"),
    )


def _coming(name: str) -> Server:
    return _made(
        name,
        "transient",
        state="reconnecting",
        transport="http",
        since=NOW - 24,
        target=f"https://{name}.example.net/mcp",
        cause="it answered 503",
        reason="it answered 503",
        summary=f"MCP server '{name}' is unavailable for now: it answered 503. Attempt 3 of 5.",
        action="To try it now, reconnect it.",
        command=f"holdfast reconnect {name}",
        retry_in=4.0,
        attempts=3,
        attempts_allowed=5,
        breaker=BreakerView(state="open", retry_in=12.0),
        timeline=_fell(24, "TransportLost", "reconnecting"),
        activity=_activity(7, errors=3),
    )


def _held(name: str) -> Server:
    return _made(
        name,
        "available",
        target="npx -y @acme/notes-mcp",
        summary="Connected; 6 tools; 1 change since first seen is held.",
        action="Review the change, and approve it if it is right.",
        command=f"holdfast approve {name}",
        tools=6,
        held=("search_notes",),
    )


def _resting(name: str, *, disabled: bool) -> Server:
    if disabled:
        return _made(
            name,
            "disabled",
            target="uvx mcp-server-fetch",
            summary="Disabled: its tools are not listed.",
            action="Enable it to use it again.",
            command=f"holdfast enable {name}",
        )
    return _made(
        name,
        "idle",
        target="uvx mcp-server-time",
        summary="Idle: it starts at its first use.",
        tools=2,
    )


def _up(index: int, name: str) -> Server:
    tools = 1 + (index * 7) % 23
    place: dict[str, Any] = {"target": COMMANDS[index % len(COMMANDS)]}
    if index % 3:
        place = {
            "transport": "http",
            "target": f"https://{name}.example.com/mcp",
        }
    return _made(
        name,
        "available",
        **place,
        summary=f"Connected; {tools} tools.",
        tools=tools,
        since=NOW - 86_400,
        generation=1,
        calls_total=index * 31,
        activity=_activity(index) if index % 4 else None,
        timeline=(Change(at=NOW - 3_900, old="connecting", new="connected", cause="DialSucceeded", generation=1),),
    )


def _fell(ago: float, cause: str, to: str) -> tuple[Change, ...]:
    up = Change(at=NOW - 3_900, old="connecting", new="connected", cause="DialSucceeded", generation=1)
    lost = Change(at=NOW - ago - 20, old="connected", new="reconnecting", cause="TransportLost")
    return (up, lost, Change(at=NOW - ago, old="reconnecting", new=to, cause=cause))


def _activity(seed: int, *, errors: int = 0) -> Activity:
    calls = tuple((seed * 13 + step * step * 7) % 9 for step in range(60))
    times = tuple(20.0 + (seed * 29 + step * 17) % 70 if calls[step] else None for step in range(60))
    wrong = tuple(min(calls[step], 1) if step > 60 - errors else 0 for step in range(60))
    return Activity(step=5.0, until=NOW, calls=calls, errors=wrong, milliseconds=times)
