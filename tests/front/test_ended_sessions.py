"""A session that has ended stays ended: for requests that come in between, for late notes, and on the next hub."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from holdfast.front.app import create_app
from holdfast.front.session_id import SessionIds, SessionKeys
from holdfast.front.session_store import SessionStore
from holdfast.hub.hub import Hub
from tests.front.test_sealed_sessions import Replica
from tests.harness.raw_session import VERSION, Session
from tests.harness.served_hub import Served
from tests.harness.waiting import PATIENCE, jump
from tests.harness.web import serving

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120), pytest.mark.requirement("FLEET-1")]

DAY = 86_400.0
LONGEST = 30 * DAY
"""How long a session lives at most, in use or not."""
SWEEP = 61.0
"""After so many seconds the hub has looked at its sessions."""


class HeldStore:
    """The file of the sessions. One question to it, or one write, is held back until the test lets it go."""

    def __init__(self, file: Path) -> None:
        self._store: Any = SessionStore(file)
        self._hold = ""
        self.reached = anyio.Event()
        self.let_go = anyio.Event()

    def hold(self, what: str) -> None:
        """Hold the next ``what`` back: an answer once it is read, a write before it is made."""
        self._hold = what

    def __getattr__(self, name: str) -> Any:
        act = getattr(self._store, name)
        if name != self._hold:
            return act
        self._hold = ""

        async def held(*args: Any, **more: Any) -> Any:
            answer = await act(*args, **more) if name.startswith("load") else None
            self.reached.set()
            await self.let_go.wait()
            return answer if name.startswith("load") else await act(*args, **more)

        return held


class Clock:
    """The wall clock of the hubs."""

    def __init__(self) -> None:
        self.now = 1_790_000_000.0

    def __call__(self) -> float:
        return self.now


class EndingHub(Replica):
    """A hub whose clients end their sessions."""

    def __init__(self, served: Served, http: httpx2.AsyncClient, store: HeldStore) -> None:
        super().__init__(served, http)
        self.store = store

    async def status(self, session_id: str, method: str = "ping", **params: Any) -> int:
        """The status of one request of a session."""
        return int((await self.ask(session_id, method, **params)).status_code)

    async def notify(self, session_id: str) -> int:
        """The status of a notification of a session."""
        headers = {"accept": "application/json", "mcp-protocol-version": VERSION, "mcp-session-id": session_id}
        told = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        return (await self.http.post(self.served.all, json=told, headers=headers)).status_code

    async def end(self, session_id: str) -> None:
        """The client says goodbye."""
        answer = await self.http.delete(self.served.all, headers={"mcp-session-id": session_id})
        assert answer.status_code == 200

    def session(self, session_id: str) -> Session:
        """The session in the hands of a client that streams."""
        made = Session(self.http, self.served.all)
        made.headers["mcp-session-id"] = session_id
        return made


@asynccontextmanager
async def hub(folder: Path, clock: Clock | None = None) -> AsyncIterator[EndingHub]:
    """A hub with the keys and the file of this folder; the next one there is the same hub after a restart."""
    store = HeldStore(folder / "sessions.sqlite")
    more: dict[str, Any] = {"wall": clock} if clock is not None else {}
    made = Hub.from_config({"mcpServers": {}})
    held: Any = store
    app = create_app(made, ids=SessionIds(SessionKeys.kept(folder), held, **more))
    async with made, serving(app) as base, httpx2.AsyncClient(trust_env=False, timeout=None) as http:
        yield EndingHub(Served(made, app, base), http, store)


async def reached(store: HeldStore) -> None:
    with anyio.fail_after(PATIENCE):
        await store.reached.wait()


@pytest.mark.parametrize("moment", ["load", "load_listed"])
async def test_a_session_that_is_rebuilt_while_its_client_ends_it_is_not_revived(tmp_path: Path, moment: str) -> None:
    async with hub(tmp_path) as before:
        session_id = await before.begin()
    async with hub(tmp_path) as after:
        late: list[int] = []

        async def ask() -> None:
            late.append(await after.status(session_id))

        async with anyio.create_task_group() as tasks:
            after.store.hold(moment)
            tasks.start_soon(ask)  # it reads that the session goes on
            await reached(after.store)
            await after.end(session_id)
            after.store.let_go.set()
        assert late == [404]
        assert await after.status(session_id) == 404
        assert await after.notify(session_id) == 404
    async with hub(tmp_path) as last:
        assert await last.status(session_id) == 404


@pytest.mark.parametrize("note", ["a log level", "the last use, read before", "the last use, written after"])
async def test_a_note_about_a_session_that_comes_late_does_not_revive_it(tmp_path: Path, note: str) -> None:
    clock = Clock()
    async with hub(tmp_path, clock) as before:
        session_id = await before.begin()
        assert await before.status(session_id, "logging/setLevel", level="error") == 200
        async with anyio.create_task_group() as tasks:
            before.store.hold("load" if "read" in note else "save")
            if note == "a log level":
                tasks.start_soon(lambda: before.status(session_id, "logging/setLevel", level="debug"))
            else:
                clock.now += DAY
                await jump(SWEEP, settled=False)
            await reached(before.store)
            await before.end(session_id)
            before.store.let_go.set()
        assert await before.status(session_id) == 404
        assert await before.notify(session_id) == 404
    async with hub(tmp_path, clock) as after:
        assert await after.status(session_id) == 404
        assert await after.notify(session_id) == 404


async def test_a_session_in_use_ends_with_its_longest_life(tmp_path: Path) -> None:
    clock = Clock()
    async with hub(tmp_path, clock) as served:
        session_id = await served.begin()
        async with served.session(session_id).notices() as events:
            for _ in range(29):
                clock.now += DAY
                await jump(SWEEP, settled=False)
                assert await served.status(session_id) == 200
            clock.now += LONGEST - 29 * DAY
            await jump(SWEEP, settled=False)
            with anyio.fail_after(PATIENCE):
                async for _ in events:  # it ends with the session
                    pass
        assert await served.status(session_id) == 404
        assert await served.notify(session_id) == 404
    async with hub(tmp_path, clock) as after:
        assert await after.status(session_id) == 404
