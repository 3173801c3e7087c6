"""What ``holdfast serve`` logs, how and where to: one handler on stderr for all that is logged in the process."""

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
"""How late the count of a line may be written after its time has come."""


def log_to_stderr(form: str, level: str, *, secrets: Iterable[str]) -> None:
    """Log from now on, never showing what callers must show; of other libraries, what they warn of."""
    handler = _ServeLog(sys.stderr, JsonLines() if form == "json" else ConsoleLines())
    handler.own = tuple(secrets)
    handler.know(handler.own)
    logging.getLogger().addHandler(handler)
    logging.getLogger("holdfast").setLevel(level.upper())


async def keep_log(hub: Hub) -> None:
    """Keep the servers' secrets out of the log, as the configuration changes, and write what was counted; forever."""
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
    """The log of a hub that serves."""

    own: tuple[str, ...] = ()
    """What callers of the hub itself must show."""
