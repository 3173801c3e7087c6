"""The hub and its servers as the control API shows them: every value from a record, a slot or the catalog, masked."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

import anyio.lowlevel

from holdfast._version import __version__
from holdfast.admin.history import History
from holdfast.admin.words import STATUS, Facts, Words, pasteable, words_for
from holdfast.config.spec import BadServer, ServerSpec
from holdfast.config.targets import targets_of
from holdfast.control.models import (
    Activity,
    Approval,
    Approvals,
    Breaker,
    CatalogItem,
    CatalogView,
    Clash,
    HubView,
    LastError,
    Server,
    Servers,
    TargetsView,
    TargetView,
)
from holdfast.core.catalog import Entry, Source
from holdfast.core.challenge import read_challenge
from holdfast.core.classify import classify
from holdfast.core.evidence import Evidence, HttpStatus
from holdfast.core.machine import Health
from holdfast.core.names import Kind
from holdfast.core.redact import mask_url, plain
from holdfast.errors import UnknownServer
from holdfast.hub.hub import Hub
from holdfast.hub.slot import Slot

__all__ = ["AT_ONCE", "About", "Views"]

AT_ONCE = 25
"""Servers that are drawn in one go: a few milliseconds, in which nobody else gets a turn."""

LONGEST_TARGET = 300
LONGEST_DESCRIPTION = 1_000
"""Characters; whoever wants all of a tool's description lists it as a client."""


@dataclass(kw_only=True)
class About:
    """What only the one who serves the hub knows of it."""

    endpoint: str
    config: str = ""
    demo: bool = False
    identity: str = ""
    program: str = "holdfast"
    """How a person starts Holdfast on this machine."""
    config_problem: str = ""
    draining: bool = False


class Views:
    """Makes the shapes, each when it is asked for."""

    def __init__(self, hub: Hub, history: History, about: About, *, wall: Callable[[], float] = time.time) -> None:
        self._hub = hub
        self._history = history
        self._about = about
        self._wall = wall
        self._started = wall()

    def hub(self) -> HubView:
        """The hub itself."""
        hub, about = self._hub, self._about
        draining = about.draining
        return HubView(
            version=__version__,
            pid=os.getpid(),
            now=self._wall(),
            started=self._started,
            endpoint=about.endpoint,
            config=about.config,
            config_problem=about.config_problem,
            demo=about.demo,
            program=about.program,
            draining=draining,
            ready=not draining and all(hub.registry.slot(name).has_outcome.is_set() for name in hub.config.servers),
            catalog_version=hub.catalog.version,
            identity=about.identity,
        )

    async def servers(self) -> Servers:
        """All of them, in the order of the configuration; whoever calls tools gets a turn in between."""
        shown: list[Server] = []
        for number, name in enumerate([*self._hub.config.servers], start=1):
            if number % AT_ONCE == 0:
                await anyio.lowlevel.checkpoint()
            with suppress(UnknownServer):  # it went away meanwhile
                shown.append(self.server(name))
        return Servers(now=self._wall(), servers=tuple(shown))

    def server(self, name: str) -> Server:
        """One of them; ``UnknownServer`` if there is none of that name."""
        slot, past, now = self._hub.registry.slot(name), self._history.of(name), self._wall()
        health, spec = slot.health(), slot.spec
        source = self._hub.catalog.servers.get(name, Source())
        listed = _counted(() if source.withdrawn else source.entries)
        held = tuple(change.tool for change in self._hub.approvals.pending(name) if change.held)
        words = self._words(slot, health, tools=listed[Kind.TOOL], held=len(held))
        return Server(
            id=name,
            transport=spec.transport if isinstance(spec, ServerSpec) else "",
            target=_target(slot),
            state=health.state.value,
            status=STATUS[health.state],
            summary=words.summary,
            action=words.action,
            command=pasteable(words.command, program=self._about.program, config=self._about.config),
            reason=health.reason,
            since=past.since,
            generation=health.generation,
            failures=health.failures,
            attempts=health.attempts,
            attempts_allowed=len(self._hub.config.settings.reconnect.backoff),
            breaker=Breaker(state=health.breaker.value, retry_in=health.breaker_retry_in),
            retry_in=health.retry_in,
            in_flight=health.calls,
            tools=listed[Kind.TOOL],
            prompts=listed[Kind.PROMPT],
            resources=listed[Kind.RESOURCE],
            templates=listed[Kind.TEMPLATE],
            verified=source.listing is not None and source.listing.generation > 0,
            held=held,
            calls_total=past.calls,
            errors_total=past.errors,
            reconnects_total=past.reconnects,
            last_error=past.last_error or _trouble(health, past.since),
            timeline=tuple(past.timeline),
            activity=past.tally.activity(now),
        )

    def catalog(self) -> CatalogView:
        """What clients are shown now."""
        catalog, held = self._hub.catalog, self._hub.approvals.is_held

        def items(kind: Kind) -> tuple[CatalogItem, ...]:
            return tuple(
                _item(entry, held=kind is Kind.TOOL and held(entry.server, entry.original))
                for entry in catalog.of(kind)
            )

        return CatalogView(
            version=catalog.version,
            tools=items(Kind.TOOL),
            prompts=items(Kind.PROMPT),
            resources=items(Kind.RESOURCE),
            templates=items(Kind.TEMPLATE),
            clashes=tuple(
                Clash(name=one.wanted, server=one.key.server, original=one.key.original, shown=one.given)
                for one in catalog.collisions
            ),
        )

    def approvals(self) -> Approvals:
        """Every tool that says something else than when it was first seen."""
        return Approvals(
            approvals=tuple(
                Approval(
                    server=one.server,
                    tool=one.tool,
                    held=one.held,
                    changes=tuple(one.diff.split("\n")),
                    mark=one.mark,
                )
                for one in self._hub.approvals.pending()
            )
        )

    def activity(self, name: str) -> Activity | None:
        """The picture of a server's calls; None if it had none lately."""
        return self._history.of(name).tally.activity(self._wall())

    def targets(self) -> TargetsView:
        """The servers that a gateway can route to, with their addresses as they are, and why the others are not."""
        targets = targets_of(self._hub.config)
        off = [one.id for one in targets.found if self._hub.registry.slot(one.id).switched_off]
        return TargetsView(
            targets=tuple(
                TargetView(id=one.id, url=one.url, transport=one.transport)
                for one in targets.found
                if one.id not in off
            ),
            left_out={**targets.left_out, **dict.fromkeys(off, "it is switched off")},
        )

    def _words(self, slot: Slot, health: Health, *, tools: int, held: int) -> Words:
        seen = next(iter(slot.failed_dials.values())).evidence if slot.failed_dials else None
        verdict = classify(seen, connected_before=slot.machine.life.ever_connected) if seen is not None else None
        facts = Facts(
            tools=tools,
            held=held,
            hint=verdict.hint if verdict is not None else "",
            login=_login_command(seen),
            attempts_allowed=len(self._hub.config.settings.reconnect.backoff),
        )
        return words_for(health, facts)


