"""The same server in a running hub: whether it says the same, and why it may not."""

from __future__ import annotations

from typing import ClassVar

from holdfast.control.models import Server
from holdfast.doctor.case import Case
from holdfast.doctor.checks.base import Check, Seen
from holdfast.doctor.findings import finding, shell
from holdfast.doctor.report import LiveState

__all__ = ["HubCheck"]


class HubCheck(Check):
    """How a running hub has this server."""

    id: ClassVar[str] = "hub"
    looks_at: ClassVar[str] = "how a running hub has this server, and why it may differ from what was seen here"
    finds: ClassVar[tuple[str, ...]] = ("HF-HUB-DIFFERS",)

    def applies(self, case: Case) -> bool:
        """Only where a hub runs with this configuration."""
        return case.tools.hub is not None

    async def look(self, case: Case) -> Seen:
        """Put the hub's view beside ours."""
        hub = case.tools.hub
        server = await hub.server(case.id) if hub is not None else None
        if server is None:
            return Seen("the hub does not have it")
        difference, command = _difference(server, failed=case.learned.failed)
        live = case.learned.live = _live(server, difference)
        seen = f"{live.state}, breaker {live.breaker}"
        if live.retry_in is not None:
            seen += f", tries again in {live.retry_in:.0f} s"
        if not difference:
            return Seen(seen)
        text = "nothing need be done if they agree in a moment; else make the hub try now"
        return Seen(seen, (finding("HF-HUB-DIFFERS", difference, text, command),))


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
    """How the hub and this examination differ, in words, and what makes the hub look again; empty where they do not."""
    again = shell("holdfast", "reconnect", server.id)
    reason = f": {server.reason}" if server.reason else ""
    match server.status, failed:
        case ("available", True):
            words = (
                "the hub's connection still stands, while a new one fails: the server went away or changed just now, "
                "or the hub was started with another environment (PATH, variables, proxy)"
            )
            return words, again
        case ("disabled", False):
            return "it is well, and switched off in the hub", shell("holdfast", "enable", server.id)
        case ("transient" | "permanent" | "denied", False):
            words = (
                f"it is well now, and {server.state.replace('_', ' ')} in the hub{reason}. The hub has not tried again "
                "since it came back, or was started with another environment (PATH, variables, proxy, login)"
            )
            return words, again
    return "", ""
