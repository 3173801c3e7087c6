"""A hub that is served with its control API, and who asks it: by the client that commands use, or by hand."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import httpx2

from holdfast.access.audit_writer import AuditTrail
from holdfast.access.principals import TokenPolicy
from holdfast.config import config_from_mapping
from holdfast.control.control_client import ControlClient
from holdfast.control.hub_finder import RunningHub
from holdfast.control.server.browser_identity import BrowserIdentity
from holdfast.control.server.control_server import ControlServer
from holdfast.control.server.status_page import BrowserSessions
from holdfast.control.server.views import HubInfo
from holdfast.endpoint.user_login import LoginLinks
from holdfast.fleet import Fleet
from holdfast.front.app import create_app
from holdfast.front.session_id import SessionIds
from holdfast.hub.hub import Hub
from tests.harness.web import serving

TOKEN = "the-control-token-of-this-test"
CALLER = "the-token-of-a-caller-of-tools"


@dataclass
class Steered:
    """A hub that is open, its admin side, and a client of it."""

    hub: Hub
    admin: ControlServer
    base: str
    control: ControlClient
    http: httpx2.AsyncClient

    async def ask(
        self, path: str, *, method: str = "GET", token: str | None = TOKEN, body: object = None, **headers: str
    ) -> httpx2.Response:
        """One request by hand."""
        given = {"authorization": f"Bearer {token}"} if token is not None else {}
        content = json.dumps(body).encode() if body is not None else None
        kind = {"content-type": "application/json"} if body is not None else {}
        more = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.http.request(method, f"{self.base}{path}", content=content, headers={**given, **kind, **more})


@asynccontextmanager
async def steered(
    servers: dict[str, Any],
    *,
    tokens: TokenPolicy | None = None,
    state_file: Path | None = None,
    fleet: Fleet | None = None,
    audit: AuditTrail | None = None,
    made_with: Mapping[str, Any] | None = None,
    **options: Any,
) -> AsyncIterator[Steered]:
    """Serve a hub of these servers; ``options`` are Holdfast's own settings, ``made_with`` what else makes the hub."""
    config = config_from_mapping({"mcpServers": servers, "holdfast": options})
    hub = Hub(config, state_file=state_file, fleet=fleet, **(made_with or {}))
    about = HubInfo(endpoint="http://127.0.0.1/mcp")
    ids = SessionIds()
    links = LoginLinks("http://127.0.0.1", lambda: ids.keys.ring, by_issuer=False)
    admin = ControlServer(
        hub,
        about,
        sessions=BrowserSessions(TOKEN),
        browsers=BrowserIdentity(about.endpoint, ring=lambda: ids.keys.ring, ended=ids, tokens=tokens, audit=audit),
        links=links,
        fleet=fleet,
        audit=audit,
    )
    app = create_app(hub, tokens=tokens, beside=admin.routes(), audit=audit)
    async with hub, serving(app) as base:
        assert await hub.ready(20)
        async with (
            ControlClient(RunningHub(url=base, token=TOKEN)) as control,
            httpx2.AsyncClient(trust_env=False) as http,
        ):
            try:
                yield Steered(hub, admin, base, control, http)
            finally:
                admin.close()


class Follower:
    """A follower of the event stream that waits for an event."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []
        self._news = anyio.Event()

    def names(self) -> list[str]:
        return [name for name, _ in self.events]

    async def until(self, name: str, fits: Callable[[Any], bool] = lambda _: True) -> Any:
        """Wait for an event of that name which fits; its data."""
        with anyio.fail_after(20):
            while True:
                for seen, data in self.events:
                    if seen == name and fits(data):
                        return data
                await self._news.wait()

    async def run(self, control: ControlClient, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        async with aclosing(control.events()) as events:
            async for event in events:
                self.events.append((event.name, json.loads(event.data)))
                if event.name == "hello":
                    task_status.started()
                self._news.set()
                self._news = anyio.Event()


@asynccontextmanager
async def following(control: ControlClient) -> AsyncIterator[Follower]:
    """Follow the stream for as long as the block runs."""
    follower = Follower()
    async with anyio.create_task_group() as tasks:
        await tasks.start(follower.run, control)
        yield follower
        tasks.cancel_scope.cancel()
