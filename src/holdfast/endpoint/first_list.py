"""How long the first list of tools waits for servers that are starting (HUB-13).

Many clients ask for the tools once, at their start, and never again: what is not in that list does not exist for them.
So where no listing of a server is known from before, the first list waits for the servers that are starting. It must
not wait longer than the client does: one that gives up has no tools at all. A client is known by the name that it gives
itself. For the others the wait stays below the shortest limit that was seen in the field, which is 5 s.
"""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["LONGEST_WAIT", "PATIENCE", "first_list_seconds"]

UNKNOWN_WAIT: Final = 4.0
"""OpenAI Agents, Google ADK, Pydantic AI and Cline give up after 5 s. The Python SDK calls all its clients `mcp`."""

LONGEST_WAIT: Final = 15.0


class Patience(NamedTuple):
    """A program whose limit is known."""

    seconds: float
    """After this time it gives up on an answer, unless its user has set another one."""
    source: str
    """Where that is written."""


PATIENCE: Final[dict[str, Patience]] = {
    "claude-ai": Patience(60, "Claude Desktop; the limit of its TypeScript SDK: DEFAULT_REQUEST_TIMEOUT_MSEC = 60000"),
    "claude-code": Patience(30, "Claude Code's documentation: MCP_TIMEOUT, 30 s by default"),
    "codex-mcp-client": Patience(10, "Codex: DEFAULT_STARTUP_TIMEOUT is 10 s for the handshake and the first list"),
    "gemini-cli-mcp-client": Patience(30, "Gemini CLI: 30 s for the discovery of a server over stdio, 10 min before"),
}
"""By the beginning of the name that a client gives itself: some add the name of the server."""


def first_list_seconds(program: str) -> float:
    """How long the first list may wait for servers: half of what the client bears, so that its answer is in time."""
    known = next((one for name, one in PATIENCE.items() if program == name or program.startswith(f"{name}-")), None)
    return min(known.seconds / 2, LONGEST_WAIT) if known is not None else UNKNOWN_WAIT
