"""Which texts of a definition are secrets: no output, log or error may show them.

Every value of a variable and of a header is one, and everything that came from ``${…}``. In a URL and in arguments the
names of fields and options tell, and where no name does, the shape of the text (``core.has_secret_shape``). Masking too
much makes an error useless, so a text of several words counts word by word.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from urllib.parse import parse_qsl, unquote, urlsplit

from holdfast.core import has_secret_shape, secrets_in_url

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


_PLAIN = frozenset({"HOME", "LANG", "LC_ALL", "LC_CTYPE", "PATH", "SHELL", "TERM", "TMPDIR", "TZ"})


def gather_secrets(
    *,
    env: Mapping[str, str],
    headers: Mapping[str, str],
    url: str,
    args: Sequence[str],
    expanded: Iterable[str],
) -> frozenset[str]:
    """Every env and header value, every value from ``${…}``, and every text that looks like a credential.

    A value of HOME and its like is none: masked, it would hide every path below it.
    """
    given = (value for name, value in env.items() if name not in _PLAIN)
    found = {*given, *headers.values(), *expanded, *_in_url(url), *_in_args(args)}
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
    yield from secrets_in_url(url)


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
        yield from _by_shape(arg, named.group(2) if named else "")


def _by_shape(arg: str, value: str) -> Iterator[str]:
    """The secret in an argument that no name announces: the argument, its value, or what follows ``-k``.

    An argument with blanks is a text or a script (``sh -c``): each of its words counts by itself, else every reason
    that shares a word with it would be masked.
    """
    words = arg.split()
    if len(words) > 1:
        yield from (word for word in words if has_secret_shape(word, uuid=True))
    elif "://" in arg:
        yield from secrets_in_url(arg)
    elif has_secret_shape(value or arg.lstrip("-"), uuid=True):
        yield value or arg
        if arg.startswith("-") and not value:
            yield arg[2:]
