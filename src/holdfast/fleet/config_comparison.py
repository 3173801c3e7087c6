"""Whether all replicas run the same configuration: they compare digests of it, and none tells what is in it.

A digest covers the names of the servers and what makes a difference to clients. Left out is what may differ between
machines that serve the same: folders, and the values of variables and headers. It is keyed with the session key, so a
reader of the store cannot find an address or an argument by guessing. A replica that leaves does not count: it gets no
new clients.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import anyio.to_thread

from holdfast.config import ServerSpec
from holdfast.core import ConfigAgreement
from holdfast.fleet.presence import Presence
from holdfast.fleet.replica_state import ReplicaState
from holdfast.keys import KeyRing

__all__ = ["ConfigComparison", "config_digests"]

log = logging.getLogger("holdfast.fleet")

MOST_GROUPS = 3
"""How many of several different configurations a sentence names, and how many replicas of each."""
MOST_KEYS = 4
"""More keys than these are not in use at the same time."""
DIGEST_BYTES = 12


class ConfigComparison:
    """Compares what this replica runs with what the others run."""

    def __init__(self, state: ReplicaState, presence: Presence, keys: Callable[[], KeyRing] | None) -> None:
        self._state = state
        self._presence = presence
        self._keys = keys
        self._digested: tuple[object, KeyRing] | None = None
        self._agreement = ConfigAgreement()

    @property
    def has_news(self) -> bool:
        """Whether this replica has to tell what it runs. Without keys nothing is compared."""
        if self._keys is None:
            return False
        known = self._digested
        return known is None or known[0] is not self._state.host.servers() or known[1] != self._keys()

    async def share(self) -> None:
        """Tell the others what this replica runs."""
        if self.has_news and self._keys is not None:
            servers, keys = self._state.host.servers(), self._keys()
            self._state.member.about["config"] = await anyio.to_thread.run_sync(config_digests, servers, keys)
            self._digested = servers, keys

    def compare(self, store: str) -> None:
        """The presence of all replicas was read."""
        told = {name: about.get("config") for name, about in self._presence.staying.items()}
        digests = {name: [str(one) for one in many] for name, many in told.items() if isinstance(many, list)}
        if self._agreement.note(digests, self._state.now()):
            log.warning("%s: %s", store, self.notice)

    @property
    def groups(self) -> tuple[tuple[str, ...], ...]:
        """The replicas by configuration, if they run different ones for longer than a roll takes; else empty."""
        return self._agreement.groups if self._state.is_shared else ()

    @property
    def notice(self) -> str:
        """What the operator should know about different configurations; empty if there are none."""
        if not (groups := self.groups):
            return ""
        more = f", and {len(groups) - MOST_GROUPS} more" if len(groups) > MOST_GROUPS else ""
        return (
            f"the replicas run {len(groups)} different configurations ({'; '.join(map(_named, groups[:MOST_GROUPS]))}"
            f"{more}): what clients get depends on the replica that answers. Give all replicas the same configuration"
        )


def _named(replicas: tuple[str, ...]) -> str:
    more = f" and {len(replicas) - MOST_GROUPS} more" if len(replicas) > MOST_GROUPS else ""
    return f"{', '.join(replicas[:MOST_GROUPS])}{more}"


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
