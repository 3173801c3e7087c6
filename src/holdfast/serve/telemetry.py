"""The log and the traces of ``holdfast serve``.

Faults that reach the event loop, such as those of a callback of a connection, are one line of log each (SEC-7). The
loop itself would write the traceback of the fault and of all exceptions before it. An input that causes one may cause a
thousand, and each traceback would hold up all clients.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from threading import Thread
from typing import TYPE_CHECKING, Any

import anyio

from holdfast._version import __version__
from holdfast.control import ConsoleFormatter, JsonFormatter, LogHandler
from holdfast.core import fault_line
from holdfast.errors import UsageError
from holdfast.hub import ConfigApplied, HubRecord

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

    from holdfast.hub import Hub

__all__ = ["keep_log", "log_faults_in_lines", "log_to_stderr", "mask_in_log", "traced"]

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
    """The log handler of ``serve``."""

    own: tuple[str, ...] = ()
    """The secrets of the hub itself, such as the callers' token."""
    of_servers: tuple[str, ...] = ()
    """The secrets in the configuration."""

    def mask_known(self) -> None:
        """Mask all of them from now on."""
        self.know((*self.own, *self.of_servers))


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
    kind = _wanted(environ)
    if kind is None:
        yield
        return
    provider = _provider(kind)
    try:
        yield
    finally:
        last = Thread(target=provider.shutdown, name="last spans", daemon=True)
        last.start()
        last.join(FLUSH_SECONDS)


def _wanted(environ: Mapping[str, str]) -> str | None:
    """The configured exporter. An endpoint alone means OTLP."""
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    given = environ.get("OTEL_TRACES_EXPORTER", "").strip()
    kind = given or ("otlp" if any(environ.get(name) for name in _ENDPOINTS) else "none")
    if kind == "none":
        return None
    if kind not in ("otlp", "console"):
        raise UsageError(f"OTEL_TRACES_EXPORTER is {kind!r}", hint="use otlp, console or none")
    protocol = next((environ[name] for name in _PROTOCOLS if environ.get(name)), "http/protobuf")
    if kind == "otlp" and protocol != "http/protobuf":
        hint = "set OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf; collectors accept it on port 4318"
        raise UsageError(f"Holdfast does not support the OTLP protocol {protocol}", hint=hint)
    return kind


def _provider(kind: str) -> TracerProvider:
    """The provider for the whole process. The MCP library uses it too."""
    try:
        from opentelemetry import trace  # noqa: PLC0415 - only imported when traces are on
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource  # noqa: PLC0415 - the same
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415 - the same
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415 - the same

        exporter = _exporter(kind)
    except ImportError as exc:
        raise UsageError(
            "OTEL_… asks for traces, and the OpenTelemetry SDK is not installed",
            hint="install Holdfast with its extra, in its clone: pipx install --force '.[otel]';"
            " or set OTEL_SDK_DISABLED=true",
        ) from exc
    named = "service.name" in OTELResourceDetector().detect().attributes
    own = {"service.version": __version__} if named else {"service.name": "holdfast", "service.version": __version__}
    provider = TracerProvider(resource=Resource.create(own), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return provider


def _exporter(kind: str) -> SpanExporter:
    if kind == "console":
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter  # noqa: PLC0415 - as above

        return ConsoleSpanExporter(out=sys.stderr)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415 - as above

    return OTLPSpanExporter()
