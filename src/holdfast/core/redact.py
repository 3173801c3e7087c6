"""Keeps secrets, and control characters of foreign text, out of everything that is shown (MSG-6).

A ``Redactor`` knows the exact secrets of one server and replaces them wherever they occur. It also
knows the shapes of credentials, so that an unknown one (in a server's stderr, for example) is masked too.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterable
from dataclasses import fields, replace
from typing import Any
from urllib.parse import quote, quote_plus

from holdfast.core.evidence import Evidence, HttpStatus

__all__ = ["MASK", "Redactor", "mask_url", "masked", "plain"]

MASK = "***"

SHORTEST_SECRET = 4
"""Shorter values (``1``, ``on``) are not secrets. To mask them would make every text unreadable."""

LEARNED = 64
"""How many learned secrets are kept: tokens are renewed for as long as a hub runs."""

_NOT_SECRET = frozenset({"true", "false", "none", "null", "debug", "info", "warn", "warning", "error"})

_TELLING = re.compile(
    r"(?i)token|secret|passw(?:or)?d|passphrase|api[_-]?key|access[_-]?key|private[_-]?key|auth(?!or(?!i[sz]))|credential"
    r"|signature|session|cookie|\A(?:key|sig|pwd|jwt)\Z"
)
"""The names of credentials."""

_TELLING_IN_QUERY = frozenset({"code"})
"""Names of credentials in a URL only: an exit code is not a secret."""

# Each pattern starts at a word and never backtracks: the time to mask a hostile text stays
# proportional to its length.
_USER_INFO = re.compile(r"(?<=://)[^/?#\s'\"]+(?=@)")
_ASSIGNED = re.compile(r"(?<![\w.-])(?P<name>[\w.-]++)(?P<sign>\\*+[\"']?+\s*+[:=]\s*+)")
_QUOTED = re.compile(r"(\")(?:\\.|[^\"\\\r\n])++|(')(?:\\.|[^'\\\r\n])++|(\\++[\"'])[^\"'\\\r\n]++")
_BARE = re.compile(r"()[^\s\"'&=][^\s\"'&]*+")
_SHAPES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"(?i)\b(bearer)\s++[A-Za-z0-9._~+/=-]{6,}+"), rf"\1 {MASK}"),
    # Ordinary words follow these three too ("negotiate versions"): only a text that is no word is a credential.
    (
        re.compile(r"\b((?i:basic|digest|negotiate))\s++(?=[a-z]*+[A-Z0-9+/=])[A-Za-z0-9._~+/=-]{6,}+"),
        rf"\1 {MASK}",
    ),
    (
        re.compile(r"(?i)\b((?:proxy-)?authorization|(?:set-)?cookie|x-api-key)(\s*+[:=]\s*+)[^\r\n]++"),
        rf"\1\2{MASK}",
    ),
    (re.compile(r"(?<![\w-])eyJ[A-Za-z0-9_-]{8,}+\.[A-Za-z0-9_-]{4,}+\.[A-Za-z0-9_-]*+"), MASK),
    (re.compile(r"\b(?:sk|pk|rk)[-_][A-Za-z0-9_-]{16,}+"), MASK),
    (re.compile(r"\b(?:gh[opsur]_|github_pat_|glpat-|xox[abeoprs]-)[A-Za-z0-9_-]{10,}+"), MASK),
    # These two begin names of variables too (`npm_config_cache`): a credential has no second underscore.
    (re.compile(r"\b(?:npm_|hf_)[A-Za-z0-9]{20,}+"), MASK),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"), MASK),
)

_CONTROL = re.compile(
    r"\x1b\[[0-?]*+[ -/]*+[@-~]|\x1b\][^\x07\x1b]*+(?:\x07|\x1b\\)|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
    r"|[\u202a-\u202e\u2066-\u2069]"
)
"""Terminal sequences, control characters, and characters that change the writing direction."""


class Redactor:
    """Masks known secrets, and texts that have the shape of one."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._given = tuple(secrets)
        self._learned: deque[str] = deque(maxlen=LEARNED)
        self._known = _pattern(self._given)

    def learn(self, *values: str) -> None:
        """Add secrets found at run time, such as a renewed token. The latest are kept."""
        fresh = [value for value in values if value not in self._given and value not in self._learned]
        if fresh:
            self._learned.extend(fresh)
            self._known = _pattern((*self._given, *self._learned))

    def mask(self, text: str) -> str:
        """``text`` with every secret replaced, and without control characters."""
        text = plain(text)
        if self._known is not None:
            text = self._known.sub(MASK, text)
        text = _hide_named(_USER_INFO.sub(MASK, text))
        for shape, replacement in _SHAPES:
            text = shape.sub(replacement, text)
        return text

    def __repr__(self) -> str:
        return f"<Redactor of {len(self._given) + len(self._learned)} values>"


