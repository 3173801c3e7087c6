"""Translates a client's entry for a server into Holdfast's keys.

The result names the keys that have no meaning here, and the variables that the user must still set.
No value is quoted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from holdfast.config.clients.known import KnownClient
from holdfast.config.definition import ReadContext, keys_of, read_definition
from holdfast.config.fields import InvalidValue, format_duration, parse_duration, read_bare_timeout
from holdfast.config.file_models import ServerFile
from holdfast.config.jsonc import SourceMap
from holdfast.config.secret_texts import gather_secrets
from holdfast.errors import Problem

__all__ = ["ClientEntry", "entry_secrets", "read_entry"]

_OURS = frozenset(keys_of(ServerFile))
_REFERENCE = re.compile(r"(?<!\$)\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)\}")
_DOLLAR = re.compile(r"(?<![\w$\\])\$([A-Za-z_][A-Za-z0-9_]*)")
_INPUT = re.compile(r"\$\{input:([^}]*)\}")
_WORKSPACE = re.compile(r"(?<!\$)\$\{workspaceFolder(Basename)?\}")
_EDITORS_OWN = frozenset({"userHome", "pathSeparator", "workspaceFolder", "workspaceFolderBasename"})


@dataclass(frozen=True, kw_only=True)
class ClientEntry:
    """One server of a client, in Holdfast's keys."""

    name: str
    definition: Mapping[str, Any] = field(repr=False)
    dropped: tuple[str, ...] = ()
    """Keys without a meaning here, such as the client's own approvals."""
    needs: tuple[str, ...] = ()
    """Environment variables that the hub needs and that are not set here."""
    problems: tuple[Problem, ...] = ()
    """Why the entry cannot be used."""
    secrets: frozenset[str] = field(default=frozenset(), repr=False)


def read_entry(
    client: KnownClient, name: str, raw: object, *, environ: Mapping[str, str], project: Path | None
) -> ClientEntry:
    """Translate an entry of ``client``; ``project`` is the folder that relative paths start from, or None."""
    if not isinstance(raw, dict):
        return ClientEntry(name=name, definition={}, problems=(Problem(message="the entry is not an object"),))
    given = _with_durations(client, _TRANSLATIONS.get(client.id, _as_it_is)(_texts(raw, _Texts.of(client))))
    if project is not None:
        given = _texts(given, lambda text: _in_workspace(text, project))
    definition = {key: value for key, value in given.items() if key in _OURS and value is not None}
    if project is not None and "command" in definition:
        definition.setdefault("cwd", str(project))
    return ClientEntry(
        name=name,
        definition=definition,
        dropped=tuple(key for key in given if key not in _OURS),
        needs=tuple(dict.fromkeys(variable for variable in _variables(definition) if variable not in environ)),
        problems=(*_problems(name, definition, environ), *_unknown_workspace(definition)),
        secrets=entry_secrets(definition),
    )


# References in texts


class _Texts:
    """Translates a client's references (``$NAME``, ``${input:…}``) into Holdfast's."""

    @staticmethod
    def of(client: KnownClient) -> Callable[[str], str]:
        if not client.expands:
            return _Texts.plain
        return {"gemini": _Texts.shell, "vscode": _Texts.inputs}.get(client.id, str)

    @staticmethod
    def plain(text: str) -> str:
        return text.replace("${", "$${")

    @staticmethod
    def shell(text: str) -> str:
        return _DOLLAR.sub(r"${env:\1}", text)

    @staticmethod
    def inputs(text: str) -> str:
        """VS Code asks its user for an input. The hub cannot ask, so it uses a variable of that name."""
        return _INPUT.sub(lambda found: f"${{env:{_variable_name(found.group(1))}}}", text)


def _in_workspace(text: str, project: Path) -> str:
    """The folder of the project instead of the editor's name for it: the hub serves many folders."""
    return _WORKSPACE.sub(lambda found: project.name if found.group(1) else str(project), text)


def _unknown_workspace(definition: Mapping[str, Any]) -> Iterator[Problem]:
    """A file of the user belongs to no project: the editor puts in the folder that is open, the hub has none."""
    if _texts(dict(definition), lambda text: _WORKSPACE.sub("", text)) != definition:
        yield Problem(
            message="it uses `${workspaceFolder}`, the folder that is open in the editor; the hub has no such folder",
            hint="write the path of the folder instead, or define the server in the project and import with --project",
        )


def _variable_name(text: str) -> str:
    name = re.sub(r"[^A-Za-z0-9]+", "_", text).strip("_").upper()
    return f"_{name}" if name[:1].isdigit() or not name else name


