"""The hub as an MCP server: over streamable HTTP for many clients, over stdio for one."""

from __future__ import annotations

from holdfast._exports import lazy_exports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.front.app import Front as Front, create_app as create_app, create_hub_app as create_hub_app
    from holdfast.front.line_peek import LineHead as LineHead, Lines as Lines, heads_of as heads_of
    from holdfast.front.listener import Acceptor as Acceptor, HttpConnections as HttpConnections
    from holdfast.front.session_id import SessionIds as SessionIds, SessionKeys as SessionKeys
    from holdfast.front.session_store import (
        FleetSessions as FleetSessions,
        SessionRecord as SessionRecord,
        SessionStore as SessionStore,
    )
    from holdfast.front.stdio import (
        JoinedClient as JoinedClient,
        JoinServer as JoinServer,
        serve_stdio as serve_stdio,
    )
    from holdfast.front.tls import ServerTls as ServerTls, TlsFiles as TlsFiles

__getattr__, __dir__ = lazy_exports(__name__)
