"""What a client was told, judged by rules that stand here before a run. No name of a hub stands in this file.

A scene knows the fact: it made the fault. A text is

- ``true`` if it names the cause, in one of the words that the fact allows,
- ``false`` if it states what is not so, also beside something true,
- ``vague`` if it is an error that names no cause,
- ``nothing`` if no text came at all.

A tool that the server has, and that the hub listed before, exists: "unknown tool" is false then. Where the hub never
saw a list of that server, it cannot know, and the same words are vague.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["FACTS", "UNKNOWN", "Fact", "Told", "Verdict", "judge", "told"]

Verdict = Literal["true", "vague", "false", "nothing"]


@dataclass(frozen=True)
class Fact:
    """A cause, the words that name it, and the words that name another."""

    about: str
    true: tuple[str, ...]
    false: tuple[str, ...]


UNKNOWN = (
    r"unknown tool",
    r"no such tool",
    r"tool\b.{0,80}\b(not found|does not exist|not available)",
    r"no tool (named|called)",
    r"method not found",
)
"""Says that the tool does not exist."""

_SESSION = (r"session (not found|terminated|expired)", r"(invalid|unknown|no valid) session")
_AUTH = (
    r"unauthori[sz]ed",
    r"forbidden",
    r"permission denied",
    r"access denied",
    r"token (has )?expired",
    r"\b40[13]\b",
)
_ARGUMENTS = (r"invalid (params|arguments|request parameters)", r"validation error")
_TIME = (
    r"tim(ed|e)[ -]?out",
    r"did not (answer|respond)",
    r"no (answer|response) (in|within|after|for)",
    r"deadline",
    r"too long",
)
_GONE = (
    r"connect",  # "cannot connect", "connection refused", "connection closed", "disconnected", "reconnecting"
    r"unreachable",
    r"not (running|reachable|ready|responding|available)",
    r"unavailable",
    r"\bexited\b|\bdied\b|\bcrash|\bkilled\b|process (ended|is gone)",
    r"\bis down\b|\boffline\b|\bunhealthy\b|\bdegraded\b",
    r"broken pipe|EPIPE|ECONNRE(FUSED|SET)",
    r"circuit( breaker)?",
    r"bad gateway|no healthy upstream|\b50[234]\b",
    r"start(ing|ed)? up|is starting|not started|failed to start|restart",
)

FACTS: Mapping[str, Fact] = {
    "down": Fact("the server does not run", _GONE, (*_AUTH, *_SESSION, *_ARGUMENTS)),
    "starting": Fact("the server is starting, or not there yet", _GONE, (*_AUTH, *_SESSION, *_ARGUMENTS)),
    "unavailable": Fact(
        "the server answers 503", (*_GONE, r"\b5\d\d\b", r"server error"), (*_AUTH, *_SESSION, *_ARGUMENTS)
    ),
    "hung": Fact("the tool gives no answer", _TIME, (*_AUTH, *_SESSION, *_ARGUMENTS, r"refused", r"exited")),
    "denied": Fact(
        "the server refuses this account (403)",
        (r"\b403\b", r"forbidden", r"denied", r"not allowed", r"may not", r"permission", r"not authori[sz]ed"),
        (*_SESSION, *_ARGUMENTS, r"timed out", r"connection refused", r"starting up", r"\bis down\b"),
    ),
    "expired": Fact(
        "the server says that the token expired (401)",
        (r"\b401\b", r"unauthori[sz]ed", r"expired", r"authenticat", r"log ?in", r"token", r"credential"),
        (*_SESSION, *_ARGUMENTS, r"timed out", r"connection refused", r"starting up", r"\bis down\b"),
    ),
    "hostile": Fact(
        "the server breaks the protocol",
        (r"invalid|malformed|not (valid )?json|parse|decod", r"protocol", r"not speak MCP", r"unexpected",
         r"pages|cursor", r"too (many|large|much)", r"exceed|limit|flood", *_TIME, *_GONE),
        (*_AUTH, *_SESSION),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Told:
    """All texts of one fault, judged."""

    fact: str
    counts: Mapping[str, int]
    samples: Mapping[str, str]
    """For each verdict, the first text that had it."""

    @property
    def verdict(self) -> Verdict:
        """``false`` if any text was; else ``true`` if at least half of them were; else ``vague``."""
        if not set(self.counts) - {"nothing"}:
            return "nothing"
        if self.counts.get("false"):
            return "false"
        return "true" if 2 * self.counts.get("true", 0) >= sum(self.counts.values()) else "vague"

    def as_json(self) -> dict[str, Any]:
        """For the raw results."""
        return {
            "fact": self.fact,
            "verdict": self.verdict,
            "counts": dict(self.counts),
            "samples": dict(self.samples),
        }


def judge(text: str, fact: str, *, listed: bool = True) -> Verdict:
    """Judge one text. ``listed``: the hub had listed the tools of this server before."""
    if not text.strip():
        return "nothing"
    rules = FACTS[fact]
    if _any(rules.false, text) or (listed and _any(UNKNOWN, text)):
        return "false"
    return "true" if _any(rules.true, text) else "vague"


def told(texts: Iterable[str], fact: str, *, listed: bool = True) -> Told:
    """Judge all texts of a fault."""
    counts: Counter[str] = Counter()
    samples: dict[str, str] = {}
    for text in texts:
        verdict = judge(text, fact, listed=listed)
        counts[verdict] += 1
        samples.setdefault(verdict, text)
    return Told(fact, counts, samples)


def _any(patterns: tuple[str, ...], text: str) -> bool:
    return any(re.search(pattern, text, re.IGNORECASE | re.DOTALL) for pattern in patterns)
