"""Small texts of the status: durations, times, counts and sparklines.

Pure. Text from a server is made safe for a terminal here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime

from rich.text import Text

from holdfast.cli.page import Page
from holdfast.control.models import Breaker, Server, Status
from holdfast.core.redact import plain

__all__ = [
    "STYLES",
    "advice",
    "breaker_words",
    "cause_words",
    "clock",
    "counted",
    "is_well",
    "left",
    "mark",
    "one_line",
    "rank",
    "span",
    "spark",
    "tally",
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


def breaker_words(breaker: Breaker) -> str:
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
