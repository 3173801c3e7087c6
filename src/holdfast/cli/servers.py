"""The server that a login command names."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches

from holdfast.config.spec import BadServer, Config, ServerSpec
from holdfast.errors import ConfigError, HoldfastError, UnknownServer

__all__ = ["chosen_server", "refuse_useless_login"]


def chosen_server(config: Config, name: str, doing: str) -> ServerSpec:
    """The server of this name, if it is an HTTP server. Only those have logins."""
    server = config.servers.get(name)
    if server is None:
        near = get_close_matches(name, config.servers, n=1)
        known = f"did you mean {near[0]}?" if near else f"configured: {', '.join(sorted(config.servers)) or 'none'}"
        raise UnknownServer(f"no server named `{name}` is configured", hint=known)
    if isinstance(server, BadServer):
        raise ConfigError(server.problems)
    if server.transport == "stdio":
        raise HoldfastError(
            f"`{name}` is a local command: there is nothing to {doing}",
            hint="credentials of a local command go into its `env`; see its documentation",
        )
    return server


def refuse_useless_login(server: ServerSpec) -> None:
    """Refuse a login that the hub would never use."""
    if not server.oauth.enabled:
        raise HoldfastError(
            f'the definition of `{server.id}` has `"oauth": false`, so a login has no effect',
            hint="remove that key first",
        )
    if isinstance(server.headers, Mapping) and any(name.lower() == "authorization" for name in server.headers):
        raise HoldfastError(
            f"`{server.id}` uses the Authorization header of its definition, so a login has no effect",
            hint="remove that header first",
        )
