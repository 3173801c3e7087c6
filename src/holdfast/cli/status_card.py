"""All details of one server. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from rich.text import Text

from holdfast.cli.page import GAP, Page
from holdfast.cli.status_words import (
    STYLES,
    advice,
    breaker_words,
    cause_words,
    clock,
    counted,
    left,
    mark,
    one_line,
    span,
    spark,
)
from holdfast.control.models import Activity, Change, Server

__all__ = ["card", "step"]

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
