"""Runs a hub: listens, serves the control API, follows config changes and signals, and shuts down in order.

The order of a start: the options and files are checked before (``start``); the state is opened; the hub dials its
servers; the socket is accepted on, at once if this hub is the first one here, or when its servers have an outcome if it
takes the place of another. The order of an end is in ``web_server``.

What must hold: everything that runs belongs to one task group, whose end ends it. The listening socket is not closed
before a successor accepts on it, or before no client should come any more.
"""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import logging
import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urlsplit

import anyio
import anyio.abc

from holdfast._version import __version__
from holdfast.access import LOOPBACK_HOSTS, AuditTrail, IdentityAssertions
from holdfast.auth import IdTokens, SignInClient, SubjectTokens, UserTokenStore
from holdfast.config import UNIX, ApprovalMode, Config
from holdfast.control import (
    BrowserIdentity,
    BrowserSessions,
    ConnectPage,
    ControlServer,
    HubInfo,
    JoinedClientView,
    Worker,
    WorkerGroup,
)
from holdfast.core import State, Transition, invocation, is_loopback
from holdfast.endpoint import IDENTITY, Broker, LoginLinks
from holdfast.errors import UsageError
from holdfast.fleet import Fleet, bind_unix
from holdfast.front import (
    Front,
    JoinedClient,
    JoinServer,
    ServerTls,
    SessionKeys,
    TlsFiles,
    create_app,
    serve_stdio,
)
from holdfast.hub import ApprovalsLock, Hub, HubRecord, Published, Reloader, default_state_file
from holdfast.identity import FleetIdentity
from holdfast.serve.client_context import (
    IDLE_SECONDS,
    ClientVariables,
    FolderClients,
    FolderUse,
    ProjectServers,
    end_when_idle,
    project_folder_of,
)
from holdfast.serve.hub_secrets import CallerSecrets, SecretFiles
from holdfast.serve.joiner import runs_in_background
from holdfast.serve.listening import Announcement, SharedPlace, keep_state_private, shared_place, tell_addresses
from holdfast.serve.options import ServeConfig, Serving
from holdfast.serve.program import found_config, on_terminal
from holdfast.serve.replicas import make_fleet, session_ids, user_tokens_of
from holdfast.serve.start import served_part, without_itself
from holdfast.serve.takeover import handing_over
from holdfast.serve.telemetry import (
    Audited,
    audited,
    keep_log,
    log_faults_in_lines,
    mask_in_log,
    record_other_events,
)
from holdfast.serve.web_server import HubListener, HubWebServer, Leaving, end_when_asked
from holdfast.serve.worker_link import WorkerLink
from holdfast.wire import raise_descriptor_limit, share_receive_room

__all__ = [
    "KEPT_BYTES",
    "THRESHOLDS",
    "allowed_hosts",
    "begin_collections",
    "keep_collections_short",
    "keep_freed_memory",
    "run_hub",
]

log = logging.getLogger("holdfast.serve")


def run_hub(serving: Serving) -> None:
    """Serve until a signal, or the end of stdin."""
    raise_descriptor_limit()
    begin_collections()
    keep_freed_memory()
    fast = importlib.util.find_spec("uvloop") is not None
    run = _run_stdio if serving.options.stdio else _run_http
    with audited(serving) as audit:
        anyio.run(run, serving, audit, backend_options={"use_uvloop": fast})


# Over HTTP


