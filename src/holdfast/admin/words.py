"""What a person is told of a server: how it is, what they can do about it, and the command that does it.

A pure function: the page and the terminal show the same words. Failures are told in those of MSG-1 … MSG-3.
No word tells how many seconds are left: that runs, while words stand until they are told anew. Whoever shows
them has ``retry_in`` beside.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import NamedTuple

from holdfast.control.models import Status
from holdfast.core.breaker import BreakerState
from holdfast.core.lifecycle.table import State
from holdfast.core.machine import Health
from holdfast.core.messages import Failure, for_user

__all__ = ["STATUS", "Facts", "Words", "pasteable", "words_for"]

STATUS: dict[State, Status] = {
    State.CONNECTED: "available",
    State.CONNECTING: "transient",
    State.RECONNECTING: "transient",
    State.DENIED: "denied",
    State.PERMANENTLY_FAILED: "permanent",
    State.IDLE: "idle",
    State.DISABLING: "disabled",
    State.DISABLED: "disabled",
    State.DISCONNECTED: "idle",
}
"""Each state in one word."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What there is to say about a server, beside its health."""

    tools: int = 0
    held: int = 0
    hint: str = ""
    """What would change its failure, as far as that is known."""
    login: str = ""
    """The command that logs in, where that is what it asks for."""
    attempts_allowed: int = 0


class Words(NamedTuple):
    """The words."""

    summary: str
    action: str = ""
    command: str = ""


def words_for(health: Health, facts: Facts) -> Words:
    """The words for a server as it is now."""
    match health.state:
        case State.CONNECTED:
            return _connected(health, facts)
        case State.CONNECTING | State.RECONNECTING:
            return _coming(health, facts)
        case State.DENIED:
            return _denied(health, facts)
        case State.PERMANENTLY_FAILED:
            return _failed(health, facts)
        case State.DISABLED:
            return Words(
                "Switched off: its tools are not offered.", "Switch it on to use it again.", _run("enable", health)
            )
        case State.DISABLING:
            return Words("Being switched off: its connection is closing.")
        case State.IDLE:
            return Words("At rest: it is started at its first use.")
        case State.DISCONNECTED:
            return Words("Not connected: the hub has not begun with it, or is closing.")


def pasteable(command: str, *, program: str, config: str) -> str:
    """A command as it works in any folder: by the program's name there, on the file that the hub serves."""
    name, _, rest = command.partition(" ")
    if name != "holdfast":
        return command
    reads_the_file = rest.startswith(_READ_THE_FILE) and config and "--config" not in rest
    return f"{program} {rest}" + (f" --config {shlex.quote(config)}" if reads_the_file else "")


_READ_THE_FILE = ("doctor ", "login ")
"""The commands that look for an mcp.json themselves; the others look for the hub."""


def _connected(health: Health, facts: Facts) -> Words:
    if health.breaker is not BreakerState.CLOSED:
        return _shut(health)
    listed = "1 tool" if facts.tools == 1 else f"{facts.tools} tools"
    if facts.held:
        held = "1 of them is" if facts.held == 1 else f"{facts.held} of them are"
        return Words(
            f"Connected; {listed}, {held} held: not what it was when it was first seen.",
            "Look at what changed, and approve it if it is well.",
            _run("approve", health),
        )
    return Words(f"Connected; {listed}.")


def _shut(health: Health) -> Words:
    """A connection that stands, and calls on it that failed."""
    until = "for now" if health.breaker_retry_in else "but for one that tries it"
    return Words(
        f"Connected, but calls to it failed again and again: they are refused {until}.",
        "The next call after that tries it; to try it now, reconnect it.",
        _run("reconnect", health),
    )


def _coming(health: Health, facts: Facts) -> Words:
    """Nothing is asked of anybody: the hub goes on by itself."""
    parts = [for_user(Failure(health.server, "transient"))]
    if health.reason:
        parts.append(f"The last try: {health.reason.rstrip('.')}.")
    if health.attempts and facts.attempts_allowed:
        parts.append(f"Tried {health.attempts} of {facts.attempts_allowed} times.")
    if health.breaker_retry_in:
        parts.append("Calls to it are refused for now.")
    return Words(" ".join(parts))


def _denied(health: Health, facts: Facts) -> Words:
    summary = for_user(Failure(health.server, "denied", health.reason))
    if facts.login:
        return Words(summary, "Log in; it comes back by itself then.", facts.login)
    return Words(summary, _sentence(facts.hint or "give it credentials that have access, in its definition"))


def _failed(health: Health, facts: Facts) -> Words:
    summary = for_user(Failure(health.server, "permanent", health.reason))
    if health.retry_in:
        summary += " The hub looks at it again by itself."
    hint = facts.hint or "find out what is wrong with it"
    return Words(summary, _sentence(hint), _run("doctor", health))


def _run(command: str, health: Health) -> str:
    return f"holdfast {command} {shlex.quote(health.server)}"


def _sentence(text: str) -> str:
    """A hint, which begins in lower case and ends without a stop, as a sentence."""
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."
