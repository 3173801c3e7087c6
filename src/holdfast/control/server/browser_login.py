"""Logs in to a server from the status page: the request that asks for it owns the login, and ends with it.

The answer is an event stream: `visit` with the page of the authorization server, then `done` or `failed`. That page
leads back to the machine of the hub; a person whose browser runs elsewhere sends the last address instead.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from holdfast.auth import log_in
from holdfast.config import ServerSpec
from holdfast.control.models import ApiError, ApiModel, LoginPage
from holdfast.control.server.control_events import KEEP_ALIVE, KEEP_ALIVE_SECONDS, frame
from holdfast.errors import HoldfastError
from holdfast.hub import Hub

if TYPE_CHECKING:
    from holdfast.auth import DeviceCode

__all__ = ["LoginResponse", "PendingLogins"]

PERSON_SECONDS = 300.0
"""How long a person has for the pages of the authorization server."""


class PendingLogins:
    """The logins that wait for a person, one a server."""

    def __init__(self) -> None:
        self._waiting: dict[str, MemoryObjectSendStream[str]] = {}

    def answer(self, server: str, address: str) -> bool:
        """Hand over the address that a browser ended up at; False if no login of that server waits."""
        answers = self._waiting.get(server)
        if answers is None:
            return False
        answers.send_nowait(address)
        return True

    def begin(self, server: str) -> MemoryObjectReceiveStream[str]:
        """A login begins. An older one of the same server gets no more answers."""
        send, receive = anyio.create_memory_object_stream[str](math.inf)
        self._waiting[server] = send
        return receive

    def end(self, server: str, answers: MemoryObjectReceiveStream[str]) -> None:
        """A login ended."""
        send = self._waiting.get(server)
        if send is not None and send.statistics().open_receive_streams == 1:
            del self._waiting[server]
            send.close()
        answers.close()


class _BrowserPrompt:
    """The person at the status page, as ``holdfast.auth`` asks them."""

    def __init__(self, answers: MemoryObjectReceiveStream[str], frames: MemoryObjectSendStream[bytes]) -> None:
        self._answers = answers
        self._frames = frames
        self._scope: tuple[str, ...] = ()
        self._issuer = ""

    def asked_for(self, scope: tuple[str, ...], issuer: str) -> None:
        self._scope, self._issuer = scope, issuer

    def visit(self, address: str) -> None:
        page = LoginPage(address=address, issuer=self._issuer, scope=self._scope, expires_in=PERSON_SECONDS)
        self._frames.send_nowait(frame("visit", page.model_dump_json(), 1))

    def enter(self, code: DeviceCode) -> None:
        raise AssertionError("the page logs in by browser")

    async def paste(self) -> str:
        return await self._answers.receive()


class LoginResponse(Response):
    """One login, as an event stream. It ends when its reader leaves."""

    def __init__(
        self, hub: Hub, spec: ServerSpec, pending: PendingLogins, *, scope: tuple[str, ...], headers: dict[str, str]
    ) -> None:
        super().__init__(media_type="text/event-stream", headers={**headers, "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._hub = hub
        self._spec = spec
        self._pending = pending
        self._scope = scope

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream the login."""
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        frames, news = anyio.create_memory_object_stream[bytes](math.inf)
        with frames, news:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._until_left, receive, tasks.cancel_scope)
                tasks.start_soon(self._log_in, frames)
                await self._write(news, send)
                tasks.cancel_scope.cancel()

    async def _write(self, news: MemoryObjectReceiveStream[bytes], send: Send) -> None:
        """Write every frame until the login is over."""
        while True:
            part = KEEP_ALIVE
            with anyio.move_on_after(KEEP_ALIVE_SECONDS):
                part = await news.receive()
            over = part.startswith(_ENDS)
            await send({"type": "http.response.body", "body": part, "more_body": not over})
            if over:
                return

    async def _log_in(self, frames: MemoryObjectSendStream[bytes]) -> None:
        answers = self._pending.begin(self._spec.id)
        try:
            await log_in(
                self._spec,
                store=self._hub.registry.logins.store,
                person=_BrowserPrompt(answers, frames),
                scope=self._scope,
                within=PERSON_SECONDS,
            )
            # The hub notices a new login by itself; asked, it does so at once and says whether it helped.
            await self._hub.reconnect(self._spec.id)
        except HoldfastError as error:
            frames.send_nowait(_event("failed", ApiError(error=error.message, hint=error.hint)))
        else:
            frames.send_nowait(_event("done", ApiModel()))
        finally:
            self._pending.end(self._spec.id, answers)

    @staticmethod
    async def _until_left(receive: Receive, login: anyio.CancelScope) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        login.cancel()


_ENDS = (b"id: 2\n",)


def _event(name: str, model: ApiModel) -> bytes:
    return frame(name, model.model_dump_json(), 2)
