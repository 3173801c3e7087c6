"""One replica of a fleet as people see it, from what it tells about itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["ReplicaView", "replica_view"]


@dataclass(frozen=True, kw_only=True)
class ReplicaView:
    """One replica, for people."""

    replica: str
    here: bool
    host: str = ""
    pid: int = 0
    version: str = ""
    started: float = 0.0
    address: str = ""
    group: str = ""
    """Equal for the workers of one supervisor; empty for a replica that is none."""
    worker: int = 0
    leaving: bool = False


def replica_view(name: str, about: Mapping[str, object], *, here: bool) -> ReplicaView:
    """What a replica tells, as far as it is of the right kind."""

    def text(key: str) -> str:
        return str(about.get(key, ""))[:200]

    pid, started, worker = about.get("pid"), about.get("started"), about.get("worker")
    return ReplicaView(
        replica=name,
        here=here,
        host=text("host"),
        pid=pid if isinstance(pid, int) else 0,
        version=text("version"),
        started=float(started) if isinstance(started, int | float) else 0.0,
        address=text("address"),
        group=text("group"),
        worker=worker if isinstance(worker, int) else 0,
        leaving=about.get("leaving") is True,
    )
