"""The form of the requests to one server, and of their results: what the hub adds to both, and what it takes out.

A legacy session says once who the client is. A modern request says it itself, in ``_meta`` and in headers; arguments
that a tool wants as headers too are mirrored. ``RequestForm`` puts together what one connection needs; what it may need
follows.

**Trace context.** The protocol carries it in ``_meta``; proxies and web frameworks read only headers. So it is copied.
A value that does not have the W3C form is not: a caller cannot create headers.

**Who calls** (SEC-20), for a server that is told: a name in a header, or an assertion that the hub signs. A connection
is shared by principals, so nothing of it says who calls: the header is made for each request, from the caller of that
request alone. A request that the hub makes by itself, such as a list, has none. The caller's own token is never sent,
and no header of a client is passed on, so a client cannot write these headers.

**A hub on the other side** announces itself in the experimental capabilities of its handshake. From then on

- every request says which hubs it has passed (``Holdfast-Via``). A hub sends no request on to another hub that it has
  sent before: a loop of hubs ends where it would begin again;
- a request that is made for a client names that client by a key (``Holdfast-Client``), so that the inner hub keeps its
  clients apart as this one does (HUB-10). The key is a digest: it recognises a client and tells nothing about it;
- a *proven* hub, by the fleet's TLS or on a Unix socket of this user, is also told the principal
  (``Holdfast-Principal``). No other peer is: strangers learn nothing about the users of this hub;
- an answer in which the inner hub itself says why it could not serve a request is marked. It becomes evidence here and
  is never passed on as a result: to a breaker it is neither a success nor a failure (BRK-3).

The marks (``holdfast/…``) of a server that is no hub are taken out unread, as ever (SEC-21).

**Results.** A client that reads a key ``holdfast/…`` in ``_meta`` believes that the hub says it (SEC-21). So such keys
are taken out where a message comes in: in results, in the blocks of their content, in requests and notifications, and
in the data of errors. Items of lists are read as values, see ``listing``. What has no such key passes as the bytes that
it came in.

A tool's result is passed on unread, but for the form of its blocks: one that is malformed costs some clients their
whole session. What else the hub edits, for a client's era and for the links of an endpoint, is in
``endpoint/message.py``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast, get_args
from urllib.parse import quote, urlsplit

import mcp_types as types
from mcp import MCPError
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
    LOG_LEVEL_META_KEY,
    PROTOCOL_VERSION_META_KEY,
)
from mcp_types.methods import validate_server_result
from mcp_types.version import LATEST_HANDSHAKE_VERSION
from pydantic import ValidationError

from holdfast._version import __version__
from holdfast.config import IDENTITY_HEADERS, ServerSpec
from holdfast.core import (
    LOOP_HINT,
    LOOP_REASON,
    MOST_HUBS,
    FailureStatus,
    NotMcp,
    NotMcpFault,
    RpcError,
    State,
    ToldByHub,
    is_own_key,
    plain,
    quoted,
    quoted_name,
    told_number,
    without_own_keys,
)
from holdfast.errors import ServerFailure
from holdfast.wire.raw_json import (
    BadJson,
    Bytes,
    Fields,
    LoadedObject,
    RawObject,
    dumps,
    fields,
    is_array,
    is_object,
    items,
    join_fields,
    join_items,
    load_object,
    loads,
    may_begin,
    objects,
    text_of,
)

if TYPE_CHECKING:
    from holdfast.wire.dispatcher import ServerDispatcher
    from holdfast.wire.in_flight import Caller, Era
    from holdfast.wire.listing import HeaderMap

__all__ = [
    "CLIENT_HEADER",
    "CLIENT_INFO",
    "ERA_HEADER",
    "FAILURE_KEY",
    "PRINCIPAL_HEADER",
    "TASKS_EXTENSION",
    "TASK_METHODS",
    "VIA_HEADER",
    "CallerIdentity",
    "Greeting",
    "HubPeer",
    "RequestForm",
    "SignAssertion",
    "first_error",
    "load_params",
    "principal_in",
    "routing_headers",
    "stamp",
    "traced",
    "via_in",
    "without_task_capabilities",
]

_PARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(?:-[\x21-\x7e]{0,256})?")
_PRINTABLE = re.compile(r"[\x20-\x7e]{1,8192}")
_KEYS = {"traceparent": _PARENT, "tracestate": _PRINTABLE, "baggage": _PRINTABLE}


def trace_headers(params: Fields) -> dict[str, str]:
    """The headers for a request whose parameters are passed on as they came."""
    raw = params.get("_meta")
    if raw is None or b"traceparent" not in bytes(raw):
        return {}
    try:
        return _well_formed({key: text_of(value) for key, value in fields(raw).items() if key in _KEYS})
    except BadJson:
        return {}


def _well_formed(carrier: Mapping[str, Any]) -> dict[str, str]:
    """The valid values; nothing without a valid ``traceparent``."""
    found = {
        key: value
        for key, form in _KEYS.items()
        if isinstance(value := carrier.get(key), str) and form.fullmatch(value)
    }
    return found if "traceparent" in found else {}


def traced(meta: Fields, headers: Mapping[str, str]) -> Fields:
    """The members of ``_meta`` of a request that came with these headers; its own trace context takes precedence."""
    if "traceparent" not in headers or "traceparent" in meta:
        return meta
    return {**{key: dumps(value) for key, value in _well_formed(headers).items()}, **meta}


SignAssertion: TypeAlias = Callable[[str, str], str]
"""A signed assertion about a principal, by its name, for an audience."""

_PLAIN: Final = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) != "%")
"""What stands in a header as it is: other characters are coded as in an address."""


@dataclass(frozen=True, slots=True)
class CallerIdentity:
    """What one server is told about callers. ``sign`` of None writes the name as it is."""

    audience: str
    sign: SignAssertion | None

    @classmethod
    def of(cls, spec: ServerSpec, sign: SignAssertion | None) -> CallerIdentity | None:
        """What a server with this definition is told; None for nothing."""
        if spec.identity == "none":
            return None
        return cls(_audience(spec.url), sign if spec.identity == "signed" else None)

    def headers(self, caller: Caller | None) -> dict[str, str]:
        """The headers of a request for a caller."""
        if caller is None or not caller.principal:
            return {}
        if self.sign is None:
            return {IDENTITY_HEADERS["header"].lower(): quote(caller.principal, safe=_PLAIN)}
        return {IDENTITY_HEADERS["signed"].lower(): self.sign(caller.principal, self.audience)}


def _audience(url: str) -> str:
    """The address of a server without what may be secret in it: user info and query."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


