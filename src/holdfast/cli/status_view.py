"""The text of ``status``: the hub, one line for each server, the details of one, and what to do about problems.

Pure functions from the models of the control API, a page and a time to lines of text. Text from a server is made
safe for a terminal here.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import urlsplit

from rich.cells import cell_len, chop_cells
from rich.text import Text

from holdfast.cli.output import GAP, Cell, Page, counted
from holdfast.core import cause_of, plain

if TYPE_CHECKING:
    from holdfast.control import BreakerView, Change, FleetView, HubView, JoinedClientView, Server, Status

__all__ = [
    "STYLES",
    "CauseGroup",
    "advice",
    "aged",
    "breaker_words",
    "card",
    "cause_words",
    "clock",
    "folded",
    "grouped",
    "heading",
    "is_well",
    "left",
    "mark",
    "matches",
    "need",
    "needs_attention",
    "one_line",
    "overview",
    "span",
    "state_words",
    "step",
    "table",
    "tally",
    "worst_first",
    "worst_last",
    "wrapped_command",
]

RANKS: dict[Status, int] = {"available": 0, "idle": 1, "disabled": 2, "transient": 3, "denied": 4, "permanent": 5}
"""From the best to the worst."""

STYLES: dict[Status, str] = {
    "available": "green",
    "idle": "dim",
    "disabled": "dim",
    "transient": "yellow",
    "denied": "magenta",
    "permanent": "red",
}

MARKS: dict[Status, tuple[str, str]] = {
    "available": ("✓", "+"),
    "idle": ("·", "."),
    "disabled": ("-", "-"),
    "transient": ("~", "~"),
    "denied": ("!", "!"),
    "permanent": ("✗", "x"),
}
"""A mark for each status, so that colour is not needed. The second is for ASCII terminals."""

_UNITS = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))


def is_well(server: Server) -> bool:
    """Whether it has no problem: it is available, idle or disabled."""
    return server.status in ("available", "idle", "disabled")


def state_words(server: Server) -> str:
    """The state as people read it everywhere: ``connected``, ``reconnecting``, ``parked``."""
    return server.state.replace("_", " ")


def mark(status: Status, *, ascii_only: bool) -> str:
    """The mark of a status."""
    return MARKS[status][ascii_only]


def span(seconds: float) -> str:
    """A duration in its largest unit: ``12s``, ``3m``, ``2h``, ``5d``."""
    whole = max(0, round(seconds))
    size, unit = next(((size, unit) for size, unit in _UNITS if whole >= size), _UNITS[-1])
    return f"{whole // size}{unit}"


def left(seconds: float | None) -> str:
    """The time until an event: ``now`` if it is due, empty if none is planned."""
    if seconds is None:
        return ""
    return span(seconds) if seconds >= 0.5 else "now"


def clock(at: float) -> str:
    """The local time of day."""
    return datetime.fromtimestamp(at, tz=UTC).astimezone().strftime("%H:%M:%S")


def one_line(text: str) -> str:
    """Foreign text on one line, without terminal control characters."""
    return " ".join(plain(text).split())


def cause_words(cause: str) -> str:
    """The name of a cause in words: ``TransportLost`` becomes ``transport lost``."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", one_line(cause)).lower()


def breaker_words(breaker: BreakerView) -> str:
    """``closed``, ``open 12s``, ``half open``; only ``open`` when the next call may try."""
    if breaker.state == "open" and (breaker.retry_in or 0) >= 0.5:
        return f"open {left(breaker.retry_in)}"
    return breaker.state.replace("_", " ")


def advice(group: CauseGroup, page: Page) -> list[Text]:
    """The summary of a server or the names of several, the action, and the commands for it."""
    first = group.servers[0]
    about = one_line(first.summary) if len(group.servers) == 1 else group.names
    lines = page.block("  ", about, style="dim" if len(group.servers) > 1 else "")
    if first.action:
        lines += page.block(f"  {page.pointer} ", one_line(first.action), style="cyan")
    for command in group.commands():
        # A command to copy is one line, which a terminal wraps itself. A full screen has no such lines.
        lines += wrapped_command(command, page.width) if page.full_screen else [_command_line(command)]
    return lines


