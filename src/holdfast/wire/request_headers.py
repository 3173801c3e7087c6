"""What a request says beside MCP, in headers, and what of an answer is for this hub alone.

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
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, cast, get_args
from urllib.parse import quote, urlsplit

from holdfast.config import IDENTITY_HEADERS, ServerSpec
from holdfast.core import (
    LOOP_HINT,
    LOOP_REASON,
    MOST_HUBS,
    FailureStatus,
    State,
    ToldByHub,
    plain,
    quoted,
    told_number,
)
from holdfast.errors import ServerFailure
from holdfast.wire.in_flight import Caller
from holdfast.wire.raw_json import BadJson, Fields, RawObject, dumps, fields, is_object, loads, text_of

__all__ = [
    "CLIENT_HEADER",
    "FAILURE_KEY",
    "PRINCIPAL_HEADER",
    "VIA_HEADER",
    "CallerIdentity",
    "HubPeer",
    "SignAssertion",
    "principal_in",
    "trace_headers",
    "traced",
    "via_in",
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
