"""Faults that reach the event loop, such as those of a callback of a connection: one line of log for each (SEC-7).

The loop itself would write the traceback of the fault and of all exceptions before it. An input that causes one may
cause a thousand, and each traceback would hold up all clients.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from holdfast.core import fault_line

__all__ = ["log_faults_in_lines"]

log = logging.getLogger("holdfast.loop")


def log_faults_in_lines() -> None:
    """Log the faults of the running event loop so, from now on."""
    asyncio.get_running_loop().set_exception_handler(_log_fault)


def _log_fault(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    exc = context.get("exception")
    what = str(context.get("message") or "a fault")[:200]
    log.error("%s: %s", what, fault_line(exc) if isinstance(exc, BaseException) else "no exception")