def wrapped_command(command: str, width: int) -> list[Text]:
    """A command that is never cut. Lines that are too long continue after a backslash, as a shell reads them."""
    first, rest = max(1, width - len(PROMPT) - 1), max(1, width - 1)
    if cell_len(command) < first:
        return [_command_line(command)]
    parts: list[str] = []
    while command:
        room = rest if parts else first
        if cell_len(command) <= room:
            parts.append(command)
            break
        head = chop_cells(command, room)[0]
        cut = head.rfind(" ") + 1 or len(head)
        parts.append(head[:cut] + "\\")
        command = command[cut:]
    return [_command_line(parts[0]), *(Text(part, style="bold cyan") for part in parts[1:])]


def _command_line(command: str) -> Text:
    return Text.assemble(PROMPT, (command, "bold cyan"))


def tally(servers: Sequence[Server]) -> str:
    """All servers in one line."""
    if not servers:
        return "no servers are configured"
    available = sum(server.status == "available" for server in servers)
    of = {status: sum(server.status == status for server in servers) for status in RANKS}
    parts = [f"{available} of {counted(len(servers), 'server')} available"]
    parts += [f"{of[status]} {status}" for status in ("idle", "disabled") if of[status]]
    parts += [f"{of['transient']} coming back"] if of["transient"] else []
    needy = of["denied"] + of["permanent"]
    parts += [f"{needy} {'needs' if needy == 1 else 'need'} attention"] if needy else []
    return ", ".join(parts)


LONGEST_NAME = 24
"""The widest name in the table. A longer name is cut, so that the reason has space."""

BREAKER_AT = 120
"""The least width with a breaker column. Narrower tables show only a breaker that is not closed."""


PROMPT = "  $ "
"""In front of a command."""

FOLD_AT = 4
"""From this many servers on, those with an equal cause share one row."""

FOLD_WELL_AT = 12
"""The same for servers without a problem."""


def worst_last(servers: Iterable[Server]) -> list[Server]:
    """The servers by need, the most urgent last, because the end of the output is next to the prompt."""
    return sorted(servers, key=lambda server: (need(server), RANKS[server.status], server.id))


def worst_first(servers: Iterable[Server]) -> list[Server]:
    """The servers by need, the most urgent first, because the top of a screen is always visible."""
    return sorted(servers, key=lambda server: (-need(server), -RANKS[server.status], server.id))


def need(server: Server) -> int:
    """How much a server needs a person: 0 not at all, 1 it recovers by itself, 2 and 3 it waits for an action."""
    if server.status in ("denied", "permanent"):
        return 3
    if server.action and server.status == "available":
        return 2
    return 0 if is_well(server) else 1


def matches(server: Server, words: str) -> bool:
    """Whether every word occurs in the server's name, status, state, reason or target."""
    text = f"{server.id} {server.status} {server.state} {server.reason} {server.target}".casefold()
    return all(word in text for word in words.casefold().split())


@dataclass(frozen=True)
class CauseGroup:
    """Servers with the same status and the same cause."""

    servers: tuple[Server, ...]

    @property
    def cause(self) -> str:
        """The cause, with the host that all of them share."""
        words = one_line(self.servers[0].reason)
        hosts = {_host(server.target) for server in self.servers}
        host = next(iter(hosts)) if len(hosts) == 1 else ""
        return f"{words} at {host}" if words and host and host not in words else words

    @property
    def title(self) -> str:
        """The group in one line: ``18 servers: connection refused at gateway.internal``, or the name of one server."""
        if len(self.servers) == 1:
            return self.names
        return f"{counted(len(self.servers), 'server')}: {self.cause or self.states}"

    @property
    def states(self) -> str:
        """The states of the servers, each once."""
        return ", ".join(sorted({state_words(server) for server in self.servers}))

    @property
    def names(self) -> str:
        """The names of the servers."""
        return ", ".join(one_line(server.id) for server in self.servers)

    @property
    def is_folded(self) -> bool:
        """Whether the group is one row."""
        return len(self.servers) >= (FOLD_WELL_AT if need(self.servers[0]) == 0 else FOLD_AT)

    @property
    def why(self) -> str:
        """The cause, and which servers have it."""
        return f"{self.cause}: {self.names}" if self.cause else self.names

    def sum(self) -> Server:
        """The group as if it were one server, for all columns but the last one."""
        first, retries = self.servers[0], [one.retry_in for one in self.servers if one.retry_in is not None]
        values = {
            "id": counted(len(self.servers), "server"),
            "state": self.states,
            "since": min(server.since for server in self.servers),
            "tools": sum(server.tools for server in self.servers),
            "calls_total": sum(server.calls_total for server in self.servers),
            "errors_total": sum(server.errors_total for server in self.servers),
            "retry_in": min(retries, default=None),
        }
        return first.model_copy(update=values)

    def commands(self) -> list[str]:
        """The commands to paste: one for all of them where the command takes several servers."""
        found = list(dict.fromkeys(one_line(server.command) for server in self.servers if server.command))
        heads = {command.rpartition(" ")[0] for command in found}
        if len(found) == len(self.servers) > 1 and len(heads) == 1 and next(iter(heads)).endswith(_TAKES_SEVERAL):
            return [f"{heads.pop()} {' '.join(command.rpartition(' ')[2] for command in found)}"]
        return found


