"""Renders the model as the document of one family of AgentGateway versions, a document as YAML, and checks it.

Each string in the YAML is quoted, so that a server named ``1e3`` or ``no`` stays a string in each version of YAML.

A document is checked before it is written. No authorization block may fail open. Each block has its timeout, once, in
the field that this version of the gateway reads. If the schema of the product is available, the document must fit it
too.

The bridge starts from a bootstrap config, which it reads here, and adds a route for each target (``merge``).
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import quote

import yaml

from holdfast.errors import ConfigError, HoldfastError, Problem, UsageError
from holdfast.gateway.model import (
    CHECK_PATH,
    CHECK_ROUTE,
    EXT_AUTH_TIMEOUT,
    FAMILIES,
    LISTENER_NAME,
    PATH_PREFIX,
    PLAIN_DENIAL,
    ExtAuth,
    Family,
    Gateway,
    Jwt,
    Release,
    Target,
    check_timeout,
    is_address,
    is_short,
)

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError

__all__ = [
    "MARK",
    "Document",
    "Rendered",
    "Rules",
    "Schema",
    "blocks",
    "check_config",
    "complete",
    "find_schema",
    "merge",
    "put",
    "read_bootstrap",
    "render_config",
    "route",
    "session_key",
    "short_timeouts",
    "to_yaml",
    "with_session_key",
]

Document: TypeAlias = dict[str, Any]

_PLAIN_KEY = re.compile(r"[A-Za-z][A-Za-z0-9]*", re.ASCII)

_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})


def render_config(gateway: Gateway, family: Family) -> Document:
    """The whole configuration for this family."""
    listener: Document = {"name": LISTENER_NAME, "protocol": "HTTP"}
    if gateway.jwt is not None:
        listener["policies"] = {"jwtAuth": _jwt(gateway.jwt)}
    check = [] if gateway.ext_auth is None else [_check_route(gateway.ext_auth, family)]
    listener["routes"] = [*check, *(route(target, gateway.ext_auth, family) for target in gateway.targets)]
    return {
        "config": {"adminAddr": gateway.admin},
        "binds": [{"port": gateway.port, "listeners": [listener]}],
    }


def route(target: Target, ext_auth: ExtAuth | None, family: Family) -> Document:
    """The route of one server. Each route has one target, because the targets of a backend fail together."""
    made: Document = {
        "name": target.id,
        "matches": [{"path": {"pathPrefix": f"{PATH_PREFIX}/{quote(target.id, safe='')}"}}],
    }
    if ext_auth is not None:
        made["policies"] = {"extAuthz": _ext_auth(ext_auth, family)}
    kind = "sse" if target.transport == "sse" else "mcp"
    made["backends"] = [{"mcp": {"targets": [{"name": target.id, kind: {"host": target.url}}]}}]
    return made


def put(block: Document, path: tuple[str, ...], value: object) -> None:
    """Set a value inside a block, and create the levels above it."""
    *way, last = path
    for step in way:
        if not isinstance(block.get(step), dict):
            block[step] = {}
        block = block[step]
    block[last] = value


def to_yaml(document: Mapping[str, Any]) -> str:
    """The document as text."""
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000)


def _check_route(ext_auth: ExtAuth, family: Family) -> Document:
    """Authorization runs before the direct response: 200 and 403 are decisions, the outage status is not."""
    return {
        "name": CHECK_ROUTE,
        "matches": [{"path": {"exact": CHECK_PATH}}],
        "policies": {
            "extAuthz": _ext_auth(ext_auth, family),
            "directResponse": {"status": 200, "body": "authorized\n"},
        },
    }


def _ext_auth(wanted: ExtAuth, family: Family) -> Document:
    plain = wanted.outage_status == PLAIN_DENIAL
    block: Document = {
        "host": wanted.host,
        "failureMode": "deny" if plain else {"denyWithStatus": wanted.outage_status},
    }
    put(block, family.timeout, wanted.timeout)
    block["protocol"] = {wanted.protocol: {}}
    if wanted.body_bytes:
        block["includeRequestBody"] = {
            "maxRequestBytes": wanted.body_bytes,
            "allowPartialMessage": True,
            "packAsBytes": wanted.protocol == "grpc",
        }
    return block


def _jwt(wanted: Jwt) -> Document:
    # The default of the gateway accepts requests without a token.
    made: Document = {"mode": "strict", "issuer": wanted.issuer}
    if wanted.audiences:
        made["audiences"] = list(wanted.audiences)
    return {**made, "jwks": {"url" if is_address(wanted.jwks) else "file": wanted.jwks}}


class _Dumper(yaml.SafeDumper):
    """Writes plain keys, quoted strings, and no aliases."""

    def ignore_aliases(self, data: object) -> bool:
        """Repeat a value instead of an alias, so that each route is complete."""
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style='"')


def _mapping(dumper: yaml.SafeDumper, value: Mapping[str, Any]) -> yaml.MappingNode:
    node = dumper.represent_mapping("tag:yaml.org,2002:map", value.items())
    for key, _ in node.value:
        if _PLAIN_KEY.fullmatch(key.value) and key.value.lower() not in _WORDS:
            key.style = None
    return node


_Dumper.add_representer(str, _text)

_Dumper.add_representer(dict, _mapping)

SCHEMAS_VARIABLE = "HOLDFAST_AGENTGATEWAY_SCHEMAS"
"""A folder with the schemas of the product, such as ``v1.4.1.config-schema.json``."""

SHOWN_FAULTS = 5
"""Routes usually share one fault, so that a few are enough."""

_SCHEMA_NAME = re.compile(r"v?(\d+)\.(\d+)\.\d+\.config-schema\.json")


def blocks(value: object, place: str = "") -> Iterator[tuple[str, Document]]:
    """Each ``extAuthz`` block of a document and its path; also each branch of a conditional block."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from blocks(item, f"{place}[{index}]")
    elif isinstance(value, dict):
        for key, item in value.items():
            here = f"{place}.{key}" if place else str(key)
            if key == "extAuthz" and isinstance(item, dict):
                branches = item.get("conditional")
                many = branches if isinstance(branches, list) else [item]
                yield from ((here, branch) for branch in many if isinstance(branch, dict))
            else:
                yield from blocks(item, here)


