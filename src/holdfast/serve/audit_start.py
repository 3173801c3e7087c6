"""The audit of ``holdfast serve``: whether it is written, where, with which key, and what besides calls goes into it.

Calls are recorded by the endpoint, and what operators do by the control API. The rest comes from the hub's own records:
refusals at the door, logins that took effect, and changes of the configuration.
"""

from __future__ import annotations

import logging
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from holdfast.access import AuditFiles, AuditTrail, audit_places, read_key, send_checkpoints
from holdfast.config import AuditSettings, Config
from holdfast.core import Redactor, is_loopback
from holdfast.errors import UsageError
from holdfast.hub import AccessRefused, ConfigApplied, ConfigRefused, Hub, HubRecord, Transition
from holdfast.serve.options import Serving

__all__ = ["Audited", "audited", "record_other_events"]

log = logging.getLogger("holdfast.audit")

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
    if not _wanted(settings, serving):
        yield Audited()
        return
    folder, key_file = audit_places(settings, config.source if config is not None else None, os.environ)
    try:
        key = read_key(key_file, make=settings.key_file is None)
    except UsageError as error:
        if settings != AuditSettings():
            raise
        problem = f"no audit is written: {error.message}"
        log.error("%s", problem)  # noqa: TRY400 - a line for people
        yield Audited(problem=problem)
        return
    files = AuditFiles(
        folder,
        key,
        keep=settings.keep,
        max_bytes=settings.max_bytes,
        checkpoint=send_checkpoints(_syslog(settings)),
    )
    trail = AuditTrail(
        files, key, arguments=settings.arguments, required=settings.required, redactor=lambda: _redactor(config)
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


def _wanted(settings: AuditSettings, serving: Serving) -> bool:
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


def _redactor(config: Config | None) -> Redactor:
    servers = config.servers.values() if config is not None else ()
    return Redactor([secret for server in servers for secret in server.secrets])


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
