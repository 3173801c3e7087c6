"""One dial of a server, as the hub dials: handshake, listing, close, and the result of each."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import anyio

from holdfast.config import ServerSpec
from holdfast.core import Redactor
from holdfast.wire import Attempt

if TYPE_CHECKING:
    from holdfast.wire import Connection, Dialer, Limit, Offers

__all__ = ["Probe", "probe", "trace_of"]

Probe: TypeAlias = "Attempt[Offers]"


async def probe(
    spec: ServerSpec,
    *,
    dialer: Dialer,
    limit: Limit,
    redactor: Redactor,
    deadline: float,
    begun: Callable[[Probe], None] | None = None,
) -> Probe:
    """Dial, list and close; only a cancellation is raised. ``begun`` gets the attempt before it starts."""

    async def everything(connection: Connection, within: float) -> Offers:
        return await connection.list_everything(within=within)

    left = max(deadline - anyio.current_time(), 0.0)
    found: Probe = Attempt(
        spec=spec,
        redactor=redactor,
        read=everything,
        deadline=deadline,
        within=left,
        start_within=min(left, spec.start_timeout),
    )
    if begun is not None:
        begun(found)
    return await found.run(dialer, limit)


def trace_of(found: Probe) -> str:
    """Where a probe failed, for a developer of Holdfast; empty unless ``HOLDFAST_DEBUG`` is set."""
    if found.error is None or not os.environ.get("HOLDFAST_DEBUG"):
        return ""
    return "".join(traceback.format_exception(found.error))