def masked(evidence: Evidence, redactor: Redactor) -> Evidence:
    """The same evidence with each of its texts masked.

    The body of an HTTP error stays: it decides the verdict, and was masked where it was read.
    """
    judged_by = {"body"} if isinstance(evidence, HttpStatus) else set()
    texts: dict[str, Any] = {
        field.name: redactor.mask(text)
        for field in fields(evidence)
        if field.name not in judged_by and isinstance(text := getattr(evidence, field.name), str)
    }
    return replace(evidence, **texts)


def plain(text: str) -> str:
    """``text`` without terminal escapes and control characters; line ends and tabs stay."""
    return _CONTROL.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))


def mask_url(url: str) -> str:
    """A URL without user info and secret query values."""
    return plain(_hide_named(_USER_INFO.sub(MASK, url)))


def _hide_named(text: str) -> str:
    """``text`` with masked values after a credential's name: ``token=…``, ``"secret": "…"``."""
    shown: list[str] = []
    at = 0
    for found in _ASSIGNED.finditer(text):
        if found.start() >= at and _is_telling(found) and (value := _value_after(found)):
            shown += text[at : found.end()], value[value.lastindex or 0], MASK
            at = value.end()
    return "".join(shown) + text[at:]


def _is_telling(found: re.Match[str]) -> bool:
    name = found["name"]
    in_query = found.start() > 0 and found.string[found.start() - 1] in "?&;"
    return bool(_TELLING.search(name)) or (in_query and name.lower() in _TELLING_IN_QUERY)


def _value_after(found: re.Match[str]) -> re.Match[str] | None:
    """A quoted value, or one that follows a bare ``=``; its only group is the opening quote."""
    quoted = _QUOTED.match(found.string, found.end())
    return quoted or (_BARE.match(found.string, found.end()) if found["sign"].strip(" \t") == "=" else None)


def _pattern(secrets: Iterable[str]) -> re.Pattern[str] | None:
    """Finds every secret, also as it is written in a URL or a JSON text; the longest first."""
    spellings = {spelling for secret in secrets for spelling in _spellings(secret)}
    return re.compile("|".join(map(re.escape, sorted(spellings, key=len, reverse=True)))) if spellings else None


def _spellings(value: str) -> Iterable[str]:
    """A secret and its parts (``Bearer abc`` holds ``abc``), each in all of its encodings."""
    for part in {value, value.strip(), *value.split()}:
        if len(part) >= SHORTEST_SECRET and part.lower() not in _NOT_SECRET:
            encoded = {quote(part), quote(part, safe=""), quote_plus(part)}
            lower = {re.sub("%[0-9A-F]{2}", lambda code: code[0].lower(), spelling) for spelling in encoded}
            written = {part, plain(part), json.dumps(part)[1:-1], json.dumps(part, ensure_ascii=False)[1:-1]}
            yield from (spelling for spelling in encoded | lower | written if len(spelling) >= SHORTEST_SECRET)
