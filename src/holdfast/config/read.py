"""Reads a configuration from a file, a text, a mapping or a single connection.

An invalid definition affects its server alone. A fault of the whole file (an unknown key at the top, a
bad ``holdfast`` section) raises one ``ConfigError`` that lists every problem.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TypeAlias, cast

from pydantic import ValidationError

from holdfast.config.config_files import find_config, is_named, project_folder, read_config, require_trust
from holdfast.config.definition import (
    Definition,
    ReadContext,
    expansion_at,
    keys_of,
    read_definition,
    unknown_key,
    validation_problems,
)
from holdfast.config.fields import format_duration, kind_of
from holdfast.config.file_models import TOP_KEYS, ConfigFile, SettingsFile, meaning
from holdfast.config.jsonc import DEEPEST, Document, KeyPath, joined, parse, quoted
from holdfast.config.own_folders import user_folders
from holdfast.config.settings import AccessRule, AccessSettings, ExtAuthzSettings, Settings
from holdfast.config.spec import Config, HeaderSource, ServerSpec
from holdfast.errors import ConfigError, Problem

__all__ = [
    "ConfigReading",
    "config_from_mapping",
    "load_config",
    "parse_config",
    "read_file",
    "spec_from_connection",
]


def load_config(
    path: Path | None = None, *, environ: Mapping[str, str] | None = None, cwd: Path | None = None
) -> Config:
    """The configuration at ``path``, or the first that the search finds.

    Raises ``ConfigNotFound`` if there is none, and ``ConfigError`` with every problem if the file as a
    whole is invalid. A server with an invalid definition is a ``ServerSpec`` with ``problems``. A project file
    that the search finds raises ``UntrustedConfig`` until the user trusts it (``holdfast trust FILE``).
    """
    environ = os.environ if environ is None else environ
    file = find_config(path, environ=environ, cwd=cwd or Path.cwd())
    return read_file(file, environ=environ, found=not is_named(path, environ)).config


def parse_config(
    text: str | bytes, *, file: Path | None = None, environ: Mapping[str, str] | None = None, is_foreign: bool = False
) -> Config:
    """The configuration that ``text`` holds; ``file`` is its origin, for positions and relative paths.

    One that ``is_foreign`` came from another machine: nothing of this one is read or expanded for it.
    """
    environ = os.environ if environ is None else environ
    return _read_text(text, file=file, environ=environ, is_foreign=is_foreign).config


def config_from_mapping(mapping: Mapping[str, object], *, environ: Mapping[str, str] | None = None) -> Config:
    """The configuration in a program's own mapping, with the keys of a file; relative paths are not changed."""
    context = ReadContext(document=Document(), environ=os.environ if environ is None else environ)
    return _DocumentReader(context).read(_plain(mapping, ())).config


def spec_from_connection(server_id: str, connection: Mapping[str, object]) -> ServerSpec:
    """One entry of a ``connections`` mapping; ``${…}`` is not expanded, ``headers`` may be a callable."""
    context = ReadContext(document=Document(), environ=os.environ, is_connection=True)
    try:
        raw = _plain(connection, (server_id,))
    except ConfigError as error:
        return ServerSpec(id=server_id, problems=error.problems)
    headers = raw.pop("headers", None) if isinstance(raw, dict) and callable(raw.get("headers")) else None
    server = read_definition(server_id, raw, (server_id,), context, problems=_auth_problems(server_id, raw)).server
    if headers is None:
        return server
    return replace(server, headers=cast("HeaderSource", headers))


def read_file(
    file: Path, *, environ: Mapping[str, str], found: bool = False, workspace: Path | None = None
) -> ConfigReading:
    """Read a file, and record where each value came from.

    ``workspace`` is the folder that a client works in, for servers that run once for each folder.

    A file that was ``found`` and not named is checked: its owner, its mode and, outside the user's own folders,
    whether the user trusts its content. The checks are made with the bytes that are then used.
    """
    data = read_config(file, found=found)
    return _read_text(data, file=file, environ=environ, found=found, workspace=workspace)


def _read_text(
    text: str | bytes,
    *,
    file: Path | None,
    environ: Mapping[str, str],
    found: bool = False,
    workspace: Path | None = None,
    is_foreign: bool = False,
) -> ConfigReading:
    context = ReadContext(
        document=parse(text, file=file),
        environ=environ,
        folder=project_folder(file) if file else None,
        workspace=workspace,
        is_own_file=file is not None and file.absolute().parent in list(user_folders(environ)),
        is_foreign=is_foreign,
        found=found,
    )
    if context.trusted_by_content and file is not None and isinstance(text, bytes):
        require_trust(file, text, environ=environ)  # before anything that the file names is read or expanded
    return _DocumentReader(context).read(context.document.value)


