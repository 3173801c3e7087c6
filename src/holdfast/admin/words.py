"""Texts about a server for people: its state, what to do about it, and the command that does it.

Pure functions: the page and the terminal show the same texts, and failures use the words of MSG-1 … MSG-3. No text
contains a countdown, because texts are sent only on change; ``retry_in`` is sent beside them.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import NamedTuple

from holdfast.core.breaker import BreakerState
from holdfast.core.lifecycle.table import State
from holdfast.core.machine import Health
from holdfast.core.messages import Failure, for_user

__all__ = ["Facts", "ServerText", "pasteable", "text_for"]


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
    """No action is needed: the hub goes on by itself."""
    parts = [for_user(Failure(health.server, "transient"))]
    if health.reason:
        parts.append(f"The last attempt: {health.reason.rstrip('.')}.")
    if health.attempts and facts.attempts_allowed:
        parts.append(f"Attempt {health.attempts} of {facts.attempts_allowed}.")
    if health.breaker_retry_in:
        parts.append("Calls to it are refused for now.")
    return ServerText(" ".join(parts))


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
