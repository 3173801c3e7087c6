"""An external decision point: before a call is made, a service says whether it is allowed (SEC-14).

The protocol is Envoy's ``ext_authz`` over gRPC (``envoy.service.auth.v3.Authorization/Check``), which gateways use too,
so one service can decide for both. It decides calls, and no listings. It is asked after the rules of the configuration,
or alone where there are none.

Theory of operation. One question is one ``CheckRequest`` and its one ``CheckResponse``. Both are protobuf; the few
fields that are used are written and read here by their numbers, so nothing generated is needed:

    CheckRequest.attributes (1)      source (1)       principal (4)    who calls
                                     destination (2)  service (2)      the server
                                     request (4)      http (2)         method (2), path (4), host (5), size (9)
                                     context_extensions (10)           what ``AuthzQuestion`` has, as texts
    CheckResponse                    status (1)       code (1), message (2)
                                     denied_response (2)               body (3)
                                     ok_response (3)

Three ends are possible: it is allowed, it is denied, or it could not be asked. The last one refuses the call too, with
words of its own; there is no setting that would let it pass. What must never happen:

- An answer that states no decision, or two, allows a call.
- An answer for one call decides another one. No answer is kept: a grant that is taken back ends with the next call.
- A question waits beyond its deadline.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote

from holdfast.access.principals import Principal
from holdfast.config import UNIX, ExtAuthzSettings
from holdfast.core import is_loopback, quoted_line
from holdfast.wire import GrpcChannel, GrpcFailed, GrpcTarget

__all__ = ["AuthzAnswer", "AuthzQuestion", "ExtAuthz", "NotAsked"]

METHOD: Final = "/envoy.service.auth.v3.Authorization/Check"

LONGEST_REASON: Final = 300


class AuthzQuestion(NamedTuple):
    """What the service is told of a call."""

    principal: Principal
    server: str
    method: str
    """``tools/call``, ``prompts/get`` or ``resources/read``."""
    name: str
    """The tool's or the prompt's original name, or the resource's URI."""
    argument_hash: str
    """SHA-256 of the arguments in a form that does not depend on how they are written; empty if there are none."""
    argument_bytes: int = 0


class AuthzAnswer(NamedTuple):
    """A decision."""

    allowed: bool
    reason: str = ""
    """What the service says about a denial."""


class NotAsked(Exception):
    """No decision could be had; ``reason`` says why in a few words."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class ExtAuthz:
    """Asks the service that the configuration names."""

    def __init__(self, settings: ExtAuthzSettings, source: Path | None = None) -> None:
        """``source`` is the file of the settings: paths in them start at its folder."""
        self._settings = settings
        self._channel = GrpcChannel(_target(settings, source.absolute().parent if source is not None else Path.cwd()))

    async def ask(self, facts: AuthzQuestion) -> AuthzAnswer:
        """The decision about one call; raises ``NotAsked``."""
        try:
            content = await self._channel.unary(METHOD, encode_request(facts), within=self._settings.timeout)
        except GrpcFailed as exc:
            raise NotAsked(exc.reason) from exc
        return decode_answer(content)

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def __repr__(self) -> str:
        return f"<ExtAuthz by {self._channel!r}>"


def _target(settings: ExtAuthzSettings, folder: Path) -> GrpcTarget:
    address = settings.address or ""
    if address.startswith(UNIX):
        return GrpcTarget(path=address.removeprefix(UNIX))
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    # The peer decides, and without TLS anyone on the way can be the peer: only this machine is trusted without it.
    secure = settings.tls if settings.tls is not None else not is_loopback(host)
    return GrpcTarget(host=host, port=int(port), tls=(lambda: _tls(settings, folder)) if secure else None)


def _tls(settings: ExtAuthzSettings, folder: Path) -> ssl.SSLContext:
    def path(name: str | None) -> Path | None:
        return folder / Path(name).expanduser() if name is not None else None

    context = ssl.create_default_context(cafile=path(settings.ca))
    if (certificate := path(settings.certificate)) is not None:
        context.load_cert_chain(certificate, path(settings.key))
    return context


# Protobuf, as far as it is needed.

_LENGTH, _VARINT = 2, 0


def encode_request(facts: AuthzQuestion) -> bytes:
    """The question about a call, as a ``CheckRequest``; the same call has the same bytes."""
    principal = facts.principal
    told = {
        "argument_hash": facts.argument_hash,
        "groups": json.dumps(sorted(principal.groups)),
        "method": facts.method,
        "name": facts.name,
        "principal": principal.name,
        "principal_source": principal.source,
        "scopes": json.dumps(sorted(principal.scopes)),
        "server": facts.server,
    }
    http = _text(2, "POST") + _text(4, f"/servers/{quote(facts.server, safe='')}/mcp") + _text(5, "holdfast")
    if facts.argument_bytes:
        http += _varint(9 << 3 | _VARINT) + _varint(facts.argument_bytes)
    attributes = (
        _field(1, _text(4, principal.name))
        + _field(2, _text(2, facts.server))
        + _field(4, _field(2, http))
        + b"".join(_field(10, _text(1, key) + _text(2, value)) for key, value in told.items())
    )
    return _field(1, attributes)


def decode_answer(content: bytes) -> AuthzAnswer:
    """The decision in a ``CheckResponse``; raises ``NotAsked`` if it has none.

    Envoy takes a missing status for an allowance. Here one of ``status`` and ``ok_response`` must be there: an empty
    message states nothing. A status that allows together with a ``denied_response`` is a denial.
    """
    try:
        parts: dict[int, bytes] = {}
        for number, value in _fields(content):
            if isinstance(value, bytes):  # a message that comes in parts is their sum
                parts[number] = parts.get(number, b"") + value
        status = dict(_fields(parts[1])) if 1 in parts else None
        code = status.get(1, 0) if status is not None else 0
        if status is None and not {2, 3} & {*parts}:
            raise NotAsked("its answer has no decision")
        if code == 0 and 2 not in parts:
            return AuthzAnswer(allowed=True)
        denied = dict(_fields(parts.get(2, b"")))
        said = (status or {}).get(2, b"")
        words = denied.get(3, b"") or said
        reason = words.decode("utf-8", "replace") if isinstance(words, bytes) else ""
        return AuthzAnswer(allowed=False, reason=quoted_line(reason, LONGEST_REASON))
    except ValueError:
        raise NotAsked("its answer cannot be read") from None


def _varint(number: int) -> bytes:
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    written.append(number)
    return bytes(written)


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | _LENGTH) + _varint(len(content)) + content


def _text(number: int, text: str) -> bytes:
    # Text from JSON may hold half of a surrogate pair, which UTF-8 has no bytes for.
    return _field(number, text.encode("utf-8", "replace"))


def _fields(content: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message, in order. Raises ``ValueError``."""
    at = 0
    while at < len(content):
        key, at = _read_varint(content, at)
        kind = key & 7
        if kind == _VARINT:
            value, at = _read_varint(content, at)
            yield key >> 3, value
            continue
        if kind == _LENGTH:
            size, at = _read_varint(content, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError("no protobuf")
        if at + size > len(content):
            raise ValueError("no protobuf")
        if kind == _LENGTH:
            yield key >> 3, content[at : at + size]
        at += size


def _read_varint(content: bytes, at: int) -> tuple[int, int]:
    number = 0
    for place in range(10):
        if at >= len(content):
            raise ValueError("no protobuf")
        byte = content[at]
        at += 1
        number |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return number, at
    raise ValueError("no protobuf")
