"""How a hub over HTTP begins and ends for its clients: ready with others, drained after a signal, or succeeded."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Protocol

import anyio

from holdfast.cli.announcement import Announcement
from holdfast.cli.listen import notify_successor
from holdfast.control import ControlServer
from holdfast.front import Front
from holdfast.hub import Hub

if TYPE_CHECKING:
    from holdfast.cli.serve_run import ServeOptions

__all__ = ["Leaving"]

log = logging.getLogger("holdfast.serve")

HAND_OVER_SECONDS = 5.0
"""How long calls in flight may take before the server that they use moves to another replica."""
WORD_SECONDS = 1.0
"""How long a worker that got a signal waits for word that all workers leave. A service manager signals all at once."""
READY_SECONDS = 60.0
"""How long a successor waits for its servers before it takes over."""


class _Listening(Protocol):
    """The web server, as far as it ends."""

    def stop_accepting(self) -> None:
        """Close the listening socket."""

    async def disconnected(self) -> None:
        """Wait until no client is connected."""

    def end(self) -> None:
        """Close what is left."""


class Leaving:
    """The end of a hub over HTTP, step by step."""

    def __init__(self, serving: ServeOptions, server: _Listening, front: Front, admin: ControlServer) -> None:
        self._hub = front.hub
        self._serving = serving
        self._server = server
        self._front = front
        self._admin = admin
        self.note: Announcement | None = None
        self._starting: anyio.CancelScope | None = None

    async def wait_until_ready(self, hub: Hub) -> None:
        """In a hub that takes the place of another: accept when the servers have an outcome."""
        worker = self._serving.worker
        if self._serving.predecessor is None and (worker is None or not worker.task.waits):
            return
        ready = False
        with anyio.CancelScope() as self._starting:
            ready = await hub.ready(READY_SECONDS)
        if not ready and not self._starting.cancel_called:
            log.warning("some servers have no outcome after %g s; this hub takes over all the same", READY_SECONDS)
        self._front.accepted = True

    async def be_ready_with_others(self, hub: Hub) -> None:
        """In a worker that starts with others: be ready when all of them are, as one hub."""
        worker = self._serving.worker
        if worker is None or not worker.task.together:
            return
        self._front.is_told_ready = True
        await hub.ready()
        worker.ready()
        await worker.all_ready.wait()
        self._front.accepted = True

    async def drain(self, seconds: float) -> bool:
        """Leave because of a signal; False if some calls did not finish in time."""
        self._admin.drains()
        self._front.retire()
        if self._starting is not None:
            self._starting.cancel()
        worker = self._serving.worker
        if self._serving.lame_duck and (worker is None or not worker.is_orphan):
            log.info("not ready any more; all is still served for %g s", self._serving.lame_duck)
            await anyio.sleep(self._serving.lame_duck)
        if worker is not None:
            with anyio.move_on_after(WORD_SECONDS):
                await worker.all_leave.wait()
        self._server.stop_accepting()
        await self._hand_over(seconds)
        log.info("shutting down: new calls are refused; calls in flight have %g s", seconds)
        until = anyio.current_time() + seconds
        finished = await self._front.drain(seconds)
        await self._wait_for_others(until)
        return finished

    async def succeeded(self, pid: int = 0) -> None:
        """Leave because a successor accepts connections: what is still connected here is served until it closes."""
        log.info("a successor took over: connections that are open are served until they close")
        if pid:
            notify_successor(os.environ, pid)
        if self.note is not None:
            self.note.withdraw()
        self._front.retire()
        self._server.stop_accepting()
        self._front.move_streams()
        self._admin.close()
        await self._hand_over(self._serving.drain)
        connected = max(self._serving.drain, self._serving.lame_duck)
        until = anyio.current_time() + connected + self._serving.drain
        with anyio.move_on_after(connected):
            await self._server.disconnected()
        if not await self._front.drain(self._serving.drain):
            log.warning("some calls did not finish within %g s, and are cut", self._serving.drain)
        await self._wait_for_others(until)
        self.end()

    async def _hand_over(self, seconds: float) -> None:
        """Let other replicas run what runs here for all. Workers that leave together keep it until all are idle."""
        worker = self._serving.worker
        together = worker is not None and worker.all_leave.is_set()
        await self._hub.registry.hand_over(min(seconds, HAND_OVER_SECONDS), with_group=together)

    async def _wait_for_others(self, until: float) -> None:
        """In a worker that leaves with others: their clients may still use servers that run here."""
        worker = self._serving.worker
        if worker is None or not worker.all_leave.is_set() or worker.is_orphan:
            return
        worker.idle()
        with anyio.move_on_at(until):
            await worker.all_idle.wait()

    def end(self) -> None:
        """Close what is left."""
        self._admin.close()
        self._server.end()