VIA_HEADER: Final = "Holdfast-Via"
CLIENT_HEADER: Final = "Holdfast-Client"
PRINCIPAL_HEADER: Final = "Holdfast-Principal"
ERA_HEADER: Final = "Holdfast-Era"

FAILURE_KEY: Final = "holdfast/failure"
"""In the ``_meta`` of a result, or in the data of an error, that a hub itself made instead of its server."""

FAILURE_BYTES: Final = 64 * 1024
"""A larger result is none that a hub made."""

LONGEST_WORDS: Final = 4_000
LONGEST_PRINCIPAL: Final = 4_000

_LOOP: Final = ToldByHub(
    status="permanent",
    reason=LOOP_REASON,
    hint=LOOP_HINT,
    words=f"the request was not sent on: {LOOP_REASON}. {LOOP_HINT.capitalize()}.",
)

_UNAVAILABLE: Final = frozenset(
    {
        "BreakerOpen",
        "HubClosed",
        "ServerBusy",
        "ServerDenied",
        "ServerDisabled",
        "ServerNotReady",
        "ServerPermanentlyFailed",
    }
)
"""The errors of a call that was not sent, by their names in ``holdfast.errors``."""


@dataclass(frozen=True, slots=True)
class HubPeer:
    """A hub on the other side of a connection."""

    proven: bool
    """Whether its texts are those of this program: proven by the fleet's key, or by the kernel."""
    own_id: str
    """The id of this hub, which its requests carry."""
    warns: bool = False
    """Whether its instructions are a warning of its own, and not those of the server behind it."""

    def headers(self, caller: Caller | None) -> dict[str, str]:
        """What a request says to it, beside MCP."""
        if caller is None:
            return {VIA_HEADER.lower(): self.own_id}
        if self.own_id in caller.via or len(caller.via) >= MOST_HUBS:
            raise ServerFailure(_LOOP)
        headers = {VIA_HEADER.lower(): ",".join((*caller.via, self.own_id))}
        if self.proven and caller.era == "legacy":
            # That hub is spoken to in the modern era alone. Its server may need the era of this client (HUB-18).
            headers[ERA_HEADER.lower()] = caller.era
        return headers | self.about(caller.client_key, caller.principal)

    def about(self, client_key: str | None, principal: str) -> dict[str, str]:
        """The headers that name a client to it."""
        headers = {CLIENT_HEADER.lower(): client_key} if client_key is not None else {}
        if self.proven and principal:
            headers[PRINCIPAL_HEADER.lower()] = json.dumps(principal)
        return headers

    def failure_in(self, result: RawObject) -> ToldByHub | None:
        """What it says about a request that it could not serve; None for a result of the server."""
        meta = result.get("_meta")
        if meta is None or not is_object(meta) or result.size > FAILURE_BYTES:
            return None
        try:
            mark = fields(meta).get(FAILURE_KEY)
            return self._told(loads(mark), _text_in(result)) if mark is not None else None
        except BadJson:
            return None

    def failure_of(self, data: object, message: str) -> ToldByHub | None:
        """What it says in a JSON-RPC error about a request that it could not serve; None for an error of the server."""
        return self._told(data.get(FAILURE_KEY), message) if isinstance(data, Mapping) else None

    def _told(self, mark: object, words: str) -> ToldByHub | None:
        if not isinstance(mark, Mapping):
            return None
        status, error, state = (str(mark.get(key)) for key in ("class", "error", "state"))
        refused = error if error in _UNAVAILABLE and state in _STATES else ""
        return ToldByHub(
            status=cast("FailureStatus", status if status in get_args(FailureStatus) else "transient"),
            reason=self._text(mark.get("reason")),
            hint=self._text(mark.get("hint")) if self.proven else "",
            words=self._text(words),
            refused=refused,
            state=_STATES[state] if refused else "",
            retry_in=told_number(mark.get("retryIn")),
            closed=error == "ConnectionClosed",
            sent=mark.get("sent") is not False and not refused,
        )

    def _text(self, value: object) -> str:
        """Its own text in one line; that of a peer which is not proven is quoted (MSG-11)."""
        if not isinstance(value, str):
            return ""
        if not self.proven:
            return quoted(value, origin="it says")
        return " ".join(plain(value[: 2 * LONGEST_WORDS]).split())[:LONGEST_WORDS]


