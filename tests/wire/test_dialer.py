"""What a dialer is given: the bounds of the process, logins, and the keys that some servers need."""

from __future__ import annotations

import json
import resource
from dataclasses import replace
from typing import Any

import pytest

from holdfast.config import Limits, ServerSpec
from holdfast.core import BadConfig, Redactor
from holdfast.errors import ServerFailure
from holdfast.wire import dial
from holdfast.wire.dial import Dialer
from holdfast.wire.dispatcher import SHARED_CAPABILITIES, DialHooks, NoClients, Relay
from holdfast.wire.warden import Warden
from tests.peers.mcp_http import McpPeer

INFINITE = resource.RLIM_INFINITY


@pytest.mark.requirement("LIFE-30")
@pytest.mark.parametrize(
    ("soft", "hard", "raised"),
    [
        (256, 4_096, 4_096),
        (256, 10 * dial.ENOUGH, dial.ENOUGH),
        (256, INFINITE, dial.ENOUGH),
        (4_096, 4_096, None),
        (dial.ENOUGH, 10 * dial.ENOUGH, None),
        (INFINITE, INFINITE, None),
    ],
)
def test_the_limit_of_descriptors_is_raised_as_far_as_the_system_allows(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, raised: int | None
) -> None:
    limits: list[Any] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, both: limits.append(both))
    dial.raise_descriptor_limit()
    assert limits == ([(raised, hard)] if raised is not None else [])


@pytest.mark.anyio
@pytest.mark.parametrize(
    "spec",
    [
        ServerSpec(id="a", transport="http", url="https://127.0.0.1:1/mcp", hub="127.0.0.1:1"),
        ServerSpec(id="a", transport="http", url="http://127.0.0.1:1/mcp", identity="signed"),
    ],
)
async def test_a_server_whose_key_is_missing_is_not_dialed(spec: ServerSpec) -> None:
    async with Warden() as warden:
        dialer = Dialer(warden=warden, limits=Limits(), is_hub=True)
        with pytest.raises(ServerFailure) as failed:
            async with dialer.connect(spec, within=5, redactor=Redactor()):
                pytest.fail("it was dialed")
    assert isinstance(failed.value.evidence, BadConfig)


def test_a_dialer_with_the_logins_of_one_user_is_another_with_all_else_the_same() -> None:
    def none(_: object) -> None:
        return None

    shared = Dialer(warden=Warden(), limits=Limits())
    own = shared.with_logins(none)
    assert (own._authorize, own._warden, own._hub_id) == (none, shared._warden, shared._hub_id)
    assert shared._authorize is not none
    fewer = replace(Limits(), message_bytes=1)
    shared.adopt(fewer)
    assert (shared._limits, own._limits) == (fewer, Limits())


@pytest.mark.anyio
@pytest.mark.parametrize("relay", [NoClients(), None])
async def test_a_handshake_declares_what_the_clients_of_the_hub_can_and_nothing_without_a_hub(
    relay: Relay | None,
) -> None:
    async with McpPeer() as peer, Warden() as warden:
        dialer, spec = Dialer(warden=warden, limits=Limits()), ServerSpec(id="a", transport="http", url=peer.url)
        async with dialer.connect(
            spec, within=10, redactor=Redactor(), era="legacy", hooks=DialHooks(relay=relay)
        ) as connection:
            assert connection.era == "legacy"
        params = json.loads(peer.requests[0].body)["params"]
    assert params["clientInfo"]["name"] == "holdfast"
    assert params["capabilities"] == (SHARED_CAPABILITIES if relay is not None else {})
