"""What ``holdfast serve`` writes about itself: the log, the traces, and the audit.

Faults that reach the event loop, such as those of a callback of a connection, are one line of log each (SEC-7). The
loop itself would write the traceback of the fault and of all exceptions before it. An input that causes one may cause a
thousand, and each traceback would hold up all clients.

Whether an audit is written, where, with which key, and what besides calls goes into it is decided here. Calls are
recorded by the endpoint, and what operators do by the control API. The rest comes from the hub's own records: refusals
at the door, logins that took effect, and changes of the configuration.
"""

from __future__ import annotations

import asyncio
import logging
import os
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio

import holdfast.access  # a supervisor logs, and writes no audit: what writes it waits until it is used
from holdfast._version import __version__
from holdfast.config import AuditSettings
from holdfast.control import ConsoleFormatter, JsonFormatter, LogHandler
from holdfast.core import Redactor, Transition, fault_line, is_loopback
from holdfast.errors import UsageError
from holdfast.hub import AccessRefused, ConfigApplied, ConfigRefused, HubRecord

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

    from holdfast.access import AuditTrail
    from holdfast.hub import Hub
    from holdfast.serve.options import Serving

__all__ = [
    "Audited",
    "audited",
    "keep_log",
    "log_faults_in_lines",
    "log_to_stderr",
    "mask_in_log",
    "record_other_events",
    "traced",
]

TICK_SECONDS = 5.0
"""How late the count of repeated lines may be written."""


def log_to_stderr(form: str, level: str, *, secrets: Iterable[str], worker: int | None = None) -> None:
    """Log to stderr, without ``secrets``, with the number of the worker. Other libraries log only warnings."""
    handler = _ServeLog(sys.stderr, JsonFormatter(worker) if form == "json" else ConsoleFormatter(worker))
    handler.own = tuple(secrets)
    handler.mask_known()
    logging.getLogger().addHandler(handler)
    logging.getLogger("holdfast").setLevel(level.upper())


async def keep_log(hub: Hub) -> None:
    """Mask the secrets of the servers, also after a config change, and count repeated lines. Never returns."""
    handlers = [handler for handler in logging.getLogger().handlers if isinstance(handler, _ServeLog)]

    def learn() -> None:
        servers = [secret for spec in hub.config.servers.values() for secret in spec.secrets]
        for handler in handlers:
            handler.of_servers = tuple(servers)
            handler.mask_known()

    def happened(record: HubRecord) -> None:
        if isinstance(record, ConfigApplied):
            learn()

    learn()
    forget = hub.registry.journal.add_sink(happened, calls=None)
    try:
        while True:
            await anyio.sleep(TICK_SECONDS)
            for handler in handlers:
                handler.tick()
    finally:
        forget()


def mask_in_log(secret: str) -> None:
    """Never show this secret in the log."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, _ServeLog):
            handler.own = (*handler.own, secret)
            handler.mask_known()


class _ServeLog(LogHandler):
    """The log handler of ``serve``. It knows the secrets in force, and the audit asks it for them."""

    own: tuple[str, ...] = ()
    """The secrets of the hub itself, such as the callers' token."""
    of_servers: tuple[str, ...] = ()
    """The secrets in the configuration."""
    redactor = Redactor()
    """Masks all of them."""

    def mask_known(self) -> None:
        """Mask all of them from now on."""
        self.redactor = self.know((*self.own, *self.of_servers))


def _in_force() -> Redactor:
    """What masks the secrets that are in force now. A reload or a new token file may have changed them."""
    return next((one.redactor for one in logging.getLogger().handlers if isinstance(one, _ServeLog)), Redactor())


def log_faults_in_lines() -> None:
    """Log the faults of the running event loop so, from now on."""
    asyncio.get_running_loop().set_exception_handler(_log_fault)


