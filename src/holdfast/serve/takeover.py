"""Hands the listening socket of a running hub over to its successor (``serve --takeover``).

The hub listens on a private Unix socket; its path is in the file by which commands find the hub. The successor
connects, receives the listening TCP socket (``SCM_RIGHTS``), starts, accepts, and says that it is ready. Only then the
hub stops accepting.

    predecessor                         successor
    offers its socket           <-      {"takeover": 1}
    {"listener": 1} + socket    ->      starts its servers; connections wait in the queue of the one socket
    serves on                           accepts
    stops accepting, drains     <-      {"ready": true}
    ends                                serves alone

Both accept for a moment, on one socket: so no connection is refused, and none is in a queue that is closed.

What can happen:
- The successor ends before it is ready, or takes longer than ``START_SECONDS``: the hub goes on. It never stopped, so
  nothing has to be undone, and the next successor may try.
- Two successors come: the second one is told so, and ends.
- The hub ends before the successor is ready: the successor has the socket, and serves.
- Stdio servers run twice meanwhile: those of the hub answer its last calls, those of the successor its first ones. A
  server that cannot bear that belongs behind a hub of its own, which takes no successor (``--listen-hubs``).

What must never happen: the socket is given to another user. Each side asks the kernel who the other one is, before it
sends anything.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path

import anyio
import anyio.abc

from holdfast.control import RunningHub, running_hubs
from holdfast.errors import HoldfastError
from holdfast.serve.isolation import hidden_environment
from holdfast.serve.join_address import SocketPeer, peer_of
from holdfast.serve.listening import notify, private_place
from holdfast.serve.program import own_command

__all__ = ["Predecessor", "find_predecessor", "handing_over"]

log = logging.getLogger("holdfast.serve")

ANSWER_SECONDS = 10.0
START_SECONDS = 300.0
"""How long a successor may take to start, before the hub takes it for dead."""

LOOK_SECONDS = 0.2
"""How often a hub looks whether the successor that it started still runs."""

_HELLO = b'{"takeover": 1}\n'
_READY = b'{"ready": true}\n'


# The running hub.


@asynccontextmanager
async def handing_over(
    listener: socket.socket | None, environ: Mapping[str, str], on_successor: Callable[[], Awaitable[None]]
) -> AsyncIterator[str]:
    """Offer the socket to a successor while the block runs, and start one at each SIGUSR2.

    Yields the path of the Unix socket at which a successor asks; empty without one. ``on_successor`` is called once,
    when a successor accepts connections. A hub without ``listener`` offers nothing.
    """
    if listener is None:
        yield ""
        return
    with ExitStack() as stack:
        try:
            path = stack.enter_context(private_place("takeover", environ)) / "hub.sock"
            offered = await anyio.create_unix_listener(path, mode=0o600)
        except OSError as exc:
            log.warning("no successor can take over from this hub: %s", exc)
            yield ""
            return
        async with offered, anyio.create_task_group() as tasks:
            tasks.start_soon(_offer, offered, listener, environ, on_successor)
            tasks.start_soon(_start_successors, environ)
            yield str(path)
            tasks.cancel_scope.cancel()


async def _offer(
    offered: anyio.abc.Listener[anyio.abc.SocketStream],
    listener: socket.socket,
    environ: Mapping[str, str],
    on_successor: Callable[[], Awaitable[None]],
) -> None:
    taken = anyio.Event()
    busy = anyio.Lock()

    async def serve(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            if busy.locked() or taken.is_set():
                with suppress(OSError, anyio.BrokenResourceError):
                    await stream.send(b'{"error": "another hub is taking over already"}\n')
                return
            async with busy:
                peer = peer_of(stream.extra(anyio.abc.SocketAttribute.raw_socket))  # noqa: S610 - of anyio
                if peer is None or not await _hand_over(stream, listener, peer):
                    return
                taken.set()
        log.info("a successor took over: connections that are open are served until they close")
        if peer.pid:
            notify(environ, f"MAINPID={peer.pid}")  # systemd believes that only of a process of the same unit
        await on_successor()

    await offered.serve(serve)


async def _hand_over(stream: anyio.abc.SocketStream, listener: socket.socket, peer: SocketPeer) -> bool:
    """Give the socket to one successor; whether it accepts connections now."""
    if peer.uid != os.getuid():
        log.warning("a process of another user asked for the listening socket, and was refused")
        return False
    try:
        with anyio.fail_after(ANSWER_SECONDS):
            if await stream.receive(len(_HELLO)) != _HELLO:
                return False
        assert isinstance(stream, anyio.abc.UNIXSocketStream)  # noqa: S101 - the listener is one
        await stream.send_fds(b'{"listener": 1}\n', [listener.fileno()])
        log.info("a successor has the listening socket and starts; this hub serves on until it is ready")
        with anyio.fail_after(START_SECONDS):
            if await stream.receive(len(_READY)) == _READY:
                return True
    except (OSError, TimeoutError, anyio.EndOfStream, anyio.BrokenResourceError):
        pass
    log.warning("the successor ended before it was ready: this hub goes on")
    return False


async def _start_successors(environ: Mapping[str, str]) -> None:
    """Start a successor at each SIGUSR2, with the arguments of this process. Never returns.

    The successor stays in the session of this process. So it counts as part of the same service, and not as an orphan
    of a server.
    """
    arguments = [one for one in sys.argv[1:] if one != "--takeover"]
    command = [*own_command(), *arguments, "--takeover"]
    with anyio.open_signal_receiver(signal.SIGUSR2) as signals:
        async for _ in signals:
            log.info("starting a successor")
            try:
                with hidden_environment(environ) as (shown, hidden):
                    process = subprocess.Popen(  # noqa: ASYNC220, S603 - ours
                        command, env=shown, stdin=subprocess.DEVNULL, pass_fds=(hidden,)
                    )
            except OSError as exc:
                log.error("no successor could be started (%s): this hub goes on", exc)  # noqa: TRY400 - it says why
                continue
            while process.poll() is None:  # noqa: ASYNC110 - a thread that waits would keep this process alive
                await anyio.sleep(LOOK_SECONDS)
            log.error("the successor ended with code %d: this hub goes on", process.returncode)


# The successor.


class Predecessor:
    """The hub to take over from: its listening socket, and the connection on which the successor says it is ready."""

    def __init__(self, hub: RunningHub, connection: socket.socket, listener: socket.socket) -> None:
        self.pid = hub.pid
        self.listener = listener
        self._connection = connection

    def ready(self) -> None:
        """This hub accepts connections: the other one may stop. If that one is gone already, nothing is left to do."""
        with suppress(OSError):
            self._connection.sendall(_READY)
        self._connection.close()


def find_predecessor(config: Path, url: str, *, background: bool = False) -> Predecessor | None:
    """Take the socket of the hub that serves a configuration; None if none runs. Raises if it does not hand over.

    With ``background`` only a hub that a client started is meant.
    """
    file = str(config.absolute())
    hubs = [hub for hub in running_hubs() if hub.config == file and hub.handover and (hub.background or not background)]
    if len(hubs) > 1:
        hubs = [hub for hub in hubs if hub.url == url] or hubs
    if len(hubs) > 1:
        listed = ", ".join(hub.url for hub in hubs)
        raise HoldfastError(f"several hubs serve {file}: {listed}", hint="name one with --host and --port")
    return _connect(hubs[0]) if hubs else None


def _connect(hub: RunningHub) -> Predecessor:
    with ExitStack() as stack:
        connection = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        try:
            connection.settimeout(ANSWER_SECONDS)
            connection.connect(hub.handover)
            # Before anything is sent: another user could have made a socket of that name.
            if (peer := peer_of(connection)) is None or peer.uid != os.getuid():
                raise HoldfastError(f"the hub with process id {hub.pid} runs as another user")
            connection.sendall(_HELLO)
            said, descriptors, _, _ = socket.recv_fds(connection, 4096, 1)
        except OSError as exc:
            hint = "end it, then start without --takeover"
            raise HoldfastError(f"the hub with process id {hub.pid} does not answer: {exc}", hint=hint) from exc
        if len(descriptors) != 1:
            raise HoldfastError(_reason(said) or "the running hub did not hand its socket over")
        stack.pop_all()  # it stays open: on it the hub hears that this one accepts
    listener = socket.socket(fileno=descriptors[0])
    listener.set_inheritable(False)
    return Predecessor(hub, connection, listener)


def _reason(said: bytes) -> str:
    try:
        return str(json.loads(said)["error"])
    except (ValueError, KeyError, TypeError):
        return ""