def _counted(entries: Iterable[Entry]) -> dict[Kind, int]:
    counts = dict.fromkeys(Kind, 0)
    for entry in entries:
        counts[entry.key.kind] += 1
    return counts


def _target(slot: Slot) -> str:
    spec = slot.spec
    if isinstance(spec, BadServer):
        return ""
    text = mask_url(spec.url) if spec.transport != "stdio" else shlex.join([spec.command, *spec.args])
    shown = slot.redactor.mask(text)
    return shown if len(shown) <= LONGEST_TARGET else f"{shown[: LONGEST_TARGET - 1]}…"


def _trouble(health: Health, since: float) -> LastError | None:
    """What is wrong since before anything was told of it: a first try that failed, and goes on."""
    in_trouble = health.reason and STATUS[health.state] in ("transient", "permanent", "denied")
    return LastError(at=since, text=health.reason) if in_trouble else None


def _login_command(seen: Evidence | None) -> str:
    """What logs in, where ``core.classify`` says that a login is wanted; empty where one would not help."""
    if not isinstance(seen, HttpStatus) or seen.login is None:
        return ""
    challenge = read_challenge(seen.headers.get("www-authenticate", ""))
    if challenge.wants_scope:
        scope = f" --scope {shlex.quote(' '.join(challenge.scope))}" if challenge.scope else ""
        return seen.login.command + scope
    wanted = seen.status == 401 and (challenge.made or not seen.credentials_sent)
    return seen.login.command if wanted else ""


def _item(entry: Entry, *, held: bool) -> CatalogItem:
    said = entry.item.raw.get("description")
    return CatalogItem(
        name=entry.name,
        server=entry.server,
        original=entry.original,
        description=plain(said)[:LONGEST_DESCRIPTION] if isinstance(said, str) else "",
        verified=entry.verified,
        held=held,
    )
