"""A client inside the test, of either era, with a user and a model, that records what reaches it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import anyio.abc
import httpx2
import mcp_types as types
from mcp import Client
from mcp.client.client import ConnectMode
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import Subscription
from pydantic import FileUrl

from tests.clients.programs import ClientEra

__all__ = ["Companion", "companion"]

_MODES: dict[ClientEra, ConnectMode] = {"legacy": "legacy", "modern": "2026-07-28"}
# How long a notice may take before its cause is repeated, and for how long that goes on.
_NOTICE, _PATIENCE = 1.0, 15.0


class Companion:
    """``user`` is what its user is called and what its model says; ``asked`` is all that it was asked."""

    def __init__(self, user: str, era: ClientEra) -> None:
        self.user = user
        self.era = era
        self.asked: list[str] = []
        self.logged: list[Any] = []
        self.told: set[str] = set()
        self._heard = asyncio.Event()
        self.client: Client
        self.tasks: anyio.abc.TaskGroup

    async def call(self, name: str, /, **arguments: Any) -> str:
        """Call a tool; gives the text of its result."""
        return _text(await self.client.call_tool(name, arguments))

    async def progress_of(self, steps: int) -> list[tuple[float, str | None]]:
        """What was reported by the time the result came, sorted: the SDK's callbacks run in any order."""
        seen: list[tuple[float, str | None]] = []

        async def note(progress: float, total: float | None, message: str | None) -> None:
            seen.append((progress, message))
            self._heard.set()

        await self.client.call_tool("test_counting", {"steps": steps}, progress_callback=note)
        await self.until(lambda: len(seen) >= steps)
        return sorted(seen)

    async def give_up(self, name: str) -> None:
        """Call a tool that waits, and cancel the call as soon as it has begun."""
        with anyio.CancelScope() as scope:

            async def begun(progress: float, total: float | None, message: str | None) -> None:
                scope.cancel()

            await self.client.call_tool("test_wait", {"name": name}, progress_callback=begun)

    async def watch(self, uri: str) -> None:
        """Ask to be told of a resource's changes."""
        if self.era == "legacy":
            await self.client.subscribe_resource(uri)
        else:
            await self.tasks.start(self._listen, self.client.listen(resource_subscriptions=[uri]))

    async def watch_tools(self) -> None:
        """Ask to be told when the tools change; in the handshake era everyone is."""
        if self.era == "modern":
            await self.tasks.start(self._listen, self.client.listen(tools_list_changed=True))

    async def told_of(self, notice: str, *, cause: Callable[[], Awaitable[object]]) -> None:
        """Cause a notice and wait for it; again, if none came: a client's own stream may not stand yet."""
        self.told.clear()
        with anyio.fail_after(_PATIENCE):
            while notice not in self.told:
                await cause()
                with anyio.move_on_after(_NOTICE):
                    await self.hears(notice)

    async def hears(self, notice: str) -> None:
        """Wait for a notice; one that came since ``told`` was cleared will do."""
        await self.until(lambda: notice in self.told)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until the callbacks have run: the SDK runs each in a task that cannot be awaited."""
        with anyio.fail_after(_PATIENCE):
            while not condition():
                self._heard.clear()
                await self._heard.wait()

    async def _listen(
        self,
        listening: AbstractAsyncContextManager[Subscription],
        *,
        task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        async with listening as subscription:
            task_status.started()
            async for event in subscription:
                self._hear(type(event).__name__)

    def _hear(self, notice: str) -> None:
        self.told.add(notice)
        self._heard.set()

    async def _noticed(self, message: object) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self._hear("ToolsListChanged")
        elif isinstance(message, types.ResourceUpdatedNotification):
            self._hear("ResourceUpdated")

    async def _log(self, params: types.LoggingMessageNotificationParams) -> None:
        self.logged.append(params.data)
        self._heard.set()

    async def _elicited(self, context: object, params: types.ElicitRequestParams) -> types.ElicitResult:
        self.asked.append(params.message)
        return types.ElicitResult(action="accept", content={"username": self.user, "email": f"{self.user}@example.com"})

    async def _sampled(self, context: object, params: types.CreateMessageRequestParams) -> types.CreateMessageResult:
        self.asked.append(json.dumps([message.model_dump(mode="json")["content"] for message in params.messages]))
        said = types.TextContent(type="text", text=f"{self.user}'s model")
        return types.CreateMessageResult(role="assistant", content=said, model="test-model")

    async def _roots(self, context: object) -> types.ListRootsResult:
        return types.ListRootsResult(roots=[types.Root(uri=FileUrl(f"file:///home/{self.user}"))])


@asynccontextmanager
async def companion(
    url: str, era: ClientEra, *, user: str = "ada", headers: dict[str, str] | None = None
) -> AsyncIterator[Companion]:
    """Connect a client of the era, for as long as the block lasts."""
    made = Companion(user, era)
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(httpx2.AsyncClient(headers=headers, timeout=30))
        made.client = await stack.enter_async_context(
            Client(
                streamable_http_client(url, http_client=http),
                mode=_MODES[era],
                elicitation_callback=made._elicited,
                sampling_callback=made._sampled,
                list_roots_callback=made._roots,
                logging_callback=made._log,
                log_level="info",
                message_handler=made._noticed,
                cache=None,
            )
        )
        made.tasks = await stack.enter_async_context(anyio.create_task_group())
        yield made
        made.tasks.cancel_scope.cancel()


def _text(result: types.CallToolResult) -> str:
    assert isinstance(result.content[0], types.TextContent), result
    return result.content[0].text