async def _run_http(serving: Serving, audited_by: Audited) -> None:  # noqa: PLR0915 - the parts of a hub, in order
    log_faults_in_lines()
    options, worker, audit = serving.options, serving.worker, audited_by.trail
    share_receive_room(options.worker_count)
    tls = _server_tls(options)
    async with found_config(serving) as config:
        state_file = _state_file(serving, config)
        if worker is None:
            keep_state_private(os.environ)
        # The keys before the fleet: its records are signed with them, and its certificates are made from them.
        keys = _session_keys(serving, state_file)
        fleet = make_fleet(serving, keys)
        ids = session_ids(keys, state_file.with_suffix(".sessions.sqlite"), fleet)
        identity = FleetIdentity(lambda: keys.ring, f"{socket.gethostname()}-{os.getpid()}")
        _require_shared_key(options, shared=keys.shared)
        assertions = IdentityAssertions(serving.public_url, lambda: keys.ring)
        projects = _project_servers(serving)
        secrets = CallerSecrets(serving, lambda: hub.registry.policy)
        subjects = SubjectTokens(needed=lambda: _takes_credential(hub.config, "exchange"))
        user_tokens = user_tokens_of(fleet, config)
        sign_in = _sign_in_client(serving, secrets)
        id_tokens = _id_tokens(sign_in, secrets, user_tokens, lambda: hub.config)
        hub = Hub(
            projects.of(config) if projects is not None else config,
            state_file=state_file,
            approvals=_approvals(options, serving.host),
            fleet=fleet,
            hub_tls=identity.client,
            sign=assertions,
            is_local=is_loopback(serving.host),
            has_local=not serving.can_verify,
            user_tokens=user_tokens,
            subjects=subjects,
            id_tokens=id_tokens,
        )
        record_other_events(audit, hub)
        reloader = _reloader(serving, hub, projects)
        folders = FolderClients(projects, reloader.reload, hub.registry.clock) if projects is not None else None
        tokens = secrets.policy(subjects)
        # The control server shows the joined clients, and the join server tells it of changes: one of them comes later.
        joined: JoinServer | None = None
        browsers = BrowserIdentity(
            serving.public_url,
            ring=lambda: keys.ring,
            ended=ids,
            tokens=tokens,
            issuer=sign_in,
            id_tokens=id_tokens,
            people=secrets.verifier,
            audit=audit,
        )
        links = LoginLinks(serving.public_url, lambda: keys.ring, by_issuer=browsers.by_issuer)
        admin = _control_server(
            *(hub, serving, fleet),
            audit=audit,
            browsers=browsers,
            links=links,
            notice=lambda: audited_by.notice or keys.notice,
            findings=lambda: front.broker.findings,
            clients=lambda: joined.clients if joined is not None else [],
        )
        keys.on_notice = admin.events.hub_changed
        web = create_app(
            hub,
            tokens=tokens,
            allowed_hosts=allowed_hosts(serving),
            beside=[*admin.routes(), *ConnectPage(hub, links, browsers, audit=audit).routes()],
            fleet=fleet,
            ids=ids,
            uids={os.geteuid(), *serving.uids} if tokens is None else None,
            client_certificates=tls is not None and tls.wants_client_certificate,
            workers=options.worker_count,
            audit=audit,
            folders=folders,
            links=links,
            resource=secrets.resource,
            assertions=assertions,
        )
        front: Front = web.state.front
        if options.listen_hubs is not None:
            log.info("other hubs are served on %s", options.listen_hubs)
        # A worker tells its supervisor where it listens, and that tells the rest.
        announce = partial(tell_addresses, serving, config, sign_in_code=admin.sessions.new_code)
        if worker is not None:
            announce = partial(worker.report, takes=True)
        server = HubWebServer(
            web,
            tls=tls,
            on_listen=announce,
            # In a worker: where the other workers reach it. The folder is private to the user.
            private=bind_unix(Path(worker.task.socket)) if worker is not None else None,
            for_hubs=HubListener(serving.hub_listener, identity) if serving.hub_listener is not None else None,
        )
        note, place = Announcement(serving, config), shared_place(serving)
        if place is not None and folders is not None:
            joined = _join_server(front, place, reloader, folders, admin)
        leaving = Leaving(serving, server, front, admin, note, joined)
        files = SecretFiles.of_hub(serving, secrets, admin=admin, tls=tls, note=note, mask=mask_in_log)
        keep_collections_short(hub)
        async with hub, anyio.create_task_group() as tasks:
            _watch(tasks, serving, hub, reloader, files)
            if folders is not None:
                tasks.start_soon(folders.run)
            tasks.start_soon(files.run)
            tasks.start_soon(end_when_asked, leaving.drain, options.drain, leaving.end, worker)
            tasks.start_soon(admin.run)
            if worker is not None:
                tasks.start_soon(worker.follow, leaving.succeeded, lambda: server.held)
            tasks.start_soon(leaving.be_ready_with_others)
            # A successor accepts when its servers have an outcome: until then the old hub serves, and no call waits.
            await leaving.wait_until_ready()
            # The supervisor has the socket of its workers, and hands it over itself.
            offered = serving.listener if worker is None and not serving.is_demo else None
            async with handing_over(offered, os.environ, leaving.succeeded) as handover:
                with note.at(handover) if worker is None else nullcontext():
                    if joined is not None and place is not None:
                        tasks.start_soon(_let_join, joined, place, server, front)
                    await server.serve([serving.listener] if serving.listener is not None else [])
            tasks.cancel_scope.cancel()


def _project_servers(serving: Serving) -> ProjectServers | None:
    """The servers that run once for each folder; None for the demo servers, and where other hubs are the clients."""
    config = serving.config
    if config is None or config.source is None or serving.options.listen_hubs is not None:
        return None
    return ProjectServers(config.source, os.environ, partial(without_itself, serving.options))


