"""Renders the model as the document of one family of AgentGateway versions, and a document as YAML.

Each string in the YAML is quoted, so that a server named ``1e3`` or ``no`` stays a string in each version of YAML.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeAlias
from urllib.parse import quote

import yaml

from holdfast.gateway.model import (
    CHECK_PATH,
    CHECK_ROUTE,
    PATH_PREFIX,
    PLAIN_DENIAL,
    ExtAuth,
    Family,
    Gateway,
    Jwt,
    Target,
    is_address,
)

__all__ = ["Document", "put", "render_config", "route", "to_yaml"]

Document: TypeAlias = dict[str, Any]

_PLAIN_KEY = re.compile(r"[A-Za-z][A-Za-z0-9]*", re.ASCII)
_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})


def render_config(gateway: Gateway, family: Family) -> Document:
    """The whole configuration for this family."""
    listener: Document = {"name": gateway.listener, "protocol": "HTTP"}
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
