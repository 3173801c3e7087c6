"""The servers of a running hub, as a client of the hub uses them: `tools`, `call` and `find` ask it so.

The MCP endpoint of each server (HUB-8) has the names untouched, so the commands say the same with and without a hub.
Access, approvals, breaker and audit hold as for every client. What a server's endpoint cannot tell (its state, and why
it has no tools) comes from the control API. Nothing here dials a server.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from holdfast.config import Config, config_from_mapping
from holdfast.core import classify_evidence
from holdfast.errors import CallFailed, HoldfastError, UnknownServer, UnknownTool
from holdfast.types import CallResult, LoadResult, MCPServerLoadOutcome, ProgressFn

if TYPE_CHECKING:
    from holdfast.control import RunningHub, Server
    from holdfast.hub import Loader

__all__ = ["call_at_hub", "find_at_hub", "load_from_hub", "speaks_mcp"]

HUB = "hub"

LONGEST_CALL = "24h"
"""The hub has limits for calls. This side waits for its answer."""

_STATE = {"state": "", "reason": None, "retryIn": None}
"""What the hub leaves out of a hit that can be called."""

MOST_FOUND = 20
"""How many tools the hub finds at most."""


def speaks_mcp(hub: RunningHub) -> bool:
    """Whether this command can be a client of the hub: it has no certificate to show to one that wants it."""
    return not hub.wants_certificate


async def load_from_hub(hub: RunningHub, names: Sequence[str]) -> LoadResult:
    """The tools of the hub's servers, or of the named ones, and why a server has none."""
    known = await _servers(hub)
    wanted = _configured(names, known) or [name for name, server in known.items() if server.status != "disabled"]
    listed = await _loader(hub, wanted).load()
    return LoadResult(_outcome(known[one.server_id], one) for one in listed.outcomes)


def _outcome(server: Server, listed: MCPServerLoadOutcome) -> MCPServerLoadOutcome:
    """What the hub knows of a server, as a load tells it."""
    if listed.status == "denied":  # the endpoint of a hub lists also for a server that denies access
        raise _refused()
    if server.status in ("available", "idle") or listed.status != "available":
        return listed
    status = server.status if server.status in ("transient", "permanent", "denied") else "permanent"
    return MCPServerLoadOutcome(
        server_id=server.id,
        status=status,
        error=server.reason or server.summary,
        hint=_hint(server),
        attempts=max(server.attempts, 1),
        elapsed_s=listed.elapsed_s,
    )


async def call_at_hub(
    hub: RunningHub,
    server: str,
    tool: str,
    args: Callable[[Mapping[str, Any]], Mapping[str, Any]],
    *,
    on_progress: ProgressFn | None = None,
) -> CallResult:
    """Call a tool of one of the hub's servers; a call that the hub did not make raises its reason."""
    known = await _servers(hub)
    (name,) = _configured([server], known)
    try:
        result = await _loader(hub, [name]).call(name, tool, args, on_progress=on_progress)
    except CallFailed as exc:
        if classify_evidence(exc.evidence).status == "denied":
            raise _refused() from None
        raise
    except UnknownTool:
        if known[name].status in ("available", "idle"):
            raise
        raise HoldfastError(
            f"the call to `{name}` failed: {known[name].reason or known[name].summary}", hint=_hint(known[name])
        ) from None
    from holdfast.wire import FAILURE_KEY  # noqa: PLC0415 - slow to import; a wrong name must not wait for it

    mark = result.meta.get(FAILURE_KEY)
    if not isinstance(mark, Mapping):
        return result
    raise HoldfastError(
        f"the call to `{name}` failed: {mark.get('reason') or result.text}",
        hint=str(mark.get("hint") or _hint(known[name])),
    )


async def find_at_hub(hub: RunningHub, query: str, *, server: str | None, limit: int) -> list[dict[str, Any]]:
    """What the hub's own search finds, as it tells it."""
    known = await _servers(hub)
    if server is not None:
        _configured([server], known)
    only = {"server": server} if server is not None else {}
    arguments = {"query": query, "limit": min(limit, MOST_FOUND), **only}
    address = f"{hub.url}/mcp?tools=find"
    try:
        result = await _client(hub, {HUB: address}).call(HUB, "find_tools", arguments)
    except CallFailed as exc:
        if classify_evidence(exc.evidence).status == "denied":
            raise _refused() from None
        raise
    if result.is_error:
        raise HoldfastError(f"the hub could not search: {result.text}")
    found = (result.structured or {}).get("tools", [])
    return [
        {**_STATE, **({"state": known[one["server"]].state} if one["server"] in known else {}), **one} for one in found
    ]


async def _servers(hub: RunningHub) -> dict[str, Server]:
    from holdfast.control import ControlClient  # noqa: PLC0415 - slow to import; wrong usage must not wait for it

    async with ControlClient(hub) as control:
        return {server.id: server for server in (await control.servers()).servers}


def _configured(names: Sequence[str], known: Mapping[str, Server]) -> list[str]:
    """The names without repeats; an error if the hub does not have one, in the words of a load."""
    if missing := [name for name in names if name not in known]:
        listed = ", ".join(sorted(known)) or "none at all"
        raise UnknownServer(f"no server named `{missing[0]}` is configured", hint=f"configured: {listed}")
    return list(dict.fromkeys(names))


def _refused() -> HoldfastError:
    """The hub does not take this command as a caller."""
    from holdfast.serve import TOKEN_VARIABLE  # noqa: PLC0415 - slow to import, as above

    return HoldfastError(
        "the hub wants a token of its callers, and this command has none that it knows",
        hint=f"set {TOKEN_VARIABLE} to a token that the hub was started with",
    )


def _hint(server: Server) -> str:
    return " ".join(filter(None, (server.action, f"`{server.command}`" if server.command else "")))


def _loader(hub: RunningHub, names: Sequence[str]) -> Loader:
    return _client(hub, {name: f"{hub.url}/servers/{quote(name, safe='')}/mcp?tools=all" for name in names})


def _client(hub: RunningHub, addresses: Mapping[str, str]) -> Loader:
    from holdfast.control import trust_in  # noqa: PLC0415 - slow to import; a bad config must not wait for it
    from holdfast.hub import Loader  # noqa: PLC0415 - as above

    return Loader(_as_config(addresses), tls=trust_in(hub.certificate))


def _as_config(addresses: Mapping[str, str]) -> Config:
    token = _token()
    headers = {"headers": {"Authorization": f"Bearer {token}"}} if token else {"oauth": False}
    servers = {name: {"type": "http", "url": url, **headers} for name, url in addresses.items()}
    limits = {"call": {"timeout": LONGEST_CALL, "hardTimeout": LONGEST_CALL}}
    return config_from_mapping({"mcpServers": servers, "holdfast": limits})


def _token() -> str:
    """The token of callers, where this user's hub wants one."""
    from holdfast.serve import TOKEN_VARIABLE, local_token_file, read_token  # noqa: PLC0415 - slow to import, as above

    given = os.environ.get(TOKEN_VARIABLE, "")
    file = local_token_file(os.environ)
    return given or (read_token(file) if file.exists() else "")
