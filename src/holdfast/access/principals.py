"""Who sends a request: the principal, and the client. This is the only place that decides it (SEC-18).

A principal is a person or a program with an identity: the subject of a verified JWT, the holder of a named token, the
user that a trusted gateway names, or ``local`` where the hub asks for no credentials. Sessions, pending calls,
attribution, logs and traces use its name.

A principal may run several clients. A legacy client is its session, and a client on stdio is the pipe. The modern era
has neither: each HTTP request stands alone, and nothing in it tells two clients apart: a token may be shared, a
connection pooled or proxied, and two copies of a program have one name. So a client that wants to be recognised sends
a key of its own. A key is valid only together with the principal that sent it, so no other principal can use it.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from mcp import MCPError
from mcp_types import INVALID_PARAMS

from holdfast.core import counted
from holdfast.errors import UsageError
from holdfast.files import NotPrivate, file_stamp, read_secret
from holdfast.wire import CLIENT_HEADER, principal_in

__all__ = [
    "CLIENT_HEADER",
    "CLIENT_META_KEY",
    "GATEWAY_SECRET_HEADER",
    "HOW_TO_BE_KNOWN",
    "LOCAL",
    "ClientKey",
    "HubPrincipals",
    "Principal",
    "SubjectTokenStore",
    "TokenPolicy",
    "TokensFile",
    "TrustedGateway",
    "Verify",
    "client_key_in",
]

log = logging.getLogger("holdfast.front")


@dataclass(frozen=True, kw_only=True)
class Principal:
    """Who sends a request. Two are equal if their names are; names of different sources never collide."""

    name: str
    groups: frozenset[str] = field(default=frozenset(), compare=False)
    scopes: frozenset[str] = field(default=frozenset(), compare=False)
    source: Literal["local", "token", "jwt", "gateway", "hub"] = field(default="local", compare=False)


LOCAL = Principal(name="local")
"""The principal of every request where the hub asks for no credentials; over stdio too."""


class Verify(Protocol):
    """Verifies tokens that no file has."""

    async def __call__(self, token: str, path: str = "") -> Principal | None:
        """The principal of a token for the endpoint at a path, empty for the hub itself; None if it does not verify."""


class SubjectTokenStore(Protocol):
    """Gets the verified tokens of users, which an authorization server may exchange for others (AUTH-6)."""

    def wants(self, principal: str, token: str) -> bool:
        """Whether a token of a user is news here."""

    def note(self, principal: str, token: str) -> None:
        """A user sent this token, which was verified for her."""


_TOKEN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""Without ``#``, which only the names of JWT subjects and of gateway users contain."""

LONGEST_CREDENTIAL = 16 * 1024
"""Characters. Each is hashed, and a JWT is parsed, before its sender is known."""

REREAD_SECONDS = 1.0
"""How often the file of tokens is checked for a change."""


class _Holder(NamedTuple):
    """The holder of a token in the file, and until when it is valid; the token itself is not stored."""

    principal: Principal
    expires: float | None


class TokensFile:
    """Named tokens in a JSON file: name, SHA-256 of the token, groups, expiry. A changed file is read again.

    ``{"tokens": [{"name": "ci", "sha256": "…", "groups": ["build"], "expires": "2027-01-01T00:00:00Z"}]}``
    """

    def __init__(self, path: Path, *, wall: Callable[[], float] = time.time) -> None:
        self._path = path
        self._wall = wall
        self._stamp = file_stamp(path)
        self._tokens = _read_tokens(path)
        self._checked = wall()

    def holder(self, digest: bytes) -> Principal | None:
        """Return the holder of a token with this hash; None if it is unknown or expired."""
        self._refresh()
        # By its hash: a guess reveals nothing of it, and a wrong token costs the same however many there are.
        found = self._tokens.get(digest)
        if found is None or (found.expires is not None and found.expires <= self._wall()):
            return None
        return found.principal

    def _refresh(self) -> None:
        now = self._wall()
        if 0 <= now - self._checked < REREAD_SECONDS:
            return
        self._checked = now
        stamp = file_stamp(self._path)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._tokens = _read_tokens(self._path)
        except UsageError as error:
            log.warning("%s; the tokens read before stay valid", error.message)
        else:
            log.info("read %s again: %s", self._path, counted(len(self._tokens), "token"))


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def _read_tokens(path: Path) -> dict[bytes, _Holder]:
    """The holders by the hash of their token; of two with the same one, the first."""
    hint = 'write {"tokens": [{"name": "ci", "sha256": "<hex>", "groups": [], "expires": "2027-01-01T00:00:00Z"}]}'
    try:
        entries = json.loads(read_secret(path))["tokens"]
        tokens = [_token(entry) for entry in entries]
    except NotPrivate as exc:
        raise UsageError(f"the tokens file is not private: {exc}", hint=f"run: {exc.command}") from exc
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise UsageError(f"the tokens file {path} is not valid: {exc}", hint=hint) from exc
    names = [holder.principal.name for _, holder in tokens]
    if len(set(names)) < len(names) or not names:
        raise UsageError(f"the tokens file {path} needs at least one token, and each name once", hint=hint)
    return dict(reversed(tokens))


