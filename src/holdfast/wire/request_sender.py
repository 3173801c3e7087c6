"""Sends one request in the form that both sides agreed on, and reads its result.

A legacy session says once who the client is. A modern request says it itself, in ``_meta`` and in headers; arguments
that a tool wants as headers too are mirrored; a hub on the other side gets what only hubs tell each other. A result is
cleaned and checked (``results``), and passes on as the bytes that it came in.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import mcp_types as types
from mcp import ClientSession, MCPError
from mcp.shared.inbound import (
    MCP_METHOD_HEADER,
    MCP_NAME_HEADER,
    MCP_PROTOCOL_VERSION_HEADER,
    NAME_BEARING_METHODS,
    encode_header_value,
    mcp_param_headers,
)
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    HEADER_MISMATCH,
    PROTOCOL_VERSION_META_KEY,
)
from pydantic import ValidationError

from holdfast._version import __version__
from holdfast.config import Limits
from holdfast.core import NotMcp, NotMcpFault, RpcError
from holdfast.errors import ServerFailure
from holdfast.turns import Turns
from holdfast.wire.dispatcher import ServerDispatcher
from holdfast.wire.hub_peer import HubPeer
from holdfast.wire.in_flight import Caller, Era, RequestInFlight
from holdfast.wire.listing import HeaderMap, list_tools
from holdfast.wire.raw_json import (
    BadJson,
    Fields,
    RawObject,
    dumps,
    fields,
    is_object,
    join_fields,
    loads,
    read_object,
    text_of,
)
from holdfast.wire.results import check_result, clean_data, clean_result
from holdfast.wire.rpc import first_error
from holdfast.wire.tasks import TASK_METHODS, without_task_capabilities
from holdfast.wire.tracing import trace_headers

__all__ = ["RequestSender", "routing_headers", "stamp"]

_INFO: Final = types.Implementation(name="holdfast", version=__version__).model_dump(
    by_alias=True, mode="json", exclude_none=True
)


def stamp(version: str, caller: Caller | None) -> bytes:
    """What ``_meta`` of a modern request says of the client that it is made for."""
    can: Mapping[str, Any] = caller.capabilities if caller is not None else {}
    legacy = caller is not None and caller.era == "legacy"
    declared = without_task_capabilities(can) if legacy else can  # such a client cannot follow a modern task
    return dumps(
        {
            PROTOCOL_VERSION_META_KEY: version,
            CLIENT_INFO_META_KEY: _INFO,
            CLIENT_CAPABILITIES_META_KEY: dict(declared),
        }
    )


def routing_headers(version: str, method: str, name: str | None) -> dict[str, str]:
    """The headers that say what a modern request is."""
    named = {MCP_NAME_HEADER: encode_header_value(name)} if name is not None else {}
    return {MCP_PROTOCOL_VERSION_HEADER: version, MCP_METHOD_HEADER: method, **named}


class RequestSender:
    """Sends the requests of one connection, and is what a listing reads its pages by."""

    def __init__(self, session: ClientSession, wire: ServerDispatcher, era: Era, hub: HubPeer | None) -> None:
        self._wire = wire
        self._hub = hub
        self.modern = era == "modern"
        self.version = session.protocol_version or ""
        self.offers = session.server_capabilities or types.ServerCapabilities()
        """What the server says that it has."""
        self.runs_tasks = not self.modern and _runs_tasks(self.offers)
        """Whether the server runs tool calls as tasks, in the form of the legacy era."""
        self._mirrored: Mapping[str, HeaderMap] = {}

    @property
    def received(self) -> int:
        """How many bytes the server has sent so far."""
        return self._wire.received

    def mirrored(self, headers: Mapping[str, HeaderMap]) -> None:
        """Send arguments of tools as headers too: by tool, the header of each argument."""
        self._mirrored = headers

    async def list_page(self, method: str, cursor: str | None) -> RawObject:
        """One page of a list, as the bytes that it came in."""
        params: Fields = {"cursor": dumps(cursor)} if cursor is not None else {}
        params, headers = self._addressed(method, params, None)
        return await read_object(await self._wire.call(method, params, headers=headers))

    async def request(self, method: str, params: Fields, request: RequestInFlight, limits: Limits) -> RawObject:
        """Send a request. Raises ``ServerFailure`` for an error answer, and for a result that is of no use.

        A server may refuse a request before it acts, because it wants arguments as headers too. A listing tells which
        ones, and the request is sent once more.
        """
        try:
            sent, headers = self._addressed(method, params, request.caller)
            try:
                raw = await self._wire.call(method, sent, headers=headers, on_progress=request.progress)
            except MCPError as exc:
                if exc.code != HEADER_MISMATCH:
                    raise
                await list_tools(self, limits)
                sent, headers = self._addressed(method, params, request.caller)
                raw = await self._wire.call(method, sent, headers=headers, on_progress=request.progress)
        except MCPError as exc:
            data = exc.error.data
            told = self._hub.failure_of(data, exc.message) if self._hub is not None else None
            error = RpcError(method=method, code=exc.code, message=exc.message, data=clean_data(data))
            raise ServerFailure(told or error) from exc
        try:
            result = await read_object(raw)
            if self._hub is not None and (told := self._hub.failure_in(result)) is not None:
                raise ServerFailure(told)
            if result.is_large:
                await Turns().give()  # each pass over a large result takes milliseconds
            result = clean_result(result)
            check_result(method, result, self.version)
        except BadJson as exc:
            raise ServerFailure(NotMcp(fault=NotMcpFault.BAD_RESULT, detail=str(exc))) from exc
        except ValidationError as exc:
            raise ServerFailure(NotMcp(fault=NotMcpFault.BAD_RESULT, detail=first_error(exc))) from exc
        return result

    def _addressed(self, method: str, params: Fields, caller: Caller | None) -> tuple[Fields, dict[str, str]]:
        """The parameters and the headers of a request."""
        headers = trace_headers(params) if "_meta" in params else {}
        if self._hub is not None:
            headers |= self._hub.headers(caller)
        if not self.modern:
            return params, headers
        said = stamp(self.version, caller)
        raw = params.get("_meta")
        meta = said if raw is None else join_fields({**fields(raw), **fields(said)})
        named = "taskId" if method in TASK_METHODS else NAME_BEARING_METHODS.get(method)
        name = text_of(params.get(named)) if named is not None else None
        if method == "tools/call" and name is not None and (wanted := self._mirrored.get(name)):
            headers |= mcp_param_headers(wanted, _read_arguments(params, wanted))
        return {**params, "_meta": meta}, {**headers, **routing_headers(self.version, method, name)}

    def __repr__(self) -> str:
        return f"<RequestSender {self.version or 'no version'}{' to a hub' if self._hub is not None else ''}>"


def _read_arguments(params: Fields, wanted: HeaderMap) -> dict[str, Any]:
    """The arguments that go into headers too; no other is read."""
    given = params.get("arguments")
    arguments = fields(given) if given is not None and is_object(given) else {}
    read = {path[0] for path in wanted}
    return {key: loads(value) for key, value in arguments.items() if key in read}


def _runs_tasks(can: types.ServerCapabilities) -> bool:
    requests = can.tasks.requests if can.tasks is not None else None
    return requests is not None and requests.tools is not None and requests.tools.call is not None