def _log_fault(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    exc = context.get("exception")
    what = str(context.get("message") or "a fault")[:200]
    logging.getLogger("holdfast.loop").error(
        "%s: %s", what, fault_line(exc) if isinstance(exc, BaseException) else "no exception"
    )


FLUSH_SECONDS = 5.0
"""How long the delivery of the last spans may take. A missing collector must not delay the shutdown."""

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")


@contextmanager
def traced(environ: Mapping[str, str]) -> Iterator[None]:
    """Record and export spans while the block runs, if the environment configures it."""
    if not _wanted(environ):
        yield
        return
    provider = _provider()
    try:
        yield
    finally:
        last = Thread(target=provider.shutdown, name="last spans", daemon=True)
        last.start()
        last.join(FLUSH_SECONDS)


def _wanted(environ: Mapping[str, str]) -> bool:
    """Whether spans are to be exported, which is by OTLP. An endpoint alone says so too."""
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    given = environ.get("OTEL_TRACES_EXPORTER", "").strip()
    kind = given or ("otlp" if any(environ.get(name) for name in _ENDPOINTS) else "none")
    if kind not in ("otlp", "none"):
        raise UsageError(f"OTEL_TRACES_EXPORTER is {kind!r}", hint="use otlp or none")
    protocol = next((environ[name] for name in _PROTOCOLS if environ.get(name)), "http/protobuf")
    if kind == "otlp" and protocol != "http/protobuf":
        hint = "set OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf; collectors accept it on port 4318"
        raise UsageError(f"Holdfast does not support the OTLP protocol {protocol}", hint=hint)
    return kind == "otlp"


def _provider() -> TracerProvider:
    """The provider for the whole process. The MCP library uses it too."""
    try:
        from opentelemetry import trace  # noqa: PLC0415 - only imported when traces are on
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415 - the same
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource  # noqa: PLC0415 - the same
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415 - the same
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415 - the same
    except ImportError as exc:
        raise UsageError(
            "OTEL_… asks for traces, and the OpenTelemetry SDK is not installed",
            hint="install Holdfast with its extra, in its clone: pipx install --force '.[otel]';"
            " or set OTEL_SDK_DISABLED=true",
        ) from exc
    named = "service.name" in OTELResourceDetector().detect().attributes
    own = {"service.version": __version__} if named else {"service.name": "holdfast", "service.version": __version__}
    provider = TracerProvider(resource=Resource.create(own), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    return provider


# The audit.

audit_log = logging.getLogger("holdfast.audit")

LOCAL_SYSLOG = Path("/dev/log")

MOST_REFUSALS = 20
"""How many refusals at the door are recorded in one second. A stranger can cause any number of them: the rest are
counted, in the log and in the metrics too, and the next record says how many there were."""


class Audited(NamedTuple):
    """The audit of a process, and what users should know about it."""

    trail: AuditTrail | None = None
    """None if none is written."""
    problem: str = ""
    """Why none is written although there should be one."""

    @property
    def notice(self) -> str:
        """What users of the hub should know about its audit; empty if all is well."""
        if self.trail is None or not self.trail.failing:
            return self.problem
        refused = "; calls are refused" if self.trail.required else ""
        return f"the audit cannot be written ({self.trail.failing}){refused}"


@contextmanager
def audited(serving: Serving) -> Iterator[Audited]:
    """The audit of this process while it serves.

    An unusable key ends the start, if the operator asked for an audit. Where it is on by default alone, such as in a
    container whose state folder cannot be written, the hub serves without one: its log, its status and its page say so.
    """
    config = serving.config
    settings = config.settings.audit if config is not None else AuditSettings()
    if not _is_audited(settings, serving):
        yield Audited()
        return
    folder, key_file = holdfast.access.audit_places(settings, config.source if config is not None else None, os.environ)
    try:
        key = holdfast.access.read_key(key_file, make=settings.key_file is None)
    except UsageError as error:
        if settings != AuditSettings():
            raise
        problem = f"no audit is written: {error.message}"
        audit_log.error("%s", problem)
        yield Audited(problem=problem)
        return
    files = holdfast.access.AuditFiles(
        folder,
        key,
        keep=settings.keep,
        max_bytes=settings.max_bytes,
        checkpoint=holdfast.access.send_checkpoints(_syslog(settings)),
    )
    trail = holdfast.access.AuditTrail(
        files, key, arguments=settings.arguments, required=settings.required, redactor=_in_force
    )
    try:
        trail.start()
    except OSError as exc:
        raise UsageError(
            f"the audit is required and cannot be written to {files.folder}: {exc.strerror or exc}",
            hint="`audit.path` in the mcp.json names its folder",
        ) from exc
    try:
        yield Audited(trail)
    finally:
        trail.close()


def _is_audited(settings: AuditSettings, serving: Serving) -> bool:
    if serving.worker is not None and serving.worker.task.runs_stdio:
        return False  # the workers record what they ask of it
    if settings.enabled is not None:
        return settings.enabled
    beyond = not serving.options.stdio and not is_loopback(serving.host)
    return settings.path is not None or beyond


def _syslog(settings: AuditSettings) -> str:
    if settings.syslog is not None:
        return "" if settings.syslog == "off" else settings.syslog
    try:
        return str(LOCAL_SYSLOG) if stat.S_ISSOCK(LOCAL_SYSLOG.stat().st_mode) else ""
    except OSError:
        return ""


def record_other_events(trail: AuditTrail | None, hub: Hub, *, wall: Callable[[], float] = time.time) -> None:
    """Record what happens to the hub besides calls, if there is an audit."""
    if trail is None:
        return
    refusals = _Refusals(trail, wall)

    def happened(record: HubRecord) -> None:
        match record:
            case AccessRefused(kind=kind) if kind != "left":
                refusals.add(record)
            case ConfigApplied():
                trail.event("reload", outcome="applied", reason=str(record))
                if "holdfast.access" in record.settings:
                    trail.event("policy", outcome="applied", reason=f"version {hub.registry.policy.version}")
            case ConfigRefused():
                trail.event("reload", outcome="refused", reason=str(record))
            case Transition(cause="LoginSucceeded"):
                trail.event("login", server=record.server, outcome="used")

    hub.registry.journal.add_sink(happened, calls=None)


class _Refusals:
    """Records refusals at the door, up to a number in each second."""

    def __init__(self, trail: AuditTrail, wall: Callable[[], float]) -> None:
        self._trail = trail
        self._wall = wall
        self._second = 0
        self._count = 0

    def add(self, refused: AccessRefused) -> None:
        second = int(self._wall())
        if second != self._second:
            skipped = self._count - MOST_REFUSALS
            if skipped > 0:
                self._trail.event("refusal", outcome="not recorded", reason=f"{skipped} more in one second")
            self._second, self._count = second, 0
        self._count += 1
        if self._count <= MOST_REFUSALS:
            login = refused.kind in ("login", "too_many_logins")
            self._trail.event(
                "login" if login else "refusal",
                outcome="refused",
                principal=refused.principal,
                source=refused.source,
                reason=refused.reason or refused.quota or refused.kind,
            )