_TAKES_SEVERAL = (" reconnect", " enable", " disable", " doctor", " tools")


def grouped(servers: Iterable[Server]) -> list[CauseGroup]:
    """The servers by status and cause, in the order of the first of each group.

    Many servers of one host are a group of their own, as on the page: a gateway that is down is seen at once.
    """
    listed = list(servers)
    places = Counter((_kind(server), _host(server.target)) for server in listed if not is_well(server))
    groups: dict[tuple[tuple[Status, int, str], str], list[Server]] = {}
    for server in listed:
        kind, host = _kind(server), _host(server.target)
        groups.setdefault((kind, host if places[kind, host] >= FOLD_AT else ""), []).append(server)
    return [CauseGroup(tuple(members)) for members in groups.values()]


def _kind(server: Server) -> tuple[Status, int, str]:
    """Equal for servers that fail alike."""
    return server.status, need(server), "" if is_well(server) else cause_of(one_line(server.reason))


Row: TypeAlias = "Server | CauseGroup"


def folded(servers: Sequence[Server]) -> list[Row]:
    """One row for each server, or for each group of servers with an equal cause."""
    rows: list[Row] = []
    for group in grouped(servers):
        rows += [group] if group.is_folded else group.servers
    return rows


def _host(target: str) -> str:
    try:
        return urlsplit(target).hostname or ""
    except ValueError:
        return ""


def aged(server: Server, seconds: float) -> Server:
    """The same server some seconds later: its countdowns have moved on."""
    if server.retry_in is None and server.breaker.retry_in is None:
        return server
    breaker = server.breaker.model_copy(update={"retry_in": _less(server.breaker.retry_in, seconds)})
    return server.model_copy(update={"retry_in": _less(server.retry_in, seconds), "breaker": breaker})


MOST_REPLICAS = 10
"""How many replicas of a fleet the heading names."""


def heading(hub: HubView, now: float, page: Page) -> list[Text]:
    """The hub itself, and a line for each problem of the hub."""
    facts = [f"{hub.name} {hub.version}", hub.endpoint, f"up {span(now - hub.started)}"]
    facts += ["demo servers"] if hub.demo else [one_line(hub.config)]
    lines = [Text(GAP.join(filter(None, facts)), style="bold")]
    if hub.draining:
        lines.append(Text("it is shutting down: it takes no new calls", style="yellow"))
    if hub.config_problem:
        lines += page.block(
            "", f"the last config change was not applied: {one_line(hub.config_problem)}", style="yellow"
        )
    if hub.notice:
        lines += page.block("", one_line(hub.notice), style="yellow")
    if hub.clients:
        lines += page.block(f"clients{GAP}", GAP.join(map(_client, hub.clients[:MOST_CLIENTS])), style="dim")
    if hub.loop_lag is not None:
        lines.append(_loop_line(hub.loop_lag))
    if hub.fleet is not None:
        lines += _fleet_lines(hub.fleet, now, page)
    return [page.fit(line) for line in lines]


MOST_CLIENTS = 20
"""How many of the clients that joined are named."""


def _client(client: JoinedClientView) -> str:
    """A client by its program and its folder."""
    program = one_line(client.program) or f"process {client.pid}"
    return f"{program} in {one_line(client.folder)}" if client.folder else program


