"""What to tell a person about a server: one function from health and evidence to words, remedy and command.

Status, page, calls, logs and doctor ask here and in ``messages``, so that they never contradict each other.
No text holds a countdown, because views show ``retry_in`` beside it. For a parked server whose evidence is permanent
that is the only place of it: the permanent sentence stands alone (MSG-9), though the hub does look again (LIFE-19,
LIFE-22). Pure: the time is an argument.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from holdfast.core.classify import classify_evidence
from holdfast.core.evidence import Evidence
from holdfast.core.lifecycle.table import State
from holdfast.core.machine import Health
from holdfast.core.messages import Failure, command_line, counted, for_user

__all__ = ["Facts", "FailureRemedy", "ServerText", "remedy_of", "sentence", "text_for"]


class FailureRemedy(NamedTuple):
    """What would end a failure."""

    hint: str = ""
    login: str = ""
    """The command that logs in, if the server asks for a login."""
    scope: tuple[str, ...] = ()
    """The scope that the server asks for in addition."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What the texts need beside the health of a server."""

    tools: int = 0
    held: int = 0
    """Changes that wait for approval: of tools, of prompts, or of the instructions."""
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


def remedy_of(seen: Evidence | None, *, connected_before: bool = False) -> FailureRemedy:
    """What would end the failure that this evidence shows."""
    if seen is None:
        return FailureRemedy()
    verdict = classify_evidence(seen, connected_before=connected_before)
    return FailureRemedy(verdict.hint, verdict.login, verdict.scope)


def text_for(health: Health, facts: Facts, *, now: datetime | None = None) -> ServerText:
    """The texts for the current state of a server."""
    failure = health.failure
    if failure is not None:
        return _failing(health, failure, facts, now)
    match health.state:
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
    return _connected(health, facts)


def _connected(health: Health, facts: Facts) -> ServerText:
    listed = counted(facts.tools, "tool")
    if facts.held:
        changes = f"{counted(facts.held, 'change')} since first seen {'is' if facts.held == 1 else 'are'} held"
        return ServerText(
            f"Connected; {listed}; {changes}.",
            "Review the change, and approve it if it is right.",
            _run("approve", health),
        )
    return ServerText(f"Connected; {listed}.")


def _failing(health: Health, failure: Failure, facts: Facts, now: datetime | None) -> ServerText:
    if failure.status == "denied":
        # Only the time before which a decided denial is not asked again is a time of day.
        summary = for_user(failure if now and not failure.unconfirmed else failure._replace(retry_in=None), now=now)
        return _denied(summary, health, facts)
    summary = for_user(failure._replace(retry_in=None, down_for=None))
    if failure.status == "permanent":
        return ServerText(summary, sentence(facts.hint or "find out what is wrong with it"), _run("doctor", health))
    if failure.calls_fail:
        until = "for now" if health.breaker_retry_in else "except one test call"
        reason = f" ({failure.error.rstrip('.')})" if failure.error else ""
        return ServerText(
            f"Connected, but calls to it fail{reason}: they are refused {until}.",
            "The next call after that is a test; to test it now, reconnect it.",
            _run("reconnect", health),
        )
    return _transient(summary, health, failure, facts)


def _transient(summary: str, health: Health, failure: Failure, facts: Facts) -> ServerText:
    """No action is needed: the hub goes on by itself. A person who knows better may reconnect now."""
    parts = [summary]
    is_tried_now = health.retry_in == 0
    if health.reason and not (failure.lost or failure.spent):  # else the summary has it
        parts.append(f"{'So far' if is_tried_now else 'The last attempt'}: {health.reason.rstrip('.')}.")
    if health.attempts and facts.attempts_allowed and not failure.spent:
        parts.append(f"Attempt {health.attempts} of {facts.attempts_allowed}.")
    if health.breaker_retry_in:
        parts.append("Calls to it are refused for now.")
    if is_tried_now:  # a reconnect would join the dial that is under way
        return ServerText(" ".join(parts), "It is being tried now; its log shows how far it is.", _run("logs", health))
    return ServerText(" ".join(parts), "To try it now, reconnect it.", _run("reconnect", health))


def _denied(summary: str, health: Health, facts: Facts) -> ServerText:
    if facts.login:
        besides = f" {sentence(facts.hint)}" if facts.hint else ""
        return ServerText(summary, f"Log in; the hub then reconnects it.{besides}", facts.login)
    hint = facts.hint or "give it credentials that have access, in its definition"
    return ServerText(summary, sentence(hint), _run("reconnect", health) if health.unconfirmed else "")


def _run(command: str, health: Health) -> str:
    return command_line(command, server=health.server)


def sentence(text: str) -> str:
    """A hint as a sentence: a capital letter, and a full stop unless it is a question."""
    return f"{text[:1].upper()}{text[1:].rstrip('.')}{'' if text.endswith('?') else '.'}"
