"""``${env:X}``, ``${X}`` and ``${X:-default}`` in the texts of a configuration.

Everything missing is reported, never only the first. What the environment brought in is
remembered as a secret; what the file itself says as a default is not. ``$${`` is a literal ``${``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from holdfast.config.places import KeyPath, quoted

__all__ = ["Expansion", "Fault", "Variables", "expand", "variables_for"]

_T = TypeVar("_T")

_REFERENCE = re.compile(r"\$\$\{|\$\{([^}]*)(\}?)")
_VARIABLE = re.compile(r"(env:)?([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", re.DOTALL)
_KIND = re.compile(r"(input|command|config):(.*)", re.DOTALL)

NOT_SECRET = frozenset(
    {"HOME", "LANG", "LOGNAME", "PATH", "PWD", "SHELL", "TERM", "TMPDIR", "TZ", "USER", "XDG_CONFIG_HOME"}
)
"""Variables that say where and who one is: masking them would blot out every path in every message."""


@dataclass(frozen=True, kw_only=True)
class Variables:
    """What ``${…}`` may refer to: the environment, and names that editors define."""

    environ: Mapping[str, str]
    known: Mapping[str, str]


@dataclass(frozen=True)
class Fault:
    """A reference that could not be resolved, at the path of the text that holds it."""

    path: KeyPath
    message: str
    hint: str
    variable: str = ""
    """The environment variable that is missing, where that is the fault."""


@dataclass
class Expansion:
    """What was found on the way through a tree of values."""

    faults: list[Fault] = field(default_factory=list)
    secrets: set[str] = field(default_factory=set)
    names: dict[KeyPath, tuple[str, ...]] = field(default_factory=dict)
    """The environment variables that each text took its value from."""

    def broken(self, path: KeyPath) -> bool:
        """Whether the value at ``path``, or what holds it, or something in it could not be expanded."""
        return any(fault.path[: len(path)] == path or path[: len(fault.path)] == fault.path for fault in self.faults)

    def sources(self, path: KeyPath) -> tuple[str, ...]:
        """The environment variables that the value at ``path`` was made of."""
        below = (names for at, names in self.names.items() if at[: len(path)] == path)
        return tuple(dict.fromkeys(name for names in below for name in names))


def variables_for(folder: Path | None, environ: Mapping[str, str]) -> Variables:
    """The environment, and the names of VS Code and Cursor that mean something outside an editor."""
    home = environ.get("HOME") or os.path.expanduser("~")  # noqa: PTH111 - Path.home() raises where there is none
    known = {"userHome": home, "pathSeparator": os.sep, "/": os.sep}
    if folder is not None:
        known |= {"workspaceFolder": str(folder), "workspaceFolderBasename": folder.name}
    return Variables(environ=environ, known=known)


def expand(value: _T, path: KeyPath, variables: Variables, found: Expansion) -> _T:
    """``value`` with every text in it expanded; what is amiss, and what came in, goes to ``found``."""
    result: object = value
    if isinstance(value, str):
        result = _Text(path, variables, found).expand(value)
    elif isinstance(value, dict):
        result = {key: expand(item, (*path, key), variables, found) for key, item in value.items()}
    elif isinstance(value, list):
        result = [expand(item, (*path, index), variables, found) for index, item in enumerate(value)]
    return result  # type: ignore[return-value]  # the shape is kept: a text for a text, a list for a list


class _Text:
    """One text being expanded."""

    def __init__(self, path: KeyPath, variables: Variables, found: Expansion) -> None:
        self._path = path
        self._variables = variables
        self._found = found

    def expand(self, text: str) -> str:
        return _REFERENCE.sub(self._resolve, text)

    def _resolve(self, reference: re.Match[str]) -> str:
        if reference.group(1) is None:
            return "${"
        if not reference.group(2):
            return self._fault(
                reference, "has a `${` that is not closed", "write } after the name, or $${ for a literal ${"
            )
        body = reference.group(1)
        if body in self._variables.known:
            return self._variables.known[body]
        if kind := _KIND.fullmatch(body):
            return self._unsupported(reference, kind.group(1))
        variable = _VARIABLE.fullmatch(body)
        if variable is None:
            hint = "write ${NAME}, ${env:NAME} or ${NAME:-default}; $${ stands for a literal ${"
            return self._fault(reference, "has a `${…}` that names no variable", hint)
        return self._lookup(reference, variable.group(2), variable.group(3))

    def _lookup(self, reference: re.Match[str], name: str, default: str | None) -> str:
        value = self._variables.environ.get(name)
        if default is not None and not value:
            return default
        if value is None:
            hint = f"set it (export {name}=…), or give a default: ${{{name}:-…}}"
            message = f"needs the environment variable {quoted(name)}, which is not set"
            return self._fault(reference, message, hint, variable=name)
        self._found.names[self._path] = (*self._found.names.get(self._path, ()), name)
        if value and name not in NOT_SECRET:
            self._found.secrets.add(value)
        return value

    def _unsupported(self, reference: re.Match[str], kind: str) -> str:
        hint = "use ${env:NAME} and set that environment variable"
        return self._fault(reference, f"uses `${{{kind}:…}}`, which only an editor can resolve", hint)

    def _fault(self, reference: re.Match[str], message: str, hint: str, *, variable: str = "") -> str:
        fault = Fault(self._path, message, hint, variable)
        if fault not in self._found.faults:
            self._found.faults.append(fault)
        return reference.group()
