"""Turns one server's definition into a ``ServerSpec``; one that cannot be used has every problem.

Bad input does not raise here: every fault becomes a problem of this server alone.
A problem names keys and positions and never quotes a value, because any value may be a secret.
"""

from __future__ import annotations

import difflib
import glob
import logging
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import cast
from urllib.parse import parse_qsl, unquote, urlsplit

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from holdfast.config.expand import Expansion, expand, variables_for
from holdfast.config.fields import InvalidValue, kind_of, read_flag, read_transport
from holdfast.config.jsonc import KeyPath, SourceMap, joined, quoted
from holdfast.config.models import SERVER_KEYS, OAuthFile, ServerFile, oauth_settings
from holdfast.config.settings import ApprovalMode
from holdfast.config.spec import (
    EraChoice,
    ServerSpec,
    Sharing,
    ToolFilter,
    Transport,
    is_key_text,
)
from holdfast.config.steering import steers
from holdfast.core import has_secret_shape, secrets_in_url
from holdfast.errors import Problem

__all__ = [
    "Definition",
    "EnvFile",
    "Ignored",
    "ReadContext",
    "gather_secrets",
    "key_hint",
    "keys_of",
    "looks_secret",
    "read_definition",
    "read_env_file",
    "unknown_key",
    "validation_problems",
]

log = logging.getLogger("holdfast.config")

_TYPE_KEYS = ("type", "transport", "transportType")
_URL_KEYS = ("url", "serverUrl", "httpUrl")
_PROCESS_KEYS = ("args", "env", "envFile", "cwd")
_REQUEST_KEYS = ("headers", "allowPlainHttp", "oauth")


@dataclass(frozen=True, kw_only=True)
class ReadContext:
    """What a definition is read with: the environment, the folders, the positions in the file."""

    source_map: SourceMap
    environ: Mapping[str, str]
    expands: bool = True
    """Whether ``${…}`` and ``~`` are expanded: in files they are, in a program's own mapping they are not."""
    folder: Path | None = None
    """The folder that relative paths start from; None leaves them as they are."""
    cwd: Path | None = None
    """The working folder of a server without ``cwd``; None is the folder that Holdfast was started in."""
    foreign: Mapping[str, str] = field(default_factory=lambda: SERVER_KEYS)
    trusted_by_content: bool = False
    """Whether the file is used because its user trusted its content. That says nothing about an ``envFile``."""


@dataclass(frozen=True, kw_only=True)
class Ignored:
    """A key that is accepted and has no effect."""

    path: KeyPath
    why: str


@dataclass(frozen=True, kw_only=True)
class Definition:
    """The result of reading a definition, and how it was read."""

    server: ServerSpec
    path: KeyPath
    given: Mapping[str, object] = field(default_factory=dict, repr=False)
    ignored: tuple[Ignored, ...] = ()
    expansion: Expansion = field(default_factory=Expansion, repr=False)
    env_file: EnvFile | None = field(default=None, repr=False)


def read_definition(
    server_id: str,
    raw: object,
    path: KeyPath,
    context: ReadContext,
    *,
    problems: Iterable[Problem] = (),
) -> Definition:
    """Read the definition at ``path``; ``problems`` are those that the caller already found."""
    return _DefinitionReader(server_id, path, context, problems).read(raw)


