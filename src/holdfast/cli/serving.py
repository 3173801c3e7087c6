"""A hub at work: it listens at once, follows its configuration and its signals, and ends in order.

The order at the end: no new calls, those under way finish within a bound, the listener closes, the servers
close. A second signal does not wait for the calls.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import anyio.abc
import uvicorn

from holdfast.admin.app import Admin
from holdfast.cli.address import endpoint, typed_command
from holdfast.cli.callers import Callers
from holdfast.cli.log_setup import keep_log
from holdfast.cli.stdin import EndableStdin
from holdfast.cli.steering import admin_of, word_left
from holdfast.config.load import load_config
from holdfast.config.spec import Config
from holdfast.demo.control import forget_running, note_running
from holdfast.demo.fleet import demo_fleet
from holdfast.front.app import create_app
from holdfast.front.desk import Desk
from holdfast.front.guard import LOOPBACK_HOSTS, TokenPolicy
from holdfast.front.jwt import jwt_verifier
from holdfast.front.stdio import serve_stdio
from holdfast.hub.hub import Hub
from holdfast.hub.reload import Reloader
from holdfast.hub.store import default_state_file

__all__ = ["Serving", "run"]

log = logging.getLogger("holdfast.serve")

STREAMS_SECONDS = 1
"""When all calls are done, streams that wait for news are still open; nothing is lost by cutting them."""

END_SIGNALS = (signal.SIGTERM, signal.SIGINT)

Drain = Callable[[float], Awaitable[bool]]


@dataclass(frozen=True, kw_only=True)
class Serving:
    """What to serve, where and to whom."""

    config: Config | None
    """None for the demo fleet."""
    listener: socket.socket | None
    """What to listen on; None for stdin and stdout."""
    host: str = ""
    watch: bool = True
    callers: Callers = field(default_factory=Callers)
    drain: float = 10.0
    control_token: str = field(default="", repr=False)
    """What the control API asks for; needed over HTTP alone."""

    @property
    def hosts(self) -> tuple[str, ...]:
        """The names under which callers may ask for it."""
        own = f"[{self.host}]" if ":" in self.host else self.host
        return (*LOOPBACK_HOSTS, own, *self.callers.hosts)


def run(serving: Serving) -> None:
    """Serve until a signal, or the client on stdin, ends it."""
    fast = importlib.util.find_spec("uvloop") is not None
    anyio.run(_run_stdio if serving.listener is None else _run_http, serving, backend_options={"use_uvloop": fast})


# Over HTTP


async def _run_http(serving: Serving) -> None:
    assert serving.listener is not None  # noqa: S101 - see run()
    port = serving.listener.getsockname()[1]
    url = endpoint(serving.host, port)
    async with _fleet(serving, url) as (config, state_file):
        hub = Hub(config, state_file=state_file)
        tokens = _tokens(serving.callers)
        admin = admin_of(hub, url, demo=serving.config is None, token=serving.control_token, callers=tokens)
        web = create_app(hub, tokens=tokens, allowed_hosts=serving.hosts, beside=admin.routes())
        server = _Server(
            uvicorn.Config(
                web, log_config=None, access_log=False, timeout_graceful_shutdown=STREAMS_SECONDS, lifespan="on"
            ),
            told=lambda: _announce(serving, config, url, admin),
        )

        async def drain(seconds: float) -> bool:
            admin.drains()
            return bool(await web.state.front.drain(seconds))

        def end() -> None:
            admin.close()
            server.end()

        logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
        word = word_left(endpoint(serving.host, port, ""), hub.config.source, token=serving.control_token)
        async with hub, anyio.create_task_group() as tasks:
            _watch(tasks, serving, hub)
            tasks.start_soon(_end_on_signal, drain, serving.drain, end)
            with word:
                await server.serve([serving.listener])
            tasks.cancel_scope.cancel()


def _tokens(callers: Callers) -> TokenPolicy | None:
    """What is demanded of a caller; None where everybody on this machine may call."""
    if callers.token is None and callers.jwt is None:
        return None
    verify = None
    if callers.jwt is not None:
        wanted = callers.jwt
        verify = jwt_verifier(issuer=wanted.issuer, audience=wanted.audience, keys=wanted.keys)
    return TokenPolicy(tokens={"caller": callers.token} if callers.token else {}, verify=verify)


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


def _announce(serving: Serving, config: Config, url: str, admin: Admin) -> None:
    """The addresses are what a program waits for: they go to stdout, all else to stderr.

    The page's has a code in it only where a person reads it, and in the part of an address that is never sent.
    """
    base = url.removesuffix("/mcp")
    code = f"#code={admin.sessions.new_code()}" if sys.stdout.isatty() else ""
    lines = f"MCP endpoint: {url}\nstatus page:  {base}/{code}\nready when:   {base}/readyz answers 200\n"
    sys.stdout.write(lines)
    sys.stdout.flush()
    log.info("serving %d servers of %s", len(config.servers), config.source)
    log.info("if one does not come up, this says why: %s doctor --config %s", typed_command(), config.source)
    if serving.config is None:
        log.info("see what a client sees, and break things, in a second terminal: %s demo", typed_command())
    if serving.callers == Callers(hosts=serving.callers.hosts):
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
                await _something_to_list(hub)
                await serve_stdio(hub, desk=desk)
                tasks.cancel_scope.cancel()


async def _something_to_list(hub: Hub) -> None:
    """On the first run, wait a moment for tools to be there: a client that starts its servers lists them once."""
    if any(source.listing is None for source in hub.catalog.servers.values()):
        await hub.ready(hub.config.settings.call.ready_timeout)


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
    tasks.start_soon(keep_log, hub)
    if hub.config.source is None:
        return
    reloader = Reloader(hub, hub.config.source)
    if not _on_terminal():
        tasks.start_soon(_reload_on_signal, reloader)
    if serving.watch:
        tasks.start_soon(reloader.run)


async def _reload_on_signal(reloader: Reloader) -> None:
    with anyio.open_signal_receiver(signal.SIGHUP) as signals:
        async for _ in signals:
            await reloader.reload()


async def _end_on_signal(drain: Drain, seconds: float, end: Callable[[], None]) -> None:
    """Drain at the first signal and end; at the second, end at once."""
    hangup = (signal.SIGHUP,) if _on_terminal() else ()
    with anyio.open_signal_receiver(*END_SIGNALS, *hangup) as signals:
        await anext(signals)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_drained, drain, seconds, tasks.cancel_scope)
            await anext(signals)
            log.warning("not waiting for calls any longer")
            tasks.cancel_scope.cancel()
        end()


def _on_terminal() -> bool:
    """There SIGHUP says that the terminal is gone, and whoever stays is an orphan; elsewhere it says: read again."""
    return os.isatty(2)


async def _drained(drain: Drain, seconds: float, done: anyio.CancelScope) -> None:
    log.info("closing: no new calls; those under way have %g s", seconds)
    if not await drain(seconds):
        log.warning("some calls did not finish within %g s", seconds)
    done.cancel()
