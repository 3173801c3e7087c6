"""Runs a hub: listens, serves the control API, follows config changes and signals, and shuts down in order.

The order of a shutdown: readiness turns 503 and each answer is the last of its connection, but all is still served
(the lame-duck period, for balancers); the listener closes and new requests on open connections get 503; calls in flight
finish, up to a limit; the servers are closed. A second signal skips the waits. A successor that takes over has the
listening socket already: connections that are still open are served here until they close.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import signal
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

import anyio
import anyio.abc
import anyio.to_thread
import uvicorn

from holdfast.access import (
    LOOPBACK_HOSTS,
    ConnectionLimits,
    PeerUids,
    TokenPolicy,
    TokensFile,
    TrustedGateway,
    jwt_verifier,
)
from holdfast.config import Config, load_config, state_folder
from holdfast.control import ControlServer, HubInfo, MayRead, SharedSignIns
from holdfast.core import invocation, is_loopback, typed_as
from holdfast.demo import demo_fleet, forget_running, note_running
from holdfast.endpoint import IDENTITY, Broker
from holdfast.errors import HoldfastError, UsageError
from holdfast.front import (
    Acceptor,
    ConnectionShares,
    Front,
    HttpConnection,
    ServerTls,
    SessionIds,
    SessionKeys,
    SqliteSessions,
    TlsFiles,
    create_app,
    serve_stdio,
)
from holdfast.hub import ApprovalsLock, Hub, Reloader, default_state_file, sleep_until_poll
from holdfast.serve.announcement import Announcement, keep_state_private, tell_addresses
from holdfast.serve.leave import Leaving, end_when_asked, on_terminal
from holdfast.serve.listen import CallerAuth, TlsOptions, endpoint, needs_name, open_to, read_token
from holdfast.serve.memory import begin_collections, keep_collections_short, keep_freed_memory
from holdfast.serve.program import anywhere
from holdfast.serve.replicas import make_fleet, share_sessions
from holdfast.serve.takeover import Predecessor, handing_over, start_successors
from holdfast.serve.telemetry import keep_log, log_faults_in_lines, mask_in_log
from holdfast.serve.worker_link import WorkerLink, WorkerTask
from holdfast.wire import raise_descriptor_limit, share_receive_room

if TYPE_CHECKING:
    import asyncio

__all__ = ["Announcement", "EndableStdin", "SecretFiles", "ServeOptions", "admin_of", "run_hub"]

log = logging.getLogger("holdfast.serve")

STREAMS_SECONDS = 1
"""After the last call, idle event streams are still open. They are cut after this time."""

CONNECTED_SECONDS = 0.05
"""How often a hub whose successor accepts looks whether clients are still connected."""

TOKEN_SECONDS = 1.0
"""How often the token file is read. A mounted secret can be replaced while the hub runs."""


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """What to serve, where, and to which callers."""

    config: Config | None
    """None for the demo servers."""
    listener: socket.socket | None
    """The listening socket; None for stdin and stdout."""
    host: str = ""
    watch: bool = True
    callers: CallerAuth = field(default_factory=CallerAuth)
    drain: float = 10.0
    control_token: str = field(default="", repr=False)
    """The token of the control API; only used over HTTP."""
    control_token_file: Path | None = None
    """Where that token comes from. The hub reads it again while it runs."""
    tls: TlsOptions | None = None
    session_key_file: Path | None = None
    predecessor: Predecessor | None = None
    """The hub that this one takes over from."""
    lame_duck: float = 0.0
    fleet: str | None = field(default=None, repr=False)
    """The address of the store that the replicas share; it may have a password."""
    worker: WorkerLink | None = None
    """The link to the supervisor, in a worker of ``--workers``."""
    advertise: str | None = None
    """Where the other replicas reach this one."""
    approvals_lock: Path | None = None
    """The file with all that may be used."""

    @property
    def is_demo(self) -> bool:
        """Whether it serves the demo servers; a worker gets their configuration from its supervisor."""
        return self.config is None or (self.worker is not None and bool(self.worker.task.demo))

    @property
    def hosts(self) -> tuple[str, ...]:
        """The host names that requests may use."""
        return (*LOOPBACK_HOSTS, *(_in_authority(host) for host in (self.host, *self.callers.hosts)))


def _in_authority(host: str) -> str:
    """A host as requests name it: an IPv6 address has brackets there, and that of a pod has none."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def run_hub(serving: ServeOptions) -> None:
    """Serve until a signal, or the end of stdin."""
    raise_descriptor_limit()
    begin_collections()
    keep_freed_memory()
    fast = importlib.util.find_spec("uvloop") is not None
    anyio.run(_run_stdio if serving.listener is None else _run_http, serving, backend_options={"use_uvloop": fast})


