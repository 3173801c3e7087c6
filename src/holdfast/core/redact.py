"""Keep secrets, and a stranger's control characters, out of everything that is shown (MSG-6).

A ``Redactor`` knows the exact secrets of one server and replaces them wherever they turn up;
beside that it knows the shapes that credentials have, so that one which nobody told it of
(in a server's stderr, say) is masked too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from urllib.parse import quote, quote_plus

__all__ = ["MASK", "Redactor", "mask_url", "plain"]

MASK = "***"

SHORTEST_SECRET = 4
"""Shorter values (``1``, ``on``) are no secrets, and masking them would make every text unreadable."""

_NOT_SECRET = frozenset({"true", "false", "none", "null", "debug", "info", "warn", "warning", "error"})

_TELLING = re.compile(
    r"(?i)token|secret|passw(?:or)?d|passphrase|api[_-]?key|access[_-]?key|auth|credential|signature|session|cookie"
    r"|\A(?:key|sig|code|pwd|jwt)\Z"
)
"""The names that credentials go by."""

_NAME = r"(?<![\w.-])(?P<name>[\w.-]++)"
_QUOTED = r"(?:\"(?:\\.|[^\"\\\r\n])*+|'(?:\\.|[^'\\\r\n])*+|\\+[\"'][^\"'\\\r\n]*+)"

# Every pattern below begins where a word does and never gives back what it took: whatever a hostile
# server writes, masking it takes time in proportion to its length.
_USER_INFO = re.compile(r"(?<=://)[^/?#\s'\"]+(?=@)")
_IN_QUERY = re.compile(rf"(?<=[?&;]){_NAME}(?P<between>=)(?P<value>[^&#\s'\"]++)")
_NAMED = re.compile(
    rf"(?<![?&;]){_NAME}(?:(?P<between>\\*+[\"']?+\s*+[:=]\s*+)(?P<quoted>{_QUOTED})|(?P<equals>=)(?P<value>[^\s\"'&]++))"
)
_SHAPES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"(?i)\b(bearer)\s++[A-Za-z0-9._~+/=-]{6,}+"), rf"\1 {MASK}"),
    # Ordinary words follow these three too ("negotiate versions"): only what is no word is taken for a credential.
    (
        re.compile(r"\b((?i:basic|digest|negotiate))\s++(?=[a-z]*+[^a-z\s])[A-Za-z0-9._~+/=-]{6,}+"),
        rf"\1 {MASK}",
    ),
    (
        re.compile(r"(?i)\b((?:proxy-)?authorization|(?:set-)?cookie|x-api-key)(\s*+[:=]\s*+)[^\r\n]++"),
        rf"\1\2{MASK}",
    ),
    (re.compile(r"(?<![\w-])eyJ[A-Za-z0-9_-]{8,}+\.[A-Za-z0-9_-]{4,}+\.[A-Za-z0-9_-]*+"), MASK),
    (re.compile(r"\b(?:sk|pk|rk)[-_][A-Za-z0-9_-]{16,}+"), MASK),
    (re.compile(r"\b(?:gh[opsur]_|github_pat_|glpat-|xox[abeoprs]-|npm_|hf_)[A-Za-z0-9_-]{10,}+"), MASK),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"), MASK),
)

_CONTROL = re.compile(
    r"\x1b\[[0-?]*+[ -/]*+[@-~]|\x1b\][^\x07\x1b]*+(?:\x07|\x1b\\)|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
    r"|[\u202a-\u202e\u2066-\u2069]"
)
"""Terminal sequences, control characters, and those that turn the direction of writing."""


class Redactor:
    """Masks the secrets it was given, and whatever has the shape of one."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets: set[str] = set()
        self._known: re.Pattern[str] | None = None
        self.learn(*secrets)

    def learn(self, *values: str) -> None:
        """Take more secrets, each also in the spellings that it has inside a URL or a JSON text."""
        fresh = {spelling for value in values for spelling in _spellings(value)} - self._secrets
        if fresh:
            self._secrets |= fresh
            longest_first = sorted(self._secrets, key=len, reverse=True)
            self._known = re.compile("|".join(map(re.escape, longest_first)))

    def mask(self, text: str) -> str:
        """``text`` with every secret replaced, and without control characters."""
        text = plain(text)
        if self._known is not None:
            text = self._known.sub(MASK, text)
        for shape, replacement in _SHAPES:
            text = shape.sub(replacement, text)
        return text

    def __repr__(self) -> str:
        return f"<Redactor of {len(self._secrets)} spellings>"


def plain(text: str) -> str:
    """``text`` without terminal escapes and control characters; line ends and tabs stay."""
    return _CONTROL.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))


def mask_url(url: str) -> str:
    """A URL fit to be shown: no user info, no secret query values."""
    for shape, replacement in _SHAPES[:2]:
        url = shape.sub(replacement, url)
    return plain(url)


def _spellings(value: str) -> Iterable[str]:
    """A secret, its parts (``Bearer abc`` hides ``abc``), and how each is written elsewhere."""
    for part in {value, value.strip(), *value.split()}:
        if len(part) >= SHORTEST_SECRET and part.lower() not in _NOT_SECRET:
            yield from {part, quote(part, safe=""), quote_plus(part), json.dumps(part)[1:-1]}