_STATES: Final = {state.shown: state.value for state in State}


def _text_in(result: RawObject) -> str:
    """The text of a result that a hub made: one block."""
    content = result.get("content")
    blocks = loads(content) if content is not None else []
    first = blocks[0] if isinstance(blocks, list) and blocks else None
    return str(first.get("text", "")) if isinstance(first, Mapping) else ""


def via_in(headers: Mapping[str, str]) -> tuple[str, ...]:
    """The hubs that a request has passed, the first one first."""
    said = headers.get(VIA_HEADER.lower(), "")
    return tuple(one.strip() for one in said.split(",") if one.strip()) if said else ()


def principal_in(headers: Mapping[str, str]) -> str:
    """The principal that a proven hub names; empty if it names none. Only a listener for such hubs may ask."""
    said = headers.get(PRINCIPAL_HEADER.lower(), "")
    if not said or len(said) > LONGEST_PRINCIPAL:
        return ""
    try:
        name = json.loads(said)
    except ValueError:
        return ""
    return name if isinstance(name, str) else ""


# Results: the hub's own keys are taken out, and what no client can read is refused.

CHECKED_BYTES = 256 * 1024
"""Up to this size results are checked against the protocol. Another pass over a large one costs more than it gives."""

_IN_PLACE_OF_CONTENT = ("resultType", "structuredContent", "task")