def complete(document: Document, family: Family, timeout: str) -> None:
    """Add the timeout to each authorization block without one."""
    for _, block in blocks(document):
        if all(_get(block, known.timeout) is None for known in FAMILIES):
            put(block, family.timeout, timeout)


def check_config(
    document: Document, release: Release, schema: Schema | None = None, *, source: Path | None = None
) -> None:
    """Raise ``ConfigError`` with the faults of a document. ``source`` is the file of the bootstrap."""
    faults = [
        Problem(message=f"{place}: {message}", hint=hint, file=source)
        for place, block in blocks(document)
        for message, hint in _faults(block, release.family)
    ]
    if schema is not None and not faults:
        faults = [Problem(message=message, file=source) for message in schema.faults(document)]
    if faults:
        raise ConfigError(faults[:SHOWN_FAULTS])


def short_timeouts(document: Document, family: Family) -> list[str]:
    """A warning for each authorization timeout that a cold start of the service does not meet."""
    found = {
        text: place for place, block in blocks(document) if is_short(text := str(_get(block, family.timeout) or ""))
    }
    return [
        f"{place}: the timeout {text} is under 1 s, so that a cold authorization service makes servers unavailable"
        for text, place in found.items()
    ]


class Schema:
    """The schema of one release of the product."""

    def __init__(self, file: Path) -> None:
        from jsonschema import Draft202012Validator  # noqa: PLC0415 - slow to import, and rarely used

        try:
            self._validator = Draft202012Validator(json.loads(file.read_bytes()))
        except (OSError, ValueError) as exc:
            raise UsageError(
                f"cannot read the schema {file}", hint="name a file with a JSON Schema, or leave --schema out"
            ) from exc

    def faults(self, document: Document) -> list[str]:
        """The violations of the schema, one line each, without values of the document."""
        return [_in_words(_deepest(error)) for error in self._validator.iter_errors(document)]


