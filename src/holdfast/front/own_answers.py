"""Answers to HTTP requests that the hub makes itself: refusals, and what is said of requests that are lost."""

from __future__ import annotations

from typing import Final

from mcp.shared.inbound import unsupported_protocol_version_rejection
from mcp_types import INTERNAL_ERROR, INVALID_REQUEST, ErrorData

from holdfast.access import QuotaExceeded
from holdfast.endpoint import Message, error_message
from holdfast.front.requests import Reply

__all__ = [
    "ANSWER_LOST",
    "CANCELLED",
    "JSON_HEADER",
    "NO_WAY_TO_REPLICAS",
    "UNKNOWN_QUESTION",
    "acknowledge",
    "over_quota",
    "refuse",
    "refuse_encoded",
]

JSON_HEADER: Final = b"content-type: application/json\r\n"
REQUEST_CANCELLED: Final = -32800
"""What a legacy client's request ends with that it cancelled; its stream would not end otherwise."""

NO_WAY_TO_REPLICAS: Final = (
    "this question is not open here: it was asked before the hub was restarted, or by another replica. "
    "Without --fleet and --advertise this hub cannot pass the answer on"
)
UNKNOWN_QUESTION: Final = (
    "this question is not open: it was asked before the hub was restarted, or by another replica; "
    "the call that it belongs to has ended"
)
ANSWER_LOST: Final = ErrorData(
    code=INTERNAL_ERROR,
    message="the answer to this request is lost: the hub was restarted, or its events are no longer kept. "
    "Whether the server carried the request out is not known.",
)
CANCELLED: Final = ErrorData(code=REQUEST_CANCELLED, message="Request cancelled")


def refuse(reply: Reply, status: int, text: str, headers: bytes = b"", code: int = INVALID_REQUEST) -> None:
    """Refuse a request, as JSON-RPC says it."""
    reply.plain(status, error_message(None, ErrorData(code=code, message=text)), JSON_HEADER + headers)


async def refuse_encoded(reply: Reply) -> None:
    """Refuse a body that is compressed."""
    refuse(
        reply, 415, "Unsupported Media Type: send the body without a Content-Encoding", b"accept-encoding: identity\r\n"
    )


QUOTA_EXCEEDED: Final = -32029
"""A code of the hub's own, in the range of the protocol for servers; the data says when to try again."""


def over_quota(reply: Reply, message: Message | None, exceeded: QuotaExceeded, headers: bytes = b"") -> None:
    """Refuse a request over a quota, with the time to wait."""
    data = {"retryAfter": exceeded.retry_after, "quota": exceeded.quota}
    answered = message.id if message is not None else None
    error = error_message(answered, ErrorData(code=QUOTA_EXCEEDED, message=exceeded.message, data=data))
    reply.plain(429, error, JSON_HEADER + b"retry-after: %d\r\n" % exceeded.retry_after + headers)


def acknowledge(reply: Reply, version: str) -> None:
    """A notification of the modern era: it is accepted, and there is nothing that it could change."""
    if (rejected := unsupported_protocol_version_rejection(version)) is not None:
        error = ErrorData(code=rejected.code, message=rejected.message, data=rejected.data)
        reply.plain(400, error_message(None, error))
    else:
        reply.plain(202, b"", b"")
