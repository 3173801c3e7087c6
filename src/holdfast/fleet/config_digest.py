"""Digests of the configuration that a replica runs: replicas compare them, and none tells what is in it.

A digest covers the names of the servers and what makes a difference to clients. Left out is what may differ between
machines that serve the same: folders, and the values of variables and headers. It is keyed with the session key, so a
reader of the store cannot find an address or an argument by guessing.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.config import ServerSpec
from holdfast.keys import KeyRing

__all__ = ["config_digests"]

MOST_KEYS = 4
"""More keys than these are not in use at the same time."""
DIGEST_BYTES = 12


def config_digests(servers: Mapping[str, ServerSpec], keys: KeyRing) -> list[str]:
    """The digest under each key, the newest first."""
    text = repr([_what_matters(servers[name]) for name in sorted(servers)]).encode()
    signatures = keys.signatures(text, purpose="fleet configuration", size=DIGEST_BYTES)
    return [one.hex() for one in signatures[:MOST_KEYS]]


def _what_matters(server: ServerSpec) -> tuple[object, ...]:
    if server.problems:
        return (server.id, server.enabled)
    headers = sorted(server.headers) if isinstance(server.headers, Mapping) else ()
    return (
        server.id,
        server.enabled,
        server.transport,
        server.command,
        server.args,
        sorted(server.env),
        server.url,
        headers,
        server.tools.include,
        server.tools.exclude,
        server.prefix,
        server.era,
        server.approvals,
        server.sharing,
    )
