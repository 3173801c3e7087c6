"""What the body of a 403 states: a decision, no decision, or an outage of the authorization check.

A gateway asks an authorization service about each request. If that service does not answer, some gateways answer 403,
as for a denial. Only the body shows the difference, and only as a whole: a denial may hold any word ("denied by
ext_authz", "the upstream call timeout policy forbids it"). So nothing here searches. A text is an outage if all of it
is one of the known texts, and a JSON object if each of its messages is. Everything else is a decision, so that a real
denial is never retried. A body that did not come whole is a decision too: its rest may state one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from enum import Enum
from typing import Any

__all__ = ["LONGEST_BODY", "Statement", "stated_in"]

LONGEST_BODY = 2048
"""Characters of a body that are read and kept. A longer one counts as cut."""

_OUTAGE = re.compile(
    r"authorization service (?:unavailable|timeout)"
    r"|upstream (?:call|request|connect|connection) (?:timeout|timed out)"
    r"|ext[_-]authz(?:[ _:-]+(?:request|check|call))?[ _:-]+(?:timeout|timed out|error|unavailable|deadline exceeded)"
    r"|openfga check error(?:: .*)?"
    # AgentGateway, from 0.11 on over HTTP with `denyWithStatus: 403`, sends its own error as the body.
    r"|upstream call failed: .*"
    r"|backends required dns resolution which failed"
    r"|no healthy backends"
    r"|request timeout",
    re.IGNORECASE | re.ASCII,  # without ASCII, letters of other scripts would count as the same in another case
)
"""The texts of authorization outages; each is matched against a whole text."""

_NO_DECISION = frozenset({"", "external authorization failed", "authorization failed"})
"""Whole bodies that Envoy and AgentGateway send for an outage and for a denial alike."""

_MESSAGES = frozenset({"message", "error", "detail", "details", "reason"})
"""The keys of a JSON object that hold its messages; other keys are not read."""


class Statement(Enum):
    """What the body of a 403 states."""

    DECISION = "decision"
    NO_DECISION = "no_decision"
    OUTAGE = "outage"


def stated_in(body: str) -> Statement:
    """What a whole body states."""
    if len(body) > LONGEST_BODY:
        return Statement.DECISION
    text = _trimmed(body)
    if text.lower() in _NO_DECISION:
        return Statement.NO_DECISION
    if _OUTAGE.fullmatch(text):
        return Statement.OUTAGE
    messages = list(_messages_of(text)) if text.startswith("{") else []
    outage = messages and all(_OUTAGE.fullmatch(_trimmed(message)) for message in messages)
    return Statement.OUTAGE if outage else Statement.DECISION


def _trimmed(text: str) -> str:
    return text.strip().removesuffix(".")


class _Object(list[tuple[str, Any]]):
    """A JSON object with all of its keys: of two equal ones, each is a message."""


def _messages_of(text: str) -> Iterator[str]:
    """Every string under a key for messages; nothing where the text is not one JSON object."""
    try:
        whole = json.loads(text, object_pairs_hook=_Object)
    except (ValueError, RecursionError):
        return
    if not isinstance(whole, _Object):
        return
    waiting = [pair for pair in whole if pair[0] in _MESSAGES]
    while waiting:
        key, value = waiting.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, _Object) and key == "error":  # it has codes and other data beside its messages
            waiting += [pair for pair in value if pair[0] in _MESSAGES]
        elif isinstance(value, _Object):
            waiting += [(key, item) for _, item in value]
        elif isinstance(value, list):
            waiting += [(key, item) for item in value]
