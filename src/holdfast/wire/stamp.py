"""What each modern request says of itself, in ``_meta`` and in headers, where a legacy session says it once.

Clients and tools are few beside their calls, so what was written for one is kept, as far as it is not large.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import mcp_types as types
from mcp.shared.inbound import (
    MCP_METHOD_HEADER,
    MCP_NAME_HEADER,
    MCP_PROTOCOL_VERSION_HEADER,
    encode_header_value,
)
from mcp_types import CLIENT_CAPABILITIES_META_KEY, CLIENT_INFO_META_KEY, PROTOCOL_VERSION_META_KEY

from holdfast._version import __version__
from holdfast.wire.raw_json import dumps
from holdfast.wire.relay import Caller
from holdfast.wire.tasks import without_task_capabilities

__all__ = ["RequestStamp"]

KNOWN: Final = 128
KNOWN_BYTES: Final = 1024
"""For how many clients of all connections, and for how many tools of one, it is kept, and how large one may be."""

_NOTHING: Final[Mapping[str, Any]] = {}

_METAS: Final[dict[tuple[str, int, bool], tuple[Mapping[str, Any], bytes]]] = {}
"""What ``_meta`` says: by version, by the object with a client's capabilities, and by whether it is a legacy client.

A client uses many servers, and may bring another object with each call: each connection would keep many of them.
"""


class RequestStamp:
    """What the requests of one connection say, in one version of the protocol."""

    def __init__(self, version: str) -> None:
        self.version = version
        self._headers: dict[tuple[str, str | None], dict[str, str]] = {}

    def meta(self, caller: Caller | None) -> bytes:
        """What ``_meta`` says of the client."""
        can = caller.capabilities if caller is not None else _NOTHING
        legacy = caller is not None and caller.era == "legacy"
        key = self.version, id(can), legacy
        known = _METAS.get(key)
        if known is not None and known[0] is can:
            return known[1]
        declared = without_task_capabilities(can) if legacy else can  # such a client cannot follow a modern task
        info = types.Implementation(name="holdfast", version=__version__)
        meta = dumps(
            {
                PROTOCOL_VERSION_META_KEY: self.version,
                CLIENT_INFO_META_KEY: info.model_dump(by_alias=True, mode="json", exclude_none=True),
                CLIENT_CAPABILITIES_META_KEY: dict(declared),
            }
        )
        if len(meta) <= KNOWN_BYTES:
            if len(_METAS) >= KNOWN:
                _METAS.clear()
            _METAS[key] = can, meta
        return meta

    def headers(self, method: str, name: str | None) -> dict[str, str]:
        """The headers that say what a request is. Nothing changes them."""
        known = self._headers.get((method, name))
        if known is not None:
            return known
        headers = {MCP_PROTOCOL_VERSION_HEADER: self.version, MCP_METHOD_HEADER: method}
        if name is not None:
            headers[MCP_NAME_HEADER] = encode_header_value(name)
        if len(self._headers) >= KNOWN:
            self._headers.clear()
        if name is None or len(name) <= KNOWN_BYTES:
            self._headers[method, name] = headers
        return headers
