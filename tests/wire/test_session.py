"""What our modern requests say of a client: what it can do, in its own era and version."""

from __future__ import annotations

import json
from typing import Any

import pytest
from mcp_types import CLIENT_CAPABILITIES_META_KEY, PROTOCOL_VERSION_META_KEY
from mcp_types.version import LATEST_MODERN_VERSION

from holdfast.wire.in_flight import Era
from holdfast.wire.session import routing_headers, stamp

pytestmark = pytest.mark.requirement("LIFE-28")

TASKS: dict[str, Any] = {"tasks": {}, "roots": {}}


class OneClient:
    """A ``Caller`` that only says what it can do."""

    counted_by = None
    client_key = None
    via = ()
    trace_id = ""
    principal = ""

    def __init__(self, capabilities: dict[str, Any], era: Era = "modern") -> None:
        self.capabilities = capabilities
        self.era: Era = era

    async def ask(self, method: str, params: object) -> dict[str, Any]:
        raise NotImplementedError

    def tell(self, method: str, params: object) -> None:
        raise NotImplementedError

    def progress(self, progress: float, total: float | None, message: str | None) -> None:
        raise NotImplementedError


def said(version: str, client: OneClient | None) -> dict[str, Any]:
    meta: dict[str, Any] = json.loads(stamp(version, client))
    return meta


def test_each_client_gets_its_own_capabilities_in_its_own_era_and_version() -> None:
    now = LATEST_MODERN_VERSION
    assert said(now, None)[CLIENT_CAPABILITIES_META_KEY] == {}
    assert said(now, OneClient({"roots": {}}))[CLIENT_CAPABILITIES_META_KEY] == {"roots": {}}
    assert said(now, OneClient(TASKS))[CLIENT_CAPABILITIES_META_KEY] == TASKS
    assert said(now, OneClient(TASKS, "legacy"))[CLIENT_CAPABILITIES_META_KEY] == {"roots": {}}
    assert said("2027-01-01", OneClient(TASKS))[PROTOCOL_VERSION_META_KEY] == "2027-01-01"


def test_a_modern_request_says_in_headers_what_it_is() -> None:
    assert routing_headers("2027-01-01", "tools/list", None) == {
        "mcp-protocol-version": "2027-01-01",
        "mcp-method": "tools/list",
    }
    assert routing_headers("2027-01-01", "tools/call", "echo")["mcp-name"] == "echo"