def find_schema(release: Release, given: Path | None = None) -> Schema | None:
    """The schema for a release, from the given file or folder, else from the folder in the environment."""
    known = os.environ.get(SCHEMAS_VARIABLE)
    place = given or (Path(known) if known else None)
    if place is None or not place.is_dir():
        return Schema(place) if place else None
    for file in sorted(place.iterdir(), reverse=True):
        match = _SCHEMA_NAME.fullmatch(file.name)
        if match and (int(match.group(1)), int(match.group(2))) == release.minor:
            return Schema(file)
    return None


def _faults(block: Document, family: Family) -> Iterator[tuple[str, str]]:
    mode = block.get("failureMode", "deny")
    if mode != "deny" and not _denies(mode):
        yield (
            f"it fails open: its `failureMode` is {json.dumps(mode, default=str)}",
            "write `deny` or `{denyWithStatus: 503}`, so that a request without a decision is refused",
        )
    dotted = ".".join(family.timeout)
    foreign = [".".join(f.timeout) for f in FAMILIES if f is not family and _get(block, f.timeout) is not None]
    for wrong in foreign:
        yield f"it has `{wrong}`, which AgentGateway {family} does not accept", f"write `{dotted}` instead"
    given = _get(block, family.timeout)
    if given is None and not foreign:
        yield "it has no timeout", f"write `{dotted}`: the default of the gateway is too short for a cold start"
    if given is not None:
        try:
            check_timeout(str(given))
        except UsageError as exc:
            yield exc.message, exc.hint


def _denies(mode: object) -> bool:
    status = mode.get("denyWithStatus") if isinstance(mode, dict) and len(mode) == 1 else None
    return isinstance(status, int) and not isinstance(status, bool) and 400 <= status <= 599


def _get(block: Document, path: tuple[str, ...]) -> object:
    value: object = block
    for step in path:
        value = value.get(step) if isinstance(value, dict) else None
    return value


def _deepest(error: ValidationError) -> ValidationError:
    """The deepest cause: of several alternatives, that of the nearest one."""
    while error.context:
        branches: dict[object, list[ValidationError]] = {}
        for inner in error.context:
            branches.setdefault(inner.schema_path[0], []).append(inner)
        error = min(branches.values(), key=len)[0]
    return error


def _in_words(error: ValidationError) -> str:
    place = ""
    for step in error.absolute_path:
        place += f"[{step}]" if isinstance(step, int) else f".{step}" if place else str(step)
    # These messages name keys. Other messages repeat the value, which may be a secret.
    telling = error.validator in ("additionalProperties", "unevaluatedProperties", "required")
    return f"{place or 'the document'}: {error.message if telling else f'does not fit the schema ({error.validator})'}"


# The bootstrap of the bridge, and the routes of its targets.

MARK = "holdfast-config-"
"""The prefix of a fingerprint."""

LARGEST = 4 << 20


@dataclass(frozen=True, kw_only=True)
class Rules:
    """How targets become routes, and how the result is checked."""

    release: Release
    ext_auth: ExtAuth | None = None
    schema: Schema | None = None


@dataclass(frozen=True, kw_only=True)
class Rendered:
    """A checked config."""

    data: bytes = field(repr=False)
    """The content of the file."""
    mark: str
    routes: int
    shadowed: tuple[str, ...] = ()
    """Targets whose name or path is used by a route of the bootstrap."""
    warnings: tuple[str, ...] = ()


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
        mark = getattr(exc, "problem_mark", None)
        line, column = (mark.line + 1, mark.column + 1) if mark is not None else (0, 0)
        problem = Problem(message="the bootstrap config is not YAML", file=file, line=line, column=column)
        raise ConfigError([problem]) from exc
    if not isinstance(document, dict):
        raise ConfigError([Problem(message="the bootstrap config is not a mapping", file=file)])
    return document


def session_key(file: Path) -> str:
    """The key in a file with which the gateway encrypts its session ids: 64 hex digits, as the gateway demands."""
    try:
        key = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as exc:
        why = getattr(exc, "strerror", None) or type(exc).__name__
        raise HoldfastError(f"cannot read the session key file {file}: {why}", hint="check the path") from exc
    if not re.fullmatch(r"[0-9a-fA-F]{64}", key):
        raise HoldfastError(f"the session key file {file} does not hold 64 hex digits", hint="openssl rand -hex 32")
    return key


