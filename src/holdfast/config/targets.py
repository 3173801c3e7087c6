"""Turns a configuration's servers into targets of a gateway; leaves out the others, with the reason."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from holdfast.config.spec import BadServer, Config, ServerSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Target", "Targets", "targets_of"]


@dataclass(frozen=True, kw_only=True)
class Target:
    """One MCP server behind the gateway."""

    id: str
    url: str
    transport: Literal["http", "sse"] = "http"


@dataclass(frozen=True, kw_only=True)
class Targets:
    """The servers that get a route, and the reasons why others get none. No ``repr`` shows an address."""

    found: tuple[Target, ...] = field(default=(), repr=False)
    left_out: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    notes: tuple[str, ...] = ()
    """Facts about a target that its owner should know."""


def targets_of(config: Config) -> Targets:
    """The targets among a configuration's servers, in the order of their ids."""
    servers = [server for _, server in sorted(config.servers.items())]
    enabled = [server for server in servers if server.enabled]
    usable = [server for server in enabled if isinstance(server, ServerSpec) and server.transport != "stdio"]
    return Targets(
        found=tuple(_target(server) for server in usable),
        left_out=MappingProxyType({server.id: _reason(server) for server in enabled if server not in usable}),
        notes=tuple(
            f"`{server.id}`: its `headers` are not passed to the gateway; the gateway forwards the client's headers"
            for server in usable
            if server.headers
        ),
    )


def _target(server: ServerSpec) -> Target:
    return Target(id=server.id, url=server.url, transport="sse" if server.transport == "sse" else "http")


def _reason(server: ServerSpec | BadServer) -> str:
    if isinstance(server, BadServer):
        return "; ".join(problem.message for problem in server.problems)
    return "it is a command: the gateway routes only to URLs"
