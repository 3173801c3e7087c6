"""The small words of the status: how long, since when, how many, and a minute's calls as a row of blocks.

Pure: the time is an argument. Whatever a server said is made fit for a terminal here.
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
    "clock",
    "counted",
    "is_well",
    "left",
    "mark",
    "one_line",
    "rank",
    "span",
    "spark",
    "spoken",
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
"""A sign for each status, so that colour is never needed; the second where only ASCII can be shown."""

BLOCKS = ("▁▂▃▄▅▆▇█", "._-=+*%#")
"""Heights, from a little to the most; the second where only ASCII can be shown."""

_UNITS = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))


def is_well(server: Server) -> bool:
    """Whether nothing is wrong with it: it is there, or at rest on purpose."""
    return server.status in ("available", "idle", "disabled")


def rank(server: Server) -> int:
    """How bad it is; the higher, the worse."""
    return RANKS[server.status]


def mark(status: Status, *, ascii_only: bool) -> str:
    """Its sign."""
    return MARKS[status][ascii_only]


def span(seconds: float) -> str:
    """``12s``, ``3m``, ``2h``, ``5d``: the largest unit of which there is one."""
    whole = max(0, round(seconds))
    size, unit = next(((size, unit) for size, unit in _UNITS if whole >= size), _UNITS[-1])
    return f"{whole // size}{unit}"


def left(seconds: float | None) -> str:
    """How long until something happens: ``now`` once the time has come, nothing where nothing is planned."""
    if seconds is None:
        return ""
    return span(seconds) if seconds >= 0.5 else "now"


def clock(at: float) -> str:
    """The time of day, here."""
    return datetime.fromtimestamp(at, tz=UTC).astimezone().strftime("%H:%M:%S")


def counted(number: int, noun: str) -> str:
    """``1 tool``, ``2 tools``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def one_line(text: str) -> str:
    """Another's words, in one line and without anything that a terminal would obey."""
    return " ".join(plain(text).split())


def spoken(cause: str) -> str:
    """The name of a cause, as people write: ``TransportLost`` is ``transport lost``."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", one_line(cause)).lower()


def breaker_words(breaker: Breaker) -> str:
    """``closed``, ``open 12s``, ``half open``; ``open`` alone once the next call may try."""
    if breaker.state == "open" and (breaker.retry_in or 0) >= 0.5:
        return f"open {left(breaker.retry_in)}"
    return breaker.state.replace("_", " ")


def spark(numbers: Sequence[int], width: int, *, ascii_only: bool, most: int | None = None) -> str:
    """The last ``width`` numbers as heights; nought is a gap."""
    blocks = BLOCKS[ascii_only]
    shown = numbers[-width:]
    top = most or max(shown, default=0)
    line = "".join(blocks[min(-(-number * len(blocks) // top), len(blocks)) - 1] if number else " " for number in shown)
    return line.rjust(width)


def advice(server: Server, page: Page) -> list[Text]:
    """What a person needs to know, what can be done, and the command that does it."""
    lines = page.block("  ", one_line(server.summary))
    if server.action:
        lines += page.block(f"  {page.pointer} ", one_line(server.action), style="cyan")
    if server.command:  # neither wrapped nor cut: it is there to be copied
        lines.append(Text.assemble("  $ ", (one_line(server.command), "bold cyan")))
    return lines


def tally(servers: Sequence[Server]) -> str:
    """The whole fleet in a line."""
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
