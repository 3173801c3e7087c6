from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.config.read import parse_config
from holdfast.config.spec import targets_of
from holdfast.errors import ConfigError
from holdfast.gateway.bridge import HttpSource
from holdfast.gateway.model import ExtAuth, Target, family_of
from holdfast.gateway.render import Rendered, Rules, blocks, merge, read_bootstrap
from tests.gateway.schemas import VERSIONS, schema_of
from tests.peers.http_fault import FaultServer, respond

AUTH = ExtAuth(host="authz:9100")
RULES = Rules(release=family_of("1.4.1"), ext_auth=AUTH)
A, B = Target(id="a", url="http://a/mcp"), Target(id="b", url="http://b/mcp")


def bootstrap(*routes: dict[str, Any], **listener: Any) -> dict[str, Any]:
    return {"binds": [{"port": 8080, "listeners": [{"name": "mcp", "routes": list(routes), **listener}]}]}


def merged(document: dict[str, Any], *targets: Target, rules: Rules = RULES) -> tuple[Rendered, dict[str, Any]]:
    rendered = merge(document, targets, rules, source=None)
    return rendered, yaml.safe_load(rendered.data)


def routes_of(document: dict[str, Any]) -> list[dict[str, Any]]:
    routes: list[dict[str, Any]] = document["binds"][0]["listeners"][0]["routes"]
    return routes


def own(name: str, path: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "matches": [{"path": {"pathPrefix": path}}], "backends": [{"host": "h:1"}], **more}


@pytest.mark.requirement("GW-5")
def test_targets_become_routes_beside_those_of_the_bootstrap() -> None:
    theirs = own("ui", "/", policies={"cors": {"allowOrigins": ["*"]}})
    rendered, document = merged(bootstrap(theirs), A, B)
    assert [route["name"] for route in routes_of(document)] == ["ui", "a", "b"]
    assert routes_of(document)[0] == theirs
    assert (rendered.routes, rendered.shadowed) == (3, ())


@pytest.mark.requirement("GW-5")
@pytest.mark.parametrize("theirs", [own("a", "/elsewhere"), own("other", "/mcp/a"), own("other", "/mcp/a/")])
def test_a_route_of_the_bootstrap_wins_over_a_target_of_its_name_or_path(theirs: dict[str, Any]) -> None:
    rendered, document = merged(bootstrap(theirs), A, B)
    assert [route["name"] for route in routes_of(document)] == [theirs["name"], "b"]
    assert rendered.shadowed == ("a",)


@pytest.mark.requirement("GW-5")
@pytest.mark.parametrize("version", VERSIONS)
def test_everything_else_of_the_bootstrap_is_kept_and_the_whole_fits_the_schema(version: str) -> None:
    theirs = {
        "config": {"adminAddr": "127.0.0.1:15000"},
        **bootstrap(own("ui", "/"), policies={"jwtAuth": {"mode": "strict", "issuer": "i", "jwks": "{}"}}),
        "backends": [{"name": "shared", "host": "h:1"}],
    }
    rules = Rules(release=family_of(version), ext_auth=AUTH, schema=schema_of(version))
    rendered, document = merged(theirs, A, rules=rules)
    assert document["config"] == theirs["config"]
    assert document["binds"][0]["listeners"][0]["policies"] == theirs["binds"][0]["listeners"][0]["policies"]
    assert [backend["name"] for backend in document["backends"]] == ["shared", rendered.mark]


@pytest.mark.requirement("GW-1", "GW-3")
@pytest.mark.parametrize("version", VERSIONS)
def test_the_bridge_gives_the_bootstraps_own_blocks_a_timeout_too(version: str) -> None:
    theirs = bootstrap(own("ui", "/", policies={"extAuthz": {"host": "authz:9100"}}))
    release = family_of(version)
    _, document = merged(theirs, A, rules=Rules(release=release, ext_auth=AUTH, schema=schema_of(version)))
    for _, block in blocks(document):
        found: Any = block
        for step in release.family.timeout:
            found = found[step]
        assert found == "10s"


@pytest.mark.requirement("GW-4")
def test_a_bootstrap_that_fails_open_is_refused() -> None:
    theirs = bootstrap(own("ui", "/", policies={"extAuthz": {"host": "authz:9100", "failureMode": "allow"}}))
    with pytest.raises(ConfigError, match="it fails open"):
        merged(theirs, A)
    with pytest.raises(ConfigError, match="it fails open"):
        merged(theirs)


@pytest.mark.requirement("GW-4")
def test_a_targets_route_is_no_way_round_the_bootstraps_authorization() -> None:
    theirs = bootstrap(own("ui", "/", policies={"extAuthz": {"host": "authz:9100"}}))
    with pytest.raises(ConfigError, match="the routes of the targets have none") as refused:
        merged(theirs, A, rules=Rules(release=RULES.release))
    assert "--ext-auth-host" in refused.value.hint


