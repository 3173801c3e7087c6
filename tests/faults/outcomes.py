"""Load one server as a user would, and look at everything: the outcome, the words, and what is left behind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import anyio

from holdfast.config.read import spec_from_connection
from holdfast.config.settings import Limits, LoadPolicy, Settings
from holdfast.config.spec import Config
from holdfast.hub.lease import ServerCache
from holdfast.hub.loader import Loader
from holdfast.types import LoadResult, MCPServerLoadOutcome
from tests.peers.leaks import no_leaks

__all__ = ["observe", "words_fit"]

LONGEST = 60
"""No scenario takes longer; one that does hangs."""


async def observe(
    connection: Mapping[str, Any],
    *,
    server_id: str = "peer",
    attempts: int = 3,
    attempt_timeout: float = 10.0,
    limits: Limits | None = None,
    memory: ServerCache | None = None,
    peer_notices: bool = True,
) -> MCPServerLoadOutcome:
    """The outcome of one load, with the shipped transports; fails if anything is left behind by it.

    A peer that does not read cannot notice that we hung up: its own sockets are then left out of account.
    """
    policy = LoadPolicy(attempts=attempts, backoff=0.001, attempt_timeout=attempt_timeout)
    settings = Settings(load=policy, limits=limits or Limits())
    server = spec_from_connection(server_id, connection)
    if not server.problems:
        server = replace(server, start_timeout=attempt_timeout)  # a process that never speaks is given up as soon
    config = Config(servers={server_id: server}, settings=settings)
    kinds = ("tasks", "processes", "descriptors", "threads") if peer_notices else ("processes", "threads")
    async with no_leaks(kinds=kinds):
        with anyio.fail_after(LONGEST):
            result = await Loader(config, memory=memory or ServerCache()).load()
    (outcome,) = result.outcomes
    words_fit(outcome, result)
    return outcome


def words_fit(outcome: MCPServerLoadOutcome, result: LoadResult) -> None:
    """The words of MSG-1 … MSG-3, for people and for models, say what the status says and nothing else."""
    user, model, name = outcome.message, result.model_message, outcome.server_id
    reason = (outcome.error or "").rstrip(".")
    match outcome.status:
        case "available":
            assert (user, model, outcome.error) == ("", "", None)
        case "transient":
            assert user == f"MCP server '{name}' is not ready yet: {outcome.error}."
            assert user.endswith("; it is tried again at the next load.")
            assert model == f"**MCP servers still starting up (will retry; tools may appear shortly):** {name}"
        case "permanent":
            assert user == f"MCP server '{name}' is unavailable: {reason}. Tools from this server will not work."
            start = "**MCP servers that failed to load (tools unavailable — needs attention):** "
            assert model == f"{start}{name}: {outcome.error}"
        case "denied":
            assert user.startswith(f"MCP server '{name}' denied access: {reason}. It ")
            assert f"{name}: {outcome.error} (" in model
            assert "is not retried" in user
            assert "is not retried" in model
    assert ("Tools from this server will not work" in user) == (outcome.status == "permanent")
    assert ("starting up" in model) == (outcome.status == "transient")
    assert "starting up" not in user
