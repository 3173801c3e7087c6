"""Sends one request in the form that both sides agreed on, and reads its result.

A legacy session says once who the client is. A modern request says it itself, in ``_meta`` and in headers; arguments
that a tool wants as headers too are mirrored; a hub on the other side gets what only hubs tell each other. A result is
cleaned and checked (``results``), and passes on as the bytes that it came in.

Clients and tools are few beside their calls, so what was written for one is kept, as far as it is not large.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

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
from mcp_types import CLIENT_CAPABILITIES_META_KEY, CLIENT_INFO_META_KEY, PROTOCOL_VERSION_META_KEY
from pydantic import ValidationError

from holdfast._version import __version__
from holdfast.core import NotMcp, NotMcpFault, RpcError
from holdfast.errors import ServerFailure
from holdfast.turns import Turns
from holdfast.wire.dispatcher import ServerDispatcher
from holdfast.wire.hub_peer import HubPeer
from holdfast.wire.progress import CallProgress
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
from holdfast.wire.relay import Caller, Era
from holdfast.wire.results import check_result, clean_data, clean_result
from holdfast.wire.rpc import first_error
from holdfast.wire.tasks import TASK_METHODS, without_task_capabilities
from holdfast.wire.tracing import trace_headers

if TYPE_CHECKING:
    from holdfast.wire.listing import HeaderMap

__all__ = ["RequestSender", "RequestStamp"]

KNOWN: Final = 128
KNOWN_BYTES: Final = 1024
"""For how many clients of all connections, and for how many tools of one, it is kept, and how large one may be."""

_NOTHING: Final[Mapping[str, Any]] = {}

_METAS: Final[dict[tuple[str, int, bool], tuple[Mapping[str, Any], bytes]]] = {}
"""What ``_meta`` says: by version, by the object with a client's capabilities, and by whether it is a legacy client.

A client uses many servers, and may bring another object with each call: each connection would keep many of them.
"""


class RequestStamp:
    """What the requests of one connection say, in one version of the protocol."""

    def __init__(self, version: str) -> None:
        self.version = version
        self._headers: dict[tuple[str, str | None], dict[str, str]] = {}

    def meta(self, caller: Caller | None) -> bytes:
        """What ``_meta`` says of the client."""
        can = caller.capabilities if caller is not None else _NOTHING
        legacy = caller is not None and caller.era == "legacy"
        key = self.version, id(can), legacy
        known = _METAS.get(key)
        if known is not None and known[0] is can:
            return known[1]
        declared = without_task_capabilities(can) if legacy else can  # such a client cannot follow a modern task
        info = types.Implementation(name="holdfast", version=__version__)
        meta = dumps(
            {
                PROTOCOL_VERSION_META_KEY: self.version,
                CLIENT_INFO_META_KEY: info.model_dump(by_alias=True, mode="json", exclude_none=True),
                CLIENT_CAPABILITIES_META_KEY: dict(declared),
            }
        )
        if len(meta) <= KNOWN_BYTES:
            if len(_METAS) >= KNOWN:
                _METAS.clear()
            _METAS[key] = can, meta
        return meta

    def headers(self, method: str, name: str | None) -> dict[str, str]:
        """The headers that say what a request is. Nothing changes them."""
        known = self._headers.get((method, name))
        if known is not None:
            return known
        headers = {MCP_PROTOCOL_VERSION_HEADER: self.version, MCP_METHOD_HEADER: method}
        if name is not None:
            headers[MCP_NAME_HEADER] = encode_header_value(name)
        if len(self._headers) >= KNOWN:
            self._headers.clear()
        if name is None or len(name) <= KNOWN_BYTES:
            self._headers[method, name] = headers
        return headers


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
        self._stamp = RequestStamp(self.version)
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

    async def send(self, method: str, params: Fields, progress: CallProgress, caller: Caller | None) -> RawObject:
        """Send a request once. Raises ``MCPError`` for an error answer, ``ServerFailure`` for a result of no use."""
        params, headers = self._addressed(method, params, caller)
        raw = await self._wire.call(method, params, headers=headers, on_progress=progress)
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

    def failure_in(self, method: str, exc: MCPError) -> ServerFailure:
        """What an error answer shows: it is the server's own, or a hub says why it could not serve the request."""
        data = exc.error.data
        if self._hub is not None and (told := self._hub.failure_of(data, exc.message)) is not None:
            return ServerFailure(told)
        return ServerFailure(RpcError(method=method, code=exc.code, message=exc.message, data=clean_data(data)))

    def _addressed(self, method: str, params: Fields, caller: Caller | None) -> tuple[Fields, dict[str, str]]:
        """The parameters and the headers of a request."""
        headers = trace_headers(params)
        if self._hub is not None:
            headers |= self._hub.headers(caller)
        if not self.modern:
            return params, headers
        stamp = self._stamp.meta(caller)
        raw = params.get("_meta")
        meta = stamp if raw is None else join_fields({**fields(raw), **fields(stamp)})
        named = "taskId" if method in TASK_METHODS else NAME_BEARING_METHODS.get(method)
        name = text_of(params.get(named)) if named is not None else None
        if method == "tools/call" and name is not None and (wanted := self._mirrored.get(name)):
            headers |= mcp_param_headers(wanted, _read_arguments(params, wanted))
        return {**params, "_meta": meta}, {**headers, **self._stamp.headers(method, name)}

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
