"""The model becomes AgentGateway's document, for one family of versions; and a document becomes YAML.

Every text in the YAML stands in quotes: a server named ``1e3`` or ``no`` stays a name, whichever
edition of YAML the reader keeps to.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeAlias
from urllib.parse import quote

import yaml

from holdfast.gateway.defaults import CHECK_PATH, CHECK_ROUTE, PATH_PREFIX
from holdfast.gateway.model import PLAIN_DENIAL, ExtAuth, Gateway, Jwt, Target, is_address
from holdfast.gateway.versions import Family

__all__ = ["Document", "put", "render", "route", "to_yaml"]

Document: TypeAlias = dict[str, Any]

_PLAIN_KEY = re.compile(r"[A-Za-z][A-Za-z0-9]*", re.ASCII)
_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})


def render(gateway: Gateway, family: Family) -> Document:
    """The whole configuration, as this family takes it."""
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
    """One server's route. One target a route: targets of one backend would rise and fall together."""
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
    """Set a value inside a block, making what lies on the way."""
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
    """Authorization comes before a direct response: 200 here is a verdict, and so is 403; the outage status is none."""
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
    # The gateway's own default lets requests without a token pass.
    made: Document = {"mode": "strict", "issuer": wanted.issuer}
    if wanted.audiences:
        made["audiences"] = list(wanted.audiences)
    return {**made, "jwks": {"url" if is_address(wanted.jwks) else "file": wanted.jwks}}


class _Dumper(yaml.SafeDumper):
    """Plain keys, quoted texts, and no aliases."""

    def ignore_aliases(self, data: object) -> bool:
        """Repeat a value rather than refer to it: a reader sees each route whole."""
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
