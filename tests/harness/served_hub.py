"""A served hub, and clients of both eras that record what reaches them."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import anyio
import mcp_types as types
from mcp import Client
from mcp.client import ClientRequestContext
from starlette.applications import Starlette

from holdfast.access.principals import TokenPolicy
from holdfast.front.app import create_app
from holdfast.hub.hub import Hub
from tests.harness.web import serving

Era = Literal["modern", "legacy"]


@dataclass
class Served:
    """A hub that is open, and where it is served."""

    hub: Hub
    app: Starlette
    base: str

    @property
    def all(self) -> str:
        return f"{self.base}/mcp"

    def one(self, server: str) -> str:
        return f"{self.base}/servers/{server}/mcp"


@asynccontextmanager
async def front(
    servers: dict[str, Any], *, wait: bool = True, tokens: TokenPolicy | None = None, **options: Any
) -> AsyncIterator[Served]:
    """Serve a hub of these servers; ``options`` are Holdfast's own settings."""
    hub = Hub.from_config({"mcpServers": servers, "holdfast": options})
    app = create_app(hub, tokens=tokens)
    async with hub, serving(app) as base:
        if wait:
            assert await hub.ready(60)
        yield Served(hub, app, base)


PATIENT = {"readyTimeout": "60s"}
"""For calls that first start a Python process: on a busy machine that takes long."""


def over_stdio(era: Era, **more: Any) -> dict[str, Any]:
    """The definition of an origin that runs as a child."""
    return {"command": sys.executable, "args": ["-m", "tests.peers.peer_server", era], **more}


@dataclass
class Person:
    """The user of a client: gives answers, and records what comes."""

    name: str
    asked: list[str] = field(default_factory=list)
    logs: list[tuple[str, Any]] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    updated: list[str] = field(default_factory=list)
    came: anyio.Event = field(default_factory=anyio.Event)
    before_answering: Callable[[], Any] | None = None

    async def elicit(self, ctx: ClientRequestContext, params: types.ElicitRequestParams) -> types.ElicitResult:
        self.asked.append("elicit")
        if self.before_answering is not None:
            await self.before_answering()
        return types.ElicitResult(action="accept", content={"colour": f"{self.name}'s blue"})

    async def sample(
        self, ctx: ClientRequestContext, params: types.CreateMessageRequestParams
    ) -> types.CreateMessageResult:
        self.asked.append("sample")
        self._note()
        content = types.TextContent(type="text", text=f"{self.name} says so")
        return types.CreateMessageResult(role="assistant", model="none", content=content)

    async def roots(self, ctx: ClientRequestContext) -> types.ListRootsResult:
        self.asked.append("roots")
        return types.ListRootsResult(roots=[types.Root.model_validate({"uri": f"file:///{self.name}"})])

    async def log(self, params: types.LoggingMessageNotificationParams) -> None:
        self.logs.append((params.level, params.data))
        self._note()

    async def hear(self, message: Any) -> None:
        method = getattr(message, "method", "")
        self.notices.append(method)
        if method == "notifications/resources/updated":
            self.updated.append(str(message.params.uri))
        self._note()

    def _note(self) -> None:
        self.came.set()
        self.came = anyio.Event()

    async def until(self, condition: Callable[[], bool]) -> None:
        with anyio.fail_after(10):
            while not condition():
                await self.came.wait()

    def client(self, url: Any, era: Era, *, answers: bool = True, **more: Any) -> AbstractAsyncContextManager[Client]:
        callbacks: dict[str, Any] = {"logging_callback": self.log, "message_handler": self.hear}
        if answers:
            callbacks |= {
                "elicitation_callback": self.elicit,
                "sampling_callback": self.sample,
                "list_roots_callback": self.roots,
            }
        return Client(url, mode="legacy" if era == "legacy" else "auto", cache=None, **callbacks, **more)


def text_of(result: Any) -> str:
    return "\n".join(block.text for block in result.content if block.type == "text")