def _token(entry: Mapping[str, Any]) -> tuple[bytes, _Holder]:
    name, digest, groups = entry["name"], bytes.fromhex(entry["sha256"]), entry.get("groups", [])
    if not isinstance(name, str) or not _TOKEN_NAME.fullmatch(name) or name in (LOCAL.name, "caller"):
        raise ValueError(f"{name!r} is not a valid name for a token")
    if len(digest) != hashlib.sha256().digest_size:
        raise ValueError(f"`sha256` of {name} does not have 64 hex digits")
    if not isinstance(groups, list) or not all(isinstance(group, str) for group in groups):
        raise ValueError(f"`groups` of {name} is not a list of texts")
    expires = entry.get("expires")
    until = datetime.fromisoformat(expires) if expires is not None else None
    if until is not None and until.tzinfo is None:
        until = until.replace(tzinfo=UTC)
    principal = Principal(name=name, groups=frozenset(groups), source="token")
    return digest, _Holder(principal, until.timestamp() if until is not None else None)


GATEWAY_SECRET_HEADER = "Holdfast-Gateway-Secret"  # noqa: S105 - the name of a header


@dataclass(frozen=True, kw_only=True)
class TrustedGateway:
    """A gateway that authenticates users and names them in headers.

    Its headers count only on a connection whose client certificate was verified (mTLS), or together with a secret
    that the gateway and the hub share. Anyone could send them otherwise.
    """

    secret: str | Callable[[], str] | None = field(default=None, repr=False)
    """The secret, or what returns the current one: a file with it may change."""
    mtls: bool = False
    certificate_names: frozenset[str] = frozenset()
    """The names that its certificate may have; empty for every certificate of the authority."""
    user_header: str = "X-Forwarded-User"
    groups_header: str = "X-Forwarded-Groups"

    def __post_init__(self) -> None:
        if not self.secret and not self.mtls:
            raise UsageError("a trusted gateway needs a shared secret or mTLS", hint="its headers could be forged")

    def find(
        self, headers: Mapping[str, str], *, client_verified: bool, client_names: frozenset[str] = frozenset()
    ) -> Principal | None:
        """Return the user that the gateway names; None if the request is not the gateway's."""
        user = headers.get(self.user_header.lower(), "").strip()
        # A header that is sent twice is joined by a comma, and a user's name has none.
        if not user or "," in user or not self._is_gateway(headers, client_verified, client_names):
            return None
        groups = {group.strip() for group in headers.get(self.groups_header.lower(), "").split(",")}
        return Principal(name=f"gateway#{user}", groups=frozenset(groups - {""}), source="gateway")

    def _is_gateway(self, headers: Mapping[str, str], client_verified: bool, client_names: frozenset[str]) -> bool:
        given = headers.get(GATEWAY_SECRET_HEADER.lower(), "")
        secret = self.secret() if callable(self.secret) else self.secret
        by_secret = bool(secret) and hmac.compare_digest((secret or "").encode(), given.encode())
        by_name = not self.certificate_names or bool(self.certificate_names & client_names)
        return by_secret or (self.mtls and client_verified and by_name)