_BLOCKS: Mapping[str, frozenset[str]] = {
    "text": frozenset({"text"}),
    "image": frozenset({"data", "mimeType"}),
    "audio": frozenset({"data", "mimeType"}),
    "resource": frozenset({"resource"}),
    "resource_link": frozenset({"uri", "name"}),
}
"""The blocks of a tool's result, and what each must have."""

_WRITTEN_BLOCKS: Mapping[bytes, frozenset[str]] = {dumps(kind): wanted for kind, wanted in _BLOCKS.items()}

_CONTAINERS: Final = ("content", "contents", "messages", "resource", "inputRequests", "params", "result", "task")
"""The members in which the protocol has further objects with a ``_meta``. What is in others is the server's data."""

_META: Final = b"_meta"

_DEEPEST: Final = 7
"""A result may have questions, with parameters, with messages, with results of tools, with blocks, with resources."""

MOST_PARTS: Final = 5_000
"""In how many objects and members of a result the hub's keys are looked for: each takes a few microseconds."""


class _PartCount:
    """Counts what is looked at in one result."""

    def __init__(self) -> None:
        self._left = MOST_PARTS

    def take(self, number: int) -> None:
        self._left -= number
        if self._left < 0:
            raise BadJson(f"it has a `_meta`, and more than {MOST_PARTS} parts that may have one")

    def __repr__(self) -> str:
        return f"<_PartCount {self._left} left>"


def clean_result(result: RawObject) -> RawObject:
    """A result without the hub's keys; the same object if it has none. Raises ``BadJson`` for too many parts."""
    if result.source is not None and not may_begin(result.source, _META):
        return result  # almost every one
    return _cleaned(result, _DEEPEST, _PartCount()) or result


def load_params(data: Bytes) -> dict[str, Any] | None:
    """The parameters of a server's message, as ``load_object`` gives them, without the hub's keys."""
    found = load_object(data)
    if not isinstance(found, LoadedObject):
        return dict(without_own_keys(found)) if found is not None else None
    cleaned = _cleaned(RawObject.read(data), 0, _PartCount())
    return load_object(cleaned.written()) if cleaned is not None else found


def clean_data(data: object) -> object:
    """The data of an error without the hub's keys."""
    return without_own_keys(data) if isinstance(data, dict) else data


def _cleaned(
    one: RawObject, deeper: int, parts: _PartCount, containers: Collection[str] = _CONTAINERS
) -> RawObject | None:
    """The object without the hub's keys; None if it has none."""
    changes: dict[str, Bytes | None] = {}
    meta = one.get("_meta")
    if meta is not None and is_object(meta):
        changes |= _changes_of(meta, parts)
    for key in containers if deeper else ():
        raw = one.get(key)
        if raw is not None and may_begin(raw, _META) and (new := _container(key, raw, deeper - 1, parts)) is not None:
            changes[key] = new
    return one.changed(changes) if changes else None


def _changes_of(meta: Bytes, parts: _PartCount) -> dict[str, Bytes | None]:
    try:
        members = fields(meta)
    except BadJson:  # too large to be read: then it cannot be known what it says
        return {"_meta": None}
    parts.take(len(members))
    if not any(map(is_own_key, members)):
        return {}
    kept = {key: value for key, value in members.items() if not is_own_key(key)}
    return {"_meta": join_fields(kept) if kept else None}


