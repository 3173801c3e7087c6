"""Replicas that run different configurations are reported, and what they tell each other shows nothing of it."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from holdfast.core.replicas import agreement
from holdfast.fleet import Fleet, LocalStore, serve_broker
from holdfast.fleet.shared_records import ConfigComparison, config_digests
from holdfast.keys import KeyRing
from tests.harness.open_hubs import config, fleet_of, running
from tests.harness.waiting import came_true

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("FLEET-2")]

OFF: dict[str, Any] = {"command": "x", "args": ["--token", "planted-secret"], "enabled": False}
KEY = b"k" * 32


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Path]:
    path = tmp_path / "broker"
    async with anyio.create_task_group() as tasks:
        await tasks.start(lambda task_status: serve_broker(path, task_status=task_status))
        yield path
        tasks.cancel_scope.cancel()


def fleet_on(store: Path, name: str, *keys: bytes) -> Fleet:
    return Fleet(LocalStore(store), replica=name, keys=lambda: KeyRing(keys))


async def test_replicas_that_differ_say_so_once_and_no_more_when_they_agree(
    store: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(agreement, "SETTLED_SECONDS", 0.0)
    caplog.set_level(logging.WARNING, "holdfast.fleet")
    async with (
        running({"one": OFF}, hub={"fleet": fleet_on(store, "r1", KEY)}) as first,
        running({"one": OFF, "two": OFF}, hub={"fleet": fleet_on(store, "r2", b"n" * 32, KEY)}) as second,
    ):
        fleets = [fleet_of(hub) for hub in (first, second)]
        await came_true(lambda: all(fleet.configs.groups == (("r1",), ("r2",)) for fleet in fleets))
        assert "2 different configurations (r1; r2)" in fleets[0].configs.notice
        await first.registry.apply(config({"two": OFF, "one": OFF}))
        await came_true(lambda: not any(fleet.configs.groups for fleet in fleets))
        assert fleets[0].configs.notice == ""
        presences = [str(peer.about) for peer in fleets[0].member.peers.values()]
    said = [record.getMessage() for record in caplog.records if "different configurations" in record.getMessage()]
    assert len(said) == len(fleets)
    assert "planted-secret" not in str(said)
    assert len(presences) == len(fleets)
    assert "planted-secret" not in str(presences)


@pytest.mark.parametrize(
    ("changed", "differs"),
    [
        ({"args": ["--token", "another"]}, True),
        ({"tools": {"exclude": ["write_*"]}}, True),
        ({"enabled": True}, True),
        ({"env": {"HOST": "h", "MORE": "1"}}, True),
        ({"env": {"HOST": "another"}}, False),
        ({"cwd": "/"}, False),
    ],
)
def test_what_clients_notice_is_compared_and_what_belongs_to_a_machine_is_not(
    changed: dict[str, Any], differs: bool
) -> None:
    given = OFF | {"env": {"HOST": "h"}}
    before, after = (config({"s": one}).servers for one in (given, given | changed))
    assert (config_digests(before, KeyRing([KEY])) != config_digests(after, KeyRing([KEY]))) is differs
    assert config_digests(before, KeyRing([KEY])) != config_digests(before, KeyRing([b"other" * 8]))


@pytest.mark.parametrize(
    ("groups", "named"),
    [
        (["a", "b"], "2 different configurations (a; b):"),
        (["a", "b", "c"], "3 different configurations (a; b; c):"),
        (["a", "b", "c", "d", "e"], "5 different configurations (a; b; c, and 2 more):"),
        (["abc", "d"], "2 different configurations (a, b, c; d):"),
        (["abcd", "e"], "2 different configurations (a, b, c and 1 more; e):"),
    ],
)
def test_as_many_configurations_and_replicas_are_named_as_a_sentence_holds(
    groups: list[str], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agreement, "SETTLED_SECONDS", 0.0)
    there: dict[str, dict[str, Any]] = {name: {"config": [group]} for group in groups for name in group}
    there |= {"older": {}, "odd": {"config": "text"}}
    state: Any = SimpleNamespace(is_shared=True, now=lambda: 1.0)
    presence: Any = SimpleNamespace(staying=there)
    configs = ConfigComparison(state, presence, lambda: KeyRing([KEY]))
    assert configs.notice == ""
    configs.compare("store")
    assert named in configs.notice
    state.is_shared = False
    assert configs.notice == "", "what the others run is not known now"