@dataclass(frozen=True, kw_only=True)
class TokenPolicy:
    """Which credentials are accepted: at least one kind."""

    tokens: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Token by the name of its holder: ``{"caller": "s3cret"}``."""
    file: TokensFile | None = None
    verify: Verify | None = field(default=None, repr=False)
    """Verifies any other token, such as a JWT: its signature, issuer, audience and time."""
    gateway: TrustedGateway | None = None
    subjects: SubjectTokenStore | None = field(default=None, repr=False)
    """Gets the tokens that ``verify`` accepted; None where no server needs them."""

    def __post_init__(self) -> None:
        if not self.tokens and self.verify is None and self.file is None and self.gateway is None:
            raise UsageError("a token policy needs a token or a verifier")
        if not all(self.tokens.values()):
            raise UsageError("an empty token would accept every caller", hint="give each token a value")

    async def identify(
        self,
        headers: Mapping[str, str],
        *,
        client_verified: bool = False,
        client_names: frozenset[str] = frozenset(),
        path: str = "",
    ) -> Principal | None:
        """Return the principal of a request by its headers; None if it has no valid credentials.

        ``client_verified`` says whether TLS verified the certificate of the peer, which has these names. ``path`` is
        the endpoint that the request is for; empty for the hub itself.
        """
        if self.gateway is not None:
            named = self.gateway.find(headers, client_verified=client_verified, client_names=client_names)
            if named is not None:
                await self._note_passed_on(named, _bearer_in(headers), path)
                return named
        token = _bearer_in(headers)
        found = await self.principal(token, path) if token is not None else None
        if found is not None and token is not None and found.source == "jwt" and self.subjects is not None:
            self.subjects.note(found.name, token)
        return found

    async def _note_passed_on(self, named: Principal, token: str | None, path: str) -> None:
        """Note the token that a gateway passes on, if it is a token for this hub, of the user whom the gateway names.

        A gateway that knows its users by a cookie may pass on any header of theirs.
        """
        if token is None or self.verify is None or self.subjects is None or not self.subjects.wants(named.name, token):
            return
        holder = await self.verify(token, path)
        if holder is not None and holder.name.partition("#")[2] == named.name.partition("#")[2]:
            self.subjects.note(named.name, token)

    async def principal(self, token: str, path: str = "") -> Principal | None:
        """Return the holder of a bearer token for an endpoint; None if the token is unknown."""
        found = self.holder(_digest(token))
        return await self.verify(token, path) if found is None and self.verify is not None else found

    def holder(self, digest: bytes) -> Principal | None:
        """Return the holder of a static token, by its SHA-256; None if the token is unknown."""
        for name, known in self.tokens.items():
            if hmac.compare_digest(_digest(known), digest):
                return Principal(name=name, source="token")
        return self.file.holder(digest) if self.file is not None else None


def _bearer_in(headers: Mapping[str, str]) -> str | None:
    """The bearer token of a request; None if it has none, or one that is too long."""
    given = headers.get("authorization", "")
    kind, _, token = given.partition(" ")
    return token.strip() if kind.lower() == "bearer" and len(given) <= LONGEST_CREDENTIAL else None


class HubPrincipals:
    """The principals of requests that another hub makes for its clients, in the place of a ``TokenPolicy``.

    Only for a listener where every peer is a hub that is proven, by the fleet's key or by the kernel. On any other
    listener the header means nothing.
    """

    async def identify(
        self,
        headers: Mapping[str, str],
        *,
        client_verified: bool = False,
        client_names: frozenset[str] = frozenset(),
        path: str = "",
    ) -> Principal | None:
        """Return the principal that the hub names; ``local`` for what it asks in its own name."""
        return Principal(name=principal_in(headers) or LOCAL.name, source="hub")


_CLIENT_HEADER_LOWER = CLIENT_HEADER.lower()
CLIENT_META_KEY = "holdfast/client"

HOW_TO_BE_KNOWN = (
    f"A client that sends the header `{CLIENT_HEADER}` with a random value of its own on every request "
    "is recognised and keeps its connection."
)

_KEY = re.compile(r"[A-Za-z0-9._~+/=-]{16,128}")
"""Long enough that two clients do not choose the same key by accident."""


@dataclass(frozen=True)
class ClientKey:
    """A client that sends a key; it owns its connections."""

    principal: str
    key: str = field(repr=False)


def client_key_in(
    headers: Mapping[str, str], principal: Principal, meta: Mapping[str, Any] | None = None
) -> ClientKey | None:
    """Return the client key in the headers of a request, or in its ``_meta``; None if it has none."""
    said = (headers.get(_CLIENT_HEADER_LOWER), meta.get(CLIENT_META_KEY) if meta is not None else None)
    if said == (None, None):
        return None
    keys = {str(key) for key in said if key is not None}
    key = keys.pop()
    if keys or not _KEY.fullmatch(key):
        raise MCPError(
            INVALID_PARAMS,
            f"`{CLIENT_HEADER}` must be one random text of 16 to 128 letters and digits: the same on every request "
            "of one client, and different for each client",
        )
    return ClientKey(principal.name, key)
