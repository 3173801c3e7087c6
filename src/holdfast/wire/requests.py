"""Requests and results as they are on the wire, for code that passes them on without reading them.

The session still stamps each request for the negotiated version and checks each result against it. It builds no
typed models of them.
"""

from __future__ import annotations

from typing import Any

import mcp_types as types
from pydantic import BaseModel, ConfigDict, ValidationError

__all__ = ["RawNotice", "RawRequest", "RawResult", "first_error"]


class RawRequest(types.Request[dict[str, Any], str]):
    """Any request: a method and its parameters."""


class RawNotice(types.Notification[dict[str, Any], str]):
    """Any notification: a method and its parameters."""


class RawResult(BaseModel):
    """Any result: ``raw`` is what the server sent."""

    model_config = ConfigDict(extra="allow")

    @property
    def raw(self) -> dict[str, Any]:
        """The whole result."""
        return self.model_extra or {}


def first_error(exc: ValidationError) -> str:
    """The place and kind of the first violation of the protocol, without the content."""
    first = exc.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