LONG_DELAY = 0.25
"""Seconds of delay that callers notice: then the line says that something holds up the hub."""


def _loop_line(lag: float) -> Text:
    delay = f"event loop: {1000 * lag:.0f} ms largest delay in the last minute"
    if lag < LONG_DELAY:
        return Text(delay, style="dim")
    return Text(f"{delay}; something holds up the hub, or the machine is busy", style="yellow")


def _fleet_lines(fleet: FleetView, now: float, page: Page) -> list[Text]:
    """The replicas, and what is not shared."""
    count = len(fleet.replicas)
    kind = "worker" if fleet.replicas and all(one.worker is not None for one in fleet.replicas) else "replica"
    lines = page.block("", one_line(f"fleet: {counted(count, kind)} on {fleet.store}"))
    for one in sorted(fleet.replicas, key=lambda one: (not one.here, one.id))[:MOST_REPLICAS]:
        facts = [f"{one.id} on {one.host}, pid {one.pid}", one.version, f"up {span(max(0.0, now - one.started))}"]
        words = one_line(", ".join(filter(None, [*facts, one.address, "this one" if one.here else ""])))
        lines += page.block("  ", words, style="" if one.here else "dim")
    if count > MOST_REPLICAS:
        lines += page.block("  ", f"and {count - MOST_REPLICAS} more", style="dim")
    if fleet.not_shared_since is not None:
        since = f"{clock(fleet.not_shared_since)} ({span(now - fleet.not_shared_since)})"
        words = f"not shared since {since}: the store does not answer ({fleet.problem})"
        lines += page.block("", one_line(words), style="yellow")
    elif fleet.problem:
        lines += page.block("", one_line(fleet.problem), style="yellow")
    if fleet.not_shared:
        held = f"switches and approvals that hold on this replica only: {', '.join(fleet.not_shared)}"
        lines += page.block("", one_line(held), style="yellow")
    if fleet.refused:
        lines += page.block("", f"{fleet.refused} messages of the store had a wrong signature", style="yellow")
    return lines


def overview(
    servers: Sequence[Server], now: float, page: Page, *, in_full: bool = False, every: bool = False
) -> list[Text]:
    """What is shown below the heading, in the given order: all details, or a table and what to do.

    ``every``: equal causes are not folded into one row.
    """
    if in_full:
        return [line for server in servers for line in (Text(), *card(server, now, page))]
    if not servers:
        return []
    return [Text(), *table(servers if every else folded(servers), now, page), *needs_attention(servers, page)]


def table(rows: Sequence[Row], now: float, page: Page) -> list[Text]:
    """A title and a line for each row, in the given order, with the columns that fit the width."""
    columns = [column for column in _COLUMNS if page.width >= column.at_width]
    lines = [[*(Cell(text=column.title, style="bold", right=column.right) for column in columns), WHY]]
    for row in rows:
        server, why = (row.sum(), row.why) if isinstance(row, CauseGroup) else (row, _why(row, page))
        lines.append([*(column.of(server, now, page) for column in columns), Cell(text=why)])
    return page.table(lines)


def needs_attention(servers: Iterable[Server], page: Page) -> list[Text]:
    """What to do about servers that have a problem, and about available ones that need an action."""
    lines: list[Text] = []
    for row in folded([server for server in servers if need(server)]):
        group = row if isinstance(row, CauseGroup) else CauseGroup((row,))
        title = Text.assemble((group.title, "bold"), GAP, (group.states, STYLES[group.servers[0].status]))
        lines += [Text(), page.fit(title), *advice(group, page)]
    return lines


@dataclass(frozen=True, kw_only=True)
class _Column:
    title: str
    text: Callable[[Server, float, Page], str]
    style: Callable[[Server], str] = lambda _: ""
    right: bool = False
    at_width: int = 0
    """The least width that shows this column."""

    def of(self, server: Server, now: float, page: Page) -> Cell:
        return Cell(text=self.text(server, now, page), style=self.style(server), right=self.right)


def _state(server: Server, _now: float, page: Page) -> str:
    return f"{mark(server.status, ascii_only=page.ascii_only)} {state_words(server)}"


WHY = Cell(text="WHY", style="bold")
"""The title of the last column, which has the rest of the line."""


