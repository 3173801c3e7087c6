"""A login that is asked for over the control API: the request owns it, and the hub uses it at once."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import anyio
import httpx2
import pytest

from holdfast.access.principals import TokenPolicy
from holdfast.control.server.server_logins import PendingLogins
from tests.control.server.controlled_hub import TOKEN, Steered, steered
from tests.peers.guarded import Guarded, guarded

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("DX-5", "AUTH-3")]


@pytest.fixture
def state_home(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """No login of the test goes into the user's own store."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.null.Keyring")


@pytest.fixture
async def peer() -> AsyncIterator[Guarded]:
    async with guarded() as running:
        yield running


async def events(stream: httpx2.Response) -> AsyncIterator[tuple[str, Any]]:
    name = ""
    async for line in stream.aiter_lines():
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))


@asynccontextmanager
async def login(hub: Steered) -> AsyncIterator[AsyncIterator[tuple[str, Any]]]:
    headers = {"authorization": f"Bearer {TOKEN}"}
    async with hub.http.stream("POST", f"{hub.base}/api/servers/files/login", headers=headers, timeout=30) as stream:
        assert stream.status_code == 200
        yield events(stream)


@pytest.mark.parametrize("sharing", ["shared", pytest.param("per-user", marks=pytest.mark.requirement("SEC-13"))])
async def test_the_browser_comes_back_to_the_hub_and_the_server_is_up(
    sharing: str, peer: Guarded, state_home: None
) -> None:
    """Where servers are per user, the one user of a hub without credentials is `local`: she logs in here too."""
    async with steered({"files": peer.defined(sharing=sharing)}) as hub:
        assert (await hub.control.server("files")).login
        async with login(hub) as news:
            name, page = await anext(news)
            assert (name, page["scope"]) == ("visit", ["files:read"])
            async with httpx2.AsyncClient(follow_redirects=True, trust_env=False) as browser:
                await browser.get(page["address"])
            assert await anext(news) == ("done", {})
        seen = await hub.control.server("files")
        assert (seen.status, seen.login) == ("available", False)


async def test_a_refused_login_is_told_and_changes_nothing(peer: Guarded, state_home: None) -> None:
    async with steered({"files": peer.defined()}) as hub:
        async with login(hub) as news:
            await anext(news)
            answer = await hub.ask("/api/servers/files/login/answer", method="POST", body={"address": "http://x/?a=b"})
            assert answer.status_code == 200
            name, told = await anext(news)
        assert name == "failed"
        assert "an answer to another request" in told["error"]
        assert (await hub.control.server("files")).status == "denied"


async def test_a_login_ends_with_its_reader_and_takes_no_answer_then(peer: Guarded, state_home: None) -> None:
    async with steered({"files": peer.defined()}) as hub:
        async with login(hub) as news:
            await anext(news)
        with anyio.fail_after(20):
            while True:
                late = await hub.ask("/api/servers/files/login/answer", method="POST", body={"address": "http://x/?a"})
                if late.status_code == 409:
                    break
        assert "no login of `files` waits" in late.json()["error"]


@pytest.mark.requirement("SEC-20")
async def test_a_login_ends_when_the_one_who_asked_for_it_loses_the_role(
    peer: Guarded, state_home: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.control.server.operations.RECHECK_SECONDS", 0.05)
    tokens = {"otto": "token-of-otto-0123456789"}
    roles = {"roles": {"operate": {"principals": ["otto"]}}}
    async with steered({"files": peer.defined()}, tokens=TokenPolicy(tokens=tokens), access=roles) as hub:
        headers = {"authorization": f"Bearer {tokens['otto']}"}
        async with hub.http.stream("POST", f"{hub.base}/api/servers/files/login", headers=headers) as stream:
            news = events(stream)
            assert (await anext(news))[0] == "visit"
            tokens["otto"] = "another-token-0123456789"
            with anyio.fail_after(20):
                assert [name async for name, _ in news] == []
        late = await hub.ask("/api/servers/files/login/answer", method="POST", body={"address": "http://x/?a"})
        assert late.status_code == 409


async def test_a_login_that_ends_leaves_the_answers_to_the_newer_one_of_its_server() -> None:
    pending = PendingLogins()
    with ExitStack() as older:
        older.enter_context(pending.answers("files"))
        with pending.answers("files") as answers:
            older.close()
            assert pending.answer("files", "http://x/?code=1")
            assert answers.receive_nowait() == "http://x/?code=1"
    assert not pending.answer("files", "http://x/?code=2")


async def test_a_server_that_needs_no_login_gets_none(state_home: None) -> None:
    async with steered({"files": {"url": "http://127.0.0.1:9/"}}) as hub:
        answer = await hub.ask("/api/servers/files/login", method="POST")
        assert answer.status_code == 409
        assert "does not ask for a login" in answer.json()["error"]
        assert (await hub.ask("/api/servers/files/login", method="POST", token="wrong")).status_code == 401
