"""The text of ``status``: the hub, one line for each server, and what to do about those with problems.

Pure functions from the models of the control API, a page and a time to lines of text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rich.text import Text

from holdfast.cli.page import GAP, Cell, Page
from holdfast.cli.status_words import (
    STYLES,
    advice,
    breaker_words,
    is_well,
    left,
    mark,
    one_line,
    rank,
    span,
    spark,
)
from holdfast.control.models import HubView, Server

__all__ = ["aged", "heading", "needs_attention", "table", "worst_last"]

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
