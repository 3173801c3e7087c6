"""The source and state of a server's credentials, for ``auth status`` and doctor.

Nothing here shows a token. Only ``refresh_now`` uses the network.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from holdfast.auth.addresses import canonical
from holdfast.auth.grant import Grant, Source
from holdfast.auth.renew import Renewer
from holdfast.auth.store import TokenStore
from holdfast.config.spec import ServerSpec
from holdfast.core.evidence import TokenNotRenewed
from holdfast.errors import ServerFailure

__all__ = ["CredentialKind", "LoginStatus", "RefreshOutcome", "Refreshed", "refresh_now", "status_of", "takes_login"]

CredentialKind: TypeAlias = Literal["login", "none", "header", "callable", "off", "process"]
"""``login``: from the token store. ``none``: there is no login. ``header``: the definition has an
``Authorization`` of its own. ``callable``: a program gives the headers. ``off``: the definition says
``"oauth": false``. ``process``: it is a command, which gets no token."""


RefreshOutcome: TypeAlias = Literal["renewed", "no_login", "not_refreshable", "refused", "unreachable"]
"""``refused``: the authorization server refused, and only a new login helps. ``unreachable``: it did not answer; the
login stays valid."""


@dataclass(frozen=True, kw_only=True)
class LoginStatus:
    """One server's credentials. Only ``kind`` is set where they are not a login."""

    server_id: str
    kind: CredentialKind
    source: Source | None = None
    place: str = ""
    """Where the tokens are kept: the file's path, or the keyring."""
    issuer: str = ""
    resource: str = ""
    scope: str = ""
    client_id: str = ""
    expires_at: float | None = None
    """When the access token expires, in seconds since 1970; None where that is not known."""
    refreshable: bool = False
    """Whether it can be renewed without a person."""
    refused: str = ""
    """Why the authorization server no longer renews it; empty while it does."""

    def expired(self, now: float) -> bool:
        """Whether the access token has ended."""
        return self.expires_at is not None and now >= self.expires_at

    def usable(self, now: float) -> bool:
        """Whether the next request can use it, after a renewal where needed."""
        return self.kind == "login" and (self.refreshable or not self.expired(now))


@dataclass(frozen=True, kw_only=True)
class Refreshed:
    """The result of renewing a login now."""

    outcome: RefreshOutcome
    reason: str = ""
    """Why it was not renewed, in words; empty if it was."""
    status: LoginStatus
    """Its state now."""


def status_of(spec: ServerSpec, store: TokenStore) -> LoginStatus:
    """The state of a server's credentials. Reads the store and nothing else."""
    kind = _without_store(spec)
    grant = store.of(canonical(spec.url)) if kind is None else None
    if grant is None:
        return LoginStatus(server_id=spec.id, kind=kind or "none")
    return _of_grant(spec, grant, store)


async def refresh_now(spec: ServerSpec, store: TokenStore, *, renewer: Renewer | None = None) -> Refreshed:
    """Renew a server's login, expired or not. A failure is a result, not an exception."""
    grant = store.of(canonical(spec.url)) if takes_login(spec) else None
    if grant is None:
        return Refreshed(outcome="no_login", reason="there is no login", status=status_of(spec, store))
    if grant.refused:
        return Refreshed(outcome="refused", reason=_refusal(grant.refused), status=status_of(spec, store))
    if not grant.refreshable:
        reason = "the authorization server gave no refresh token"
        return Refreshed(outcome="not_refreshable", reason=reason, status=status_of(spec, store))
    try:
        renewed = await (renewer or Renewer(store)).renew(
            grant.key, instead_of=grant.access_token, allow_plain_http=spec.allow_plain_http
        )
    except ServerFailure as failure:
        seen = failure.evidence
        reason = seen.reason if isinstance(seen, TokenNotRenewed) else str(seen)
        return Refreshed(outcome="unreachable", reason=reason, status=status_of(spec, store))
    status = status_of(spec, store)
    if renewed is None:
        return Refreshed(outcome="refused", reason=_refusal(status.refused), status=status)
    return Refreshed(outcome="renewed", status=status)


def takes_login(spec: ServerSpec) -> bool:
    """Whether the server's requests use a login."""
    return _without_store(spec) in (None, "callable")


def _without_store(spec: ServerSpec) -> CredentialKind | None:
    """The source of the credentials if it is not the store."""
    if spec.transport == "stdio":
        return "process"
    if not spec.oauth.enabled:
        return "off"
    if not isinstance(spec.headers, Mapping):
        return "callable"
    return "header" if any(name.lower() == "authorization" for name in spec.headers) else None


def _refusal(code: str) -> str:
    return f"the authorization server no longer renews it ({code or 'it was removed'})"


def _of_grant(spec: ServerSpec, grant: Grant, store: TokenStore) -> LoginStatus:
    return LoginStatus(
        server_id=spec.id,
        kind="login",
        source=grant.source,
        place=str(store.file) if grant.source == "file" else "the keyring",
        issuer=grant.issuer,
        resource=grant.resource,
        scope=grant.scope,
        client_id=grant.client.id,
        expires_at=grant.expires_at,
        refreshable=grant.refreshable,
        refused=grant.refused,
    )
