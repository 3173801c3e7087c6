"""The values of a configuration and where each came from, as ``holdfast config show --json`` has them.

Values are masked here, so that no view of them can show a secret.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
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
from holdfast.config.spec import is_key_text
from holdfast.core import MASK, Redactor, mask_url, plain
from holdfast.errors import ConfigError, ConfigNotFound

__all__ = ["report_config", "visible"]

Shown: TypeAlias = str | bool | int | tuple[str, ...]
Described: TypeAlias = dict[str, Any]
"""A part of the report: what JSON has, and problems as they were found."""

_HOLDFAST = "holdfast"


def report_config(
    path: Path | None = None, *, environ: Mapping[str, str] | None = None, cwd: Path | None = None
) -> Described:
    """Find, read and describe a configuration; problems are part of the report and are not raised."""
    environ = os.environ if environ is None else environ
    cwd = cwd or Path.cwd()
    report: Described = {"file": None, "searched": [], "servers": [], "settings": [], "ignored": [], "problems": []}
    try:
        file = find_config(path, environ=environ, cwd=cwd)
        report["file"] = visible(str(file))
        reading = read_file(file, environ=environ)  # it runs nothing, so a user may look before the file is trusted
    except ConfigError as error:
        searched = error.searched if isinstance(error, ConfigNotFound) else ()
        return {**report, "searched": [visible(str(place)) for place in searched], "problems": list(error.problems)}
    searched = () if path else search_places(environ=environ, cwd=cwd)
    before = searched[: searched.index(file) + 1] if file in searched else ()
    source_map = reading.context.source_map
    return {
        **report,
        "searched": [visible(str(place)) for place in before],
        "servers": [_server(definition, source_map) for definition in reading.definitions],
        "settings": list(_settings(reading)),
        "ignored": [_ignored(key, source_map) for key in reading.ignored],
    }


def visible(text: str) -> str:
    """Text that is safe for a terminal: no control characters, no lone surrogates."""
    return plain(text).encode("utf-8", "replace").decode("utf-8")


def _ignored(ignored: Ignored, source_map: SourceMap) -> Described:
    return {"key": str(ignored.path[-1]), "why": ignored.why, "place": source_map.label(ignored.path)}


def _server(definition: Definition, source_map: SourceMap) -> Described:
    server = definition.server
    return {
        "id": server.id,
        "status": "bad" if server.problems else "usable" if server.enabled else "disabled",
        "values": [] if server.problems else list(_ServerValues(definition, source_map).all()),
        "ignored": [_ignored(key, source_map) for key in definition.ignored],
        "problems": list(server.problems),
    }


def _value(key: str, value: Shown, origin: Described, *, redactor: Redactor | None = None) -> Described:
    """One value. ``redactor`` hides what is secret in it."""
    mask = (redactor or Redactor()).mask
    shown: object = value
    if isinstance(value, str):
        shown = visible(mask(mask_url(value) if key == "url" else value))
    elif isinstance(value, tuple):
        shown = [visible(mask(word)) for word in value]
    return {"key": key, "value": shown, "from": origin, "note": ""}


def _origin(kind: Literal["file", "env", "envFile", "inferred", "default"], place: str = "") -> Described:
    return {"kind": kind, "place": place, "variables": []}


def _written(path: KeyPath, expansion: Expansion, source_map: SourceMap) -> Described:
    """The origin of a value that the file has."""
    variables = list(expansion.sources(path))
    return {**_origin("env" if variables else "file", source_map.label(path)), "variables": variables}


class _ServerValues:
    """The values of one usable server, the most important first."""

    def __init__(self, definition: Definition, source_map: SourceMap) -> None:
        self._definition = definition
        self._server = definition.server
        self._source_map = source_map
        self._redactor = Redactor(self._server.secrets)

    def all(self) -> Iterator[Described]:
        yield self._transport()
        yield from self._process() if self._server.transport == "stdio" else self._requests()
        yield self._value("enabled", self._server.enabled, "enabled", "disabled")
        yield self._value("lazy", self._server.lazy)
        if self._server.transport == "stdio":
            yield self._value("startTimeout", format_duration(self._server.start_timeout))
        yield self._timeout()
        yield self._value("era", self._server.era)
        yield self._value("sharing", self._server.sharing)
        if self._server.transport != "stdio":
            yield self._value("identity", self._server.identity)
        prefix = self._server.prefix
        yield self._value("prefix", self._server.id if prefix is None else prefix)
        tools = self._server.tools
        yield self._value("tools.include", tools.include, "tools.include", "tools", "includeTools")
        yield self._value(
            "approvals", self._server.approvals or "as holdfast.approvals", "approvals", "tools.holdChanged"
        )
        yield self._value("tools.exclude", tools.exclude, "tools.exclude", "excludeTools", "disabledTools")

    def _timeout(self) -> Described:
        own, written = self._server.timeout, self._definition.given.get("timeout")
        bare = read_bare_timeout(written)
        value = self._value("timeout", "as holdfast.call.timeout" if own is None else format_duration(own))
        return value if bare is None else {**value, "note": visible(f"{written} read as {bare[1]}")}

    def _transport(self) -> Described:
        value = self._value("type", self._server.transport, "type", "transport", "transportType")
        if value["from"]["kind"] != "default":
            return value
        told_by = ("url", "serverUrl", "httpUrl", "hub")
        return {**value, "from": _origin("inferred", next(filter(self._definition.given.get, told_by), "command"))}

    def _process(self) -> Iterator[Described]:
        server = self._server
        yield self._value("command", server.command)
        yield self._value("args", server.args)
        yield self._value("cwd", str(server.cwd or "where Holdfast is started"))
        for name in server.env:
            yield _value(f"env.{name}", MASK, self._env_origin(name))

    def _requests(self) -> Iterator[Described]:
        server = self._server
        if server.hub:
            yield self._value("hub", server.hub)
            return
        yield self._value("url", server.url, "url", "serverUrl", "httpUrl")
        if isinstance(server.headers, Mapping):
            for name in server.headers:
                yield _value(f"headers.{name}", MASK, self._origin(("headers", name)))
        yield self._value("allowPlainHttp", server.allow_plain_http)
        yield from self._oauth()
        yield from self._credentials()

    def _oauth(self) -> Iterator[Described]:
        """The login settings in the definition; the server announces the others."""
        given = self._definition.given.get("oauth")
        if isinstance(given, bool):
            yield self._value("oauth", given)
        for key, value in given.items() if isinstance(given, Mapping) else ():
            if is_oauth_key(key):
                hidden = "secret" in key.lower() or ("key" in key.lower() and is_key_text(str(value)))
                shown: Shown = tuple(map(str, value)) if isinstance(value, list) else str(value)
                shown = MASK if hidden else value if isinstance(value, bool) else shown
                yield _value(f"oauth.{key}", shown, self._origin(("oauth", key)), redactor=self._redactor)

    def _credentials(self) -> Iterator[Described]:
        """Where the credentials of users come from, as the definition says it."""
        given = self._definition.given.get("credentials")
        for rung, service in given.items() if isinstance(given, Mapping) else ():
            for key, value in service.items() if isinstance(service, Mapping) else ((None, service),):
                path = ("credentials", rung) if key is None else ("credentials", rung, key)
                hidden = key == "clientSecret" or (key == "privateKey" and is_key_text(str(value)))
                shown: Shown = tuple(map(str, value)) if isinstance(value, list) else str(value)
                shown = MASK if hidden else value if isinstance(value, bool) else shown
                yield _value(".".join(path), shown, self._origin(path), redactor=self._redactor)

    def _value(self, key: str, value: Shown, *written_as: str) -> Described:
        """A value, and the place of the first of its spellings that the definition has."""
        paths = (tuple(name.split(".")) for name in written_as or (key,))
        path = next((path for path in paths if _has(self._definition.given, path)), None)
        origin = self._origin(path) if path else _origin("default")
        return _value(key, value, origin, redactor=self._redactor)

    def _env_origin(self, name: str) -> Described:
        file = self._definition.env_file
        if file is None or _has(self._definition.given, ("env", name)):
            return self._origin(("env", name))
        return _origin("envFile", f"{file.path.name}:{file.lines[name]}")

    def _origin(self, inside: KeyPath) -> Described:
        return _written((*self._definition.path, *inside), self._definition.expansion, self._source_map)


def _settings(reading: ConfigReading) -> Iterator[Described]:
    for path, name, value in _leaves(reading.config.settings):
        origin = _origin("default")
        if _has(reading.settings, path):
            origin = _written((_HOLDFAST, *path), reading.settings_expansion, reading.context.source_map)
        yield _value(joined(path), _spelled(name, value), origin)


def _leaves(settings: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, str, object]]:
    """Every setting that the file can have: its path there, its field name, its value."""
    for one in fields(settings):
        value, inside = getattr(settings, one.name), (*path, to_camel(one.name))
        if is_dataclass(value):
            yield from _leaves(value, inside)
        elif one.metadata:
            yield inside, one.name, value


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


def _has(given: object, path: KeyPath) -> bool:
    for step in path:
        if not isinstance(given, Mapping) or step not in given:
            return False
        given = given[step]
    return True
