"""The messages for people and models, as a pure function of the classification.

"Tools from this server will not work" stands in the permanent message and nowhere else;
"starting up" in the transient one and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple, TypeAlias

__all__ = ["Failure", "FailureStatus", "ServerStatus", "for_model", "for_user"]

FailureStatus: TypeAlias = Literal["transient", "permanent", "denied"]
ServerStatus: TypeAlias = Literal["available", "transient", "permanent", "denied", "idle", "disabled"]
"""A server in one word: as loads are classified, or idle or disabled on purpose."""


class Failure(NamedTuple):
    """A server without tools, and the reason."""

    server_id: str
    status: FailureStatus
    error: str = ""


def for_user(failure: Failure) -> str:
    """One or two sentences about one server."""
    name = f"MCP server '{failure.server_id}'"
    reason = _reason(failure).rstrip(".")
    if failure.status == "transient":
        return f"{name} is starting up and not ready yet — it will be retried."
    if failure.status == "denied":
        return f"{name} denied access: {reason}. It will not be retried: log in or ask for access to change that."
    return f"{name} is unavailable: {reason}. Tools from this server will not work."


def for_model(failures: Iterable[Failure]) -> str:
    """One line per class that occurs, ids sorted; empty where nothing failed."""
    by_status: dict[FailureStatus, list[Failure]] = {"transient": [], "permanent": [], "denied": []}
    for failure in sorted(failures):
        by_status[failure.status].append(failure)
    lines = []
    if starting := by_status["transient"]:
        ids = ", ".join(failure.server_id for failure in starting)
        lines.append(f"**MCP servers still starting up (will retry; tools may appear shortly):** {ids}")
    if failed := by_status["permanent"]:
        lines.append(
            "**MCP servers that failed to load (tools unavailable — needs attention):** " + _with_reasons(failed)
        )
    if denied := by_status["denied"]:
        lines.append(
            "**MCP servers that denied access (not retried; log in or ask for access to change that):** "
            + _with_reasons(denied)
        )
    return "\n".join(lines)


def _with_reasons(failures: Iterable[Failure]) -> str:
    return "; ".join(f"{failure.server_id}: {_reason(failure)}" for failure in failures)


def _reason(failure: Failure) -> str:
    """The reason in one line: a server's text cannot break the form of a message."""
    return " ".join(failure.error.split()) or "no reason was given"
