"""``${env:X}``, ``${X}`` and ``${X:-default}`` in the texts of a configuration.

All missing variables are reported, not only the first. A value from the environment is
recorded as a secret; a default from the file is not. ``$${`` is a literal ``${``.

``read_env_file`` reads a file of variables, as ``envFile`` names one: lines of ``NAME=value``, quoted or not, with
comments.

A line that does not define a variable is a problem with its position. A problem never quotes the line: it may hold a
secret.

``gather_secrets`` finds the texts of a definition that no output, log or error may show. Every value of a variable and
of a header is one, and everything that came from ``${…}``. In a URL and in arguments the names of fields and options
tell, and where no name does, the shape of the text (``core.has_secret_shape``). Masking too much makes an error
useless, so a text of several words counts word by word.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

from holdfast.config.jsonc import Document, KeyPath, joined, quoted
from holdfast.core import has_secret_shape, secrets_in_url
from holdfast.errors import Problem

__all__ = [
    "EnvFile",
    "Expansion",
    "gather_secrets",
    "looks_secret",
    "names_of_editors",
    "read_env_file",
    "texts_in",
]

_T = TypeVar("_T")

_REFERENCE = re.compile(r"\$\$\{|\$\{([^}]*)(\}?)")
_VARIABLE = re.compile(r"(env:)?([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", re.DOTALL)
_KIND = re.compile(r"(input|command|config):(.*)", re.DOTALL)

NOT_SECRET = frozenset(
    [
        *("HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "PATH", "PWD"),
        *("SHELL", "TERM", "TMPDIR", "TZ", "USER", "XDG_CONFIG_HOME"),
    ]
)
"""Variables that hold paths and user names. Masking their values would hide every path in every message."""


@dataclass
class Expansion:
    """Resolves ``${…}`` in the texts of one value of the file, and keeps what it found there."""

    top: KeyPath = ()
    """Where the value is in the document."""
    document: Document = field(default_factory=Document, repr=False)
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    known: Mapping[str, str] = field(default_factory=dict)
    """What the names stand for that editors define."""
    problems: list[Problem] = field(default_factory=list)
    """The references that cannot be resolved."""
    secrets: set[str] = field(default_factory=set, repr=False)
    names: dict[KeyPath, tuple[str, ...]] = field(default_factory=dict)
    """The environment variables that each text uses."""

    def expand(self, value: _T, *inside: str | int) -> _T:
        """``value``, which stands ``inside`` the whole, with every text in it expanded."""
        result: object = value
        if isinstance(value, str):
            result = _REFERENCE.sub(partial(self._resolved, inside), value)
        elif isinstance(value, dict):
            result = {key: self.expand(item, *inside, key) for key, item in value.items()}
        elif isinstance(value, list):
            result = [self.expand(item, *inside, index) for index, item in enumerate(value)]
        return result  # type: ignore[return-value]  # the shape is kept: a text for a text, a list for a list

    def broken(self, path: KeyPath) -> bool:
        """Whether the value at ``path``, one that contains it, or one inside it failed to expand."""
        failed = (problem.keys for problem in self.problems)
        return any(at[: len(path)] == path or path[: len(at)] == at for at in failed)

    def sources(self, path: KeyPath) -> tuple[str, ...]:
        """The environment variables that the value at ``path`` uses."""
        below = (names for at, names in self.names.items() if at[: len(path)] == path)
        return tuple(dict.fromkeys(name for names in below for name in names))

    def _resolved(self, inside: KeyPath, reference: re.Match[str]) -> str:
        body, closed = reference.groups()
        if body is None:
            return "${"
        if body in self.known and closed:
            return self.known[body]
        kind, variable = _KIND.fullmatch(body), _VARIABLE.fullmatch(body)
        if not closed:
            message, hint = "has a `${` that is not closed", "write } after the name, or $${ for a literal ${"
        elif kind is not None:
            message = f"uses `${{{kind[1]}:…}}`, which only an editor can resolve"
            hint = "use ${env:NAME} and set that environment variable"
        elif variable is None:
            message = "has a `${…}` without a valid variable name"
            hint = "write ${NAME}, ${env:NAME} or ${NAME:-default}; $${ stands for a literal ${"
        else:
            return self._looked_up(inside, reference, variable[2], variable[3])
        return self._left(inside, reference, message, hint)

    def _looked_up(self, inside: KeyPath, reference: re.Match[str], name: str, default: str | None) -> str:
        value = self.environ.get(name)
        if default is not None and not value:
            return default
        if value is None:
            hint = f"set it (export {name}=…), or give a default: ${{{name}:-…}}"
            message = f"needs the environment variable {quoted(name)}, which is not set"
            return self._left(inside, reference, message, hint, variable=name)
        path = (*self.top, *inside)
        self.names[path] = (*self.names.get(path, ()), name)
        if value and name not in NOT_SECRET:
            self.secrets.add(value)
        return value

    def _left(self, inside: KeyPath, reference: re.Match[str], message: str, hint: str, *, variable: str = "") -> str:
        """The reference as it is written, and one problem for it, however often the text has it."""
        problem = self.document.problem((*self.top, *inside), f"{quoted(joined(inside))} {message}", hint=hint)
        problem = replace(problem, variable=variable)
        if problem not in self.problems:
            self.problems.append(problem)
        return reference.group()


def names_of_editors(folder: Path | None, environ: Mapping[str, str]) -> Mapping[str, str]:
    """The names of VS Code and Cursor that have a meaning outside an editor, and what they stand for."""
    home = environ.get("HOME") or os.path.expanduser("~")  # noqa: PTH111 - Path.home() raises where there is none
    known = {"userHome": home, "pathSeparator": os.sep, "/": os.sep}
    if folder is not None:
        known |= {"workspaceFolder": str(folder), "workspaceFolderBasename": folder.name}
    return known


def texts_in(value: object) -> Iterator[str]:
    """Every text in a value, at any depth; keys are none."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from texts_in(item)