def _texts(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {key: _texts(item, change) for key, item in value.items()}
    if isinstance(value, list):
        return [_texts(item, change) for item in value]
    return value


# Keys of each client


def _as_it_is(given: dict[str, Any]) -> dict[str, Any]:
    return given


def _gemini(given: dict[str, Any]) -> dict[str, Any]:
    """Gemini reads ``url`` as SSE unless ``type`` says otherwise, and ``httpUrl`` as streamable HTTP."""
    if "url" in given and "httpUrl" not in given and "type" not in given:
        return {**given, "type": "sse"}
    return given


def _zed(given: dict[str, Any]) -> dict[str, Any]:
    command = given.get("command")
    if isinstance(command, dict):
        return {**given, "command": command.get("path"), "args": command.get("args"), "env": command.get("env")}
    return given


def _codex(given: dict[str, Any]) -> dict[str, Any]:
    taken = dict(given)
    headers = dict(taken.pop("http_headers", None) or {})
    headers |= {key: f"${{env:{name}}}" for key, name in (taken.pop("env_http_headers", None) or {}).items()}
    if token := taken.pop("bearer_token_env_var", None):
        headers["Authorization"] = f"Bearer ${{env:{token}}}"
    env = {name: f"${{env:{name}}}" for name in _names(taken.pop("env_vars", None))} | dict(taken.get("env") or {})
    tools = {
        "includeTools": taken.pop("enabled_tools", None),
        "excludeTools": taken.pop("disabled_tools", None),
    }
    found = {"headers": headers, "env": env, **tools}
    return {**taken, **{key: value for key, value in found.items() if value}}


_DURATIONS: Mapping[str, tuple[str, Literal["s", "ms"] | None]] = {
    "timeout": ("timeout", None),
    "startTimeout": ("startTimeout", None),
    "tool_timeout_sec": ("timeout", "s"),
    "startup_timeout_sec": ("startTimeout", "s"),
    "startup_timeout_ms": ("startTimeout", "ms"),
}
"""The limits that clients write: our key, and the unit where the client's key says it."""


def _with_durations(client: KnownClient, given: dict[str, Any]) -> dict[str, Any]:
    """The same, with each limit as a duration; one that cannot be read keeps its name, and is not copied."""
    taken = {key: value for key, value in given.items() if key not in _DURATIONS}
    for key, (ours, unit) in _DURATIONS.items():
        if key in given:
            written = _duration(given[key], unit or client.timeout_unit)
            taken[ours if written else f"{key} (no duration)"] = written or given[key]
    return taken


def _duration(value: object, unit: Literal["s", "ms"] | None) -> str:
    """A client's limit as Holdfast writes it; empty if it is none. The number itself tells a unit that is not known."""
    bare = read_bare_timeout(value)
    if isinstance(value, str) and _REFERENCE.search(value):
        return value  # it is read where the variable is known
    try:
        if bare is None:
            seconds = parse_duration(value)
        elif unit is None:
            seconds = bare[0]
        else:
            seconds = float(str(value)) / (1_000 if unit == "ms" else 1)
        written = format_duration(seconds)
        return written if parse_duration(written) > 0 else ""
    except (InvalidValue, OverflowError):
        return ""


def _names(variables: object) -> Iterator[str]:
    for variable in variables if isinstance(variables, list) else ():
        yield str(variable["name"] if isinstance(variable, dict) else variable)


_TRANSLATIONS: Mapping[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "codex": _codex,
    "gemini": _gemini,
    "zed": _zed,
}


# Problems, variables and secrets of the result


class _Everything(dict[str, str]):
    """An environment in which every variable is set: problems that remain do not depend on variables."""

    def get(self, key: str, default: Any = None) -> Any:
        return super().get(key, "set")


def _problems(name: str, definition: Mapping[str, Any], environ: Mapping[str, str]) -> tuple[Problem, ...]:
    context = ReadContext(source_map=SourceMap(), environ=_Everything(environ))
    return read_definition(name, dict(definition), (name,), context).server.problems


def _variables(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield from (name for name in _REFERENCE.findall(value) if name not in _EDITORS_OWN)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _variables(item)
    elif isinstance(value, list):
        for item in value:
            yield from _variables(item)


def entry_secrets(definition: Mapping[str, Any]) -> frozenset[str]:
    """The strings that no output may show; a reference to a variable is not a secret."""

    def texts(key: str) -> dict[str, str]:
        found = definition.get(key)
        return {name: str(value) for name, value in found.items()} if isinstance(found, dict) else {}

    args = definition.get("args")
    url = next((str(definition[key]) for key in ("url", "serverUrl", "httpUrl") if key in definition), "")
    found = gather_secrets(
        env=texts("env"),
        headers=texts("headers"),
        url=url,
        args=[str(arg) for arg in args] if isinstance(args, list) else [],
        expanded=(),
    )
    return frozenset(secret for secret in found if not _REFERENCE.fullmatch(secret))