def test_the_mark_tells_one_config_from_another_and_is_in_the_text() -> None:
    one, other, again = (merged(bootstrap(), *targets)[0] for targets in ((A,), (A, B), (A,)))
    assert one.mark == again.mark != other.mark
    assert one.data == again.data
    assert one.mark.encode() in one.data


def test_the_order_of_targets_does_not_change_the_config() -> None:
    texts = [
        json.dumps({"mcpServers": {name: {"url": f"http://{name}/mcp"} for name in names}}) for names in ("ab", "ba")
    ]
    first, second = (targets_of(parse_config(text)).found for text in texts)
    assert merge(bootstrap(), first, RULES, source=None) == merge(bootstrap(), second, RULES, source=None)


def test_the_bootstrap_itself_is_not_changed() -> None:
    theirs = bootstrap(own("ui", "/", policies={"extAuthz": {"host": "authz:9100"}}))
    before = json.dumps(theirs)
    merged(theirs, A)
    assert json.dumps(theirs) == before


def test_routes_go_to_the_first_http_listener() -> None:
    listeners = [{"name": "raw", "protocol": "TCP"}, {"name": "x", "routes": None}, {"name": "y"}]
    _, document = merged({"binds": [{"port": 1, "listeners": listeners}]}, A)
    assert [len(one.get("routes") or []) for one in document["binds"][0]["listeners"]] == [0, 1, 0]


def test_a_bootstrap_without_a_listener_for_the_routes_is_refused_with_those_it_has() -> None:
    theirs = {"binds": [{"port": 1, "listeners": [{"name": "raw", "protocol": "TCP"}]}]}
    with pytest.raises(ConfigError, match="no HTTP listener") as refused:
        merged(theirs, A)
    assert refused.value.hint == "its listeners: raw"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("binds: [", r":1:9: the bootstrap config is not YAML"),
        ("- a\n- b", "is not a mapping"),
        ("", "is not a mapping"),
        ("a: !!python/object:os.system {}", "is not YAML"),
        ("x" * (5 << 20), "is larger than 4 MiB"),
    ],
    ids=["broken", "a list", "empty", "a program", "large"],
)
def test_a_bootstrap_that_cannot_be_read_says_why(tmp_path: Path, text: str, complaint: str) -> None:
    file = tmp_path / "bootstrap.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=complaint):
        read_bootstrap(file)


def test_a_bootstrap_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the bootstrap config: No such file"):
        read_bootstrap(tmp_path / "none.yaml")


def test_what_cannot_be_routed_to_is_left_out_with_its_reason() -> None:
    text = """{"mcpServers": {
        "good": {"url": "http://h/mcp", "headers": {"X-Key": "hunter2"}},
        "old": {"type": "sse", "url": "http://h/sse"},
        "files": {"command": "npx"},
        "named": {"url": "http://user:hunter2@h/mcp"},
        "bad": {"url": "not a url"},
        "off": {"url": "http://h/mcp", "disabled": true}
    }}"""
    targets = targets_of(parse_config(text, environ={}))
    assert [(target.id, target.transport) for target in targets.found] == [("good", "http"), ("old", "sse")]
    assert sorted(targets.left_out) == ["bad", "files", "named"]
    assert "user name or password" in targets.left_out["named"]
    assert targets.left_out["files"] == "it is a command: the gateway routes only to URLs"
    (note,) = targets.notes
    assert "`good`" in note
    assert "hunter2" not in repr(targets) + note


@pytest.mark.anyio
async def test_a_hub_that_tells_a_password_in_an_address_gets_no_route_for_it() -> None:
    told = [{"id": name, "url": url, "transport": "http"} for name, url in _WITH_AND_WITHOUT_PASSWORD.items()]
    async with FaultServer(respond(200, json.dumps({"targets": told, "left_out": {}}))) as registry:
        targets = await HttpSource(url=registry.origin).read()
    rendered, _ = merged(bootstrap(), *targets.found)
    assert [target.id for target in targets.found] == ["good"]
    assert "hunter2" not in rendered.data.decode() + repr(targets)


@pytest.mark.anyio
@pytest.mark.parametrize("address", ["http://[::1", "http://[evil]/mcp", "http://h:port/mcp"])
async def test_a_hub_that_tells_an_address_that_is_none_gets_no_route_for_it(address: str) -> None:
    told = [
        {"id": name, "url": url, "transport": "http"} for name, url in {"bad": address, "good": "http://h/"}.items()
    ]
    async with FaultServer(respond(200, json.dumps({"targets": told, "left_out": {}}))) as registry:
        targets = await HttpSource(url=registry.origin).read()
    merged(bootstrap(), *targets.found)
    assert [target.id for target in targets.found] == ["good"]
    assert "bad" in targets.left_out


_WITH_AND_WITHOUT_PASSWORD = {"named": "http://user:hunter2@h/mcp", "good": "http://h/mcp"}