LARGEST = 1 << 20
"""Bytes; a file of variables is smaller."""

_LINE = re.compile(r"\s*(?:export\s+)?([A-Za-z_][\w.-]*)\s*=\s*(.*?)\s*", re.ASCII)
_QUOTED = re.compile(r"""(["'])(.*?)(?<!\\)\1\s*(?:#.*)?""")
_COMMENT = re.compile(r"\s+#.*$")
_ESCAPE = re.compile(r"\\(.)")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}


@dataclass(frozen=True, kw_only=True)
class EnvFile:
    """The variables of a file, and the lines that cannot be read."""

    path: Path
    values: Mapping[str, str]
    problems: tuple[Problem, ...]


def read_env_file(path: Path) -> EnvFile:
    """Read ``path``; raises ``OSError``, or ``ValueError`` if it is not UTF-8 or too large."""
    with path.open("rb") as file:
        data = file.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise ValueError(f"it is larger than {LARGEST >> 20} MiB")
    values: dict[str, str] = {}
    problems: list[Problem] = []
    for number, line in enumerate(data.decode("utf-8-sig").splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        value = _value(match.group(2)) if match else None
        if match is None or value is None or "\0" in value:
            hint = 'write NAME=value or NAME="value" on one line, or start it with # to make it a comment'
            message = "this line does not define a variable"
            problems.append(Problem(message=message, hint=hint, file=path, line=number, column=1))
        else:
            values[match.group(1)] = value
    return EnvFile(path=path, values=values, problems=tuple(problems))


def _value(written: str) -> str | None:
    if not written.startswith(("'", '"')):
        return _COMMENT.sub("", written)
    match = _QUOTED.fullmatch(written)
    if match is None:
        return None
    if match.group(1) == "'":
        return match.group(2)
    return _ESCAPE.sub(lambda escape: _ESCAPES.get(escape.group(1), escape.group(1)), match.group(2))


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
    """Every env and header value, every value from ``${…}``, and every text that looks like a credential.

    A value of HOME and its like is none: masked, it would hide every path below it.
    """
    given = (value for name, value in env.items() if name not in NOT_SECRET)
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
