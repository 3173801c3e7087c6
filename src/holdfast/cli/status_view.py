"""The text of ``status``: the hub, one line for each server, the details of one, and what to do about problems.

Pure functions from the models of the control API, a page and a time to lines of text. Text from a server is made
safe for a terminal here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from rich.text import Text

from holdfast.cli.layout import GAP, Cell, Page
from holdfast.control import Activity, BreakerView, Change, HubView, Server, Status
from holdfast.core import plain

__all__ = [
    "STYLES",
    "advice",
    "aged",
    "breaker_words",
    "card",
    "cause_words",
    "clock",
    "counted",
    "heading",
    "is_well",
    "left",
    "mark",
    "needs_attention",
    "one_line",
    "rank",
    "span",
    "spark",
    "step",
    "table",
    "tally",
    "worst_last",
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

BLOCKS = ("▁▂▃▄▅▆▇█", "._-=+*%#")
"""The heights of a sparkline. The second row is for ASCII terminals."""

_UNITS = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))


def is_well(server: Server) -> bool:
    """Whether it has no problem: it is available, idle or disabled."""
    return server.status in ("available", "idle", "disabled")


def rank(server: Server) -> int:
    """How bad the status is; higher is worse."""
    return RANKS[server.status]


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


def counted(number: int, noun: str) -> str:
    """``1 tool``, ``2 tools``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


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


