"""The hub as an MCP server: over streamable HTTP for many clients, over stdio for one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast._exports import lazy_exports

if TYPE_CHECKING:
    from holdfast.front.acceptor import Acceptor as Acceptor
    from holdfast.front.access.connections import ConnectionLimits as ConnectionLimits
    from holdfast.front.access.guard import LOOPBACK_HOSTS as LOOPBACK_HOSTS
    from holdfast.front.access.jwt import jwt_verifier as jwt_verifier
    from holdfast.front.access.local_peer import PeerUids as PeerUids
    from holdfast.front.access.principals import (
        TokenPolicy as TokenPolicy,
        TokensFile as TokensFile,
        TrustedGateway as TrustedGateway,
    )
    from holdfast.front.access.shares import ConnectionShares as ConnectionShares
    from holdfast.front.broker import Broker as Broker
    from holdfast.front.fleet_sessions import FleetSessions as FleetSessions
    from holdfast.front.http import Front as Front, create_app as create_app
    from holdfast.front.listener import HttpConnection as HttpConnection
    from holdfast.front.messages import IDENTITY as IDENTITY
    from holdfast.front.session_ids import SessionIds as SessionIds
    from holdfast.front.session_keys import SessionKeys as SessionKeys
    from holdfast.front.session_store import (
        SessionRecord as SessionRecord,
        SessionStore as SessionStore,
        SqliteSessions as SqliteSessions,
    )
    from holdfast.front.shared_events import SharedEvents as SharedEvents
    from holdfast.front.stdio import serve_stdio as serve_stdio
    from holdfast.front.tls import ServerTls as ServerTls, TlsFiles as TlsFiles

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "acceptor": ["Acceptor"],
        "access.connections": ["ConnectionLimits"],
        "access.shares": ["ConnectionShares"],
        "access.guard": ["LOOPBACK_HOSTS"],
        "access.jwt": ["jwt_verifier"],
        "access.local_peer": ["PeerUids"],
        "access.principals": ["TokenPolicy", "TokensFile", "TrustedGateway"],
        "broker": ["Broker"],
        "fleet_sessions": ["FleetSessions"],
        "http": ["Front", "create_app"],
        "listener": ["HttpConnection"],
        "messages": ["IDENTITY"],
        "session_ids": ["SessionIds"],
        "session_keys": ["SessionKeys"],
        "session_store": ["SessionRecord", "SessionStore", "SqliteSessions"],
        "shared_events": ["SharedEvents"],
        "stdio": ["serve_stdio"],
        "tls": ["ServerTls", "TlsFiles"],
    },
)