def _container(key: str, raw: Bytes, deeper: int, parts: _PartCount) -> bytes | None:
    """An object, a list of objects, or the questions by their names; None if nothing changes."""
    if not is_array(raw):
        # A question may have any name, and a ``_meta`` beside the questions is none.
        inside = fields(raw).keys() - {"_meta"} if key == "inputRequests" and is_object(raw) else _CONTAINERS
        parts.take(len(inside))
        return _object(raw, deeper, parts, inside)
    listed = items(raw)
    parts.take(len(listed))
    new = [_object(one, deeper, parts) for one in listed]
    if not any(one is not None for one in new):
        return None
    return join_items([cleaned or old for cleaned, old in zip(new, listed, strict=True)])


def _object(raw: Bytes, deeper: int, parts: _PartCount, containers: Collection[str] = _CONTAINERS) -> bytes | None:
    cleaned = _cleaned(RawObject.read(raw), deeper, parts, containers) if is_object(raw) else None
    return cleaned.written() if cleaned is not None else None


def check_result(method: str, result: RawObject, version: str) -> None:
    """Raise ``BadJson`` or ``ValidationError`` for a result that no client can read; a large one passes unread."""
    if method == "tools/call":
        content = result.get("content")
        if content is None and not any(key in result.members for key in _IN_PLACE_OF_CONTENT):
            raise BadJson("content: it is missing")
        if content is None or (len(content) > CHECKED_BYTES and is_array(content)):
            return
        try:
            blocks = objects(content)
        except BadJson as exc:
            raise BadJson(f"content: {exc}") from None
        # One malformed block costs some clients their whole session.
        for place, block in enumerate(blocks):
            kind = block.get("type")
            # Almost every server writes a name of the protocol without escapes.
            wanted = _WRITTEN_BLOCKS.get(bytes(kind)) if kind is not None else None
            if wanted is None:
                wanted = _BLOCKS.get(text_of(kind) or "")
            if wanted is None or not wanted <= block.keys():
                raise BadJson(f"content.{place}: it is no block that the protocol knows")
    elif result.size <= CHECKED_BYTES:
        with suppress(KeyError):  # a method that the protocol does not know
            validate_server_result(method, version or LATEST_HANDSHAKE_VERSION, result.value())


def first_error(exc: ValidationError) -> str:
    """The place and kind of the first violation of the protocol, without the content."""
    first = exc.errors(include_url=False, include_input=False)[0]
    return f"{quoted_name('.'.join(str(step)[:40] for step in first['loc'][:12]))}: {first['msg']}"


# What one connection needs of all this.

TASKS_EXTENSION = "io.modelcontextprotocol/tasks"
TASK_METHODS = frozenset({"tasks/get", "tasks/result", "tasks/cancel", "tasks/update"})
"""The requests about one task; ``taskId`` names it."""


@dataclass(frozen=True)
class Greeting:
    """What a handshake agreed on, and what the server said of itself in it."""

    era: Era
    version: str
    offers: types.ServerCapabilities
    instructions: str

    @property
    def declared(self) -> Mapping[str, Any]:
        """The capabilities that the server declared, as they are written."""
        return self.offers.model_dump(by_alias=True, mode="json", exclude_none=True)


