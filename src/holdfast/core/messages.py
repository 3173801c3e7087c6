"""The messages for people and models, as a pure function of the classification.

Each class has words of its own. "Tools from this server will not work" is in the permanent message
only, and ends it; "starting up" is in the message about a server that has not been up yet and whose
reconnect budget is not spent, and in no other. A text of a server stays inside one line, and every
time comes as an argument.

``command_line`` makes the commands that texts propose, as a person types them on this machine.

Every hint gets its command here: those of the command line, of calls, of the status page, of ``holdfast_status`` and of
doctor. So a command that is copied from any of them works. Two facts decide how it is typed: the name or path of the
program, and the file that is meant where it is not the one that the command would find. Both are facts of the process.
The command line states them once, when a command starts (``typed_as``). A program that uses the library states nothing,
and reads ``holdfast …``.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Literal, NamedTuple, TypeAlias

__all__ = [
    "Failure",
    "FailureStatus",
    "Invocation",
    "ServerStatus",
    "cause_of",
    "command_line",
    "counted",
    "for_caller",
    "for_model",
    "for_user",
    "invocation",
    "next_try",
    "span",
    "typed_as",
]


class Invocation(NamedTuple):
    """How a person starts Holdfast here."""

    program: str = "holdfast"
    """Its name or path, quoted for a shell."""
    config: str = ""
    """The file to name; empty where a command finds it without."""


_TAKES_CONFIG = frozenset(
    {
        *(
            "add",
            "approve",
            "auth",
            "call",
            "check",
            "disable",
            "doctor",
            "enable",
            "find",
            "gateway",
            "list",
            "login",
            "logout",
        ),
        *("logs", "reconnect", "remove", "serve", "status", "tools"),
    }
)
"""The commands with ``--config``. That of ``import`` means the file to write."""

_NEEDS_NO_CONFIG = frozenset({("doctor", "explain"), ("serve", "--demo")})

_current = Invocation()


def invocation() -> Invocation:
    """How a person starts Holdfast here."""
    return _current


@contextmanager
def typed_as(now: Invocation) -> Iterator[None]:
    """Let all commands be typed so, for the length of the block."""
    global _current  # noqa: PLW0603 - a fact of the process, as its arguments are; see above
    before, _current = _current, now
    try:
        yield
    finally:
        _current = before


def command_line(*words: str, server: str = "", options: tuple[str, ...] = ()) -> str:
    """A command of ours, quoted for a shell: ``command_line("login", server="github")``.

    A server whose name begins with a dash must not be read as an option.
    """
    config = _current.config if words and words[0] in _TAKES_CONFIG and words[:2] not in _NEEDS_NO_CONFIG else ""
    named = [*options, *(("--config", config) if config and not {"--config", "--file"} & {*words} else ())]
    last = [*named, "--", server] if server.startswith("-") else [*([server] if server else []), *named]
    return " ".join(filter(None, (_current.program, shlex.join([*words, *last]))))


FailureStatus: TypeAlias = Literal["transient", "permanent", "denied"]

ServerStatus: TypeAlias = Literal["available", "transient", "permanent", "denied", "idle", "disabled"]
"""A server in one word: as loads are classified, or not in use."""

_CHANGE = "log in or ask for access to change that"


class Failure(NamedTuple):
    """A server without tools, or whose calls are refused, and the reason."""

    server_id: str
    status: FailureStatus
    error: str = ""
    lost: bool = False
    """Whether it was up in this run."""
    calls_fail: bool = False
    """Whether it is connected, and calls to it are refused because they fail."""
    unconfirmed: bool = False
    """Whether a denial states no decision: it may be an outage of the authorization check."""
    spent: bool = False
    """Whether the reconnect budget is spent: then it is no longer starting up."""
    down_for: float | None = None
    retry_in: float | None = None
    """Seconds until the next try; None where none is planned."""
    call_asks: bool = False
    """Whether the next call asks a denied server again."""
    in_hub: bool = False
    """Whether a hub keeps it; a one-shot load makes no promise about later."""


Situation: TypeAlias = Literal["starting", "lost", "spent", "refusing", "permanent", "denied"]
"""What is wrong with a server, as people and models are told. Each has words of its own, which no other uses."""


def _situation(failure: Failure) -> Situation:
    if failure.status != "transient":
        return failure.status
    if failure.calls_fail:
        return "refusing"
    if failure.spent:
        return "spent"  # also if it was up: for how long it has not been ready says more
    return "lost" if failure.lost else "starting"


def for_user(failure: Failure, *, now: datetime | None = None) -> str:
    """One to three sentences about one server; ``now`` lets them name a time of day."""
    name = f"MCP server '{failure.server_id}'"
    reason = _reason(failure).rstrip(".")
    when = next_try(failure.retry_in)
    match _situation(failure):
        case "denied":
            return f"{name} denied access: {reason}. {_asked_again(failure, now)}"
        case "permanent":
            return f"{name} is unavailable: {reason}. Tools from this server will not work."
        case "refusing":
            return (
                f"{name} is connected, but calls to it fail ({reason}). They are refused for now;"
                f" the first call {_later(failure.retry_in)} tries it."
            )
        case "spent":
            down = span(failure.down_for) if failure.down_for is not None else "a while"
            later = f"; next try {when}" if when else ""
            return f"{name} has not been ready for {down} ({reason}) — it will be retried{later}."
        case "lost":
            words = f"{name} was lost ({reason}) and is being reconnected — it will be retried."
            return f"{words} Next try {when}." if when else words
        case "starting":
            return f"{name} is starting up and not ready yet — it will be retried."


def for_caller(failure: Failure, *, refused_for: float | None = None, now: datetime | None = None) -> str:
    """The same for a call that was refused; ``refused_for``: seconds until a call may pass.

    A permanent sentence stands alone: no time to try again follows it.
    """
    words, situation = for_user(failure, now=now), _situation(failure)
    if situation not in ("starting", "lost", "spent") or refused_for is None:
        return words
    if situation == "starting":
        return f"{words} Try again in {span(refused_for)}."
    longer = failure.retry_in is None or refused_for > failure.retry_in + 1
    return f"{words} Calls to it are refused for {span(refused_for)}." if longer else words


def for_model(failures: Iterable[Failure], *, now: datetime | None = None) -> str:
    """One line for each class that occurs, ids sorted; empty where nothing failed."""
    ordered = sorted(failures, key=lambda failure: (*failure[:3], repr(failure)))
    lines = []
    for situation, (title, words) in _LINES.items():
        if chosen := [failure for failure in ordered if _situation(failure) == situation]:
            join = ", " if words is _id_only else "; "
            lines.append(f"**{title}:** " + join.join(words(failure, now) for failure in chosen))
    return "\n".join(lines)


def span(seconds: float) -> str:
    """``12 s``, ``4 min``, ``2 h``, ``3 days``."""
    for size, unit in ((172_800, "days"), (7_200, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / {'days': 86_400, 'h': 3_600, 'min': 60}[unit]:.0f} {unit}"
    return f"{max(seconds, 1):.0f} s"


_DURATION = re.compile(r"\b(?:for|after|within|in)?\s*\b\d+(?:\.\d+)? ?(?:ms|s|min|m|h|d)\b")


def cause_of(reason: str) -> str:
    """A reason without its durations: servers that fail alike at different times have an equal cause (DX-5)."""
    return " ".join(_DURATION.sub(" ", reason).split())


def counted(number: int, noun: str) -> str:
    """``1 tool``, ``2 tools``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def next_try(retry_in: float | None) -> str:
    """When the next try is: ``now`` during one, empty where none is planned."""
    if retry_in is None:
        return ""
    return f"in {span(retry_in)}" if retry_in >= 0.5 else "now"


