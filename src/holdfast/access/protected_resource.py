"""The MCP endpoints as protected resources: what a client learns before it has a token (RFC 9728).

A client that is refused with 401 gets a challenge. It names a document, and the document names the issuer that gives
tokens for this endpoint. Each endpoint path has a document of its own, because a client asks the issuer for a token of
exactly the address that it uses (RFC 8707), and refuses a document about another address. The same path that no
server has gets the same document: who has no token learns nothing about the servers.

Rules may ask for scopes (``access.rules``). The challenge names those of all rules, so that a client asks for them at
its first login. A token with which no rule allows anything, although one would with another scope, is refused with 403
and these scopes, and the client can ask for them then (step-up). Which single tools a scope would open is not told:
what a rule does not allow is not there.

A token is accepted where its audience is the endpoint that it is used at, or the hub as a whole. It is compared without
a query: the Python SDK keeps ``?tools=find`` in the name of a resource, and the query chooses a view of one endpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any, Final
from urllib.parse import quote, urlsplit

from holdfast.access.principals import Principal
from holdfast.config import AccessRule, AccessSettings

__all__ = ["METADATA_PATH", "NeededScopes", "ProtectedResource", "is_endpoint"]

METADATA_PATH: Final = "/.well-known/oauth-protected-resource"

LONGEST_PATH: Final = 1_024
"""Characters of a path that is named to a stranger."""

_PORTS: Final = {"http": 80, "https": 443}


def is_endpoint(path: str) -> bool:
    """Whether a path is an MCP endpoint, of all servers or of one."""
    return path == "/mcp" or (path.startswith("/servers/") and path.endswith("/mcp") and path.count("/") == 3)


class NeededScopes:
    """The scopes that the rules in force ask for. ``settings`` returns the current ones."""

    def __init__(self, settings: Callable[[], AccessSettings]) -> None:
        self._settings = settings
        self._read: AccessSettings | None = None
        self._rules: tuple[AccessRule, ...] = ()
        self._scopes: frozenset[str] = frozenset()

    def __repr__(self) -> str:
        return f"<NeededScopes {' '.join(sorted(self.all())) or 'none'}>"

    def all(self) -> frozenset[str]:
        """Of all rules that allow something."""
        settings = self._settings()
        if settings is not self._read:
            self._rules = tuple(rule for rule in settings.rules if rule.effect == "allow")
            self._scopes = frozenset(scope for rule in self._rules for scope in rule.scopes)
            self._read = settings
        return self._scopes

    def missing(self, principal: Principal) -> frozenset[str]:
        """The scopes without which no rule allows this principal anything; none if one does, or no scope would help."""
        if not self.all() or self._settings().default == "allow":
            return frozenset()
        meant = list(self._rules_for(principal))
        if any(not rule.scopes or not principal.scopes.isdisjoint(rule.scopes) for rule in meant):
            return frozenset()
        return frozenset(scope for rule in meant for scope in rule.scopes)

    def _rules_for(self, principal: Principal) -> Iterator[AccessRule]:
        for rule in self._rules:
            named = not rule.principals or principal.name in rule.principals
            if named and (not rule.groups or not principal.groups.isdisjoint(rule.groups)):
                yield rule


class ProtectedResource:
    """The endpoints below one address that clients use, and the issuer of their tokens."""

    def __init__(self, base: str, issuer: str, *, needs: NeededScopes | None = None) -> None:
        self.base = base.rstrip("/")
        self._issuer = issuer
        self._needs = needs or NeededScopes(AccessSettings)

    def __repr__(self) -> str:
        return f"<ProtectedResource {self.base} of {self._issuer}>"

    def metadata(self, path: str) -> dict[str, Any]:
        """The document about the endpoint at a path; empty for the hub as a whole."""
        scopes = sorted(self._needs.all())
        return {
            "resource": self._name(path),
            "authorization_servers": [self._issuer],
            **({"scopes_supported": scopes} if scopes else {}),
            "bearer_methods_supported": ["header"],
            "resource_name": "Holdfast",
        }

    def challenge(self, path: str, *, error: str = "", scopes: Collection[str] | None = None) -> str:
        """The value of ``WWW-Authenticate`` for a request to a path. ``scopes`` are those that it needs."""
        known = is_endpoint(path) and len(path) <= LONGEST_PATH
        fields = {
            "error": error,
            "scope": " ".join(sorted(self._needs.all() if scopes is None else scopes)),
            "resource_metadata": f"{self.base}{METADATA_PATH}{_quoted(path) if known else ''}",
        }
        return "Bearer " + ", ".join(f'{name}="{value}"' for name, value in fields.items() if value)

    def step_up(self, principal: Principal, path: str) -> str:
        """The challenge for a principal whose token has not one scope that the rules ask for; empty if it may go on."""
        missing = self._needs.missing(principal) if principal.source == "jwt" else frozenset()
        # A client replaces its token: the new one must have what the old one had.
        wanted = missing | (principal.scopes & self._needs.all())
        return self.challenge(path, error="insufficient_scope", scopes=wanted) if missing else ""

    def is_named(self, audience: str, path: str) -> bool:
        """Whether an audience is the endpoint at a path, or the hub as a whole."""
        found = _without_query(audience)
        return bool(found) and found in (_without_query(self.base), _without_query(self._name(path or "/mcp")))

    def _name(self, path: str) -> str:
        return f"{self.base}{_quoted(path)}"


def _quoted(path: str) -> str:
    """A path as it stands in an address, and inside the quotes of a header."""
    return quote(path, safe="/%:@!$&'()*+,;=~-._")


def _without_query(address: str) -> str:
    """The parts of an address that name a resource; empty for what is no address."""
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError:
        return ""
    if parts.scheme not in _PORTS or not parts.hostname or parts.username is not None:
        return ""
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    number = port if port is not None else _PORTS[parts.scheme]
    return f"{parts.scheme}://{host}:{number}{parts.path.rstrip('/')}"
