"""Merges the bootstrap config and the targets into the config of the gateway.

The bootstrap is kept unchanged. If one of its routes has the name or path of a target, the route wins, and the
target is shadowed. The config carries its fingerprint as the name of an unused backend. The gateway shows that name
at its admin address once it runs the config.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from holdfast.errors import ConfigError, Problem
from holdfast.gateway.check import Schema, blocks, check, complete
from holdfast.gateway.defaults import EXT_AUTH_TIMEOUT
from holdfast.gateway.model import ExtAuth, Target
from holdfast.gateway.render import Document, route, to_yaml
from holdfast.gateway.versions import Release

__all__ = ["MARK", "Rendered", "Rules", "merge", "read_bootstrap"]

MARK = "holdfast-config-"
"""The prefix of a fingerprint."""

LARGEST = 4 << 20


@dataclass(frozen=True, kw_only=True)
class Rules:
    """How targets become routes, and how the result is checked."""

    release: Release
    ext_auth: ExtAuth | None = None
    listener: str = ""
    """The listener that gets the routes; the first HTTP listener if empty."""
    schema: Schema | None = None


@dataclass(frozen=True, kw_only=True)
class Rendered:
    """A checked config."""

    text: str = field(repr=False)
    mark: str
    routes: int
    shadowed: tuple[str, ...] = ()
    """Targets whose name or path is used by a route of the bootstrap."""

    @property
    def data(self) -> bytes:
        """The content of the file."""
        return self.text.encode()


def read_bootstrap(file: Path) -> Document:
    """The document in a YAML file, or a ``ConfigError`` with the reason."""
    try:
        with file.open("rb") as stream:
            text = stream.read(LARGEST + 1)
        if len(text) > LARGEST:
            raise ConfigError([Problem(message=f"the bootstrap config is larger than {LARGEST >> 20} MiB", file=file)])
        document = yaml.safe_load(text)
    except OSError as exc:
        message = f"cannot read the bootstrap config: {exc.strerror or type(exc).__name__}"
        raise ConfigError([Problem(message=message, file=file)]) from exc
    except (yaml.YAMLError, ValueError, RecursionError) as exc:
        raise ConfigError([_not_yaml(file, exc)]) from exc
    if not isinstance(document, dict):
        raise ConfigError([Problem(message="the bootstrap config is not a mapping", file=file)])
    return document


def merge(bootstrap: Mapping[str, Any], targets: Sequence[Target], rules: Rules, *, source: Path | None) -> Rendered:
    """The bootstrap with a route for each target, checked; ``ConfigError`` if it is not valid."""
    document: Document = copy.deepcopy(dict(bootstrap))
    shadowed = _add_routes(document, targets, rules, source) if targets else ()
    complete(document, rules.release.family, rules.ext_auth.timeout if rules.ext_auth else EXT_AUTH_TIMEOUT)
    mark = _mark(document)
    document["backends"] = [*(document.get("backends") or []), {"name": mark, "host": "127.0.0.1:1"}]
    check(document, rules.release, rules.schema, source=source)
    routes = sum(len(listener.get("routes") or ()) for listener in _listeners(document))
    return Rendered(text=to_yaml(document), mark=mark, routes=routes, shadowed=shadowed)


def _add_routes(document: Document, targets: Sequence[Target], rules: Rules, source: Path | None) -> tuple[str, ...]:
    """Add a route for each target. Returns the ids of the shadowed targets."""
    _same_protection(document, rules, source)
    routes = _routes_of(_listener(document, rules.listener, source))
    names, paths = _taken(routes)
    made = {target.id: route(target, rules.ext_auth, rules.release.family) for target in targets}
    shadowed = tuple(name for name, new in made.items() if name in names or _path(new) in paths)
    routes += [new for name, new in made.items() if name not in shadowed]
    return shadowed


def _same_protection(document: Document, rules: Rules, source: Path | None) -> None:
    """Refuse routes without authorization beside routes with it: they would bypass the authorization."""
    if rules.ext_auth is None and any(blocks(document)):
        message = "the bootstrap config uses authorization, and the routes of the targets have none"
        hint = "name the authorization service: --ext-auth-host HOST:PORT"
        raise ConfigError([Problem(message=message, hint=hint, file=source)])


def _listener(document: Document, name: str, source: Path | None) -> Document:
    listeners = [one for one in _listeners(document) if one.get("protocol", "HTTP") in ("HTTP", "HTTPS")]
    chosen = [listener for listener in listeners if not name or listener.get("name") == name]
    if chosen:
        return chosen[0]
    wanted = f"no HTTP listener named `{name}`" if name else "no HTTP listener"
    hint = "its listeners: " + (", ".join(str(one.get("name", "(unnamed)")) for one in listeners) or "none")
    raise ConfigError([Problem(message=f"the bootstrap config has {wanted}", hint=hint, file=source)])


def _listeners(document: Document) -> Iterator[Document]:
    for bind in _dicts(document.get("binds")):
        yield from _dicts(bind.get("listeners"))


def _routes_of(listener: Document) -> list[Any]:
    if not isinstance(listener.get("routes"), list):
        listener["routes"] = []
    routes: list[Any] = listener["routes"]
    return routes


def _taken(routes: Sequence[Any]) -> tuple[set[object], set[str]]:
    """The names and paths of existing routes."""
    there = list(_dicts(routes))
    return {one.get("name") for one in there}, {path for one in there for path in _paths(one)}


def _paths(one: Document) -> Iterator[str]:
    for match in _dicts(one.get("matches")):
        path = match.get("path")
        if isinstance(path, dict):
            yield from (value.rstrip("/") for value in path.values() if isinstance(value, str))


def _path(one: Document) -> str:
    return next(_paths(one))


def _dicts(value: object) -> Iterator[Document]:
    if isinstance(value, list):
        yield from (item for item in value if isinstance(item, dict))


def _mark(document: Document) -> str:
    return MARK + hashlib.sha256(to_yaml(document).encode()).hexdigest()[:16]


def _not_yaml(file: Path, exc: Exception) -> Problem:
    mark = getattr(exc, "problem_mark", None)
    line, column = (mark.line + 1, mark.column + 1) if mark is not None else (0, 0)
    return Problem(message="the bootstrap config is not YAML", file=file, line=line, column=column)
