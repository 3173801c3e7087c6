"""The values of a configuration and where each came from, for ``holdfast config show``.

Values are not masked here; each server's secrets are beside them, so that the view can mask
them. No ``repr`` here shows a value.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from pydantic.alias_generators import to_camel

from holdfast.config.config_files import find_config, search_places
from holdfast.config.definition import Definition, Ignored
from holdfast.config.expand import Expansion
from holdfast.config.fields import format_duration, format_size, read_bare_timeout
from holdfast.config.file_models import is_oauth_key
from holdfast.config.jsonc import KeyPath, SourceMap, joined
from holdfast.config.read import ConfigReading, read_file
from holdfast.config.settings import AccessRule
from holdfast.config.spec import ServerSpec, is_key_text
from holdfast.errors import ConfigError, ConfigNotFound, Problem

__all__ = ["ConfigReport", "IgnoredKey", "Origin", "ServerProvenance", "Value", "report_config"]

Shown: TypeAlias = str | bool | int | tuple[str, ...]
_HOLDFAST = "holdfast"


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where a value came from."""

    kind: Literal["file", "env", "envFile", "inferred", "default"]
    place: str = ""
    variables: tuple[str, ...] = ()

    def __str__(self) -> str:
        match self.kind:
            case "default":
                return "default"
            case "inferred":
                return f"inferred from {self.place}"
            case "env":
                return f"env {', '.join(self.variables)} ({self.place})"
            case _:
                return self.place


@dataclass(frozen=True, kw_only=True)
class Value:
    """One value of a configuration."""

    key: str
    value: Shown = field(repr=False)
    origin: Origin
    hidden: bool = False
    """Whether the value is never shown: it is an environment or header value."""
    note: str = ""
    """How the value was read, where the file leaves that open."""


@dataclass(frozen=True, kw_only=True)
class IgnoredKey:
    """A key that Holdfast accepts and ignores."""

    key: str
    why: str
    place: str


@dataclass(frozen=True, kw_only=True)
class ServerProvenance:
    """One server: its values and its problems."""

    id: str
    status: Literal["usable", "disabled", "bad"]
    values: tuple[Value, ...] = ()
    ignored: tuple[IgnoredKey, ...] = ()
    problems: tuple[Problem, ...] = ()
    secrets: frozenset[str] = field(default=frozenset(), repr=False)


@dataclass(frozen=True, kw_only=True)
class ConfigReport:
    """The content of ``config show``."""

    file: Path | None
    searched: tuple[Path, ...] = ()
    servers: tuple[ServerProvenance, ...] = ()
    settings: tuple[Value, ...] = ()
    ignored: tuple[IgnoredKey, ...] = ()
    problems: tuple[Problem, ...] = ()
    """Problems of the whole file; a server's own problems are in ``servers``."""

    @property
    def usable(self) -> bool:
        """Whether there is a configuration without problems."""
        return not self.problems and not any(server.problems for server in self.servers)


def report_config(
    path: Path | None = None, *, environ: Mapping[str, str] | None = None, cwd: Path | None = None
) -> ConfigReport:
    """Find, read and describe a configuration; problems are part of the report and are not raised."""
    environ = os.environ if environ is None else environ
    cwd = cwd or Path.cwd()
    try:
        file = find_config(path, environ=environ, cwd=cwd)
    except ConfigNotFound as error:
        return ConfigReport(file=None, searched=error.searched, problems=error.problems)
    try:
        reading = read_file(file, environ=environ)  # it runs nothing, so a user may look before the file is trusted
    except ConfigError as error:
        return ConfigReport(file=file, problems=error.problems)
    return _report(reading, file, () if path else search_places(environ=environ, cwd=cwd))


def _report(reading: ConfigReading, file: Path, searched: tuple[Path, ...]) -> ConfigReport:
    source_map = reading.context.source_map
    return ConfigReport(
        file=file,
        searched=searched[: searched.index(file) + 1] if file in searched else (),
        servers=tuple(_server(definition, source_map) for definition in reading.definitions),
        settings=tuple(_settings(reading)),
        ignored=tuple(_ignored(key, source_map) for key in reading.ignored),
    )


