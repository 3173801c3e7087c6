from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given, strategies as st

from holdfast.errors import ConfigError, UsageError
from holdfast.gateway.model import FAMILIES, ExtAuth, Gateway, Jwt, Target, family_of
from holdfast.gateway.render import blocks, check_config, complete, put, render_config, to_yaml
from tests.gateway.schemas import VERSIONS, schema_of

TARGETS = (Target(id="github", url="https://example.com/mcp"), Target(id="old", url="http://h:1/sse", transport="sse"))
JWT = Jwt(issuer="https://issuer.example", jwks="https://issuer.example/keys", audiences=("mcp",))

ASKED = [
    ExtAuth(host="authz:9100"),
    ExtAuth(host="authz:9100", protocol="http", timeout="1500ms", outage_status=599),
    ExtAuth(host="10.0.0.1:1", outage_status=403, body_bytes=0),
    ExtAuth(host="[::1]:65535", timeout="1m", outage_status=500),
]


def gateway(ext_auth: ExtAuth | None = ASKED[0], **other: Any) -> Gateway:
    return Gateway(targets=TARGETS, ext_auth=ext_auth, **other)


def ext_auths(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [block for _, block in blocks(document)]


@pytest.mark.requirement("GW-1")
@pytest.mark.parametrize("ext_auth", ASKED, ids=lambda asked: f"{asked.protocol}-{asked.outage_status}")
@pytest.mark.parametrize("version", VERSIONS)
def test_every_render_is_accepted_by_its_gateways_own_schema(version: str, ext_auth: ExtAuth) -> None:
    release = family_of(version)
    for jwt in (None, JWT, Jwt(issuer="i", jwks="/etc/keys.json")):
        document = render_config(gateway(ext_auth, jwt=jwt), release.family)
        check_config(document, release, schema_of(version))
        assert yaml.safe_load(to_yaml(document)) == document


@pytest.mark.requirement("GW-1")
@pytest.mark.parametrize("version", VERSIONS)
def test_the_form_of_another_version_is_rejected_by_the_schema_and_by_us(version: str) -> None:
    release = family_of(version)
    (other,) = (family for family in FAMILIES if family is not release.family)
    document = render_config(gateway(), other)
    assert f"'{other.timeout[0]}' was unexpected" in schema_of(version).faults(document)[0]
    with pytest.raises(ConfigError, match=f"`{'.'.join(other.timeout)}`, which AgentGateway .* does not accept"):
        check_config(document, release)


@pytest.mark.requirement("GW-1")
@pytest.mark.parametrize(
    ("version", "form"),
    [("0.12.0", {"timeout": "10s"}), *((v, {"policies": {"http": {"requestTimeout": "10s"}}}) for v in VERSIONS[1:])],
)
def test_the_timeout_is_always_written_in_exactly_one_form(version: str, form: dict[str, Any]) -> None:
    for block in ext_auths(render_config(gateway(), family_of(version).family)):
        assert {key: value for key, value in block.items() if key in ("timeout", "policies")} == form


@pytest.mark.requirement("GW-4")
@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_an_outage_is_answered_with_a_status_of_its_own(family: Any) -> None:
    modes = [block["failureMode"] for block in ext_auths(render_config(gateway(), family))]
    assert modes == [{"denyWithStatus": 503}] * 3


@pytest.mark.requirement("GW-4")
@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_the_plain_refusal_stays_selectable(family: Any) -> None:
    modes = [block["failureMode"] for block in ext_auths(render_config(gateway(ASKED[2]), family))]
    assert modes == ["deny"] * 3


@pytest.mark.requirement("GW-4")
@pytest.mark.parametrize("status", [0, 200, 204, 302, 401, 404, 499, 600, -1, 70000])
def test_no_outage_status_lets_a_request_through_or_hides_what_happened(status: int) -> None:
    with pytest.raises(UsageError, match=f"the outage status cannot be {status}") as refused:
        ExtAuth(host="authz:9100", outage_status=status)
    assert "an outage never lets requests through" in refused.value.hint


@pytest.mark.requirement("GW-4")
@given(
    status=st.integers(-1, 700),
    timeout=st.sampled_from(["10s", "1ms", "0s", "", "10", "allow"]),
    body=st.integers(-1, 10),
    protocol=st.sampled_from(["grpc", "http", "allow"]),
)
def test_no_options_make_a_render_fail_open(status: int, timeout: str, body: int, protocol: Any) -> None:
    try:
        asked = ExtAuth(host="a:1", outage_status=status, timeout=timeout, body_bytes=body, protocol=protocol)
    except UsageError:
        return
    for family in FAMILIES:
        for block in ext_auths(render_config(gateway(asked), family)):
            assert block["failureMode"] == "deny" or block["failureMode"]["denyWithStatus"] >= 500


@pytest.mark.parametrize("timeout", ["0s", "0ms", "-1s", "10", "10 s", "1.5s", "10S", "1h", "", "10s; allow", "٣s"])
def test_a_timeout_that_is_none_is_refused(timeout: str) -> None:
    with pytest.raises(UsageError, match="is not a timeout that the gateway accepts"):
        ExtAuth(host="authz:9100", timeout=timeout)


@pytest.mark.parametrize("host", ["authz", "authz:", ":9100", "authz:0", "authz:65536", "a b:1", "http://a:1", "a:1\n"])
def test_an_authorization_service_without_host_or_port_is_refused(host: str) -> None:
    with pytest.raises(UsageError, match="is not host:port"):
        ExtAuth(host=host)


@pytest.mark.requirement("GW-2")
def test_without_authorization_no_block_of_it_is_rendered() -> None:
    document = render_config(gateway(None), FAMILIES[1])
    assert "extAuthz" not in to_yaml(document)


def test_a_route_without_a_server_shows_what_authorization_says() -> None:
    route, *_ = render_config(gateway(), FAMILIES[1])["binds"][0]["listeners"][0]["routes"]
    assert route["matches"] == [{"path": {"exact": "/holdfast/check"}}]
    assert route["policies"]["directResponse"]["status"] == 200
    assert route["policies"]["extAuthz"]["host"] == "authz:9100"
    assert "backends" not in route


def test_a_token_is_demanded_where_an_issuer_is_named() -> None:
    document = render_config(gateway(jwt=JWT), FAMILIES[1])
    assert document["binds"][0]["listeners"][0]["policies"]["jwtAuth"] == {
        "mode": "strict",
        "issuer": "https://issuer.example",
        "audiences": ["mcp"],
        "jwks": {"url": "https://issuer.example/keys"},
    }


def test_every_server_has_a_route_and_a_backend_of_its_own() -> None:
    _, *routes = render_config(gateway(), FAMILIES[1])["binds"][0]["listeners"][0]["routes"]
    assert [route["matches"] for route in routes] == [
        [{"path": {"pathPrefix": "/mcp/github"}}],
        [{"path": {"pathPrefix": "/mcp/old"}}],
    ]
    assert [route["backends"][0]["mcp"]["targets"] for route in routes] == [
        [{"name": "github", "mcp": {"host": "https://example.com/mcp"}}],
        [{"name": "old", "sse": {"host": "http://h:1/sse"}}],
    ]


@pytest.mark.parametrize("name", ["1e3", "no", "0o17", "null", "~", "a: b", "- x", "#", "ä", "it's", "1_000", "\u2028"])
def test_a_servers_name_stays_a_text_in_every_edition_of_yaml(name: str) -> None:
    text = to_yaml(render_config(Gateway(targets=(Target(id=name, url="http://h"),)), FAMILIES[1]))
    lines = [line.strip().removeprefix("- ") for line in text.splitlines() if "name:" in line]
    assert all(line.removeprefix("name: ").startswith('"') for line in lines)
    assert yaml.safe_load(text)["binds"][0]["listeners"][0]["routes"][0]["name"] == name


@pytest.mark.requirement("GW-4")
@pytest.mark.parametrize(
    "mode",
    [
        *("allow", "Allow", "", None, 0, True, ["deny"]),
        *({"denyWithStatus": 200}, {"denyWithStatus": True}, {"denyWithStatus": "503"}),
        *({"denyWithStatus": 503, "allow": 1}, {"allow": {}}),
    ],
    ids=str,
)
def test_a_block_that_fails_open_is_refused_wherever_it_stands(mode: object) -> None:
    block = {"host": "a:1", "timeout": "1s", "failureMode": mode}
    places: list[dict[str, Any]] = [
        {"binds": [{"listeners": [{"policies": {"extAuthz": block}}]}]},
        {"binds": [{"listeners": [{"routes": [{"policies": {"extAuthz": block}}]}]}]},
        {"policies": [{"policy": {"extAuthz": {"conditional": [{"host": "a:1", "timeout": "1s"}, block]}}}]},
    ]
    for document in places:
        with pytest.raises(ConfigError, match="it fails open"):
            check_config(document, family_of("0.12"))


def test_a_block_without_a_timeout_is_given_one_and_a_block_with_one_keeps_it() -> None:
    for family in FAMILIES:
        bare: dict[str, Any] = {"host": "a:1", "policies": None}
        kept: dict[str, Any] = {"host": "a:1", "policies": {"backendTLS": {}}}
        put(kept, family.timeout, "3s")
        complete({"a": {"extAuthz": bare}, "b": {"extAuthz": kept}}, family, "10s")
        assert [_at(block, family.timeout) for block in (bare, kept)] == ["10s", "3s"]
        assert kept["policies"]["backendTLS"] == {}


def test_a_schemas_complaint_names_the_place_and_shows_no_value() -> None:
    document = render_config(gateway(), family_of("1.4.1").family)
    document["binds"][0]["listeners"][0]["routes"][1]["backends"] = [{"hostt": "https://user:hunter2@example.com"}]
    document["binds"][0]["port"] = "hunter2"
    faults = schema_of("1.4.1").faults(document)
    assert any(fault.startswith("binds[0].port: ") for fault in faults)
    assert "hunter2" not in str(faults)


def _at(block: dict[str, Any], path: tuple[str, ...]) -> object:
    value: Any = block
    for step in path:
        value = value[step]
    return value