def _asked_again(failure: Failure, now: datetime | None) -> str:
    """What the denial is, and when the server is asked again."""
    if failure.unconfirmed:
        doubt = "It states no decision, and may be an outage of the authorization check"
        if not failure.in_hub:
            return f"{doubt}. It is not retried in this load: {_CHANGE}, or load it again later."
        return f"{doubt}: it is asked again {next_try(failure.retry_in) or 'soon'}."
    if failure.call_asks:
        return "The next call asks it again: log in or ask for access first."
    return f"It {_not_asked(failure, now)}: {_CHANGE}."


def _not_asked(failure: Failure, now: datetime | None) -> str:
    if not failure.in_hub:
        return "is not retried"
    if failure.call_asks:
        return "is asked again by the next call"
    if failure.retry_in is None:
        return "is not asked again"
    if now is None:
        return f"is not asked again for {span(failure.retry_in)}"
    return f"is not asked again before {now + timedelta(seconds=failure.retry_in):%H:%M:%S}"


def _later(retry_in: float | None) -> str:
    return f"in {span(retry_in)}" if retry_in else "from now on"


def _reason(failure: Failure) -> str:
    """The reason in one line: a server's text cannot break the form of a message."""
    return " ".join(failure.error.split()) or "no reason was given"


def _id_only(failure: Failure, _: datetime | None) -> str:
    return failure.server_id


def _with_reason(failure: Failure, _: datetime | None) -> str:
    return f"{failure.server_id}: {_reason(failure)}"


def _with_next_call(failure: Failure, _: datetime | None) -> str:
    return f"{failure.server_id}: {_reason(failure)} (the first call {_later(failure.retry_in)} tries it)"


def _with_denial(failure: Failure, now: datetime | None) -> str:
    if not failure.unconfirmed:
        when = _not_asked(failure, now)
    elif failure.in_hub:
        when = f"may be an outage; is asked again {next_try(failure.retry_in) or 'soon'}"
    else:
        when = "may be an outage; is not retried in this load"
    return f"{failure.server_id}: {_reason(failure)} ({when})"


_Words: TypeAlias = Callable[[Failure, datetime | None], str]
_LINES: Mapping[Situation, tuple[str, _Words]] = {
    "starting": ("MCP servers still starting up (will retry; tools may appear shortly)", _id_only),
    "lost": ("MCP servers lost and being reconnected (will retry)", _with_reason),
    "spent": ("MCP servers not ready for a while (will retry)", _with_reason),
    "refusing": ("MCP servers whose calls fail (calls are refused for now)", _with_next_call),
    "permanent": ("MCP servers that failed to load (tools unavailable — needs attention)", _with_reason),
    "denied": (f"MCP servers that denied access ({_CHANGE})", _with_denial),
}