# Over HTTP


async def _run_http(serving: ServeOptions) -> None:
    assert serving.listener is not None  # noqa: S101 - see run_hub()
    log_faults_in_lines()
    workers = serving.worker.task.count if serving.worker is not None else 1
    share_receive_room(workers)
    port = serving.listener.getsockname()[1]
    url = endpoint(serving.host, port, tls=serving.tls is not None)
    tls = _server_tls(serving.tls)
    async with _fleet(serving, url) as (config, state_file):
        if serving.worker is None:
            keep_state_private(os.environ)
        ids = _session_ids(serving, state_file)
        fleet = make_fleet(serving, ids.keys)
        share_sessions(ids, fleet)
        hub = Hub(config, state_file=state_file, fleet=fleet)
        _use_lock(hub, serving)
        gateway = _gateway_secret(serving.callers)
        tokens = _tokens(serving.callers, accepted := _accepted(serving.callers), gateway)
        admin = admin_of(
            hub,
            url,
            demo=serving.is_demo,
            token=serving.control_token,
            callers=tokens,
            notice=lambda: ids.keys.notice,
            worker=serving.worker.task if serving.worker is not None else None,
        )
        ids.keys.on_notice = admin.notice_changed
        web = create_app(
            hub,
            tokens=tokens,
            allowed_hosts=serving.hosts,
            beside=admin.routes(),
            ids=ids,
            uids={os.geteuid(), *serving.callers.uids} if tokens is None else None,
            client_certificates=tls is not None and tls.wants_client_certificate,
            workers=workers,
        )
        server = _HubServer(
            uvicorn.Config(
                web,
                http=HttpConnection,
                log_config=None,
                access_log=False,
                timeout_graceful_shutdown=STREAMS_SECONDS,
                lifespan="on",
            ),
            tls=tls,
            on_listen=lambda: _announce(serving, config, url, admin),
            shares=_shares(serving.worker),
        )

        front: Front = web.state.front
        leaving = Leaving(serving, server, front, admin)
        logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
        note = Announcement(
            url.removesuffix("/mcp"),
            hub.config.source,
            token=serving.control_token,
            certificate=serving.tls.certificate if serving.tls is not None else None,
        )
        follower = SecretFiles(serving, accepted, gateway, admin=admin, tls=tls, note=note)
        hold_beyond_loopback(hub, serving.host)
        keep_collections_short(hub)
        async with hub, anyio.create_task_group() as tasks:
            _watch(tasks, serving, hub, follower)
            tasks.start_soon(follower.run)
            tasks.start_soon(end_when_asked, leaving.drain, serving.drain, leaving.end, serving.worker)
            tasks.start_soon(admin.run)
            if serving.worker is not None:
                tasks.start_soon(serving.worker.follow, leaving.succeeded)
            tasks.start_soon(leaving.be_ready_with_others, hub)
            await leaving.wait_until_ready(hub)
            async with _offered(serving, leaving) as handover:
                with note.at(handover) if serving.worker is None else nullcontext():
                    leaving.note = note
                    await server.serve([serving.listener])
            tasks.cancel_scope.cancel()


