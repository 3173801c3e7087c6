"""What our modern requests say of a client: written once for each, the right one for each, and kept for few."""

from __future__ import annotations

import json
from typing import Any
from weakref import WeakSet

import pytest
from mcp_types import CLIENT_CAPABILITIES_META_KEY, PROTOCOL_VERSION_META_KEY
from mcp_types.version import LATEST_MODERN_VERSION

from holdfast.wire.relay import Era
from holdfast.wire.request_sender import KNOWN, KNOWN_BYTES, RequestStamp

pytestmark = pytest.mark.requirement("LIFE-28")

TASKS: dict[str, Any] = {"tasks": {}, "roots": {}}


class Capabilities(dict[str, Any]):
    """One that can be counted while it lives."""

    __hash__ = object.__hash__  # type: ignore[assignment]  # by identity, as the stamp knows it


class OneClient:
    """A ``Caller`` that only says what it can do."""

    counted_by = None
    client_key = None
    via = ()
    principal = ""

    def __init__(self, capabilities: dict[str, Any], era: Era = "modern") -> None:
        self.capabilities = capabilities
        self.era: Era = era

    async def ask(self, method: str, params: object) -> dict[str, Any]:
        raise NotImplementedError

    def tell(self, method: str, params: object) -> None:
        raise NotImplementedError


def said(stamp: RequestStamp, client: OneClient | None) -> dict[str, Any]:
    meta: dict[str, Any] = json.loads(stamp.meta(client))
    return meta


def test_each_client_gets_its_own_capabilities_in_its_own_era_and_version() -> None:
    one, other = RequestStamp(LATEST_MODERN_VERSION), RequestStamp("2027-01-01")
    for _ in range(2):
        assert said(one, None)[CLIENT_CAPABILITIES_META_KEY] == {}
        for number in range(3):
            can = {"roots": {"number": number}}
            assert said(one, OneClient(can))[CLIENT_CAPABILITIES_META_KEY] == can
        assert said(one, OneClient(TASKS))[CLIENT_CAPABILITIES_META_KEY] == TASKS
        assert said(one, OneClient(TASKS, "legacy"))[CLIENT_CAPABILITIES_META_KEY] == {"roots": {}}
        assert said(other, OneClient(TASKS))[PROTOCOL_VERSION_META_KEY] == "2027-01-01"
        assert said(one, OneClient(TASKS))[PROTOCOL_VERSION_META_KEY] == LATEST_MODERN_VERSION


def test_clients_that_bring_a_new_object_with_each_call_are_not_all_kept() -> None:
    alive: WeakSet[Capabilities] = WeakSet()
    connections = [RequestStamp(LATEST_MODERN_VERSION) for _ in range(4)]
    for stamp in connections:
        for number in range(KNOWN):
            client = OneClient(Capabilities(number=number))
            alive.add(client.capabilities)  # type: ignore[arg-type]  # it is the one above
            assert said(stamp, client)[CLIENT_CAPABILITIES_META_KEY] == {"number": number}
    assert len(alive) <= KNOWN + 1, f"{len(connections)} connections keep them"


def test_large_capabilities_are_written_each_time() -> None:
    alive: WeakSet[Capabilities] = WeakSet([can := Capabilities(text="x" * KNOWN_BYTES)])
    assert said(RequestStamp(LATEST_MODERN_VERSION), OneClient(can))[CLIENT_CAPABILITIES_META_KEY] == can
    del can
    assert not alive
