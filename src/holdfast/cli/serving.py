"""A hub at work: it listens at once, follows its configuration and its signals, and ends in order.

The order at the end: no new calls, those under way finish within a bound, the listener closes, the servers
close. A second signal does not wait for the calls.
"""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import logging
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import anyio
import anyio.abc
import uvicorn

from holdfast.cli.address import endpoint
from holdfast.cli.stdin import EndableStdin
from holdfast.config.load import load_config
from holdfast.config.spec import Config
from holdfast.demo.control import forget_running, note_running
from holdfast.demo.fleet import demo_fleet
from holdfast.errors import HoldfastError, UsageError
from holdfast.front.app import create_app
from holdfast.front.desk import Desk
from holdfast.front.guard import LOOPBACK_HOSTS, TokenPolicy, is_loopback
from holdfast.front.stdio import serve_stdio
from holdfast.hub.hub import Hub
from holdfast.hub.reload import Reloader
from holdfast.hub.store import default_state_file

__all__ = ["Serving", "bind", "run"]

log = logging.getLogger("holdfast.serve")

STREAMS_SECONDS = 1
"""When all calls are done, streams that wait for news are still open; nothing is lost by cutting them."""

_END = (signal.SIGTERM, signal.SIGINT)

Drain = Callable[[float], Awaitable[bool]]


@dataclass(frozen=True, kw_only=True)
class Serving:
    """What to serve, where and to whom."""

    config: Config | None
    """None for the demo fleet."""
    host: str
    port: int
    stdio: bool = False
    watch: bool = True
    token: str | None = field(default=None, repr=False)
    allowed_hosts: tuple[str, ...] = ()
    drain: float = 10.0

    def check(self) -> None:
        """Refuse what would let strangers in (SEC-2)."""
        if not self.stdio and not is_loopback(self.host) and self.token is None:
            raise UsageError(
                f"{self.host} can be reached from other machines, and there is no token to tell callers apart",
                hint="give --token-file FILE, or listen on 127.0.0.1",
            )

    @property
    def hosts(self) -> tuple[str, ...]:
        """The names under which callers may ask for it."""
        own = f"[{self.host}]" if ":" in self.host else self.host
        return (*LOOPBACK_HOSTS, own, *self.allowed_hosts)


def run(serving: Serving) -> None:
    """Serve until a signal, or the client on stdin, ends it."""
    serving.check()
    fast = importlib.util.find_spec("uvloop") is not None
    if serving.stdio:
        anyio.run(_run_stdio, serving, backend_options={"use_uvloop": fast})
        return
    with contextlib.closing(bind(serving.host, serving.port)) as listener:
        anyio.run(_run_http, serving, listener, backend_options={"use_uvloop": fast})