def _ignored(ignored: Ignored, source_map: SourceMap) -> IgnoredKey:
    return IgnoredKey(key=str(ignored.path[-1]), why=ignored.why, place=source_map.label(ignored.path))


def _server(definition: Definition, source_map: SourceMap) -> ServerProvenance:
    ignored = tuple(_ignored(key, source_map) for key in definition.ignored)
    server = definition.server
    if server.problems:
        return ServerProvenance(id=server.id, status="bad", ignored=ignored, problems=server.problems)
    return ServerProvenance(
        id=server.id,
        status="usable" if server.enabled else "disabled",
        values=tuple(_ServerValues(definition, server, source_map).all()),
        ignored=ignored,
        secrets=server.secrets,
    )


class _ServerValues:
    """The values of one usable server, the most important first."""

    def __init__(self, definition: Definition, server: ServerSpec, source_map: SourceMap) -> None:
        self._definition = definition
        self._server = server
        self._source_map = source_map

    def all(self) -> Iterator[Value]:
        yield self._transport()
        yield from self._process() if self._server.transport == "stdio" else self._requests()
        yield self._value("enabled", self._server.enabled, "enabled", "disabled")
        yield self._value("lazy", self._server.lazy, "lazy")
        if self._server.transport == "stdio":
            yield self._value("startTimeout", format_duration(self._server.start_timeout), "startTimeout")
        yield self._timeout()
        yield self._value("era", self._server.era, "era")
        yield self._value("sharing", self._server.sharing, "sharing")
        if self._server.transport != "stdio":
            yield self._value("identity", self._server.identity, "identity")
        prefix = self._server.prefix
        yield self._value("prefix", self._server.id if prefix is None else prefix, "prefix")
        tools = self._server.tools
        yield self._value("tools.include", tools.include, "tools.include", "tools", "includeTools")
        yield self._value(
            "approvals", self._server.approvals or "as holdfast.approvals", "approvals", "tools.holdChanged"
        )
        yield self._value("tools.exclude", tools.exclude, "tools.exclude", "excludeTools", "disabledTools")

    def _timeout(self) -> Value:
        own = self._server.timeout
        value = self._value("timeout", "as holdfast.call.timeout" if own is None else format_duration(own), "timeout")
        written = self._definition.given.get("timeout")
        bare = read_bare_timeout(written)
        return value if bare is None else replace(value, note=f"{written} read as {bare[1]}")

    def _transport(self) -> Value:
        value = self._value("type", self._server.transport, "type", "transport", "transportType")
        if value.origin.kind != "default":
            return value
        url_key = next(
            (key for key in ("url", "serverUrl", "httpUrl", "hub") if key in self._definition.given), "command"
        )
        return Value(key="type", value=value.value, origin=Origin(kind="inferred", place=url_key))

    def _process(self) -> Iterator[Value]:
        server = self._server
        yield self._value("command", server.command, "command")
        yield self._value("args", server.args, "args")
        yield self._value("cwd", str(server.cwd or "where Holdfast is started"), "cwd")
        for name, value in server.env.items():
            yield Value(key=f"env.{name}", value=value, origin=self._env_origin(name), hidden=True)

    def _requests(self) -> Iterator[Value]:
        server = self._server
        if server.hub:
            yield self._value("hub", server.hub, "hub")
            return
        yield self._value("url", server.url, "url", "serverUrl", "httpUrl")
        if isinstance(server.headers, Mapping):
            for name, value in server.headers.items():
                yield Value(key=f"headers.{name}", value=value, origin=self._origin(("headers", name)), hidden=True)
        yield self._value("allowPlainHttp", server.allow_plain_http, "allowPlainHttp")
        yield from self._oauth()

    def _oauth(self) -> Iterator[Value]:
        """The login settings in the definition; the server announces the others."""
        given = self._definition.given.get("oauth")
        if isinstance(given, bool):
            yield self._value("oauth", given, "oauth")
        for key, value in given.items() if isinstance(given, Mapping) else ():
            if is_oauth_key(key):
                shown = tuple(map(str, value)) if isinstance(value, list) else value
                shown = shown if isinstance(shown, tuple | bool) else str(shown)
                hidden = "secret" in key.lower() or ("key" in key.lower() and is_key_text(str(value)))
                yield Value(key=f"oauth.{key}", value=shown, origin=self._origin(("oauth", key)), hidden=hidden)

    def _value(self, key: str, value: Shown, *written_as: str) -> Value:
        given = self._definition.given
        paths = (tuple(name.split(".")) for name in written_as)
        path = next((path for path in paths if _has(given, path)), None)
        return Value(key=key, value=value, origin=self._origin(path) if path else Origin(kind="default"))

    def _env_origin(self, name: str) -> Origin:
        file = self._definition.env_file
        if file is None or _has(self._definition.given, ("env", name)):
            return self._origin(("env", name))
        return Origin(kind="envFile", place=f"{file.path.name}:{file.lines[name]}")

    def _origin(self, inside: KeyPath) -> Origin:
        return _written((*self._definition.path, *inside), self._definition.expansion, self._source_map)