def without_task_capabilities(capabilities: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a client declares, without tasks of either era."""
    extensions = capabilities.get("extensions")
    known = extensions if isinstance(extensions, Mapping) else {}
    if "tasks" not in capabilities and TASKS_EXTENSION not in known:
        return capabilities
    rest = {key: value for key, value in capabilities.items() if key not in ("tasks", "extensions")}
    others = {key: value for key, value in known.items() if key != TASKS_EXTENSION}
    return {**rest, "extensions": others} if others else rest


CLIENT_INFO: Final = types.Implementation(name="holdfast", version=__version__).model_dump(
    by_alias=True, mode="json", exclude_none=True
)


def stamp(version: str, caller: Caller | None) -> bytes:
    """What ``_meta`` of a modern request says of the client that it is made for."""
    can: Mapping[str, Any] = caller.capabilities if caller is not None else {}
    legacy = caller is not None and caller.era == "legacy"
    declared = without_task_capabilities(can) if legacy else can  # such a client cannot follow a modern task
    said: dict[str, Any] = {
        PROTOCOL_VERSION_META_KEY: version,
        CLIENT_INFO_META_KEY: CLIENT_INFO,
        CLIENT_CAPABILITIES_META_KEY: dict(declared),
    }
    if caller is not None and caller.log_level is not None:
        said[LOG_LEVEL_META_KEY] = caller.log_level
    return dumps(said)


def routing_headers(version: str, method: str, name: str | None) -> dict[str, str]:
    """The headers that say what a modern request is."""
    named = {MCP_NAME_HEADER: encode_header_value(name)} if name is not None else {}
    return {MCP_PROTOCOL_VERSION_HEADER: version, MCP_METHOD_HEADER: method, **named}


class RequestForm:
    """The form of the requests of one connection and of their results; what a listing reads its pages by."""

    def __init__(
        self, greeting: Greeting, wire: ServerDispatcher, hub: HubPeer | None, identity: CallerIdentity | None
    ) -> None:
        self.wire = wire
        self._hub = hub
        self._identity = identity
        self.modern = greeting.era == "modern"
        self.version = greeting.version
        self.offers = greeting.offers
        """What the server says that it has."""
        self.runs_tasks = not self.modern and _runs_tasks(self.offers)
        """Whether the server runs tool calls as tasks, in the form of the legacy era."""
        self._mirrored: Mapping[str, HeaderMap] = {}

    def mirrored(self, headers: Mapping[str, HeaderMap]) -> None:
        """Send arguments of tools as headers too: by tool, the header of each argument."""
        self._mirrored = headers

    async def list_page(self, method: str, cursor: str | None) -> RawObject:
        """One page of a list, as the bytes that it came in."""
        params: Fields = {"cursor": dumps(cursor)} if cursor is not None else {}
        params, headers = self.addressed(method, params, None)
        return await self.wire.ask(method, params, headers=headers)

    def checked(self, method: str, result: RawObject) -> RawObject:
        """A result without the hub's own keys. Raises ``ServerFailure`` if it is of no use, or says that of itself."""
        try:
            if self._hub is not None and (told := self._hub.failure_in(result)) is not None:
                raise ServerFailure(told)
            result = clean_result(result)
            check_result(method, result, self.version)
        except BadJson as exc:
            raise ServerFailure(NotMcp(fault=NotMcpFault.BAD_RESULT, detail=str(exc))) from exc
        except ValidationError as exc:
            raise ServerFailure(NotMcp(fault=NotMcpFault.BAD_RESULT, detail=first_error(exc))) from exc
        return result

    def failure(self, method: str, exc: MCPError) -> ServerFailure:
        """What an error answer says."""
        data = exc.error.data
        told = self._hub.failure_of(data, exc.message) if self._hub is not None else None
        return ServerFailure(told or RpcError(method=method, code=exc.code, message=exc.message, data=clean_data(data)))

    def addressed(self, method: str, params: Fields, caller: Caller | None) -> tuple[Fields, dict[str, str]]:
        """The parameters and the headers of a request."""
        headers = trace_headers(params) if "_meta" in params else {}
        if self._hub is not None:
            headers |= self._hub.headers(caller)
        if self._identity is not None:
            headers |= self._identity.headers(caller)
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
        return f"<RequestForm {self.version or 'no version'}{' to a hub' if self._hub is not None else ''}>"


def _read_arguments(params: Fields, wanted: HeaderMap) -> dict[str, Any]:
    """The arguments that go into headers too; no other is read."""
    given = params.get("arguments")
    arguments = fields(given) if given is not None and is_object(given) else {}
    read = {path[0] for path in wanted}
    return {key: loads(value) for key, value in arguments.items() if key in read}


def _runs_tasks(can: types.ServerCapabilities) -> bool:
    requests = can.tasks.requests if can.tasks is not None else None
    return requests is not None and requests.tools is not None and requests.tools.call is not None