class _DefinitionReader:
    """Reads one definition."""

    def __init__(self, server_id: str, path: KeyPath, context: ReadContext, problems: Iterable[Problem]) -> None:
        self._id = server_id
        self._path = path
        self._context = context
        self._problems = list(problems)
        self._ignored: list[Ignored] = []
        self._found = Expansion()
        self._env_file: EnvFile | None = None

    def read(self, raw: object) -> Definition:
        self._check_id()
        if not isinstance(raw, dict):
            self._problem(
                (), f"the server must be an object, not {kind_of(raw)}", 'write {"command": "…"} or {"url": "…"}'
            )
            return self._definition(self._bad({}), {})
        given = self._expand(self._relevant(raw))
        self._check_contradictions(given)
        self._check_command(given)
        self._read_env_file(given)
        model = self._validate(given)
        return self._definition(self._bad(given) if model is None or self._problems else self._spec(model), given)

    def _bad(self, given: Mapping[str, object]) -> ServerSpec:
        in_order = sorted(self._problems, key=lambda problem: (problem.line, problem.column))
        return ServerSpec(
            id=self._id,
            problems=tuple(in_order),
            enabled=_is_enabled(given),
            secrets=frozenset(filter(str.strip, self._found.secrets)),
        )

    def _definition(self, server: ServerSpec, given: Mapping[str, object]) -> Definition:
        return Definition(
            server=server,
            path=self._path,
            given=given,
            ignored=tuple(self._ignored),
            expansion=self._found,
            env_file=self._env_file,
        )

    def _problem(self, inside: KeyPath, message: str, hint: str = "", *, at_key: bool = False) -> None:
        path = (*self._path, *inside)
        self._problems.append(self._context.source_map.problem(path, message, hint=hint, at_key=at_key))

    def _ignore(self, key: str, why: str) -> None:
        self._ignored.append(Ignored(path=(*self._path, key), why=why))

    # The keys as written

    def _check_id(self) -> None:
        if not self._id.strip():
            self._problem((), "the server has no name", "write the name as the key before its definition", at_key=True)
        elif not self._id.isprintable():
            self._problem((), "the server's name contains a control character", "use letters and digits", at_key=True)

    def _relevant(self, raw: dict[str, object]) -> dict[str, object]:
        """The keys that have an effect for this server; null is read as absent."""
        given = {key: value for key, value in raw.items() if value is not None}
        for key in [key for key in given if key in self._context.foreign]:
            self._ignore(key, self._context.foreign[key])
            del given[key]
        for key in self._without_effect(given):
            if given.pop(key):
                self._ignore(key, f"has no effect beside `{'url' if key in _PROCESS_KEYS else 'command'}`")
        return given

    def _without_effect(self, given: Mapping[str, object]) -> list[str]:
        has_url = any(key in given for key in _URL_KEYS)
        if has_url == ("command" in given):
            return []
        return [key for key in (_PROCESS_KEYS if has_url else _REQUEST_KEYS) if key in given]

    def _expand(self, given: dict[str, object]) -> dict[str, object]:
        if not self._context.expands:
            return given
        variables = variables_for(self._context.folder, self._context.environ)
        result = expand(given, self._path, variables, self._found)
        for fault in self._found.faults:
            inside = fault.path[len(self._path) :]
            message = f"{quoted(joined(inside))} {fault.message}"
            problem = self._context.source_map.problem(fault.path, message, hint=fault.hint)
            self._problems.append(replace(problem, variable=fault.variable))
        return result

    def _validate(self, given: dict[str, object]) -> ServerFile | None:
        try:
            return ServerFile.model_validate(given)
        except ValidationError as error:
            source_map = self._context.source_map
            self._problems += validation_problems(error, ServerFile, self._path, source_map, known=self._found)
            return None

    # Contradictions

    def _check_contradictions(self, given: Mapping[str, object]) -> None:
        urls = [key for key in _URL_KEYS if key in given]
        self._check_one_transport(given, urls)
        self._check_agreement(given, _TYPE_KEYS, "the transport is given twice, with different values")
        self._check_agreement(given, _URL_KEYS, "the address is given twice, with different values")
        if "enabled" in given and "disabled" in given and read_flag(given["enabled"]) == read_flag(given["disabled"]):
            self._problem(("disabled",), "`enabled` and `disabled` contradict each other", "keep one", at_key=True)
        tools = given.get("tools")
        if "includeTools" in given and (isinstance(tools, list) or (isinstance(tools, dict) and "include" in tools)):
            hint = "keep `tools.include`"
            self._problem(
                ("includeTools",), "`includeTools` and `tools` both say which tools to show", hint, at_key=True
            )

    def _check_one_transport(self, given: Mapping[str, object], urls: list[str]) -> None:
        declared = next((read_transport(given[key]) for key in _TYPE_KEYS if key in given), None)
        type_key = next((key for key in _TYPE_KEYS if key in given), "type")
        if "command" in given and urls:
            hint = "keep `command` for a program that is started here, the URL for a server that already runs"
            self._problem((urls[0],), f"the server has both `command` and `{urls[0]}`", hint, at_key=True)
        elif "command" not in given and not urls:
            hint = 'give "command" for a program that is started here, or "url" for a server that already runs'
            self._problem((), "the server has neither `command` nor `url`", hint)
        elif declared == "stdio" and urls:
            hint = 'write "type": "http" (or "sse"), or give a "command"'
            self._problem((type_key,), f"the transport is stdio, but there is a `{urls[0]}` and no `command`", hint)
        elif declared in ("http", "sse") and not urls:
            hint = 'write "type": "stdio", or give a "url"'
            self._problem((type_key,), f"the transport is {declared}, but there is a `command` and no `url`", hint)

    def _check_agreement(self, given: Mapping[str, object], keys: tuple[str, ...], message: str) -> None:
        there = [key for key in keys if key in given]
        meant = {str(read_transport(given[key]) or given[key]) for key in there}
        if len(meant) > 1:
            self._problem((there[1],), message, f"keep `{there[0]}` or `{there[1]}`", at_key=True)

    # Files and programs that it names

    def _text(self, given: Mapping[str, object], key: str) -> str:
        """The text at ``key``; empty if it is not a text or its expansion failed."""
        value = given.get(key)
        broken = self._found.broken((*self._path, key))
        return value if isinstance(value, str) and not broken and "\0" not in value else ""

    def _check_command(self, given: Mapping[str, object]) -> None:
        command = self._command(self._text(given, "command"))
        if any(c.isspace() for c in command.strip()) and not self._is_program(command):
            hint = 'split it: the first word is the "command", each further one a text in the list "args"'
            self._problem(("command",), "`command` is a whole command line, and no such file exists", hint)

    def _is_program(self, command: str) -> bool:
        found = shutil.which(command, path=self._context.environ.get("PATH"))
        return bool(found) or os.path.exists(command)  # noqa: PTH110 - never raises

    def _read_env_file(self, given: Mapping[str, object]) -> None:
        written = self._text(given, "envFile")
        if not written:
            return
        try:
            self._env_file = read_env_file(self._resolve(written))
            self._problems += self._env_file.problems
            self._check_steering(self._env_file)
        except OSError as error:
            why = error.strerror or type(error).__name__
            self._problem(("envFile",), f"`envFile` cannot be read: {why}", self._where_from())
        except UnicodeDecodeError:
            self._problem(("envFile",), "`envFile` is not UTF-8 text", "save that file as UTF-8")
        except ValueError as error:
            self._problem(("envFile",), f"`envFile` cannot be used: {error}", "is it the right file?")

    def _check_steering(self, file: EnvFile) -> None:
        """Refuse a variable that changes what runs where its user was never asked about it (SEC-8)."""
        for name in filter(steers, file.values) if self._context.trusted_by_content else ():
            message = f"`envFile` sets {name}, which changes what runs, and trust does not cover that file"
            self._problem(("envFile",), message, "write it into `env`, or name this configuration with --config")

    def _where_from(self) -> str:
        return f"a relative path starts from {self._context.folder or 'the working folder'}"

    def _resolve(self, written: str) -> Path:
        if self._context.expands and (written == "~" or written.startswith("~/")):
            written = (self._context.environ.get("HOME") or "~") + written[1:]
        return self._context.folder / written if self._context.folder else Path(written)

    def _command(self, written: str) -> str:
        """A path is resolved as other paths are; a bare name is looked up on PATH later."""
        return str(self._resolve(written)) if os.sep in written and self._context.expands else written

    # The resulting spec

    def _spec(self, model: ServerFile) -> ServerSpec:
        _warn_of_placement(self._id, model)
        url = model.url or model.server_url or model.http_url or ""
        env = {**(self._env_file.values if self._env_file else {}), **model.env}
        return ServerSpec(
            id=self._id,
            transport=_transport(model, url),
            command=self._command(model.command or ""),
            args=model.args,
            env=MappingProxyType(env),
            cwd=self._resolve(model.cwd) if model.cwd else (self._context.cwd if model.command else None),
            url=url,
            headers=MappingProxyType(dict(model.headers)),
            allow_plain_http=model.allow_plain_http,
            oauth=oauth_settings(model.oauth),
            tools=_tool_filter(model),
            approvals=_approvals(self._id, model),
            prefix=model.prefix,
            enabled=model.enabled is not False and not model.disabled,
            lazy=model.lazy,
            start_timeout=model.start_timeout,
            timeout=model.timeout,
            era=cast("EraChoice", model.era),
            sharing=cast("Sharing", model.sharing),
            secrets=gather_secrets(
                env=env,
                headers=model.headers,
                url=url,
                args=model.args,
                expanded=[*self._found.secrets, *_oauth_secrets(model.oauth)],
            ),
        )