def _plain(value: object, path: KeyPath) -> dict[str, object] | object:
    """A program's value as JSON types; other types stay as they are and are rejected later."""
    if len(path) > DEEPEST:
        raise ConfigError([Problem(message=f"this is nested more than {DEEPEST} levels deep", path=joined(path[:3]))])
    if isinstance(value, Mapping):
        return {_name(key, path): _plain(item, (*path, _name(key, path))) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, (*path, index)) for index, item in enumerate(value)]
    return str(value) if isinstance(value, Path) else value


def _name(key: object, path: KeyPath) -> str:
    if isinstance(key, str):
        return key
    message = f"a key must be a text, not a {type(key).__name__}"
    raise ConfigError([Problem(message=message, hint="use texts as keys", path=joined(path))])


def _auth_problems(server_id: str, raw: object) -> list[Problem]:
    """Reject an ``auth`` object: ignoring it silently would lead to a 401 without an explanation."""
    if not isinstance(raw, dict) or raw.pop("auth", None) is None:
        return []
    hint = "give `headers` as a callable that returns fresh ones for each request"
    return [Problem(message="`auth` objects are not supported", hint=hint, path=joined((server_id, "auth")))]


_SERVERS = ("mcpServers", "servers")
_HOLDFAST = "holdfast"
_KNOWN = keys_of(ConfigFile)
_ELSEWHERE = {
    "context_servers": "Zed's `context_servers` are Holdfast's `mcpServers`: rename the key",
    "mcp": 'put the servers into "mcpServers": {…} at the top of the file',
}


@dataclass(frozen=True, kw_only=True)
class ConfigReading:
    """A configuration, and how each part of it was read."""

    config: Config
    context: ReadContext
    definitions: tuple[Definition, ...]


class _DocumentReader:
    """Reads the value of a document, or of a program; raises ``ConfigError`` only for faults of the whole file."""

    def __init__(self, context: ReadContext) -> None:
        self._context = context
        self._document = context.document
        self._problems: list[Problem] = []
        self._expansion = expansion_at((_HOLDFAST,), context)

    def read(self, value: object) -> ConfigReading:
        top = self._object(value, (), "the configuration")
        self._check_keys(top)
        definitions = tuple(self._definitions(top))
        section = self._object(_or_nothing(top, _HOLDFAST), (_HOLDFAST,), "`holdfast`")
        settings = self._settings(self._expansion.expand(section))
        self._problems += self._expansion.problems
        self._problems += [one for one in self._document.duplicates if not _inside_a_server(one.keys)]
        if self._problems:
            raise ConfigError(sorted(self._problems, key=lambda problem: (problem.line, problem.column)))
        servers = {definition.server.id: definition.server for definition in definitions}
        return ConfigReading(
            config=Config(servers=servers, settings=settings, source=self._document.file, found=self._context.found),
            context=self._context,
            definitions=definitions,
        )

    def _object(self, value: object, path: KeyPath, subject: str) -> dict[str, object]:
        if isinstance(value, dict):
            return value
        hint = 'write {"mcpServers": {"name": {"command": "…"}}}' if path != (_HOLDFAST,) else ""
        problem = self._document.problem(path, f"{subject} must be an object, not {kind_of(value)}", hint=hint)
        self._problems.append(problem)
        return {}

    def _check_keys(self, top: Mapping[str, object]) -> None:
        for key in top:
            if key in _KNOWN or key in TOP_KEYS:
                continue
            problem = unknown_key((key,), _KNOWN, self._document)
            hint = _ELSEWHERE.get(key) or _server_hint(top[key]) or problem.hint
            self._problems.append(replace(problem, hint=hint, rename=problem.rename if hint == problem.hint else ""))

    # Servers

    def _definitions(self, top: Mapping[str, object]) -> Iterator[Definition]:
        groups = {group: self._object(_or_nothing(top, group), (group,), f"`{group}`") for group in _SERVERS}
        first = {name: group for group in reversed(_SERVERS) for name in groups[group]}
        for group in _SERVERS:
            for name, raw in groups[group].items():
                if first[name] == group:
                    is_twice = all(name in names for names in groups.values())
                    known = self._known_of(name, is_twice=is_twice)
                    yield read_definition(name, raw, (group, name), self._context, problems=known)

    def _known_of(self, server_id: str, *, is_twice: bool) -> Iterator[Problem]:
        """Problems that do not depend on the definition: the server, or a key of it, occurs twice."""
        yield from (one for one in self._document.duplicates if _inside_a_server(one.keys) and one.keys[1] == server_id)
        if is_twice:
            message = f"the server {quoted(server_id)} is in `mcpServers` and in `servers`"
            yield self._document.problem(("servers", server_id), message, hint="remove one of the two", at_key=True)

    # Settings

    def _settings(self, written: dict[str, object]) -> Settings:
        try:
            model = SettingsFile.model_validate(written)
        except ValidationError as error:
            self._problems += validation_problems(
                error, SettingsFile, (_HOLDFAST,), self._document, known=self._expansion
            )
            return Settings()
        settings = meaning(Settings, model)
        for path, message, hint in _faults(settings):
            self._problems.append(self._document.problem((_HOLDFAST, *path), message, hint=hint))
        return settings


