"""The hub as an MCP server, without a transport: it takes messages and gives messages.

How a message goes through this package, and where each thing is decided:

    exchange         one client and the hub: which era, which call, the answer (``Exchange.handle``)
    message          how messages are read and written, and all that is edited in those that pass through
    clients          who the client is (``Client``), and one request of it from its message to its answer (``Call``)
    server           who answers a request, and the path of a call to its server and back
    view             what an endpoint has and what its caller may see of it
    own_answers      the methods and the tools that the hub answers itself; ``find_tools`` is the search among all tools
    instructions     what the hub says of itself, and the words of its errors
    call_gate        may the call be made: rules, a person, an external service; and the audit of it
    user_login       the login that a user lacks, from the conversation with her client
    broker           which connection a client uses, and the lifetime of all that runs for clients
    input_required   questions of servers in the middle of a call, between the eras
    attribution      whom it concerns what no client asked for: questions, changes, updates
    tasks            the ids of tasks, as clients see them

One ``Broker`` is made for a hub, one ``McpServer`` for an endpoint (and for each user of it, where servers are per
user), one ``Exchange`` for a connection, one ``Call`` for a request. Nothing refers the other way: a server knows its
broker, and a broker knows no server.
"""

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
