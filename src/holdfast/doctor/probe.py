"""One dial of a server, as the hub dials: handshake, listing, close, and the result of each."""

from __future__ import annotations

import os
import traceback
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio

from holdfast.config.spec import ServerSpec
from holdfast.core.evidence import Evidence, TimedOut
from holdfast.core.redact import Redactor, masked
from holdfast.hub.lease import evidence_in
from holdfast.wire.stdio import StdioDispatcher

if TYPE_CHECKING:
    from holdfast.hub.turnstile import Turnstile
    from holdfast.wire.connection import Connection
    from holdfast.wire.dial import Dialer
    from holdfast.wire.listing import Offer, OfferKind

__all__ = ["Probe", "probe"]


@dataclass(kw_only=True)
class Probe:
    """The result of a dial."""

    version: str = ""
    """The protocol version; empty if the handshake failed."""
    handshake_seconds: float = 0.0
    offers: Mapping[OfferKind, tuple[Offer, ...]] | None = None
    listing_seconds: float = 0.0
    noise: str = ""
    evidence: Evidence | None = None
    """The failure, masked: of the handshake if there is no version, else of the listing."""
    trace: str = ""
    """The traceback, for people who debug Holdfast."""


async def probe(
    spec: ServerSpec, *, dialer: Dialer, turnstile: Turnstile, redactor: Redactor, deadline: float
) -> Probe:
    """Dial, list and close. Only a cancellation is raised."""
    found = Probe()
    began = anyio.current_time()
    try:
        async with AsyncExitStack() as turn:
            with anyio.move_on_at(deadline) as waiting:
                await turn.enter_async_context(turnstile.place())
            if waiting.cancelled_caught:
                after = max(round(deadline - began, 1), 0.0)
                found.evidence = TimedOut(doing="its turn", after=after, setting="holdfast.load.concurrency")
            else:
                await _dial(found, spec, dialer, redactor, deadline)
    except Exception as exc:  # noqa: BLE001 - every failure is the result of this dial
        found.evidence = masked(evidence_in(exc), redactor)
        found.trace = "".join(traceback.format_exception(exc)) if os.environ.get("HOLDFAST_DEBUG") else ""
    return found


async def _dial(found: Probe, spec: ServerSpec, dialer: Dialer, redactor: Redactor, deadline: float) -> None:
    began = anyio.current_time()
    async with dialer.connect(spec, within=max(deadline - began, 0.0), redactor=redactor) as connection:
        stands = anyio.current_time()
        found.handshake_seconds = stands - began
        found.version = connection.protocol_version or connection.era
        found.offers = await connection.list_everything(within=max(deadline - stands, 0.0))
        found.listing_seconds = anyio.current_time() - stands
        found.noise = _noise(connection)


def _noise(connection: Connection) -> str:
    return connection.wire.noise if isinstance(connection.wire, StdioDispatcher) else ""