def spark(numbers: Sequence[int], width: int, *, ascii_only: bool, most: int | None = None) -> str:
    """The last ``width`` numbers as a sparkline; zero is a gap."""
    blocks = BLOCKS[ascii_only]
    shown = numbers[-width:]
    top = most or max(shown, default=0)
    line = "".join(blocks[min(-(-number * len(blocks) // top), len(blocks)) - 1] if number else " " for number in shown)
    return line.rjust(width)


def advice(server: Server, page: Page) -> list[Text]:
    """The summary, the action, and the command for it."""
    lines = page.block("  ", one_line(server.summary))
    if server.action:
        lines += page.block(f"  {page.pointer} ", one_line(server.action), style="cyan")
    if server.command:  # neither wrapped nor cut, so that it can be copied
        lines.append(Text.assemble("  $ ", (one_line(server.command), "bold cyan")))
    return lines


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

SPARK_CELLS = 20
"""The steps of activity in the table."""

BREAKER_AT = 120
"""The least width with a breaker column. Narrower tables show only a breaker that is not closed."""


def worst_last(servers: Iterable[Server]) -> list[Server]:
    """The servers, the worst last, because the end of the output is next to the prompt."""
    return sorted(servers, key=lambda server: (rank(server), server.id))


def aged(server: Server, seconds: float) -> Server:
    """The same server some seconds later: its countdowns have moved on."""
    if server.retry_in is None and server.breaker.retry_in is None:
        return server
    breaker = server.breaker.model_copy(update={"retry_in": _less(server.breaker.retry_in, seconds)})
    return server.model_copy(update={"retry_in": _less(server.retry_in, seconds), "breaker": breaker})


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
    return [page.fit(line) for line in lines]


def table(servers: Sequence[Server], now: float, page: Page) -> list[Text]:
    """A title and a line for each server, in the given order, with the columns that fit the width."""
    columns = [column for column in _COLUMNS if page.width >= column.at_width]
    title = [Cell(text=column.title, style="bold", right=column.right) for column in columns]
    return page.table([title, *([column.of(server, now, page) for column in columns] for server in servers)])


def needs_attention(servers: Iterable[Server], page: Page) -> list[Text]:
    """What to do about servers that have a problem, and about available ones that need an action."""
    lines: list[Text] = []
    for server in servers:
        if not is_well(server) or (server.status == "available" and server.action):
            title = Text.assemble((one_line(server.id), "bold"), GAP, (server.status, STYLES[server.status]))
            lines += [Text(), page.fit(title), *advice(server, page)]
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


def _status(server: Server, _now: float, page: Page) -> str:
    return f"{mark(server.status, ascii_only=page.ascii_only)} {server.status}"


def _calls(server: Server, _now: float, page: Page) -> str:
    calls = server.activity.calls if server.activity is not None else ()
    return spark(calls, SPARK_CELLS, ascii_only=page.ascii_only)


def _errors(server: Server, _now: float, page: Page) -> str:
    """Drawn to the scale of the calls, so that the two can be compared."""
    activity = server.activity
    if activity is None:
        return ""
    most = max((*activity.calls[-SPARK_CELLS:], *activity.errors[-SPARK_CELLS:]), default=0)
    return spark(activity.errors, SPARK_CELLS, ascii_only=page.ascii_only, most=most)


def _why(server: Server, _now: float, page: Page) -> str:
    """The reason for the state, in the rest of the line."""
    parts = []
    if server.breaker.state != "closed" and page.width < BREAKER_AT:
        parts.append(f"breaker {breaker_words(server.breaker)}")
    if not is_well(server):
        parts.append(one_line(server.reason or server.summary))
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
    _Column(title="STATUS", text=_status, style=lambda server: STYLES[server.status]),
    _Column(title="STATE", text=lambda server, _, __: server.state.replace("_", " "), at_width=140),
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
    _Column(title="CALLS LATELY", text=_calls, style=lambda _: "cyan", right=True, at_width=160),
    _Column(title="FAILED LATELY", text=_errors, style=lambda _: "red", right=True, at_width=185),
    _Column(title="WHY", text=_why),
)


def _less(seconds: float | None, gone: float) -> float | None:
    return None if seconds is None else max(0.0, seconds - gone)


LABEL = 13
"""The width of the labels."""

LONGEST_SPARK = 24
"""The most steps of activity that are drawn, so that the text after them fits into 80 columns."""


def card(server: Server, now: float, page: Page) -> list[Text]:
    """All details of a server. Its timeline comes last, the latest step at the end."""
    lines = [page.fit(_title(server, now, page)), *advice(server, page)]
    facts = [*_facts(server, page), *(("", step(change)) for change in server.timeline)]
    labels = _labelled_timeline(facts, len(server.timeline))
    for label, value in labels:
        lines += page.block(Text(f"  {label}".ljust(LABEL), style="dim"), value)
    return lines


def step(change: Change) -> str:
    """One step of the timeline as a line."""
    why = one_line(change.reason) or cause_words(change.cause)
    return f"{clock(change.at)}  {change.old} -> {change.new}{GAP}{why}".rstrip()


def _title(server: Server, now: float, page: Page) -> Text:
    state = f" ({server.state.replace('_', ' ')})" if server.state != server.status else ""
    return Text.assemble(
        (one_line(server.id), "bold"),
        GAP,
        (f"{mark(server.status, ascii_only=page.ascii_only)} {server.status}", STYLES[server.status]),
        f"{state} for {span(now - server.since)}",
    )


def _labelled_timeline(facts: list[tuple[str, str]], steps: int) -> list[tuple[str, str]]:
    """Put the label on the first step of the timeline."""
    if steps:
        first = len(facts) - steps
        facts[first] = ("timeline", facts[first][1])
    return facts


def _facts(server: Server, page: Page) -> Iterable[tuple[str, str]]:
    yield "server", f"{server.transport or 'unreadable'}  {one_line(server.target)}".rstrip()
    yield "offers", _offers(server)
    if server.held:
        yield "held", ", ".join(map(one_line, server.held))
    yield "breaker", breaker_words(server.breaker)
    if server.retry_in is not None:
        yield "next try", _next_try(server)
    yield "calls", _call_counts(server)
    if server.activity is not None:
        yield "lately", _lately(server.activity, page)
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


def _lately(activity: Activity, page: Page) -> str:
    steps = max(1, min(len(activity.calls), LONGEST_SPARK, page.width - LABEL - 2))
    words = f"{counted(sum(activity.calls), 'call')}, {sum(activity.errors)} failed"
    times = [time for time in activity.milliseconds if time is not None]
    median = f", {times[-1]:.3g} ms" if times else ""
    line = spark(activity.calls, steps, ascii_only=page.ascii_only)
    return f"[{line}] {words} in {span(len(activity.calls) * activity.step)}{median}"
