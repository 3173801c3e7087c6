"""The hub and its servers as the control API shows them, masked: from records, slots and the catalog.

The page and the terminal show the same texts, and failures use the words of MSG-1 … MSG-3. No text contains a
countdown, because texts are sent only on change; ``retry_in`` is sent beside them.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import anyio.lowlevel

from holdfast._version import __version__
from holdfast.config import BadServer, ServerSpec, targets_of
from holdfast.control.models import (
    Activity,
    Approval,
    ApprovalList,
    BreakerView,
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
from holdfast.control.server.history import History
from holdfast.core import (
    BreakerState,
    CatalogEntry,
    CatalogSource,
    Evidence,
    Failure,
    Health,
    HttpStatus,
    Kind,
    State,
    classify_evidence,
    for_user,
    mask_url,
    plain,
    read_challenge,
)
from holdfast.errors import UnknownServer
from holdfast.hub import STATUS, Hub, Slot, failure_status

__all__ = ["AT_ONCE", "Facts", "HubInfo", "ServerText", "Views", "pasteable", "text_for"]


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What the texts need beside the health of a server."""

    tools: int = 0
    held: int = 0
    hint: str = ""
    """What would end the failure, if that is known."""
    login: str = ""
    """The command that logs in, if the server asks for a login."""
    attempts_allowed: int = 0


class ServerText(NamedTuple):
    """The texts about one server."""

    summary: str
    action: str = ""
    command: str = ""


def text_for(health: Health, facts: Facts) -> ServerText:
    """Return the texts for the current state of a server."""
    match health.state:
        case State.CONNECTED:
            return _connected(health, facts)
        case State.CONNECTING | State.RECONNECTING:
            return _reconnecting(health, facts)
        case State.DENIED:
            return _denied(health, facts)
        case State.PERMANENTLY_FAILED:
            return _failed(health, facts)
        case State.DISABLED:
            return ServerText(
                "Disabled: its tools are not listed.", "Enable it to use it again.", _run("enable", health)
            )
        case State.DISABLING:
            return ServerText("Being disabled: its connection is closing.")
        case State.IDLE:
            return ServerText("Idle: it starts at its first use.")
        case State.DISCONNECTED:
            return ServerText("Not connected: the hub has not started it yet, or is closing.")


def pasteable(command: str, *, program: str, config: str) -> str:
    """Return a command that works in any folder: with the program's name there, on the file that the hub serves."""
    name, _, rest = command.partition(" ")
    if name != "holdfast":
        return command
    reads_config = rest.startswith(_READS_CONFIG) and config and "--config" not in rest
    return f"{program} {rest}" + (f" --config {shlex.quote(config)}" if reads_config else "")


_READS_CONFIG = ("doctor ", "login ")
"""The commands that read an mcp.json; the others ask the hub."""


def _connected(health: Health, facts: Facts) -> ServerText:
    if health.breaker is not BreakerState.CLOSED:
        return _breaker_open(health)
    listed = "1 tool" if facts.tools == 1 else f"{facts.tools} tools"
    if facts.held:
        held = "1 of them is" if facts.held == 1 else f"{facts.held} of them are"
        return ServerText(
            f"Connected; {listed}, {held} held because of a change since first seen.",
            "Review the change, and approve it if it is right.",
            _run("approve", health),
        )
    return ServerText(f"Connected; {listed}.")


def _breaker_open(health: Health) -> ServerText:
    """The connection stands, but calls on it failed."""
    until = "for now" if health.breaker_retry_in else "except one test call"
    return ServerText(
        f"Connected, but calls to it failed repeatedly: they are refused {until}.",
        "The next call after that is a test; to test it now, reconnect it.",
        _run("reconnect", health),
    )


def _reconnecting(health: Health, facts: Facts) -> ServerText:
    """The hub goes on by itself; a person can only make it try at once."""
    parts = [for_user(Failure(health.server, "transient"))]
    if health.reason:
        parts.append(f"The last attempt: {health.reason.rstrip('.')}.")
    if health.attempts and facts.attempts_allowed:
        parts.append(f"Attempt {health.attempts} of {facts.attempts_allowed}.")
    if health.breaker_retry_in:
        parts.append("Calls to it are refused for now.")
    return ServerText(" ".join(parts), "To try it now, reconnect it.", _run("reconnect", health))


def _denied(health: Health, facts: Facts) -> ServerText:
    summary = for_user(Failure(health.server, "denied", health.reason))
    if facts.login:
        return ServerText(summary, "Log in; the hub then reconnects it.", facts.login)
    return ServerText(summary, _sentence(facts.hint or "give it credentials that have access, in its definition"))


def _failed(health: Health, facts: Facts) -> ServerText:
    summary = for_user(Failure(health.server, "permanent", health.reason))
    if health.retry_in:
        summary += " The hub tries it again by itself."
    hint = facts.hint or "find out what is wrong with it"
    return ServerText(summary, _sentence(hint), _run("doctor", health))


def _run(command: str, health: Health) -> str:
    return f"holdfast {command} {shlex.quote(health.server)}"


def _sentence(text: str) -> str:
    """Turn a hint into a sentence: a capital letter and a full stop."""
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


AT_ONCE = 25
"""How many servers are viewed without a pause: it takes a few milliseconds of the event loop."""

LONGEST_TARGET = 300
LONGEST_DESCRIPTION = 1_000
"""Characters; a client's list has the whole description."""


