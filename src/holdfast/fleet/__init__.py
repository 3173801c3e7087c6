"""More than one hub: what replicas share through a store, and the requests that they send on to each other.

"Fleet" means replicas of one hub. The decisions are in ``core/replicas``; this package performs them. It stands above
``hub/`` and ``endpoint/``, which know it by the small protocols that they define themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast._exports import lazy_exports

if TYPE_CHECKING:
    from holdfast.fleet.fleet import Fleet as Fleet, replica_name as replica_name
    from holdfast.fleet.peers import (
        ABOUT_HEADER as ABOUT_HEADER,
        OPERATIONS as OPERATIONS,
        PRINCIPAL_HEADER as PRINCIPAL_HEADER,
        REFUSED_HEADER as REFUSED_HEADER,
        SENDER_HEADER as SENDER_HEADER,
        TARGET_HEADER as TARGET_HEADER,
        ClientHomeFinder as ClientHomeFinder,
        PeerAddress as PeerAddress,
        PeerFailed as PeerFailed,
        PeerLeaves as PeerLeaves,
        PeerRefused as PeerRefused,
        Peers as Peers,
        PeerUnreachable as PeerUnreachable,
        bind_unix as bind_unix,
        home_name as home_name,
        said_in as said_in,
        written as written,
    )
    from holdfast.fleet.redis_store import (
        RedisAddress as RedisAddress,
        RedisEvents as RedisEvents,
        RedisLeases as RedisLeases,
        RedisStore as RedisStore,
    )
    from holdfast.fleet.shared_events import (
        SESSION_PURPOSE as SESSION_PURPOSE,
        SharedEvent as SharedEvent,
        SharedEvents as SharedEvents,
    )
    from holdfast.fleet.stores import (
        EventStore as EventStore,
        LocalStore as LocalStore,
        LogWrite as LogWrite,
        SignedStore as SignedStore,
        StoreUnavailable as StoreUnavailable,
        serve_broker as serve_broker,
    )
    from holdfast.fleet.user_logins import (
        CommandUserTokens as CommandUserTokens,
        FleetUserTokens as FleetUserTokens,
    )

__getattr__, __dir__ = lazy_exports(__name__)
