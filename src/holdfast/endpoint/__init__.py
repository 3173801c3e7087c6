"""The hub as an MCP server, without a transport: it takes messages and gives messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast._exports import lazy_exports

if TYPE_CHECKING:
    from holdfast.endpoint.broker import Broker as Broker
    from holdfast.endpoint.clients import (
        Call as Call,
        Client as Client,
        LivesElsewhere as LivesElsewhere,
        MessageReply as MessageReply,
        Outlet as Outlet,
        RequestHomes as RequestHomes,
    )
    from holdfast.endpoint.exchange import (
        CHANGES_CLIENT as CHANGES_CLIENT,
        ROOTS_CHANGED as ROOTS_CHANGED,
        ClientFolders as ClientFolders,
        Exchange as Exchange,
        RootFolder as RootFolder,
        is_batch as is_batch,
        read_batch as read_batch,
    )
    from holdfast.endpoint.find_tools import finding_tools as finding_tools
    from holdfast.endpoint.instructions import IDENTITY as IDENTITY, initialize as initialize, program_in as program_in
    from holdfast.endpoint.message import (
        Message as Message,
        error_message as error_message,
        error_of as error_of,
        notice_message as notice_message,
        read_message as read_message,
        result_message as result_message,
        result_pieces as result_pieces,
    )
    from holdfast.endpoint.server import McpServer as McpServer
    from holdfast.endpoint.user_login import (
        CONNECT_PATH as CONNECT_PATH,
        LINK_SECONDS as LINK_SECONDS,
        LoginLinks as LoginLinks,
        LoginTicket as LoginTicket,
    )
    from holdfast.endpoint.view import (
        LIST_METHODS as LIST_METHODS,
        TOOLS_MODES as TOOLS_MODES,
        EndpointAddress as EndpointAddress,
        View as View,
    )

__getattr__, __dir__ = lazy_exports(__name__)
