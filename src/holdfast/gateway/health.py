"""How the bridge is, told truly: for people and programs as JSON, for Prometheus as text.

Nothing is healthy by default: a part that has not yet succeeded says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias

from holdfast.gateway.decide import Take

__all__ = ["Health", "Role", "Status"]

Role: TypeAlias = Literal["starting", "active", "standby"]

Status: TypeAlias = Literal["ok", "applying", "degraded", "standby", "starting"]

_FINE = (Take.TAKEN, Take.NOT_WATCHED)


@dataclass
class Health:
    """What the bridge last saw. Times are seconds since 1970; 0 for never."""

    source: str = ""
    gateway_version: str = ""
    role: Role = "starting"
    """``active`` is the one bridge that writes."""
    source_error: str = ""
    source_success: float = 0.0
    config_error: str = ""
    """Why the config that is wanted is not in place."""
    config_success: float = 0.0
    """When the config that is wanted was last seen to be in place."""
    written: float = 0.0
    mark: str = ""
    routes: int = 0
    left_out: Mapping[str, str] = field(default_factory=dict)
    shadowed: tuple[str, ...] = ()
    take: Take = Take.NOT_WATCHED
    gateway_error: str = ""
    gateway_success: float = 0.0
    """When the gateway was last seen to run the config in place."""
    writes: int = 0
    write_failures: int = 0
    source_failures: int = 0
    refusals: int = 0
    restores: int = 0

    @property
    def status(self) -> Status:
        """One word for it all."""
        if self.role != "active":
            return self.role
        if self.source_error or self.config_error or self.take in (Take.REFUSED, Take.DOWN):
            return "degraded"
        if not self.source_success or not self.config_success:
            return "starting"
        if self.take is Take.WAITING:
            return "applying" if self.gateway_success else "starting"
        return "ok"

    @property
    def healthy(self) -> bool:
        """Whether all is as it should be; a bridge that stands by is."""
        return self.status in ("ok", "applying", "standby")

    def as_json(self) -> dict[str, Any]:
        """The whole truth."""
        return {
            "status": self.status,
            "role": self.role,
            "source": {
                "name": self.source,
                "state": _state(self.source_error, self.source_success, good="fresh", bad="stale"),
                "error": self.source_error or None,
                "last_success": _time(self.source_success),
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
            },
            "gateway": {
                "version": self.gateway_version,
                "state": self.take.value,
                "error": self.gateway_error or None,
                "last_success": _time(self.gateway_success),
            },
        }

    def as_metrics(self) -> str:
        """The same for Prometheus."""
        return "".join(
            f"# HELP {_PREFIX}{name} {words}\n# TYPE {_PREFIX}{name} {kind}\n{_PREFIX}{name} {value}\n"
            for name, kind, value, words in self._metrics()
        )

    def _metrics(self) -> Iterator[tuple[str, str, float, str]]:
        yield "healthy", "gauge", int(self.healthy), "Whether everything is as it should be."
        yield "active", "gauge", int(self.role == "active"), "Whether this bridge writes; 0 is standing by."
        yield "source_up", "gauge", int(not self.source_error and bool(self.source_success)), "Targets were read."
        yield "source_last_success_seconds", "gauge", self.source_success, "When targets were last read."
        yield "source_failures_total", "counter", self.source_failures, "Polls that gave no targets."
        yield "targets_left_out", "gauge", len(self.left_out), "Servers that cannot be routed to."
        yield "routes", "gauge", self.routes, "Routes in the config, your own among them."
        yield "config_current", "gauge", int(not self.config_error and bool(self.config_success)), "Config is in place."
        yield "config_last_success_seconds", "gauge", self.config_success, "When it was last seen in place."
        yield "config_writes_total", "counter", self.writes, "Times that the config was replaced."
        yield "config_write_failures_total", "counter", self.write_failures, "Times that it could not be."
        yield "gateway_taken", "gauge", int(self.take in _FINE), "The gateway runs the config, or is not watched."
        yield "gateway_last_success_seconds", "gauge", self.gateway_success, "When it was last seen to run it."
        yield "gateway_refusals_total", "counter", self.refusals, "Configs that the gateway would not run."
        yield "gateway_restores_total", "counter", self.restores, "Times that the last good config was put back."


_PREFIX = "holdfast_gateway_bridge_"


def _state(error: str, success: float, *, good: str, bad: str) -> str:
    return bad if error else good if success else "not yet"


def _time(seconds: float) -> str | None:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds") if seconds else None