def _join_server(
    front: Front, place: SharedPlace, reloader: Reloader, folders: FolderClients, admin: ControlServer
) -> JoinServer:
    variables = ClientVariables(
        front.hub,
        _source(front.hub.config),
        reload=reloader.reload,
        findings=front.broker.findings,
        found=admin.events.touched,
        environ=os.environ,
    )
    return JoinServer(
        front,
        place,
        variables,
        folders,
        version=__version__,
        background=runs_in_background(os.environ),
        changed=admin.events.hub_changed,
    )


async def _let_join(joined: JoinServer, place: SharedPlace, server: HubWebServer, front: Front) -> None:
    """Let clients join, and end a hub that a client started when nothing needs it any more."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(joined.run)
        tasks.start_soon(place.follow)
        if runs_in_background(os.environ):
            tasks.start_soon(_end_background, server, front, joined)


async def _end_background(server: HubWebServer, front: Front, joined: JoinServer) -> None:

    def busy() -> bool:
        broker = front.broker
        return bool(joined.clients or server.held or broker.attribution.calls or broker.task_ids.has_open)

    await end_when_idle(front.hub.registry.clock, lambda: server.total_requests, busy)
    log.info("no client has used this hub for %g minutes: it ends", IDLE_SECONDS / 60)
    # By the way that every end takes: drain, then close.
    signal.raise_signal(signal.SIGTERM)


def _require_shared_key(options: ServeConfig, *, shared: bool) -> None:
    """Refuse a listener that no other machine can use: a key in the state folder is known on this machine alone."""
    address = options.listen_hubs or UNIX
    if shared or address.startswith(UNIX) or is_loopback(address.rpartition(":")[0].strip("[]")):
        return
    raise UsageError(
        "--listen-hubs beyond this machine needs the session key that the other hubs have",
        hint="start all of them with the same --session-key-file, or with the same HOLDFAST_SESSION_KEY",
    )


def allowed_hosts(serving: Serving) -> tuple[str, ...]:
    """The host names that requests may use."""
    named = (serving.host, *(serving.options.allow_host or ()), urlsplit(serving.public_url).hostname or "")
    # In a request an IPv6 address has brackets, and that of a pod has none.
    return (*LOOPBACK_HOSTS, *(f"[{host}]" if ":" in host and not host.startswith("[") else host for host in named))


def _server_tls(options: ServeConfig) -> ServerTls | None:
    if options.tls_cert is None or options.tls_key is None:
        return None
    return ServerTls.of(TlsFiles(certificate=options.tls_cert, key=options.tls_key, client_ca=options.tls_client_ca))


def _session_keys(serving: Serving, state_file: Path) -> SessionKeys:
    """The keys of the sessions. An unusable key of the operator ends the start."""
    # A replica of a fleet has the keys that its operator gave to all of them, and makes none.
    kept_in = state_file.parent if not serving.options.fleet else None
    keys = SessionKeys.find(file=serving.options.session_key_file, environ=os.environ, kept_in=kept_in)
    if serving.worker is not None and keys.is_of_one_process:
        # No key can be kept: the one of the supervisor serves all its workers, and ends with it.
        notice, keys = keys.notice, SessionKeys([serving.worker.task.key.encode()], shared=False)
        keys.notice = notice
    return keys


def _control_server(  # noqa: PLR0913 - what the pages show comes from all parts of a hub
    hub: Hub,
    serving: Serving,
    fleet: Fleet | None,
    *,
    audit: AuditTrail | None,
    browsers: BrowserIdentity,
    links: LoginLinks,
    notice: Callable[[], str],
    findings: Callable[[], Mapping[str, str]],
    clients: Callable[[], Sequence[JoinedClient]],
) -> ControlServer:
    """The control API of a hub."""
    worker = serving.worker.task if serving.worker is not None else None
    about = HubInfo(
        endpoint=serving.url,
        config=str(_source(hub.config).absolute()),
        demo=serving.is_demo,
        identity=IDENTITY,
        program=invocation().program,
        notice=notice,
        findings=findings,
        clients=lambda: [JoinedClientView(program=one.program, folder=one.folder, pid=one.pid) for one in clients()],
        pid=worker.supervisor if worker is not None else 0,
        started=worker.started if worker is not None else 0.0,
    )
    return ControlServer(
        hub,
        about,
        sessions=BrowserSessions(
            serving.control_token,
            key=worker.key.encode() if worker is not None else b"",
            used_in=worker.codes if worker is not None else None,
        ),
        browsers=browsers,
        links=links,
        workers=_group(serving.worker) if serving.worker is not None else None,
        fleet=fleet,
        audit=audit,
    )


def _sign_in_client(serving: Serving, secrets: CallerSecrets) -> SignInClient | None:
    """The hub as a client of its issuer; None if people do not sign in there."""
    options, verifier = serving.options, secrets.verifier
    if options.oidc_client_id is None or verifier is None:
        return None
    return SignInClient(
        verifier.issuer,
        options.oidc_client_id,
        redirect_uri=f"{serving.public_url}/signin/callback",
        scope=options.oidc_scope.split(),
        verify=verifier.claims,
        secret=lambda: secrets.given["oidc"],
    )


def _id_tokens(
    client: SignInClient | None, secrets: CallerSecrets, tokens: UserTokenStore, config: Callable[[], Config]
) -> IdTokens | None:
    """The ID tokens of people who sign in; kept only while a server takes identity assertions."""
    verifier = secrets.verifier
    if client is None or verifier is None:
        return None

    def name_of(claims: Mapping[str, Any]) -> str | None:
        found = verifier.principal(claims)
        return found.name if found is not None else None

    return IdTokens(client, tokens, needed=lambda: _takes_credential(config(), "assertion"), name_of=name_of)


def _takes_credential(config: Config, rung: Literal["assertion", "exchange"]) -> bool:
    """Whether a server takes credentials of its users by this rung."""
    return any(getattr(spec.credentials, rung) is not None for spec in config.servers.values() if spec.enabled)


def _group(link: WorkerLink) -> WorkerGroup:
    own = Worker(link.task.number, link.task.socket)
    return WorkerGroup(own, lambda: [Worker(number, path) for number, path in link.orders.members])


# Over stdio


async def _run_stdio(serving: Serving, audited_by: Audited) -> None:
    log_faults_in_lines()
    audit, options = audited_by.trail, serving.options
    async with found_config(serving) as config:
        known = [name for name, _ in config.settings.profiles]
        if options.profile is not None and options.profile not in known:
            raise UsageError(f"there is no profile `{options.profile}`", hint=f"known: {', '.join(known) or 'none'}")
        state_file = _state_file(serving, config)
        projects, folder = _project_servers(serving), _own_folder(options)
        if projects is not None and folder is not None:
            projects.in_use[folder] = FolderUse(clients=1)
        served = projects.of(config) if projects is not None else config
        hub = Hub(served, state_file=state_file, approvals=_approvals(options, "localhost"), is_local=True)
        broker = Broker(hub, audit=audit)
        record_other_events(audit, hub)
        ended = anyio.Event()
        keep_collections_short(hub)
        async with hub, anyio.create_task_group() as tasks:
            reloader = _reloader(serving, hub, projects)
            folders = FolderClients(projects, reloader.reload, hub.registry.clock) if projects is not None else None
            _watch(tasks, serving, hub, reloader)
            tasks.start_soon(end_when_asked, partial(_drain_stdio, broker), options.drain, ended.set)
            await serve_stdio(
                hub,
                broker=broker,
                tools=options.tools,
                profile=options.profile,
                folder=folder,
                folders=folders,
                ended=ended,
            )
            tasks.cancel_scope.cancel()


def _own_folder(options: ServeConfig) -> str | None:
    """The folder that the client of a hub of its own works in."""
    with suppress(OSError):  # it was removed
        named = str(options.folder) if options.folder is not None else ""
        return project_folder_of(named, os.getcwd(), os.environ)  # noqa: PTH109 - a text
    return None


async def _drain_stdio(broker: Broker, seconds: float) -> bool:
    log.info("shutting down: new calls are refused; calls in flight have %g s", seconds)
    return await broker.drain(seconds)


# For both


def _source(config: Config) -> Path:
    """The file that is served: the one of the user, or that of the demo servers."""
    assert config.source is not None  # noqa: S101 - it was read from one
    return config.source


def _state_file(serving: Serving, config: Config) -> Path:
    """What survives a restart is there. The state of the demo ends with it."""
    source = _source(config)
    file = source.with_name("state.sqlite") if serving.is_demo else default_state_file(source)
    if serving.worker is not None and serving.worker.task.runs_stdio:
        return file.with_suffix(".stdio.sqlite")  # what it sees of a server is not what the workers approve
    return file


def _approvals(options: ServeConfig, host: str) -> ApprovalMode | ApprovalsLock:
    """What happens with changes of servers where the configuration does not say it. An unusable lock ends the start.

    A hub that others can reach holds them (SEC-9).
    """
    if options.approvals_lock is not None:
        return ApprovalsLock.read(options.approvals_lock)
    return "warn" if is_loopback(host) else "hold"


def _reloader(serving: Serving, hub: Hub, projects: ProjectServers | None) -> Reloader:
    def part(config: Config) -> Config:
        served = served_part(serving.options, config, serving.worker.task if serving.worker is not None else None)
        return projects.of(served) if projects is not None else served

    return Reloader(hub, _source(hub.config), part=part)


def _watch(
    tasks: anyio.abc.TaskGroup,
    serving: Serving,
    hub: Hub,
    reloader: Reloader,
    files: SecretFiles | None = None,
) -> None:
    """Follow the configuration, and SIGHUP where it does not mean that the terminal closed."""
    tasks.start_soon(keep_log, hub)
    # On a terminal SIGHUP means that its window was closed: that ends the program, as usual.
    if not on_terminal():
        tasks.start_soon(_reload_on_signal, reloader, files)
    if serving.options.watch:
        tasks.start_soon(reloader.run)


async def _reload_on_signal(reloader: Reloader, files: SecretFiles | None) -> None:
    with anyio.open_signal_receiver(signal.SIGHUP) as signals:
        async for _ in signals:
            if files is not None:
                # Secrets first: the new configuration may name the token that was just written.
                await files.refresh()
            await reloader.reload()


# Memory
#
# Garbage collections are kept short, because a long one holds up the event loop (SEC-7), and freed memory stays for the
# next large message.
#
# A collection takes as long as what it looks at: about 0.5 ms for 1,000 objects, three times that on a busy machine.
# Young objects are few by the thresholds. What lives long is frozen: the collector does not look at it again, and
# references alone free it. Garbage in cycles that is frozen stays for ever. That is why the younger objects are
# collected before a freeze, and why nothing is frozen while few objects are new.
#
# The servers and their catalogs are what lives long and is large, so their records in the journal are the moments to
# look. Sessions and calls come and go; they are frozen only if they live at such a moment.
#
# How many objects are new is known from the collector's own counts. A list of them (``gc.get_objects``) would take
# longer than a short collection. It would also hold tuples that another thread is building, which fails in that thread.
#
# The C library gives large pieces of freed memory back to the system, and gets them again page by page. A message of 10
# MB took some 300 pages, and up to a fifth more CPU time for them on a virtual machine (PERF-6). So they are kept.

THRESHOLDS: Final = (3_000, 1, 100)
"""So many more objects may live before the youngest are looked at. The middle ones follow after more than one such
look, all after more than 100 of those. Python's own are 700, 10 and 10. The younger ones stay below some 9,000: a few
times that where as many old ones die as new ones are made, because the collector counts the difference."""

FEW_OBJECTS: Final = 20_000
"""Up to so many new objects nothing is frozen."""

LARGE_CATALOG: Final = 1_000
"""A catalog with more names is looked at when it changes."""

OUTCOMES_A_LOOK: Final = 25
"""After so many outcomes of dials the objects are looked at."""


def begin_collections() -> None:
    """What was imported stays. Calls leave no cycles behind, so the collector may come less often."""
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)


def keep_collections_short(hub: Hub) -> None:
    """Freeze what lives long, from now on: the program itself, now; catalogs and servers when there are many."""
    gc.collect()
    gc.freeze()
    outcomes = 0

    def look(record: HubRecord) -> None:
        nonlocal outcomes
        if isinstance(record, Transition) and record.new is not State.CONNECTING:
            outcomes += 1
            if outcomes % OUTCOMES_A_LOOK == 0:
                _freeze_if_many()
        elif isinstance(record, Published) and len(hub.registry.catalog.names) > LARGE_CATALOG:
            _freeze_if_many()

    hub.registry.journal.add_sink(look, calls=None)


def _new_objects() -> int:
    """About how many more objects live than at the last freeze or full collection.

    A generation is looked at when its count exceeds its threshold, so one look of the middle stands for two more
    than its threshold of the youngest.
    """
    young, middle, old = gc.get_count()
    every, looks, _ = gc.get_threshold()
    return young + every * (middle + (looks + 2) * old)


def _freeze_if_many() -> None:
    """Freeze what is alive, if a collection of it would take long."""
    if _new_objects() > FEW_OBJECTS:
        gc.collect(1)  # not the oldest: while 500 servers were dialed, a collection of all took 58 ms
        gc.freeze()


KEPT_BYTES: Final = 32 * 1024 * 1024
"""How much free memory stays with the process: two messages of the largest size."""

_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3


def keep_freed_memory() -> None:
    """From now on. A C library other than glibc goes on as it does."""
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_TRIM_THRESHOLD, KEPT_BYTES)
        mallopt(_MMAP_THRESHOLD, KEPT_BYTES)