_SettingsFault: TypeAlias = tuple[KeyPath, str, str]
"""Settings that are right by themselves, and wrong together: where, what is wrong, and what to do."""


def _faults(settings: Settings) -> Iterator[_SettingsFault]:
    load, call, breaker = settings.load, settings.call, settings.breaker
    yield from _in_order(("load", "attemptTimeout"), load.attempt_timeout, "totalTimeout", load.total_timeout)
    yield from _in_order(("call", "timeout"), call.timeout, "hardTimeout", call.hard_timeout)
    if breaker.growth > 1:
        yield from _in_order(("breaker", "cooldown"), breaker.cooldown, "maxCooldown", breaker.max_cooldown)
    yield from _rule_faults(settings.access)
    yield from _service_faults(settings.access.ext_authz)


def _in_order(path: KeyPath, shorter: float, other: str, longer: float) -> Iterator[_SettingsFault]:
    if shorter > longer:
        message = f"`{path[-1]}` ({format_duration(shorter)}) is longer than `{other}` ({format_duration(longer)})"
        yield path, message, f"make `{other}` at least as long"


def _rule_faults(access: AccessSettings) -> Iterator[_SettingsFault]:
    place: KeyPath = ("access", "rules")
    for index, rule in enumerate(access.rules):
        for key, message, hint in _contradictions(rule):
            path = (*place, index, key)
            yield path, f"{quoted(joined(path))} {message}", hint
    if access.rules and access.default is None and all(rule.effect != "allow" for rule in access.rules):
        hint = '"default": "allow" keeps open what no rule denies; "deny" closes everything to all but `local`'
        yield place, "none of the rules allows anything, and `default` is not set", hint


def _service_faults(service: ExtAuthzSettings) -> Iterator[_SettingsFault]:
    place: KeyPath = ("access", "extAuthz")
    if service == ExtAuthzSettings():
        return
    if service.address is None:
        yield place, "`access.extAuthz` has no `address`", "write the HOST:PORT of the service"
        return
    if find_spec("h2") is None:
        message = "`access.extAuthz` needs the extra `authz`, which is not installed"
        yield place, message, "run: pip install 'holdfast-mcp[authz]'"
    if service.key is not None and service.certificate is None:
        yield (*place, "key"), "`access.extAuthz.key` has no certificate", "name its file with `certificate`"


def _contradictions(rule: AccessRule) -> Iterator[tuple[str, str, str]]:
    """The keys of a rule that cannot have an effect: the key, what is wrong, and what to do."""
    if rule.effect == "ask":
        for key in ("prompts", "resources"):
            if getattr(rule, key):
                yield key, "has no meaning for `ask`", "only the call of a tool can wait for a person: use `tools`"
    elif rule.approver != AccessRule.approver:
        yield "approver", f"has no meaning for `{rule.effect}`", 'remove it, or write "effect": "ask"'
    if rule.when and rule.resources:
        yield "resources", "cannot have a condition", "a resource has no arguments: write a rule without `when`"


def _or_nothing(top: Mapping[str, object], key: str) -> object:
    return {} if top.get(key) is None else top[key]


def _inside_a_server(path: KeyPath) -> bool:
    return len(path) > 1 and path[0] in _SERVERS


def _server_hint(value: object) -> str:
    if isinstance(value, dict) and {"command", "url", "serverUrl", "httpUrl"} & value.keys():
        return 'it looks like a server: put it into "mcpServers": {…}'
    return ""
