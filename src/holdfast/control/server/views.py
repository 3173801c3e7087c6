"""The hub and its servers as the control API shows them, masked: from records, slots and the catalog.

Theory of operation. ``History`` is a sink of the hub's journal: it reads each record once, and keeps of each server a
bounded amount: its transitions, its last error, its recent calls. A view (``Views``) is a copy for people: it is made
on request from what the hub knows at that moment, and nothing is kept between two requests. What happened before comes
from the history, what is now from the slot, what is offered from the catalog. Every text that a server wrote is masked
where its record or its slot was made; a command and a URL are masked here.

* The page, the terminal and doctor show the same texts: one function makes the words of a state (``text_for``), and
  failures use the words of MSG-1 … MSG-3.
* No text contains a countdown, because texts are sent only on change; ``retry_in`` is sent beside them.
* A hub may have a thousand servers and a catalog of ten thousands of items. So what views all of them is async, and
  lets other tasks run between the items (``AT_ONCE``, ``ITEMS_AT_ONCE``). What views one server is one short step.

What must never happen: a view changes the hub; a view shows a secret; a server that was removed meanwhile ends the view
of all others.
"""

from __future__ import annotations

import os
import shlex
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from statistics import median
from typing import Any

import anyio.lowlevel

from holdfast._version import __version__
from holdfast.config import targets_of
from holdfast.control.models import (
    Activity,
    Approval,
    ApprovalList,
    ApprovedTexts,
    BreakerView,
    CatalogItem,
    CatalogView,
    Change,
    Clash,
    FleetView,
    HubView,
    JoinedClientView,
    LastError,
    Replica,
    Server,
    Servers,
    TargetsView,
    TargetView,
    WaitingCall,
    WaitingCalls,
)
from holdfast.core import (
    CatalogEntry,
    CatalogSource,
    Facts,
    Health,
    Kind,
    ServerText,
    State,
    Transition,
    cause_of,
    mask_url,
    plain,
    text_for,
)
from holdfast.errors import UnknownServer
from holdfast.fleet import Fleet
from holdfast.hub import ANSWERED, CallEnded, CallOutcome, CallQuestion, Hub, Slot, findings, remedy_for

__all__ = [
    "AT_ONCE",
    "History",
    "HubInfo",
    "ServerHistory",
    "Tally",
    "Views",
    "change_of",
    "waiting_call",
]

STEP_SECONDS = 5.0
STEPS = 60
"""Five minutes in all."""

SAMPLES = 64
"""Durations kept for each step; more would not visibly change its median."""


class ActivityStep:
    """One step of time."""

    __slots__ = ("_middle", "_taken_at", "calls", "errors", "number", "times")

    def __init__(self, number: int) -> None:
        self.number = number
        self.calls = self.errors = 0
        self.times: deque[float] = deque(maxlen=SAMPLES)
        self._middle: float | None = None
        self._taken_at = 0

    def milliseconds(self) -> float | None:
        """Return the median; it is computed again only after a new call."""
        if self._taken_at != self.calls:
            self._taken_at = self.calls
            self._middle = round(median(self.times) * 1000, 2) if self.times else None
        return self._middle


