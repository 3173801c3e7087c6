"""The health of the bridge, as JSON and as Prometheus text, and the endpoints that serve it.

Nothing is healthy by default: each part must succeed once first.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from functools import partial
from typing import Any, Literal, TypeAlias

import anyio
from anyio.abc import SocketAttribute, SocketStream
from anyio.streams.buffered import BufferedByteReceiveStream

from holdfast.errors import UsageError

__all__ = ["BridgeHealth", "GatewayState", "Role", "Status", "serving"]

Role: TypeAlias = Literal["starting", "active", "standby"]

Status: TypeAlias = Literal["ok", "applying", "degraded", "standby", "starting"]


class GatewayState(Enum):
    """Whether the gateway runs the config in place."""

    NOT_WATCHED = "not watched"
    TAKEN = "taken"
    WAITING = "waiting"
    REFUSED = "refused"
    DOWN = "down"


@dataclass
class BridgeHealth:
    """The last observations of the bridge. Times are seconds since 1970; 0 is never."""

    source: str = ""
    gateway_version: str = ""
    role: Role = "starting"
    """Only the ``active`` bridge writes."""
    source_error: str = ""
    source_success: float = 0.0
    source_empty: bool = False
    """Whether the source lists no targets. Without ``--allow-empty`` that is an error."""
    config_error: str = ""
    """Why the wanted config is not in place."""
    config_success: float = 0.0
    """When the wanted config was last in place."""
    written: float = 0.0
    mark: str = ""
    routes: int = 0
    left_out: Mapping[str, str] = field(default_factory=dict)
    shadowed: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    take: GatewayState = GatewayState.NOT_WATCHED
    gateway_error: str = ""
    gateway_success: float = 0.0
    """When the gateway last ran the config in place."""
    writes: int = 0
    write_failures: int = 0
    source_failures: int = 0
    refusals: int = 0
    restores: int = 0

    @property
    def status(self) -> Status:
        """The overall status."""
        if self.role != "active":
            return self.role
        if self.source_error or self.config_error or self.take in (GatewayState.REFUSED, GatewayState.DOWN):
            return "degraded"
        if not self.source_success or not self.config_success:
            return "starting"
        if self.take is GatewayState.WAITING:
            return "applying" if self.gateway_success else "starting"
        return "ok"

    @property
    def healthy(self) -> bool:
        """Whether everything works. A bridge on standby is healthy."""
        return self.status in ("ok", "applying", "standby")

    def as_json(self) -> dict[str, Any]:
        """The full state."""
        return {
            "status": self.status,
            "role": self.role,
            "source": {
                "name": self.source,
                "state": _state(self.source_error, self.source_success, good="fresh", bad="stale"),
                "error": self.source_error or None,
                "last_success": _time(self.source_success),
                "empty": self.source_empty,
                "left_out": dict(self.left_out),
            },
            "config": {
                "state": _state(self.config_error, self.config_success, good="current", bad="last good kept"),
                "error": self.config_error or None,
                "last_success": _time(self.config_success),
                "last_written": _time(self.written),
                "mark": self.mark or None,
                "routes": self.routes,
                "shadowed": list(self.shadowed),
                "warnings": list(self.warnings),
            },
            "gateway": {
                "version": self.gateway_version,
                "state": self.take.value,
                "error": self.gateway_error or None,
                "last_success": _time(self.gateway_success),
            },
        }

    def as_metrics(self) -> str:
        """The state as Prometheus text."""
        return "".join(
            f"# HELP {_PREFIX}{name} {words}\n# TYPE {_PREFIX}{name} {kind}\n{_PREFIX}{name} {value}\n"
            for name, kind, value, words in self._metrics()
        )

    def _metrics(self) -> tuple[tuple[str, str, float, str], ...]:
        source_up = not self.source_error and bool(self.source_success)
        current = not self.config_error and bool(self.config_success)
        taken = self.take in (GatewayState.TAKEN, GatewayState.NOT_WATCHED)
        return (
            ("healthy", "gauge", int(self.healthy), "Whether everything works."),
            ("active", "gauge", int(self.role == "active"), "Whether this bridge writes; 0 is standby."),
            ("source_up", "gauge", int(source_up), "The last poll succeeded."),
            ("source_empty", "gauge", int(self.source_empty), "Whether the source lists no targets."),
            ("source_last_success_seconds", "gauge", self.source_success, "When the targets were last read."),
            ("source_failures_total", "counter", self.source_failures, "Polls that failed."),
            ("targets_left_out", "gauge", len(self.left_out), "Servers without a route."),
            ("routes", "gauge", self.routes, "Routes in the config, with those of the bootstrap."),
            ("config_current", "gauge", int(current), "It is in place."),
            ("config_last_success_seconds", "gauge", self.config_success, "When the wanted config was last in place."),
            ("config_writes_total", "counter", self.writes, "Writes of the config."),
            ("config_write_failures_total", "counter", self.write_failures, "Failed writes of the config."),
            ("gateway_taken", "gauge", int(taken), "The gateway runs the config, or is not watched."),
            ("gateway_last_success_seconds", "gauge", self.gateway_success, "When the gateway last ran the config."),
            ("gateway_refusals_total", "counter", self.refusals, "Configs that the gateway refused."),
            ("gateway_restores_total", "counter", self.restores, "Restores of the last good config."),
        )


_PREFIX = "holdfast_gateway_bridge_"


def _state(error: str, success: float, *, good: str, bad: str) -> str:
    return bad if error else good if success else "not yet"


def _time(seconds: float) -> str | None:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds") if seconds else None


ANSWER_SECONDS = 5.0
"""How long one request may take: then its connection ends, so that no client holds one open."""

LONGEST_HEAD = 16 * 1024

_LEFT = (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.IncompleteRead, anyio.DelimiterNotFound)
"""The client left, or sent no request."""


@asynccontextmanager
async def serving(health: BridgeHealth, host: str, port: int) -> AsyncIterator[str]:
    """Serve the health while the block runs; yields the address.

    Three small answers need no framework and no server of a library: this process has nothing else to serve.
    """
    try:
        listener = await anyio.create_tcp_listener(local_host=host, local_port=port)
    except OSError as exc:
        hint = "use another address: --listen HOST:PORT"
        raise UsageError(f"cannot listen at {host}:{port}: {exc.strerror}", hint=hint) from exc
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, partial(_serve, health))
        shown = f"[{host}]" if ":" in host else host
        yield f"http://{shown}:{listener.extra(SocketAttribute.local_port)}"  # noqa: S610 - no database is near
        tasks.cancel_scope.cancel()


async def _serve(health: BridgeHealth, client: SocketStream) -> None:
    """Answer one request, and close: a probe and Prometheus ask once in some seconds."""
    with anyio.move_on_after(ANSWER_SECONDS), suppress(*_LEFT):
        async with client:
            head = await BufferedByteReceiveStream(client).receive_until(b"\r\n\r\n", LONGEST_HEAD)
            method, _, rest = head.decode("latin-1").partition(" ")
            status, kind, body = _answer(health, re.split("[ ?]", rest, maxsplit=1)[0])
            fields = f"content-type: {kind}\r\ncontent-length: {len(body.encode())}\r\nconnection: close"
            shown = "" if method == "HEAD" else body
            await client.send(f"HTTP/1.1 {status}\r\n{fields}\r\n\r\n{shown}".encode())


def _answer(health: BridgeHealth, path: str) -> tuple[str, str, str]:
    """The status, the type and the body for a path."""
    match path:
        case "/healthz":
            status = "200 OK" if health.healthy else "503 Service Unavailable"
            return status, "application/json", json.dumps(health.as_json())
        case "/livez":
            return "200 OK", "text/plain; charset=utf-8", "ok\n"
        case "/metrics":
            return "200 OK", "text/plain; version=0.0.4; charset=utf-8", health.as_metrics()
    return "404 Not Found", "text/plain; charset=utf-8", "there is /healthz, /livez and /metrics\n"