def _oauth_secrets(oauth: OAuthFile) -> list[str]:
    key = oauth.private_key or ""
    return [oauth.client_secret or "", key if is_key_text(key) else ""]


def _transport(model: ServerFile, url: str) -> Transport:
    declared = model.type or model.transport or model.transport_type
    if declared:
        return cast("Transport", declared)
    if model.command:
        return "stdio"
    is_sse = urlsplit(url).path.rstrip("/").endswith("/sse") and not model.http_url
    return "sse" if is_sse else "http"


def _warn_of_placement(server: str, model: ServerFile) -> None:
    if model.placement is not None:
        log.warning("%s: `placement` is an old key without effect and will be removed: leave it out", server)


def _approvals(server: str, model: ServerFile) -> ApprovalMode | None:
    """The server's own setting; ``tools.holdChanged`` is its old name."""
    if "hold_changed" in model.tools.model_fields_set:
        instead = '"approvals": "hold"' if model.tools.hold_changed else '"approvals": "warn"'
        log.warning("%s: `tools.holdChanged` is an old name and will be removed: write %s instead", server, instead)
    if model.approvals is None and model.tools.hold_changed:
        return "hold"
    return cast("ApprovalMode | None", model.approvals)


def _tool_filter(model: ServerFile) -> ToolFilter:
    """Other clients list names, not patterns, so pattern characters in their lists are escaped."""
    include = tuple(map(glob.escape, model.include_tools)) or model.tools.include
    hidden = (*model.exclude_tools, *model.disabled_tools)
    return ToolFilter(include=include, exclude=(*model.tools.exclude, *map(glob.escape, hidden)))


