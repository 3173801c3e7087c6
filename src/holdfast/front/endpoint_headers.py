"""What the headers of a request say to an MCP endpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

__all__ = ["EndpointHeaders", "accepted", "is_encoded"]

_JSON: Final = "application/json"
_EVENTS: Final = "text/event-stream"


class EndpointHeaders:
    """What the headers of a request say to the endpoint."""

    __slots__ = ("modern", "sends_json", "session", "takes_events", "takes_json")

    def __init__(self, headers: Mapping[str, str]) -> None:
        version = headers.get(MCP_PROTOCOL_VERSION_HEADER)
        self.modern = version if version is not None and version not in HANDSHAKE_PROTOCOL_VERSIONS else None
        """The version of a request that is not of the legacy era."""
        self.session = headers.get("mcp-session-id")
        accept = headers.get("accept")
        self.takes_json, self.takes_events = accepted(accept) if accept is not None else (True, False)
        """A client that does not say what it takes gets the form that needs no reader of event streams."""
        self.sends_json = headers.get("content-type", "").partition(";")[0].strip().lower() == _JSON


def is_encoded(headers: Mapping[str, str]) -> bool:
    """Whether a body is compressed, or coded in another way that is not undone here."""
    return headers.get("content-encoding", "identity").strip().lower() not in ("identity", "")


def accepted(accept: str) -> tuple[bool, bool]:
    """Whether a client takes JSON, and whether it takes event streams; wildcards count."""
    kinds = {part.partition(";")[0].strip().lower() for part in accept.split(",")}
    every = "*/*" in kinds
    return every or bool(kinds & {_JSON, "application/*"}), every or bool(kinds & {_EVENTS, "text/*"})