def with_session_key(document: Mapping[str, Any], key: str) -> Document:
    """The config with that key. It comes from a file of its own, so that no config map holds it."""
    settings = document.get("config")
    return {**document, "config": {**(settings if isinstance(settings, Mapping) else {}), "session": {"key": key}}}


def merge(bootstrap: Mapping[str, Any], targets: Sequence[Target], rules: Rules, *, source: Path | None) -> Rendered:
    """The bootstrap with a route for each target, checked; ``ConfigError`` if it is not valid."""
    document: Document = copy.deepcopy(dict(bootstrap))
    shadowed = _add_routes(document, targets, rules, source) if targets else ()
    if rules.ext_auth is not None:
        _set_check_timeout(document, rules.ext_auth, rules.release.family)
    complete(document, rules.release.family, rules.ext_auth.timeout if rules.ext_auth else EXT_AUTH_TIMEOUT)
    # The fingerprint is that of the document without it: equal configs have equal names, also after a restart.
    mark = MARK + hashlib.sha256(to_yaml(document).encode()).hexdigest()[:16]
    document["backends"] = [*(document.get("backends") or []), {"name": mark, "host": "127.0.0.1:1"}]
    check_config(document, rules.release, rules.schema, source=source)
    routes = sum(len(listener.get("routes") or ()) for listener in _listeners(document))
    warnings = tuple(short_timeouts(document, rules.release.family))
    return Rendered(data=to_yaml(document).encode(), mark=mark, routes=routes, shadowed=shadowed, warnings=warnings)


def _set_check_timeout(document: Document, ext_auth: ExtAuth, family: Family) -> None:
    """Give the check route the timeout of the other routes: one option decides all of them."""
    for listener in _listeners(document):
        for one in _dicts(listener.get("routes")):
            if one.get("name") == CHECK_ROUTE:
                for _, block in blocks(one):
                    put(block, family.timeout, ext_auth.timeout)


def _add_routes(document: Document, targets: Sequence[Target], rules: Rules, source: Path | None) -> tuple[str, ...]:
    """Add a route for each target. Returns the ids of the shadowed targets."""
    if rules.ext_auth is None and any(blocks(document)):  # such routes would bypass the authorization
        message = "the bootstrap config uses authorization, and the routes of the targets have none"
        hint = "name the authorization service: --ext-auth-host HOST:PORT"
        raise ConfigError([Problem(message=message, hint=hint, file=source)])
    listener = _first_listener(document, source)
    there = list(_dicts(listener.get("routes")))
    names, paths = {one.get("name") for one in there}, {path for one in there for path in _paths(one)}
    made = {target.id: route(target, rules.ext_auth, rules.release.family) for target in targets}
    shadowed = tuple(name for name, new in made.items() if name in names or not paths.isdisjoint(_paths(new)))
    before = listener.get("routes")
    new = [one for name, one in made.items() if name not in shadowed]
    listener["routes"] = [*(before if isinstance(before, list) else ()), *new]
    return shadowed


def _first_listener(document: Document, source: Path | None) -> Document:
    """The first HTTP listener, which gets the routes."""
    for one in _listeners(document):
        if one.get("protocol", "HTTP") in ("HTTP", "HTTPS"):
            return one
    hint = "its listeners: " + (", ".join(str(one.get("name", "(unnamed)")) for one in _listeners(document)) or "none")
    raise ConfigError([Problem(message="the bootstrap config has no HTTP listener", hint=hint, file=source)])


def _listeners(document: Document) -> Iterator[Document]:
    for bind in _dicts(document.get("binds")):
        yield from _dicts(bind.get("listeners"))


def _paths(one: Document) -> Iterator[str]:
    for match in _dicts(one.get("matches")):
        path = match.get("path")
        if isinstance(path, dict):
            yield from (value.rstrip("/") for value in path.values() if isinstance(value, str))


def _dicts(value: object) -> Iterator[Document]:
    if isinstance(value, list):
        yield from (item for item in value if isinstance(item, dict))
