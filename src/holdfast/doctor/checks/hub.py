"""Compares the examination of a server with its state in a running hub."""

from __future__ import annotations

from typing import ClassVar

from holdfast.control.models import Server
from holdfast.doctor.case import Case
from holdfast.doctor.checks.base import Check, Observation
from holdfast.doctor.findings import finding, shell
from holdfast.doctor.report import LiveState

__all__ = ["HubCheck"]


class HubCheck(Check):
    """The state of this server in a running hub."""

    id: ClassVar[str] = "hub"
    looks_at: ClassVar[str] = "the server's state in a running hub, and why it may differ from this examination"
    finds: ClassVar[tuple[str, ...]] = ("HF-HUB-DIFFERS",)

    def applies(self, case: Case) -> bool:
        """Only if a running hub serves this configuration."""
        return case.tools.hub is not None

    async def look(self, case: Case) -> Observation:
        """Compare the hub's state with this examination."""
        hub = case.tools.hub
        server = await hub.server(case.id) if hub is not None else None
        if server is None:
            return Observation("the hub does not have this server")
        difference, command = _difference(server, failed=case.learned.failed)
        live = case.learned.live = _live(server, difference)
        seen = f"{live.state}, breaker {live.breaker}"
        if live.retry_in is not None:
            seen += f", tries again in {live.retry_in:.0f} s"
        if not difference:
            return Observation(seen)
        text = "wait a moment; if they still differ, make the hub try now"
        return Observation(seen, (finding("HF-HUB-DIFFERS", difference, text, command),))


def _live(server: Server, difference: str) -> LiveState:
    retry_in = server.breaker.retry_in if server.breaker.state == "open" else server.retry_in
    return LiveState(
        state=server.state,
        status=server.status,
        breaker=server.breaker.state,
        reason=server.reason,
        retry_in=retry_in,
        agrees=not difference,
        difference=difference,
    )


def _difference(server: Server, *, failed: bool) -> tuple[str, str]:
    """How the hub and this examination differ, and the command that makes the hub try again; empty if they agree."""
    again = shell("holdfast", "reconnect", server.id)
    reason = f": {server.reason}" if server.reason else ""
    match server.status, failed:
        case ("available", True):
            words = (
                "the hub is still connected, but a new connection fails: the server stopped or changed just now, "
                "or the hub was started with another environment (PATH, variables, proxy)"
            )
            return words, again
        case ("disabled", False):
            return "it works, but it is disabled in the hub", shell("holdfast", "enable", server.id)
        case ("transient" | "permanent" | "denied", False):
            words = (
                f"it works now, but it is {server.state.replace('_', ' ')} in the hub{reason}. The hub has not "
                "tried again yet, or was started with another environment (PATH, variables, proxy, login)"
            )
            return words, again
    return "", ""