def bind(host: str, port: int) -> socket.socket:
    """A socket that is bound and listens; whatever goes wrong is said with what to do."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = min(found, key=lambda one: one[0] != socket.AF_INET)
    except (socket.gaierror, UnicodeError) as exc:
        raise HoldfastError(
            f"the host `{host}` cannot be resolved", hint="write an address of this machine, as in --host 127.0.0.1"
        ) from exc
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(1024)
    except OSError as exc:
        listener.close()
        _cannot_bind(host, port, exc)
    return listener


def _cannot_bind(host: str, port: int, exc: OSError) -> NoReturn:
    match exc.errno:
        case errno.EADDRINUSE:
            what = f"port {port} of {host} is in use"
            hint = "is a hub running there already? Choose another port, or --port 0 for any that is free"
        case errno.EACCES:
            what, hint = f"port {port} may not be used", "choose one above 1023"
        case errno.EADDRNOTAVAIL:
            what, hint = f"{host} is no address of this machine", "use 127.0.0.1, or 0.0.0.0 for all of its addresses"
        case _:
            what, hint = f"cannot listen on {host}, port {port}: {exc.strerror}", "choose another --host or --port"
    raise HoldfastError(what, hint=hint) from exc


# Over HTTP


async def _run_http(serving: Serving, listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    url = endpoint(serving.host, port)
    async with _fleet(serving, url) as (config, state_file):
        hub = Hub(config, state_file=state_file)
        tokens = TokenPolicy(tokens={"caller": serving.token}) if serving.token else None
        web = create_app(hub, tokens=tokens, allowed_hosts=serving.hosts)
        server = _Server(
            uvicorn.Config(
                web, log_config=None, access_log=False, timeout_graceful_shutdown=STREAMS_SECONDS, lifespan="on"
            ),
            told=lambda: _announce(serving, config, url, endpoint(serving.host, port, "/readyz")),
        )
        logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
        async with hub, anyio.create_task_group() as tasks:
            _watch(tasks, serving, hub)
            tasks.start_soon(_end_on_signal, web.state.front.drain, serving.drain, server.end)
            await server.serve([listener])
            tasks.cancel_scope.cancel()


class _Server(uvicorn.Server):
    """Leaves the signals to us, and says when it listens."""

    def __init__(self, config: uvicorn.Config, *, told: Callable[[], None]) -> None:
        super().__init__(config)
        self._told = told

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._told()

    def end(self) -> None:
        self.should_exit = True


def _announce(serving: Serving, config: Config, url: str, ready: str) -> None:
    """The addresses are what a program waits for: they go to stdout, all else to stderr."""
    sys.stdout.write(f"MCP endpoint: {url}\nready when:   {ready} answers 200\n")
    sys.stdout.flush()
    log.info("serving %d servers of %s", len(config.servers), config.source)
    if serving.config is None:
        log.info("see what a client sees, and break things, in a second terminal: holdfast demo")
    if serving.token is None:
        log.info("every program of this machine may call it, with the credentials in that file")


# Over stdio


async def _run_stdio(serving: Serving) -> None:
    async with _fleet(serving, "") as (config, state_file):
        hub = Hub(config, state_file=state_file)
        desk = Desk(hub)
        with EndableStdin() as stdin:
            async with hub, anyio.create_task_group() as tasks:
                _watch(tasks, serving, hub)
                tasks.start_soon(_end_on_signal, desk.drain, serving.drain, stdin.end)
                await serve_stdio(hub, desk=desk)
                tasks.cancel_scope.cancel()


# For both


@asynccontextmanager
async def _fleet(serving: Serving, url: str) -> AsyncIterator[tuple[Config, Path | None]]:
    """What to serve, and where its state is kept."""
    if serving.config is not None:
        source = serving.config.source
        yield serving.config, default_state_file(source) if source is not None else None
        return
    async with AsyncExitStack() as stack:
        control = await stack.enter_async_context(demo_fleet())
        if url:
            note_running(control, url)
            stack.callback(forget_running)
        yield load_config(control.config_file), control.folder / "state.sqlite"


def _watch(tasks: anyio.abc.TaskGroup, serving: Serving, hub: Hub) -> None:
    if hub.config.source is None:
        return
    reloader = Reloader(hub, hub.config.source)
    tasks.start_soon(_reload_on_signal, reloader)
    if serving.watch:
        tasks.start_soon(reloader.run)


async def _reload_on_signal(reloader: Reloader) -> None:
    with anyio.open_signal_receiver(signal.SIGHUP) as signals:
        async for _ in signals:
            await reloader.reload()


async def _end_on_signal(drain: Drain, seconds: float, end: Callable[[], None]) -> None:
    """Drain at the first signal and end; at the second, end at once."""
    with anyio.open_signal_receiver(*_END) as signals:
        await anext(signals)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_drained, drain, seconds, tasks.cancel_scope)
            await anext(signals)
            log.warning("not waiting for calls any longer")
            tasks.cancel_scope.cancel()
        end()


async def _drained(drain: Drain, seconds: float, done: anyio.CancelScope) -> None:
    log.info("closing: no new calls; those under way have %g s", seconds)
    if not await drain(seconds):
        log.warning("some calls did not finish within %g s", seconds)
    done.cancel()
