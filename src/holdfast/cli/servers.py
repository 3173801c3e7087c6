"""Find the server that a command names."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches

from holdfast.config.spec import BadServer, Config, ServerSpec
from holdfast.errors import ConfigError, HoldfastError, UnknownServer

__all__ = ["chosen_server", "refuse_useless_login"]


def chosen_server(config: Config, name: str, doing: str) -> ServerSpec:
    """A server that is reached over HTTP, for whoever wants to do something with its login."""
    server = config.servers.get(name)
    if server is None:
        near = get_close_matches(name, config.servers, n=1)
        known = f"did you mean {near[0]}?" if near else f"configured: {', '.join(sorted(config.servers)) or 'none'}"
        raise UnknownServer(f"no server named `{name}` is configured", hint=known)
    if isinstance(server, BadServer):
        raise ConfigError(server.problems)
    if server.transport == "stdio":
        raise HoldfastError(
            f"`{name}` is a command that is started here: there is nothing to {doing}",
            hint="what it needs is in its own documentation; it goes into its `env`",
        )
    return server


def refuse_useless_login(server: ServerSpec) -> None:
    """A login that would never be used is not made."""
    if not server.oauth.enabled:
        raise HoldfastError(
            f'the definition of `{server.id}` says `"oauth": false`: a login would not be used',
            hint="remove that key first",
        )
    if isinstance(server.headers, Mapping) and any(name.lower() == "authorization" for name in server.headers):
        raise HoldfastError(
            f"`{server.id}` uses the Authorization header of its definition: a login would not be used",
            hint="remove that header first",
        )
