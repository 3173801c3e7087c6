"""A server that another hub runs: what that hub says of it is the finding."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.doctor import _hub_tls
from holdfast.front import SessionKeys, create_hub_app
from holdfast.identity import FleetIdentity
from tests.doctor.examination import Examination
from tests.fleet.test_hub_listener import listening
from tests.harness.served_hub import front
from tests.harness.web import serving
from tests.peers.peer_server import running

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def served_to_hubs(servers: dict[str, Any], folder: Path) -> AsyncIterator[str]:
    """A hub of these servers on a Unix socket for other hubs."""
    async with front(servers) as inner:
        app = create_hub_app(inner.app.state.front, uids={os.geteuid()})
        async with serving(app, accept=True, unix=folder / "hub.sock") as address:
            yield address


@pytest.mark.requirement("FLEET-6")
async def test_a_server_that_is_down_behind_a_hub_is_told_with_the_words_of_that_hub(
    clinic: Examination, tmp_path: Path
) -> None:
    async with served_to_hubs({"server": {"command": "holdfast-no-such-program"}}, tmp_path) as address:
        found = await clinic.found({"hub": address})
    assert found.code == "HF-BEHIND-HUB"
    clinic.matches("behind_hub", found)


@pytest.mark.requirement("FLEET-6")
async def test_a_server_that_is_up_behind_a_hub_is_well(clinic: Examination, tmp_path: Path) -> None:
    async with running() as origin, served_to_hubs({"server": {"url": origin.url}}, tmp_path) as address:
        report = await clinic.one({"hub": address})
    assert (report.health, report.transport) == ("healthy", "hub")


@pytest.mark.requirement("FLEET-6")
async def test_a_server_behind_a_hub_on_another_machine_is_examined_with_the_session_key(
    clinic: Examination, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = tmp_path / "keys"
    keys.write_text("a session key that all of the hubs have\n")
    keys.chmod(0o600)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    ring = SessionKeys.find(file=keys).ring
    async with (
        running() as origin,
        listening(FleetIdentity(lambda: ring, "inner"), {"server": {"url": origin.url}}) as port,
    ):
        known = await clinic.one({"hub": f"127.0.0.1:{port}"}, hub_tls=_hub_tls(keys))
        unknown = await clinic.found({"hub": f"127.0.0.1:{port}"}, hub_tls=_hub_tls(None))
    assert (known.health, known.transport) == ("healthy", "hub")
    assert "--session-key-file" in unknown.remedy.text


async def test_a_hub_that_does_not_run_is_told_as_such(clinic: Examination, tmp_path: Path) -> None:
    found = await clinic.found({"hub": f"unix:{tmp_path}/hub.sock"})
    clinic.matches("behind_hub_gone", found)
