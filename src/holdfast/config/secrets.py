"""Collects the strings of a server's definition that no output may show.

Masking is done elsewhere. This module prefers too many strings: a value that is masked without
need is an inconvenience, a value that is not masked is a leaked credential.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from urllib.parse import parse_qsl, unquote, urlsplit

__all__ = ["gather_secrets", "looks_secret"]

_SECRET_NAME = re.compile(
    r"token|secret|passw|pwd|passphrase|api[-_.]?key|access[-_.]?key|private[-_.]?key|auth(?!ors?(?![a-z]))|credential"
    r"|signature|cookie|jwt|^key$|^sig$|^pass$",
    re.IGNORECASE,
)
_NAMES_A_PLACE = re.compile(r"(?:file|path|dir|url|uri|mode|type)$", re.IGNORECASE)
_OPTION = re.compile(r"--?([\w.-]+?)(?:=(.*))?", re.DOTALL)
_ASSIGNMENT = re.compile(r"([A-Za-z_][\w.-]*)\s*[=:]\s*(.+)", re.DOTALL)
_USER_INFO = re.compile(r"://([^/\s@]+)@")


def gather_secrets(
    *,
    env: Mapping[str, str],
    headers: Mapping[str, str],
    url: str,
    args: Sequence[str],
    expanded: Iterable[str],
) -> frozenset[str]:
    """Every env and header value, every value from ``${…}``, and every text that looks like a credential."""
    found = {*env.values(), *headers.values(), *expanded, *_in_url(url), *_in_args(args)}
    return frozenset(secret for secret in found if secret.strip())


def looks_secret(name: str) -> bool:
    """Whether a name (of an option, a query field, a header) is usual for credentials."""
    return bool(_SECRET_NAME.search(name)) and not _NAMES_A_PLACE.search(name)


def _in_url(url: str) -> Iterator[str]:
    if not url:
        return
    parts = urlsplit(url)
    for part in (parts.username, parts.password):
        if part:
            yield from (part, unquote(part))
    yield from (value for name, value in parse_qsl(parts.query) if looks_secret(name))


def _in_args(args: Sequence[str]) -> Iterator[str]:
    expected = False
    for arg in args:
        if expected and not arg.startswith("-"):
            yield arg
        option = _OPTION.fullmatch(arg)
        expected = bool(option and option.group(2) is None and looks_secret(option.group(1)))
        named = option if option and option.group(2) else _ASSIGNMENT.fullmatch(arg)
        if named and looks_secret(named.group(1)):
            yield named.group(2)
        for user_info in _USER_INFO.findall(arg):
            yield from (user_info, *user_info.split(":", 1))
