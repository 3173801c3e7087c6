"""The log of ``holdfast serve``: one handler on stderr for the whole process."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable

import anyio

from holdfast.admin.log_output import ConsoleLines, JsonLines, LogHandler
from holdfast.hub.hub import Hub
from holdfast.hub.records import ConfigApplied, HubRecord

__all__ = ["keep_log", "log_to_stderr"]

TICK_SECONDS = 5.0
"""How late the count of repeated lines may be written."""


def log_to_stderr(form: str, level: str, *, secrets: Iterable[str]) -> None:
    """Log to stderr, without ``secrets``. Other libraries log only warnings."""
    handler = _ServeLog(sys.stderr, JsonLines() if form == "json" else ConsoleLines())
    handler.own = tuple(secrets)
    handler.know(handler.own)
    logging.getLogger().addHandler(handler)
    logging.getLogger("holdfast").setLevel(level.upper())


async def keep_log(hub: Hub) -> None:
    """Mask the secrets of the servers, also after a config change, and count repeated lines. Never returns."""
    handlers = [handler for handler in logging.getLogger().handlers if isinstance(handler, _ServeLog)]

    def learn() -> None:
        servers = [secret for spec in hub.config.servers.values() for secret in getattr(spec, "secrets", ())]
        for handler in handlers:
            handler.know((*handler.own, *servers))

    def happened(record: HubRecord) -> None:
        if isinstance(record, ConfigApplied):
            learn()

    learn()
    forget = hub.listen(happened)
    try:
        while True:
            await anyio.sleep(TICK_SECONDS)
            for handler in handlers:
                handler.tick()
    finally:
        forget()


class _ServeLog(LogHandler):
    """The log handler of ``serve``."""

    own: tuple[str, ...] = ()
    """The secrets of the hub itself, such as the callers' token."""