def _is_enabled(given: Mapping[str, object]) -> bool:
    return read_flag(given.get("enabled", True)) is not False and read_flag(given.get("disabled", False)) is not True


_KEY = "[key]"  # pydantic's mark for an error in a key, not in its value
_EXPECTED = {
    "dict_type": "an object",
    "model_type": "an object",
    "list_type": "a list",
    "tuple_type": "a list",
}


def validation_problems(
    error: ValidationError, model: type[BaseModel], path: KeyPath, source_map: SourceMap, *, known: Expansion
) -> list[Problem]:
    """Every error of the value at ``path`` that does not fit ``model``.

    Errors in texts of ``known`` whose expansion failed are left out: the failed expansion is reported already.
    """
    return [
        _problem(details, model, path, source_map)
        for details in error.errors(include_url=False)
        if not known.broken((*path, *details["loc"]))
    ]


def unknown_key(path: KeyPath, known: Iterable[str], source_map: SourceMap) -> Problem:
    """The problem for an unknown key, with the nearest known one."""
    name = str(path[-1])
    known = tuple(known)
    problem = source_map.problem(path, f"unknown key {quoted(name)}", hint=key_hint(name, known), at_key=True)
    return replace(problem, rename=nearest_key(name, known))


def key_hint(name: str, known: Iterable[str]) -> str:
    """A hint with the known key nearest to ``name``, or with all of them."""
    known = tuple(known)
    if nearest := nearest_key(name, known):
        return f"did you mean {quoted(nearest)}?"
    return f"the keys here are {', '.join(sorted(known, key=str.lower))}"


