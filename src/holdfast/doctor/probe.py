"""One dial of a server, as the runtime dials: what was seen of the handshake, the listing and the close."""

from __future__ import annotations

import os
import traceback
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

from holdfast.config.spec import ServerSpec
from holdfast.core.redact import Redactor
from holdfast.wire.attempt import Attempt

if TYPE_CHECKING:
    from holdfast.hub.turnstile import Turnstile
    from holdfast.wire.connection import Connection
    from holdfast.wire.dial import Dialer
    from holdfast.wire.listing import Offer, OfferKind

__all__ = ["Probe", "probe", "trace_of"]

Probe: TypeAlias = "Attempt[Mapping[OfferKind, tuple[Offer, ...]]]"


async def probe(
    spec: ServerSpec, *, dialer: Dialer, turnstile: Turnstile, redactor: Redactor, deadline: float
) -> Probe:
    """Dial, list and close; nothing is raised but a cancellation."""

    async def everything(connection: Connection, within: float) -> Mapping[OfferKind, tuple[Offer, ...]]:
        return await connection.list_everything(within=within)

    found: Probe = Attempt(spec=spec, redactor=redactor, read=everything, deadline=deadline)
    return await found.run(dialer, turnstile)


def trace_of(found: Probe) -> str:
    """Where a probe failed, for a developer of Holdfast; empty unless ``HOLDFAST_DEBUG`` is set."""
    if found.error is None or not os.environ.get("HOLDFAST_DEBUG"):
        return ""
    return "".join(traceback.format_exception(found.error))