@asynccontextmanager
async def _offered(serving: ServeOptions, leaving: Leaving) -> AsyncIterator[str]:
    """Offer the listening socket to a successor; the demo servers end with their hub, so it offers none."""
    if serving.config is None or serving.listener is None or serving.worker is not None:
        yield ""
        return
    async with (
        handing_over(serving.listener, state_folder(os.environ) / "hubs", leaving.succeeded) as path,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(start_successors, os.environ)
        yield path
        tasks.cancel_scope.cancel()


def _shares(worker: WorkerLink | None) -> ConnectionShares | None:
    if worker is None:
        return None
    try:
        return ConnectionShares(worker.task.shares, worker.task.place)
    except (OSError, ValueError) as exc:
        log.warning("connections are not spread evenly over the workers: %s", exc)
        return None


def _use_lock(hub: Hub, serving: ServeOptions) -> None:
    """An unusable lock ends the start."""
    if serving.approvals_lock is not None:
        hub.approvals.use_lock(ApprovalsLock.read(serving.approvals_lock))


def _session_ids(serving: ServeOptions, state_file: Path | None) -> SessionIds:
    """The keys and the file of the sessions. An unusable key of the operator ends the start."""
    # A replica of a fleet has the keys that its operator gave to all of them, and makes none.
    kept_in = state_file.parent if state_file is not None and serving.fleet is None else None
    keys = SessionKeys.find(file=serving.session_key_file, environ=os.environ, kept_in=kept_in)
    if serving.worker is not None and keys.is_of_one_process:
        # No key can be kept: the one of the supervisor serves all its workers, and ends with it.
        notice, keys = keys.notice, SessionKeys([serving.worker.task.key.encode()], shared=False)
        keys.notice = notice
    store = SqliteSessions(state_file.with_suffix(".sessions.sqlite")) if state_file is not None else None
    return SessionIds(keys, store)


def _accepted(callers: CallerAuth) -> dict[str, str]:
    return {"caller": callers.token} if callers.token else {}


def _gateway_secret(callers: CallerAuth) -> dict[str, str]:
    secret = callers.gateway.secret if callers.gateway is not None else None
    return {"gateway": secret} if secret else {}


def _server_tls(options: TlsOptions | None) -> ServerTls | None:
    if options is None:
        return None
    return ServerTls.of(TlsFiles(certificate=options.certificate, key=options.key, client_ca=options.client_ca))


class SecretFiles:
    """Reads the files with tokens and certificates again when they change, and at SIGHUP.

    A file without a usable token changes nothing.
    """

    def __init__(
        self,
        serving: ServeOptions,
        accepted: dict[str, str],
        gateway: dict[str, str],
        *,
        admin: ControlServer,
        tls: ServerTls | None,
        note: Announcement,
    ) -> None:
        self._serving = serving
        self._accepted = accepted
        self._gateway = gateway
        self._admin = admin
        self._tls = tls
        self._note = note
        self._control = serving.control_token
        self._problems: dict[Path, str] = {}

    async def run(self) -> None:
        """Look at the files until cancelled; without any there is nothing to do."""
        while self._has_files:
            await sleep_until_poll(TOKEN_SECONDS)
            await self.refresh()

    @property
    def _has_files(self) -> bool:
        callers = self._serving.callers
        named = callers.gateway.secret_file if callers.gateway is not None else None
        return any(one is not None for one in (callers.token_file, self._serving.control_token_file, named, self._tls))

    async def refresh(self) -> None:
        """Look at the files now."""
        if (file := self._serving.callers.token_file) is not None:
            token = await anyio.to_thread.run_sync(self._read, file, self._control)
            if token is not None and token != self._accepted["caller"]:
                mask_in_log(token)
                self._accepted["caller"] = token
                log.info("the token file changed: callers need the new token")
        if (file := self._serving.control_token_file) is not None:
            token = await anyio.to_thread.run_sync(self._read, file, self._accepted.get("caller", ""))
            if token is not None and token != self._control:
                mask_in_log(token)
                self._control = token
                self._admin.sessions.use_control_token(token)
                self._note.change_token(token)
                log.info("the control token changed: commands and pages need the new one")
        named = self._serving.callers.gateway
        if named is not None and named.secret_file is not None:
            token = await anyio.to_thread.run_sync(self._read, named.secret_file, self._control)
            if token is not None and token != self._gateway["gateway"]:
                mask_in_log(token)
                self._gateway["gateway"] = token
                log.info("the gateway's secret changed: the gateway needs the new one")
        if self._tls is not None:
            await anyio.to_thread.run_sync(self._tls.refresh)
            self._tls.end_distrusted()

    def _read(self, file: Path, other: str) -> str | None:
        try:
            token = read_token(file)
            if token == other:
                raise UsageError(f"{file} holds a token that has another use")
        except HoldfastError as exc:
            if exc.message != self._problems.get(file):
                log.warning("%s; the last token stays valid", exc.message)
            self._problems[file] = exc.message
            return None
        self._problems.pop(file, None)
        return token


def _tokens(callers: CallerAuth, accepted: Mapping[str, str], gateway_secret: Mapping[str, str]) -> TokenPolicy | None:
    """How callers are checked; None if every local program may call."""
    if not callers.can_verify:
        return None
    verify = None
    if callers.jwt is not None:
        wanted = callers.jwt
        verify = jwt_verifier(
            issuer=wanted.issuer,
            audience=wanted.audience,
            keys=wanted.keys,
            groups_claim=wanted.groups_claim,
            scopes_claim=wanted.scopes_claim,
        )
    named = callers.gateway
    gateway = None
    if named is not None:
        gateway = TrustedGateway(
            secret=(lambda: gateway_secret["gateway"]) if gateway_secret else None,
            mtls=named.mtls,
            certificate_names=frozenset(named.certificate_names),
            user_header=named.user_header,
            groups_header=named.groups_header,
        )
    return TokenPolicy(
        tokens=accepted,
        file=TokensFile(callers.tokens_file) if callers.tokens_file is not None else None,
        verify=verify,
        gateway=gateway,
    )


class _HubServer(uvicorn.Server):
    """A uvicorn server that ignores signals, takes connections by an ``Acceptor``, and reports when it listens."""

    def __init__(
        self,
        config: uvicorn.Config,
        *,
        tls: ServerTls | None,
        on_listen: Callable[[], None],
        shares: ConnectionShares | None = None,
    ) -> None:
        super().__init__(config)
        self._shares = shares
        self._tls = tls
        self._uids = PeerUids.open()
        self._on_listen = on_listen
        self._ended = anyio.Event()
        self._acceptors: list[Acceptor] = []

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([])  # it opens no listener of its own
        if self.should_exit:
            return
        limits = ConnectionLimits()
        self._acceptors = [
            Acceptor(
                *(one, self._made),
                limits=limits,
                uids=self._uids,
                tls=self._tls,
                shares=self._shares,
                on_refused=cast("Any", self.config.app).state.endpoint.certificate_refused,
            )
            for one in sockets or ()
        ]
        self.servers = cast("list[asyncio.Server]", self._acceptors)
        self._on_listen()

    def _made(self) -> HttpConnection:
        return HttpConnection(self.config, self.server_state, self.lifespan.state)

    async def main_loop(self) -> None:
        """Wait for the end. uvicorn looks ten times a second, for a header that we do not use and for signals."""
        await self._ended.wait()

    def end(self) -> None:
        self.should_exit = True
        self._ended.set()

    def stop_accepting(self) -> None:
        """Close the listening socket; connections that are open, or were accepted, stay."""
        for acceptor in self._acceptors:
            acceptor.stop()

    async def disconnected(self) -> None:
        """Wait until no client is connected."""
        while self.server_state.connections or any(one.opening for one in self._acceptors):  # noqa: ASYNC110 - uvicorn has no event for it
            await anyio.sleep(CONNECTED_SECONDS)


def _announce(serving: ServeOptions, config: Config, url: str, admin: ControlServer) -> None:
    """A worker tells its supervisor, which tells the rest."""
    if serving.worker is not None:
        serving.worker.listening()
        return
    tell_addresses(
        url,
        config,
        sign_in_code=admin.sessions.new_code,
        ready=serving.predecessor.ready if serving.predecessor is not None else lambda: None,
        is_demo=serving.config is None,
        open_to=open_to(serving.callers, serving.tls),
        needs_name=needs_name(serving.host, serving.callers.hosts),
    )


# Over stdio


async def _run_stdio(serving: ServeOptions) -> None:
    log_faults_in_lines()
    async with _fleet(serving, "") as (config, state_file):
        hub = Hub(config, state_file=state_file)
        _use_lock(hub, serving)
        broker = Broker(hub)
        with EndableStdin() as stdin:
            keep_collections_short(hub)
            async with hub, anyio.create_task_group() as tasks:
                _watch(tasks, serving, hub)
                tasks.start_soon(end_when_asked, partial(_drain_stdio, broker), serving.drain, stdin.end)
                await serve_stdio(hub, broker=broker)
                tasks.cancel_scope.cancel()


async def _drain_stdio(broker: Broker, seconds: float) -> bool:
    log.info("shutting down: new calls are refused; calls in flight have %g s", seconds)
    return await broker.drain(seconds)


# For both


@asynccontextmanager
async def _fleet(serving: ServeOptions, url: str) -> AsyncIterator[tuple[Config, Path | None]]:
    """The config to serve, and the file for its state. Hints name that file: they are read in any folder."""
    async with AsyncExitStack() as stack:
        if serving.config is not None:
            source = serving.config.source
            stack.enter_context(typed_as(anywhere(source, os.environ)))
            if source is not None and serving.is_demo:
                yield serving.config, demo_state(source.parent)
            else:
                yield serving.config, default_state_file(source) if source is not None else None
            return
        control = await stack.enter_async_context(demo_fleet())
        if url:
            note_running(control, url)
            stack.callback(forget_running)
        stack.enter_context(typed_as(anywhere(control.config_file, os.environ)))
        yield load_config(control.config_file), demo_state(control.folder)


def demo_state(folder: Path) -> Path:
    """The state of the demo ends with it."""
    return folder / "state.sqlite"


def hold_beyond_loopback(hub: Hub, host: str) -> None:
    """A hub that others can reach holds changes of servers, unless the configuration says something else (SEC-9)."""
    if not is_loopback(host):
        hub.registry.default_approvals = "hold"


def _watch(tasks: anyio.abc.TaskGroup, serving: ServeOptions, hub: Hub, follower: SecretFiles | None = None) -> None:
    tasks.start_soon(keep_log, hub)
    if hub.config.source is None:
        return
    reloader = Reloader(hub, hub.config.source)
    if not on_terminal():
        tasks.start_soon(_reload_on_signal, reloader, follower)
    if serving.watch:
        tasks.start_soon(reloader.run)


async def _reload_on_signal(reloader: Reloader, follower: SecretFiles | None) -> None:
    with anyio.open_signal_receiver(signal.SIGHUP) as signals:
        async for _ in signals:
            if follower is not None:
                await follower.refresh()
            await reloader.reload()


def admin_of(
    hub: Hub,
    endpoint: str,
    *,
    demo: bool,
    token: str,
    callers: TokenPolicy | None,
    notice: Callable[[], str] = str,
    worker: WorkerTask | None = None,
) -> ControlServer:
    """The control API of a hub. Where callers need a token, the metrics need one too."""
    source = hub.config.source
    about = HubInfo(
        endpoint=endpoint,
        config=str(source.absolute()) if source else "",
        demo=demo,
        identity=IDENTITY,
        program=invocation().program,
        notice=notice,
        pid=worker.supervisor if worker is not None else 0,
        started=worker.started if worker is not None else 0.0,
    )
    return ControlServer(
        hub,
        about,
        control_token=token,
        metrics_for=_known_to(callers) if callers is not None else None,
        sign_ins=SharedSignIns(worker.key.encode(), worker.codes) if worker is not None else None,
    )


def _known_to(callers: TokenPolicy) -> MayRead:
    async def known(token: str) -> bool:
        return await callers.principal(token) is not None

    return known


_CHUNK = 65536


class EndableStdin:
    """Replaces stdin by a socket, and copies the real input into it until one side ends."""

    def __init__(self) -> None:
        self._real = os.dup(0)
        self._feed, self._stdin = socket.socketpair()

    def __enter__(self) -> Self:
        os.dup2(self._stdin.fileno(), 0)
        self._stdin.close()
        # A daemon thread, because it may still wait for input when the program ends.
        threading.Thread(target=self._pump, name="stdin", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> None:
        """Let the reader see the end of its input. Idempotent."""
        with suppress(OSError):
            self._feed.shutdown(socket.SHUT_WR)

    def _pump(self) -> None:
        with suppress(OSError):
            while data := os.read(self._real, _CHUNK):
                self._feed.sendall(data)
        self.end()