class Tally:
    """The last steps with calls."""

    def __init__(self) -> None:
        self._steps: deque[ActivityStep] = deque(maxlen=STEPS)

    def step(self, at: float) -> ActivityStep:
        """Return the step of this time, or the latest one if that is later."""
        number = int(at // STEP_SECONDS)
        if not self._steps or self._steps[-1].number < number:
            self._steps.append(ActivityStep(number))
        return self._steps[-1]

    def activity(self, now: float) -> Activity | None:
        """Return the recent activity; None if there were no calls."""
        last = int(now // STEP_SECONDS)
        steps = {step.number: step for step in self._steps if step.number > last - STEPS}
        if not steps:
            return None
        wanted = [steps.get(number) for number in range(last - STEPS + 1, last + 1)]
        return Activity(
            step=STEP_SECONDS,
            until=(last + 1) * STEP_SECONDS,
            calls=tuple(step.calls if step else 0 for step in wanted),
            errors=tuple(step.errors if step else 0 for step in wanted),
            milliseconds=tuple(step.milliseconds() if step else None for step in wanted),
        )


KEPT = 100
"""Transitions kept for each server."""

_ERRORS: frozenset[CallOutcome] = frozenset({"failed", "timed_out", "refused"})
"""The outcomes that count as errors; an answer, a denial and a cancelled call do not."""

_SETS_LAST_ERROR: frozenset[CallOutcome] = frozenset({"failed", "timed_out", "denied"})
"""The outcomes whose reason becomes the server's last error."""

_LOST = frozenset({State.RECONNECTING, State.DENIED, State.PERMANENTLY_FAILED})


class ServerHistory:
    """The history of one server."""

    def __init__(self, since: float) -> None:
        self.since = since
        self.timeline: deque[Change] = deque(maxlen=KEPT)
        self.last_error: LastError | None = None
        self.calls = self.errors = self.reconnects = 0
        self.own_calls = self.own_errors = 0
        """How many of these were calls here, and not in another worker."""
        self.own_error = ""
        """The reason of the last error of a call here."""
        self.tally = Tally()
        self._was_connected = self._was_lost = False

    def moved(self, record: Transition, at: float) -> None:
        """Take a transition."""
        self.since = at
        self.timeline.append(change_of(record, at))
        if record.new in _LOST:
            self._was_lost = self._was_connected
            if record.reason:
                self.last_error = LastError(at=at, text=record.reason)
        elif record.new is State.CONNECTED:
            self.reconnects += self._was_lost
            self._was_connected, self._was_lost = True, False

    def called(self, record: CallEnded, at: float) -> None:
        """Take the end of a call."""
        step = self.tally.step(at)
        step.calls += 1
        self.calls += 1
        self.own_calls += 1
        if record.outcome in ANSWERED:
            step.times.append(record.seconds)
            return
        error = record.outcome in _ERRORS
        step.errors += error
        self.errors += error
        self.own_errors += error
        if record.reason and record.outcome in _SETS_LAST_ERROR:
            self.own_error = record.reason
            self.last_error = LastError(at=at, text=record.reason)

    def called_elsewhere(self, at: float, calls: int, errors: int, *, error: str) -> None:
        """Take calls of another worker."""
        step = self.tally.step(at)
        step.calls += calls
        step.errors += errors
        self.calls += calls
        self.errors += errors
        if error and errors and (self.last_error is None or self.last_error.text != error):
            self.last_error = LastError(at=at, text=error)


class History:
    """The history of every server."""

    def __init__(self, *, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall
        self._began = wall()
        self.servers: dict[str, ServerHistory] = defaultdict(lambda: ServerHistory(self._began))
        """The histories that there are; an empty one is made for a server without a record."""
        self.in_flight_elsewhere: Mapping[str, int] = {}
        """How many calls of each server are under way in other workers."""

    def moved(self, record: Transition) -> None:
        """Take a transition."""
        self.servers[record.server].moved(record, self._wall())

    def called(self, record: CallEnded) -> None:
        """Take the end of a call."""
        self.servers[record.server].called(record, self._wall())

    def called_elsewhere(self, server: str, calls: int, errors: int, *, error: str) -> None:
        """Take calls of another worker."""
        self.servers[server].called_elsewhere(self._wall(), calls, errors, error=error)

    def forget(self, server: str) -> None:
        """Drop a server that is no longer configured."""
        self.servers.pop(server, None)


def change_of(record: Transition, at: float) -> Change:
    """Return a transition as the API shows it."""
    return Change(
        at=at,
        old=record.old.shown,
        new=record.new.shown,
        cause=record.cause,
        reason=record.reason,
        generation=record.generation,
    )


AT_ONCE = 25
"""How many servers are viewed without a pause: it takes a few milliseconds of the event loop."""

ITEMS_AT_ONCE = 500
"""The same for the items of a catalog."""

MOST_HELD, MOST_APPROVALS = 200, 500
"""How many held names, and how many changes, are shown at a time."""

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
    pid: int = 0
    """The supervisor, if there is one."""
    started: float = 0.0
    """When the supervisor began, if there is one."""
    notice: Callable[[], str] = str
    """Returns what users should know about the hub itself."""
    findings: Callable[[], Mapping[str, str]] = dict
    """Returns what an operator should change, by server."""
    clients: Callable[[], Sequence[JoinedClientView]] = tuple
    """Returns the clients that joined this process."""
    clients_elsewhere: tuple[JoinedClientView, ...] = ()
    """Those that joined another worker."""


def _acts_as(hub: Hub) -> str:
    """Whose credentials calls use, where users have their own; empty where the hub acts as one identity."""
    own = sorted(hub.registry.users.servers)
    if not own or hub.registry.has_local:
        return ""
    said = f"Each user acts as herself, with her own credentials, at: {', '.join(own)}."
    if len(own) < len(hub.config.servers):
        said += " Calls to all others use the credentials of Holdfast's configuration."
    return said


class Views:
    """Builds the models of the API on request."""

    def __init__(
        self,
        hub: Hub,
        history: History,
        about: HubInfo,
        fleet: Fleet | None = None,
        *,
        loop_lag: Callable[[], float | None] = lambda: None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """``loop_lag`` returns the largest delay of the event loop in the last minute, in seconds."""
        self._hub = hub
        self._replicas = fleet
        self._history = history
        self._about = about
        self._loop_lag = loop_lag
        self._wall = wall
        self._started = wall()

    def hub(self) -> HubView:
        """Return the hub itself."""
        hub, about, fleet = self._hub, self._about, self._replicas
        of_fleet = (fleet.configs.notice, fleet.state.clock.notice) if fleet is not None else ()
        return HubView(
            version=__version__,
            pid=about.pid or os.getpid(),
            now=self._wall(),
            started=about.started or self._started,
            endpoint=about.endpoint,
            config=about.config,
            config_problem=about.config_problem,
            demo=about.demo,
            program=about.program,
            draining=about.draining,
            ready=not about.draining
            and all(hub.registry.slot(name).has_outcome.is_set() for name in hub.config.servers),
            catalog_version=hub.registry.catalog.version,
            identity=_acts_as(hub) or about.identity,
            notice=". ".join(filter(None, (about.notice(), *of_fleet))),
            calls_waiting=len(hub.registry.call_approvals.waiting()),
            clients=(*about.clients(), *about.clients_elsewhere),
            loop_lag=self._loop_lag(),
            fleet=self._fleet(),
        )

    def calls(self, principal: str | None) -> WaitingCalls:
        """Return the calls that wait for a person; those of one principal, if it is named."""
        waiting = self._hub.registry.call_approvals.waiting()
        mine = [one for one in waiting if principal is None or one.binding.principal == principal]
        return WaitingCalls(now=self._wall(), calls=tuple(map(waiting_call, mine)))

    def _fleet(self) -> FleetView | None:
        fleet = self._replicas
        if fleet is None:
            return None
        return FleetView(
            store=fleet.store.name,
            shared=fleet.state.is_shared,
            not_shared_since=fleet.state.not_shared_since,
            problem=fleet.state.problem,
            not_shared=fleet.decisions.not_shared[:MOST_HELD],
            different_configs=fleet.configs.groups,
            wrong_clocks={name: round(seconds) for name, seconds in islice(fleet.state.clock.wrong.items(), MOST_HELD)},
            events_lost=fleet.events.dropped if fleet.events is not None else 0,
            refused=getattr(fleet.store, "refused", 0),
            replicas=tuple(
                _replica(name, about, here=name == fleet.replica) for name, about in fleet.presence.replicas.items()
            ),
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
        slot, history, now = self._hub.registry.slot(name), self._history.servers[name], self._wall()
        health, spec, fleet = slot.health(), slot.spec, self._replicas
        is_down = health.status in ("transient", "permanent", "denied")
        source = self._hub.registry.catalog.servers.get(name, CatalogSource())
        listed = Counter(entry.key.kind for entry in (() if source.withdrawn else source.entries))
        held = self._hub.approvals.held(name)
        text = self._text(slot, health, tools=listed[Kind.TOOL], held=len(held))
        # A first try that failed and goes on: no record has reported its reason yet.
        early = (
            LastError(at=history.since, text=health.reason) if health.reason and health.failure is not None else None
        )
        found = findings(self._hub.registry.catalog, servers=(name,)).get(name) or self._about.findings().get(name, "")
        return Server(
            id=name,
            transport="" if spec.problems else "stdio" if spec.command else spec.transport,
            target=_target(slot),
            state=health.shown_state,
            status=health.status,
            summary=f"{text.summary} {found[0].upper()}{found[1:]}." if found else text.summary,
            action=text.action,
            command=text.command,
            login=health.status == "denied" and bool(self.login_scope(name)[0]),
            reason=health.reason,
            cause=cause_of(health.reason),
            since=history.since,
            generation=health.generation,
            failures=health.failures,
            attempts=health.attempts,
            attempts_allowed=len(self._hub.config.settings.reconnect.backoff),
            breaker=BreakerView(state=health.breaker.value, retry_in=health.breaker_retry_in),
            retry_in=health.next_try,
            in_flight=health.calls + self._history.in_flight_elsewhere.get(name, 0),
            tools=listed[Kind.TOOL],
            prompts=listed[Kind.PROMPT],
            resources=listed[Kind.RESOURCE],
            templates=listed[Kind.TEMPLATE],
            verified=source.listing is not None and source.listing.generation > 0,
            held=held[:MOST_HELD],
            finding=found,
            calls_total=history.calls,
            errors_total=history.errors,
            reconnects_total=history.reconnects,
            last_error=history.last_error or early,
            timeline=tuple(history.timeline),
            activity=history.tally.activity(now),
            probed_by=fleet.evidence.prober_of(name) if fleet is not None and is_down else "",
        )

    async def catalog(self) -> CatalogView:
        """Return the published catalog; calls of tools get a turn in between."""
        catalog, held = self._hub.registry.catalog, self._hub.approvals.is_held

        async def items(kind: Kind) -> tuple[CatalogItem, ...]:
            shown: list[CatalogItem] = []
            for number, entry in enumerate(catalog.of(kind), start=1):
                if number % ITEMS_AT_ONCE == 0:
                    await anyio.lowlevel.checkpoint()
                shown.append(_item(entry, held=kind is Kind.TOOL and held(entry.server, entry.original)))
            return tuple(shown)

        return CatalogView(
            version=catalog.version,
            tools=await items(Kind.TOOL),
            prompts=await items(Kind.PROMPT),
            resources=await items(Kind.RESOURCE),
            templates=await items(Kind.TEMPLATE),
            clashes=tuple(
                Clash(name=one.wanted, server=one.key.server, original=one.key.original, shown=one.given)
                for one in catalog.collisions
            ),
        )

    async def approvals(self) -> ApprovalList:
        """Return every change that waits, up to a bound; each diff takes a turn of the event loop."""
        shown: list[Approval] = []
        for one in self._hub.approvals.pending()[:MOST_APPROVALS]:
            await anyio.lowlevel.checkpoint()
            shown.append(
                Approval(
                    server=one.server,
                    tool=one.tool,
                    kind=one.kind,
                    new=one.new,
                    held=one.held,
                    changes=tuple(one.diff.split("\n")),
                    mark=one.mark,
                )
            )
        return ApprovalList(approvals=tuple(shown))

    async def approved(self) -> ApprovedTexts:
        """Return what is approved of every server; calls of tools get a turn in between."""
        servers: dict[str, dict[str, dict[str, Any]]] = {}
        for name in [*self._hub.config.servers]:
            await anyio.lowlevel.checkpoint()
            servers[name] = {key: dict(text) for key, text in self._hub.approvals.pins.of(name).items()}
        off = tuple(name for name, slot in self._hub.registry.slots.items() if slot.switched_off)
        return ApprovedTexts(servers=servers, disabled=off)

    def activity(self, name: str) -> Activity | None:
        """Return the recent calls of a server; None if there were none."""
        return self._history.servers[name].tally.activity(self._wall())

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

    def login_scope(self, name: str) -> tuple[bool, tuple[str, ...]]:
        """Return whether a login would help a server now, and the scope that it asks for in addition."""
        remedy = remedy_for(self._hub.registry.slot(name))
        return bool(remedy.login), remedy.scope

    def _text(self, slot: Slot, health: Health, *, tools: int, held: int) -> ServerText:
        remedy = remedy_for(slot)
        facts = Facts(
            tools=tools,
            held=held,
            hint=remedy.hint,
            login=remedy.login,
            attempts_allowed=len(self._hub.config.settings.reconnect.backoff),
        )
        return text_for(health, facts, now=datetime.fromtimestamp(self._wall(), UTC).astimezone())


def _replica(name: str, about: Mapping[str, object], *, here: bool) -> Replica:
    """What a replica tells, as far as it is of the right kind."""

    def text(key: str) -> str:
        return str(about.get(key, ""))[:200]

    pid, started, worker = about.get("pid"), about.get("started"), about.get("worker")
    return Replica(
        id=name,
        here=here,
        host=text("host"),
        pid=pid if isinstance(pid, int) else 0,
        version=text("version"),
        started=float(started) if isinstance(started, int | float) else 0.0,
        address=text("address"),
        worker=worker if isinstance(worker, int) and worker else None,
    )


def _target(slot: Slot) -> str:
    """The command or URL of a server, masked, and cut to a bound."""
    spec = slot.spec
    if spec.problems:
        return ""
    target = slot.redactor.mask(shlex.join([spec.command, *spec.args]) if spec.command else mask_url(spec.url))
    return target if len(target) <= LONGEST_TARGET else f"{target[: LONGEST_TARGET - 1]}…"


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


def waiting_call(question: CallQuestion) -> WaitingCall:
    """Return a call that waits for a person."""
    binding = question.binding
    return WaitingCall(
        id=question.id,
        principal=binding.principal,
        program=question.program,
        server=binding.server,
        tool=binding.tool,
        arguments=question.arguments,
        approver=question.approver,
        rule=question.rule,
        asked=question.asked,
        expires=question.expires,
    )
