"""Notice logins that other processes make: whoever was denied for want of one is tried again at once.

The token store is looked at by its date, again and again. The time between is real time, as the store is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import anyio

from holdfast.auth.addresses import canonical
from holdfast.auth.status import takes_login
from holdfast.config.spec import ServerSpec

if TYPE_CHECKING:
    from holdfast.hub.hub import Hub

__all__ = ["START_SECONDS", "noted_logins", "notice_logins"]

PERIOD = 0.5
"""Seconds between two looks: a login is in force about that soon, and a look costs microseconds."""


START_SECONDS = 2.0
"""How long a hub's start waits for the store; whatever is read later counts as a login that was made since."""


async def noted_logins(hub: Hub, *, within: float | None = None) -> Mapping[str, str]:
    """The login that each server has now, if any; as it was known last, if the store does not answer in time."""
    await hub.logins.reading.up_to_date(within=within)
    return _logins(hub)


async def notice_logins(hub: Hub, known: Mapping[str, str]) -> None:
    """Look, wait, and look again; never returns. ``known`` are those from before any server was dialed."""
    while True:
        before, known = known, await noted_logins(hub)
        for name, login in known.items():
            if login != before.get(name):
                hub.logged_in(name)
        await anyio.sleep(PERIOD)


def _logins(hub: Hub) -> Mapping[str, str]:
    by_address = {address: grant.login for grant in hub.logins.store.known for address in grant.servers}
    servers = (server for server in hub.config.servers.values() if isinstance(server, ServerSpec))
    found = {server.id: by_address.get(canonical(server.url)) for server in servers if takes_login(server)}
    return {name: login for name, login in found.items() if login is not None}