@dataclass(kw_only=True)
class HubInfo:
    """What only the serving process knows about the hub."""

    endpoint: str
    config: str = ""
    demo: bool = False
    identity: str = ""
    program: str = "holdfast"
    """How a person starts Holdfast on this machine."""
    config_problem: str = ""
    draining: bool = False


class Views:
    """Builds the models of the API on request."""

    def __init__(self, hub: Hub, history: History, about: HubInfo, *, wall: Callable[[], float] = time.time) -> None:
        self._hub = hub
        self._history = history
        self._about = about
        self._wall = wall
        self._started = wall()

    def hub(self) -> HubView:
        """Return the hub itself."""
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
        """Return all servers in the order of the configuration; calls of tools get a turn in between."""
        shown: list[Server] = []
        for number, name in enumerate([*self._hub.config.servers], start=1):
            if number % AT_ONCE == 0:
                await anyio.lowlevel.checkpoint()
            with suppress(UnknownServer):  # it was removed meanwhile
                shown.append(self.server(name))
        return Servers(now=self._wall(), servers=tuple(shown))

    def server(self, name: str) -> Server:
        """Return one server; raise ``UnknownServer`` if there is none of that name."""
        slot, history, now = self._hub.registry.slot(name), self._history.of(name), self._wall()
        health, spec = slot.health(), slot.spec
        source = self._hub.catalog.servers.get(name, CatalogSource())
        listed = _counted(() if source.withdrawn else source.entries)
        held = tuple(change.tool for change in self._hub.approvals.pending(name) if change.held)
        text = self._text(slot, health, tools=listed[Kind.TOOL], held=len(held))
        return Server(
            id=name,
            transport=spec.transport if isinstance(spec, ServerSpec) else "",
            target=_target(slot),
            state=health.state.value,
            status=STATUS[health.state],
            summary=text.summary,
            action=text.action,
            command=pasteable(text.command, program=self._about.program, config=self._about.config),
            reason=health.reason,
            since=history.since,
            generation=health.generation,
            failures=health.failures,
            attempts=health.attempts,
            attempts_allowed=len(self._hub.config.settings.reconnect.backoff),
            breaker=BreakerView(state=health.breaker.value, retry_in=health.breaker_retry_in),
            retry_in=health.retry_in,
            in_flight=health.calls,
            tools=listed[Kind.TOOL],
            prompts=listed[Kind.PROMPT],
            resources=listed[Kind.RESOURCE],
            templates=listed[Kind.TEMPLATE],
            verified=source.listing is not None and source.listing.generation > 0,
            held=held,
            calls_total=history.calls,
            errors_total=history.errors,
            reconnects_total=history.reconnects,
            last_error=history.last_error or _current_error(health, history.since),
            timeline=tuple(history.timeline),
            activity=history.tally.activity(now),
        )

    def catalog(self) -> CatalogView:
        """Return the published catalog."""
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

    def approvals(self) -> ApprovalList:
        """Return every tool that changed since it was first seen."""
        return ApprovalList(
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
        """Return the recent calls of a server; None if there were none."""
        return self._history.of(name).tally.activity(self._wall())

    def targets(self) -> TargetsView:
        """Return the servers that a gateway can route to, with unmasked addresses, and why the others are left out."""
        targets = targets_of(self._hub.config)
        off = [one.id for one in targets.found if self._hub.registry.slot(one.id).switched_off]
        return TargetsView(
            targets=tuple(
                TargetView(id=one.id, url=one.url, transport=one.transport)
                for one in targets.found
                if one.id not in off
            ),
            left_out={**targets.left_out, **dict.fromkeys(off, "it is disabled")},
        )

    def _text(self, slot: Slot, health: Health, *, tools: int, held: int) -> ServerText:
        seen = next(iter(slot.failed_dials.values())).evidence if slot.failed_dials else None
        verdict = (
            classify_evidence(seen, connected_before=slot.machine.life.ever_connected) if seen is not None else None
        )
        facts = Facts(
            tools=tools,
            held=held,
            hint=verdict.hint if verdict is not None else "",
            login=_login_command(seen),
            attempts_allowed=len(self._hub.config.settings.reconnect.backoff),
        )
        return text_for(health, facts)


def _counted(entries: Iterable[CatalogEntry]) -> dict[Kind, int]:
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


def _current_error(health: Health, since: float) -> LastError | None:
    """Return the reason as the last error if no record reported it yet: a first try that failed and goes on."""
    is_failing = health.reason and failure_status(health.state) is not None
    return LastError(at=since, text=health.reason) if is_failing else None


def _login_command(seen: Evidence | None) -> str:
    """Return the login command if the server asks for a login; empty if a login would not help."""
    if not isinstance(seen, HttpStatus) or seen.login is None:
        return ""
    challenge = read_challenge(seen.headers.get("www-authenticate", ""))
    if challenge.wants_scope:
        scope = f" --scope {shlex.quote(' '.join(challenge.scope))}" if challenge.scope else ""
        return seen.login.command + scope
    wanted = seen.status == 401 and (challenge.made or not seen.credentials_sent)
    return seen.login.command if wanted else ""


def _item(entry: CatalogEntry, *, held: bool) -> CatalogItem:
    said = entry.item.raw.get("description")
    return CatalogItem(
        name=entry.name,
        server=entry.server,
        original=entry.original,
        description=plain(said)[:LONGEST_DESCRIPTION] if isinstance(said, str) else "",
        verified=entry.verified,
        held=held,
    )
