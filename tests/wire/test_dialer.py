"""What a dialer is given: the bounds of the process, logins, and the keys that some servers need."""

from __future__ import annotations

import resource
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from mcp_types import CLIENT_CAPABILITIES_META_KEY

from holdfast.config import Limits, ServerSpec
from holdfast.core import BadConfig, Redactor
from holdfast.errors import ServerFailure
from holdfast.wire import dial
from holdfast.wire.dial import Dialer
from holdfast.wire.dispatcher import _declaring
from holdfast.wire.warden import Warden

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


def test_a_session_declares_the_capabilities_of_its_clients_where_it_declares_any() -> None:
    clients: Any = SimpleNamespace(capabilities={"roots": {}})
    assert _declaring("initialize", {"x": 1}, clients) == {"x": 1, "capabilities": {"roots": {}}}
    for params in ({"x": 1}, {"_meta": "odd"}, {"_meta": {"x": 1}}):
        assert _declaring("ping", params, clients) is params
    said = {"_meta": {"x": 1, CLIENT_CAPABILITIES_META_KEY: {"odd": 1}}}
    assert _declaring("ping", said, clients) == {"_meta": {"x": 1, CLIENT_CAPABILITIES_META_KEY: {}}}
