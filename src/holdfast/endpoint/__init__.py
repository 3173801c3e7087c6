"""The hub as an MCP server, without a transport: it takes messages and gives messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast._exports import lazy_exports

if TYPE_CHECKING:
    from holdfast.endpoint.broker import Broker as Broker
    from holdfast.endpoint.clients import ASK_SECONDS as ASK_SECONDS, Client as Client
    from holdfast.endpoint.homes import LivesElsewhere as LivesElsewhere, RequestHomes as RequestHomes
    from holdfast.endpoint.inbound import (
        ClientRequest as ClientRequest,
        Message as Message,
        cancelled_id as cancelled_id,
        error_message as error_message,
        error_of as error_of,
        meta_of as meta_of,
        notice_message as notice_message,
        params_of as params_of,
        read_message as read_message,
        read_small as read_small,
        request_message as request_message,
        result_message as result_message,
        result_pieces as result_pieces,
        settle as settle,
        small_values as small_values,
    )
    from holdfast.endpoint.instructions import IDENTITY as IDENTITY
    from holdfast.endpoint.server import McpServer as McpServer
    from holdfast.endpoint.tasks import TaskIds as TaskIds
    from holdfast.endpoint.view import LIST_METHODS as LIST_METHODS, View as View

__getattr__, __dir__ = lazy_exports(__name__)