def nearest_key(name: str, known: Iterable[str]) -> str:
    """The known key nearest to ``name``; empty if none is near."""
    folded = {_fold(key): key for key in known}
    nearest = difflib.get_close_matches(_fold(name), folded, n=1, cutoff=0.6)
    return folded[nearest[0]] if nearest else ""


def keys_of(model: type[BaseModel]) -> list[str]:
    """The keys of a model, as they are written in a file."""
    return [field.alias or name for name, field in model.model_fields.items()]


def _fold(key: str) -> str:
    return re.sub(r"[-_\s]", "", key).lower()


def _problem(details: ErrorDetails, model: type[BaseModel], path: KeyPath, source_map: SourceMap) -> Problem:
    inside: KeyPath = tuple(step for step in details["loc"] if step != _KEY)
    if details["type"] == "extra_forbidden":
        return unknown_key((*path, *inside), keys_of(_model_at(model, inside[:-1])), source_map)
    message, hint = _words(details)
    subject = quoted(joined(inside)) if inside else "this"
    return source_map.problem((*path, *inside), f"{subject} {message}", hint=hint, at_key=_KEY in details["loc"])


def _words(details: ErrorDetails) -> tuple[str, str]:
    cause = details.get("ctx", {}).get("error")
    if isinstance(cause, InvalidValue):
        return cause.message, cause.hint
    expected = _EXPECTED.get(details["type"], "another kind of value")
    return f"must be {expected}, not {kind_of(details['input'])}", ""


def _model_at(model: type[BaseModel], inside: KeyPath) -> type[BaseModel]:
    for step in inside:
        field = next(f for name, f in model.model_fields.items() if (f.alias or name) == step)
        annotation = field.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            model = annotation
    return model


LARGEST = 1 << 20
"""Bytes; a file of variables is smaller."""

_LINE = re.compile(r"\s*(?:export\s+)?([A-Za-z_][\w.-]*)\s*=\s*(.*?)\s*", re.ASCII)
_QUOTED = re.compile(r"""(["'])(.*?)(?<!\\)\1\s*(?:#.*)?""")
_COMMENT = re.compile(r"\s+#.*$")
_ESCAPE = re.compile(r"\\(.)")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}


@dataclass(frozen=True, kw_only=True)
class EnvFile:
    """The variables of a file, their lines, and the lines that cannot be read."""

    path: Path
    values: Mapping[str, str]
    lines: Mapping[str, int]
    problems: tuple[Problem, ...]


def read_env_file(path: Path) -> EnvFile:
    """Read ``path``; raises ``OSError``, or ``ValueError`` if it is not UTF-8 or too large."""
    with path.open("rb") as file:
        data = file.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise ValueError(f"it is larger than {LARGEST >> 20} MiB")
    return _parse(path, data.decode("utf-8-sig"))


def _parse(path: Path, text: str) -> EnvFile:
    values: dict[str, str] = {}
    lines: dict[str, int] = {}
    problems: list[Problem] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        value = _value(match.group(2)) if match else None
        if match is None or value is None or "\0" in value:
            problems.append(_unreadable(path, number))
            continue
        values[match.group(1)], lines[match.group(1)] = value, number
    return EnvFile(path=path, values=values, lines=lines, problems=tuple(problems))


def _value(written: str) -> str | None:
    if not written.startswith(("'", '"')):
        return _COMMENT.sub("", written)
    match = _QUOTED.fullmatch(written)
    if match is None:
        return None
    if match.group(1) == "'":
        return match.group(2)
    return _ESCAPE.sub(lambda escape: _ESCAPES.get(escape.group(1), escape.group(1)), match.group(2))


def _unreadable(path: Path, line: int) -> Problem:
    return Problem(
        message="this line does not define a variable",
        hint='write NAME=value or NAME="value" on one line, or start it with # to make it a comment',
        file=path,
        line=line,
        column=1,
    )


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