def _settings(reading: ConfigReading) -> Iterator[Value]:
    for path, name, value in _leaves(reading.config.settings):
        yield Value(key=joined(path), value=_spelled(name, value), origin=_setting_origin(reading, path))


def _leaves(settings: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, str, object]]:
    """Every setting that the file can have: its path there, its field name, its value."""
    for one in fields(settings):
        value, inside = getattr(settings, one.name), (*path, to_camel(one.name))
        if is_dataclass(value):
            yield from _leaves(value, inside)
        elif one.metadata:
            yield inside, one.name, value


def _setting_origin(reading: ConfigReading, path: KeyPath) -> Origin:
    if not _has(reading.settings, path):
        return Origin(kind="default")
    return _written((_HOLDFAST, *path), reading.settings_expansion, reading.context.source_map)


_LEFT_OUT = {
    "address": "none",
    "approvals": "warn; hold beyond loopback",
    "ca": "the authorities of this machine",
    "certificate": "none",
    "default": "allow without rules, deny with rules",
    "enabled": "beyond loopback, or with audit.path",
    "key": "in the certificate's file",
    "key_file": "audit.key in the state folder",
    "path": "audit in the state folder",
    "syslog": "/dev/log, where there is one",
    "tls": "yes, unless it is on this machine",
}
"""What it means that a setting is left out, where that is more than `off`."""


def _spelled(name: str, value: object) -> str | tuple[str, ...]:
    match value:
        case None if name in _LEFT_OUT:
            return _LEFT_OUT[name]
        case None:
            return "off"
        case bool():
            return str(value).lower()
        case tuple() if name == "rules":
            return tuple(_rule_text(one) for one in value)
        case tuple() if name == "profiles":
            return tuple(f"{profile}: {', '.join(patterns)}" for profile, patterns in value)
        case tuple():
            return tuple(one if isinstance(one, str) else format_duration(one) for one in value)
        case float():
            return f"{value:.15g}" if name == "growth" else format_duration(value)
        case int() if name.endswith("_bytes"):
            return format_size(value)
        case _:
            return str(value)


def _rule_text(rule: AccessRule) -> str:
    """A rule of the policy on one line: its effect, and what else it says."""
    given = [
        f"{one.name} {', '.join(value) if isinstance(value, tuple) else value}"
        for one in fields(rule)
        if one.name != "effect" and (value := getattr(rule, one.name)) != one.default
    ]
    return "; ".join((rule.effect, *given))


def _written(path: KeyPath, expansion: Expansion, source_map: SourceMap) -> Origin:
    variables = expansion.sources(path)
    return Origin(kind="env" if variables else "file", place=source_map.label(path), variables=variables)


def _has(given: object, path: KeyPath) -> bool:
    for step in path:
        if not isinstance(given, Mapping) or step not in given:
            return False
        given = given[step]
    return True