def _why(server: Server, page: Page) -> str:
    """The reason for the state."""
    parts = []
    if server.breaker.state != "closed" and page.width < BREAKER_AT:
        parts.append(f"breaker {breaker_words(server.breaker)}")
    if not is_well(server):
        parts.append(one_line(server.reason or server.summary))
    if server.finding:
        parts.append(one_line(server.finding))
    if server.held:
        parts.append(f"held until approved: {', '.join(map(one_line, server.held))}")
    if is_well(server) and server.tools and not server.verified:
        parts.append("tools from an earlier run")
    return "; ".join(filter(None, parts))


_COLUMNS = (
    _Column(
        title="SERVER",
        text=lambda server, _, page: page.short(one_line(server.id), LONGEST_NAME),
        style=lambda _: "bold",
    ),
    _Column(title="STATE", text=_state, style=lambda server: STYLES[server.status]),
    _Column(title="SINCE", text=lambda server, now, _: span(now - server.since), right=True),
    _Column(title="TOOLS", text=lambda server, _, __: str(server.tools), right=True),
    _Column(title="RETRY", text=lambda server, _, __: left(server.retry_in), right=True),
    _Column(
        title="BREAKER",
        text=lambda server, _, __: breaker_words(server.breaker),
        style=lambda server: "" if server.breaker.state == "closed" else "yellow",
        at_width=BREAKER_AT,
    ),
    _Column(title="CALLS", text=lambda server, _, __: str(server.calls_total), right=True, at_width=100),
    _Column(
        title="FAILED",
        text=lambda server, _, __: str(server.errors_total),
        style=lambda server: "red" if server.errors_total else "",
        right=True,
        at_width=100,
    ),
)


def _less(seconds: float | None, gone: float) -> float | None:
    return None if seconds is None else max(0.0, seconds - gone)


LABEL = 13
"""The width of the labels."""


def card(server: Server, now: float, page: Page) -> list[Text]:
    """All details of a server. Its timeline comes last, the latest step at the end."""
    state = _state(server, now, page), STYLES[server.status]
    title = Text.assemble((one_line(server.id), "bold"), GAP, state, f" for {span(now - server.since)}")
    lines = [page.fit(title), *advice(CauseGroup((server,)), page)]
    steps = [("" if number else "timeline", step(change)) for number, change in enumerate(server.timeline)]
    for label, value in (*_facts(server), *steps):
        lines += page.block(Text(f"  {label}".ljust(LABEL), style="dim"), value)
    return lines


def step(change: Change) -> str:
    """One step of the timeline as a line."""
    why = one_line(change.reason) or cause_words(change.cause)
    return f"{clock(change.at)}  {change.old} -> {change.new}{GAP}{why}".rstrip()


def _facts(server: Server) -> Iterable[tuple[str, str]]:
    yield "server", f"{server.transport or 'unreadable'}  {one_line(server.target)}".rstrip()
    yield "offers", _offers(server)
    if server.held:
        yield "held", ", ".join(map(one_line, server.held))
    yield "breaker", breaker_words(server.breaker)
    if server.retry_in is not None:
        yield "next try", _next_try(server)
    if server.probed_by:
        yield "tried by", f"replica {one_line(server.probed_by)}"
    yield "calls", _call_counts(server)
    if server.last_error is not None:
        yield "last error", f"{clock(server.last_error.at)}  {one_line(server.last_error.text)}"


def _offers(server: Server) -> str:
    kinds = ((server.tools, "tool"), (server.prompts, "prompt"), (server.resources, "resource"))
    numbers = [counted(number, noun) for number, noun in (*kinds, (server.templates, "template")) if number]
    if not numbers:
        return "nothing"
    return ", ".join(numbers) + ("" if server.verified else ", from an earlier run")


def _next_try(server: Server) -> str:
    when = left(server.retry_in)
    if 0 < server.attempts < server.attempts_allowed:
        return f"{when}; {server.attempts} of {server.attempts_allowed} attempts used"
    return when


def _call_counts(server: Server) -> str:
    words = f"{server.calls_total}, {server.errors_total} failed"
    words += f", {server.in_flight} in flight" if server.in_flight else ""
    return words + (f"; reconnected {counted(server.reconnects_total, 'time')}" if server.reconnects_total else "")
