from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]  # the package ships no types
import pytest
import yaml

from holdfast.gateway.model import EXT_AUTH_PORT, EXT_AUTH_TIMEOUT, GATEWAY_VERSION, family_of
from holdfast.gateway.render import blocks, check_config
from tests.deploy.chart import ASKS, AUTH, CHART, ROOT, Refused, by_kind, helm, manifests, static_config
from tests.docs.documented import commands_of, documented_pages
from tests.gateway.schemas import VERSIONS, schema_of

CONTRACT = {"enabled": False, "serviceName": "", "serviceNamespace": "", "port": 9100, "timeout": "10s"}
"""The block of values that was agreed on, word for word."""
FOREIGN = {
    "Gateway",
    "HTTPRoute",
    "AgentgatewayBackend",
    "AgentgatewayPolicy",
    "PodMonitor",
    "PrometheusRule",
    "ServiceMonitor",
}
"""Kinds of other projects, whose schemas do not come with Kubernetes'."""

TARGETS = {"github": {"url": "https://api.example.com/mcp"}, "old": {"type": "sse", "url": "http://old.internal/sse"}}
EVERYTHING = {
    "targets": TARGETS,
    "prometheus": {"rules": True, "podMonitor": True, "labels": {"team": "agents"}},
    "networkPolicy": {"from": [{"podSelector": {}}], "metricsFrom": [{"namespaceSelector": {}}]},
    "bridge": {"targetsUrl": "https://hub.example/targets", "tokenSecret": "hub-token"},
    "hub": {"enabled": True, "tokenSecret": "hub", "stateClaim": "state", "envFrom": [{"secretRef": {"name": "keys"}}]},
    "imagePullSecrets": [{"name": "registry"}],
    "nodeSelector": {"disk": "ssd"},
    "tolerations": [{"key": "agents", "operator": "Exists"}],
    "podAnnotations": {"a": "b"},
    "global.agentgateway.jwt": {"issuer": "https://i", "jwks": "https://i/keys", "audiences": ["mcp"]},
}
HUBS: dict[str, Any] = {
    "enabled": True,
    "tokenSecret": "hub",
    "replicas": 3,
    "sessionKeySecret": "hub-session",
    "extraEnv": [{"name": "TZ", "value": "UTC"}],
    "extraVolumes": [{"name": "ca", "secret": {"secretName": "ca"}}],
    "extraVolumeMounts": [{"name": "ca", "mountPath": "/etc/ca", "readOnly": True}],
    "serviceAccount": {"create": True, "annotations": {"role": "hub"}},
    "ingress": {"enabled": True, "className": "nginx", "host": "hub.example", "tlsSecret": "tls"},
    "route": {"enabled": True, "parentRefs": [{"name": "public"}], "hostnames": ["mcp.example"]},
}
QUEUE = {
    "type": "Pods",
    "pods": {"metric": {"name": "holdfast_calls"}, "target": {"type": "AverageValue", "averageValue": "20"}},
}
JWT = {"issuer": "https://i", "audience": "mcp", "keys": "https://i/keys"}
ASKED = {"enabled": True, "serviceName": "ext-authz"}
INSTALLS: dict[str, dict[str, Any]] = {
    "default": {},
    "everything": EVERYTHING,
    "bridge on the hub": {"hub": {"enabled": True, "tokenSecret": "hub"}, "bridge": {"fromHub": True}},
    "hubs": {
        "hub": HUBS,
        "prometheus": {"serviceMonitor": True},
        "global.agentgateway.sessionKeySecret": "gateway-key",
    },
    "hubs of a fleet": {
        "hub": {**HUBS, "fleet": {"urlSecret": "redis", "caSecret": "redis-ca"}},
        "networkPolicy": {"to": [{"podSelector": {}}]},
    },
    "hubs that scale": {"hub": {**HUBS, "autoscaling": {"enabled": True, "metrics": [QUEUE]}}},
    "hubs with singletons": {
        "hub": {**HUBS, "singletons": ["files"]},
        "targets": {**TARGETS, "files": {"command": "files"}},
        "imagePullSecrets": [{"name": "registry"}],
        "nodeSelector": {"disk": "ssd"},
    },
    "without the bridge": {"bridge": {"enabled": False}, "targets": TARGETS},
    "with authorization": {AUTH: ASKED, "targets": TARGETS},
    "without anything": {"bridge": {"enabled": False}},
    "old gateway": {"global.agentgateway.version": "0.12.0", "targets": TARGETS, AUTH: ASKED},
    "gateway API": {"global.agentgateway.mode": "gateway-api", "targets": TARGETS, AUTH: ASKED},
    "gateway API and a hub": {
        "global.agentgateway.mode": "gateway-api",
        "hub": {"enabled": True, "tokenSecret": "hub"},
        "networkPolicy": {"hubFrom": [{"podSelector": {}}]},
    },
    "the hub alone": {
        "gateway": {"enabled": False},
        "hub": {**HUBS, "controlTokenSecret": "control", "settings": {"call": {"timeout": "2m"}}},
        "prometheus": {"rules": True, "podMonitor": True},
    },
    "the hub with people": {
        "gateway": {"enabled": False},
        "hub": {
            "enabled": True,
            "publicUrl": "https://hub.example",
            "jwt": {"issuer": "https://i", "keys": "https://i/keys"},
            "oidc": {"clientId": "hub", "clientSecret": "hub-oidc", "scope": "openid groups"},
            "settings": {"access": {"roles": {"operate": {"groups": ["sre"]}}}},
        },
    },
    "the hub with JWTs alone": {"gateway": {"enabled": False}, "hub": {"enabled": True, "jwt": JWT}},
    "the gateway and a hub with JWTs alone": {
        "hub": {"enabled": True, "jwt": JWT, "controlTokenSecret": "control"},
        "global.agentgateway.jwt": {"issuer": "https://i", "jwks": "https://i/keys", "audiences": ["mcp"]},
        "bridge": {"fromHub": True},
        "prometheus": {"serviceMonitor": True},
    },
}


WAITS = {"host": "a:1", "policies": {"http": {"requestTimeout": "1s"}}}


def timeouts(document: dict[str, Any]) -> list[Any]:
    """The timeout of each authorization block, in either form."""
    return [block.get("timeout") or block["policies"]["http"]["requestTimeout"] for _, block in blocks(document)]


def test_the_chart_lints() -> None:
    helm("lint", "--strict", CHART)


@pytest.mark.parametrize("install", INSTALLS)
@pytest.mark.parametrize("version", ["1.25", "1.31", "1.37"])
def test_every_manifest_is_one_that_kubernetes_takes(install: str, version: str) -> None:
    found = manifests(values=INSTALLS[install])
    own = [manifest for manifest in found if manifest["kind"] not in FOREIGN]
    for manifest in own:
        kubernetes_validate.validate(manifest, version, strict=True)
    names = [(manifest["kind"], manifest["metadata"]["name"]) for manifest in found]
    assert len(names) == len(set(names))
    assert own or install == "gateway API"


INSTALLING = [
    (page, command)
    for page in (*documented_pages(), "deploy/helm/holdfast/README.md")
    for command in commands_of(page)
    if command.startswith("helm install ")
]


@pytest.mark.requirement("FLEET-10", "DX-1")
@pytest.mark.parametrize(("page", "command"), INSTALLING)
def test_every_install_that_is_printed_renders_as_printed(page: str, command: str, tmp_path: Path) -> None:
    _, _, name, *rest = shlex.split(command.replace("\\\n", " "))
    if "values.yaml" in rest:
        (values,) = [
            block
            for block in re.findall(r"```yaml\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
            if "targets:" in block
        ]
        (tmp_path / "values.yaml").write_text(values)
        rest[rest.index("values.yaml")] = str(tmp_path / "values.yaml")
    assert "kind: " in helm("template", name, *rest)


def test_the_readme_of_the_chart_is_in_the_package_and_names_every_part() -> None:
    shown = helm("show", "readme", CHART)
    for part in yaml.safe_load((CHART / "values.yaml").read_text())["hub"]["jwt"].keys() - {
        "userClaim",
        "groupsClaim",
        "scopesClaim",
    }:
        assert f"`{part}`" in shown
    for word in ("values-hub.yaml", "helm test", "sessionKeySecret", "extAuth.enabled", "runbooks"):
        assert word in shown


@pytest.mark.requirement("GW-2")
def test_the_defaults_of_the_values_are_the_contracts_block_word_for_word() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())["global"]["agentgateway"]
    assert {key: values["extAuth"][key] for key in CONTRACT} == CONTRACT
    assert values["version"] == GATEWAY_VERSION
    assert (CONTRACT["timeout"], CONTRACT["port"]) == (EXT_AUTH_TIMEOUT, EXT_AUTH_PORT)


@pytest.mark.requirement("GW-2")
def test_the_default_timeout_is_that_of_the_program() -> None:
    document = static_config(*ASKS)
    assert timeouts(document) == [EXT_AUTH_TIMEOUT] == ["10s"]
    assert blocks_host(document) == f"ext-authz.agents.svc.cluster.local:{EXT_AUTH_PORT}"


def blocks_host(document: dict[str, Any]) -> str:
    (block,) = [block for _, block in blocks(document)]
    return str(block["host"])


@pytest.mark.requirement("GW-2")
@pytest.mark.parametrize("unset", [f"{AUTH}.timeout=null", f"{AUTH}.timeout="])
def test_a_timeout_that_is_unset_is_the_default_all_the_same(unset: str) -> None:
    assert timeouts(static_config(*ASKS, unset)) == [EXT_AUTH_TIMEOUT]
    assert f"--ext-auth-timeout={EXT_AUTH_TIMEOUT}" in bridge_args(manifests(*ASKS, unset))


@pytest.mark.requirement("GW-2")
def test_the_timeout_the_service_and_its_port_can_be_chosen() -> None:
    service = (f"{AUTH}.serviceName=gate", f"{AUTH}.serviceNamespace=sec", f"{AUTH}.port=1")
    settings = (*ASKS, f"{AUTH}.timeout=1500ms", *service)
    document = static_config(*settings)
    assert timeouts(document) == ["1500ms"]
    assert blocks_host(document) == "gate.sec.svc.cluster.local:1"
    arguments = bridge_args(manifests(*settings))
    assert "--ext-auth-timeout=1500ms" in arguments
    assert "--ext-auth-host=gate.sec.svc.cluster.local:1" in arguments


@pytest.mark.requirement("GW-2")
def test_without_authorization_no_block_of_it_is_rendered_anywhere() -> None:
    for values in ({}, {"bridge": {"enabled": False}, "targets": TARGETS}, {"global.agentgateway.mode": "gateway-api"}):
        for given in ({}, {AUTH: CONTRACT}, {AUTH: {"enabled": False, "serviceName": "ext-authz"}}):
            found = manifests(values={**given, **values})
            assert "extauth" not in json.dumps(found).lower().replace("-", "")


@pytest.mark.requirement("GW-2")
@pytest.mark.parametrize("mode", ["static", "gateway-api"])
def test_authorization_without_a_service_is_refused_with_what_to_do(mode: str) -> None:
    with pytest.raises(Refused, match="serviceName is empty: name the authorization service"):
        manifests(f"{AUTH}.enabled=true", f"global.agentgateway.mode={mode}")


@pytest.mark.requirement("GW-2", "GW-4")
def test_the_notes_say_what_protects_the_gateway_and_warn_where_nothing_does(tmp_path: Path) -> None:
    install: dict[str, Any] = {"hub": {"enabled": True, "tokenSecret": "hub"}}
    jwt = {"global.agentgateway.jwt": {"issuer": "https://i", "jwks": "https://i/keys"}}
    only: dict[str, Any] = {"networkPolicy.from": [{"podSelector": {}}]}
    said = {
        name: notes(tmp_path / name, values)
        for name, values in {
            "open": install,
            "peers": {**install, **only},
            "jwt": {**install, **jwt},
            "asks": {**install, AUTH: ASKED},
            "alone": {**install, "gateway": {"enabled": False}},
            "api": {"global.agentgateway.mode": "gateway-api"},
        }.items()
    }
    assert "WARNING: nothing protects it. Everyone who can reach it can reach the servers." in said["open"]
    assert "Only the hub asks each caller for its own credential." in said["open"]
    for way in ("extAuth.enabled", "jwt.issuer", "networkPolicy.from"):
        assert way in said["open"]
    assert "WARNING: it lets in everyone whom networkPolicy.from names" in said["peers"]
    assert "every caller with a valid JWT of https://i" in said["jwt"]
    assert "asks ext-authz.agents.svc.cluster.local:9100 to authorize every request" in said["asks"]
    assert "WARNING: nothing protects it" in said["api"]
    assert "gateway" not in said["alone"]
    assert "which shows it the token for callers that it let in" in said["jwt"]
    assert "which shows it the token" not in said["open"] + said["peers"]
    for name in ("jwt", "asks", "alone"):
        assert "WARNING" not in said[name], name


def notes(folder: Path, values: dict[str, Any]) -> str:
    """What an install would print. Helm prints that only with a cluster: here a manifest of a copy holds it."""
    shutil.copytree(CHART, folder)
    text = (folder / "templates/NOTES.txt").rename(folder / "templates/_notes.tpl")
    text.write_text('{{- define "notes" -}}\n' + text.read_text() + "{{- end }}")
    (folder / "templates/shown.yaml").write_text(
        'kind: Shown\nmetadata: {name: notes}\ntext: {{ include "notes" . | toJson }}\n'
    )
    given = [part for key, value in values.items() for part in ("--set-json", f"{key}={json.dumps(value)}")]
    shown = helm("template", "demo", folder, "-n", "agents", "--show-only", "templates/shown.yaml", *given)
    return str(yaml.safe_load(shown)["text"])


@pytest.mark.requirement("GW-5")
def test_the_bridge_may_remove_every_route_only_where_the_values_say_so() -> None:
    assert "--allow-empty" not in bridge_args(manifests())
    assert "--allow-empty" in bridge_args(manifests("bridge.allowEmpty=true"))


@pytest.mark.requirement("GW-1")
@pytest.mark.parametrize("version", VERSIONS)
def test_every_static_config_is_accepted_by_its_gateways_schema(version: str) -> None:
    for values in INSTALLS.values():
        if values.get("global.agentgateway.mode") == "gateway-api" or "gateway" in values:
            continue
        document = static_config(values={**values, "global.agentgateway.version": version})
        check_config(document, family_of(version), schema_of(version))


@pytest.mark.requirement("GW-1")
@pytest.mark.parametrize("version", VERSIONS)
def test_the_timeout_has_the_form_of_the_gateway_that_is_pinned(version: str) -> None:
    found = manifests(*ASKS, f"global.agentgateway.version={version}")
    text = by_kind(found, "ConfigMap", "agentgateway")["data"]["config.yaml"]
    (container, *_) = by_kind(found, "Deployment", "agentgateway")["spec"]["template"]["spec"]["containers"]
    if version.startswith("0."):
        assert 'timeout: "10s"' in text
        assert "requestTimeout" not in text
        assert container["image"].endswith(f":{version}")
    else:
        assert 'requestTimeout: "10s"' in text
        assert "\n              timeout:" not in text
        assert container["image"].endswith(f":v{version}")


@pytest.mark.requirement("GW-4")
@pytest.mark.parametrize(
    ("status", "mode"), [(503, {"denyWithStatus": 503}), (599, {"denyWithStatus": 599}), (403, "deny")]
)
def test_an_outage_has_its_status_and_the_plain_refusal_stays_selectable(status: int, mode: object) -> None:
    ((_, block),) = blocks(static_config(*ASKS, f"{AUTH}.outageStatus={status}"))
    assert block["failureMode"] == mode


@pytest.mark.requirement("GW-4")
def test_what_is_unset_fails_closed_too_and_so_does_a_chart_whose_schema_is_skipped() -> None:
    ((_, block),) = blocks(static_config(*ASKS, f"{AUTH}.outageStatus=null", f"{AUTH}.protocol=null"))
    assert (block["failureMode"], block["protocol"]) == ({"denyWithStatus": 503}, {"grpc": {}})
    asked = [part for setting in (*ASKS, f"{AUTH}.outageStatus=200") for part in ("--set", setting)]
    with pytest.raises(Refused, match="outageStatus cannot be 200: an outage is a refusal"):
        helm("template", "demo", CHART, "--skip-schema-validation", *asked)


@pytest.mark.requirement("GW-4")
@pytest.mark.parametrize(
    "values",
    [
        {f"{AUTH}.outageStatus": 200},
        {f"{AUTH}.outageStatus": 401},
        {f"{AUTH}.outageStatus": 0},
        {f"{AUTH}.failureMode": "allow"},
        {f"{AUTH}.timeout": "0s"},
        {f"{AUTH}.timeout": "10"},
        {f"{AUTH}.timeout": '1s"\n failureMode: "allow'},
        {f"{AUTH}.protocol": "http: {}, failureMode: allow"},
        {"global.agentgateway.version": "0.11.0"},
        *(
            {"global.agentgateway.routes": [{"name": "x", "policies": {"extAuthz": block}}]}
            for block in (
                {"host": "a:1"},
                {"host": "a:1", "timeout": "1s"},
                {**WAITS, "failureMode": "allow"},
                {**WAITS, "failureMode": {"denyWithStatus": 200}},
                {"conditional": [WAITS, {**WAITS, "failureMode": "allow"}]},
            )
        ),
        {"global.agentgateway.jwt": {"issuer": "https://i"}},
        {"targets": {"a b": {"url": "http://h"}}},
        {"targets": {"a": {"url": 'http://h"\n'}}},
        {"unknown": 1},
        {"gateway.enable": False},
        {"hub.tokensecret": "hub"},
        {"hub.jwt.isuer": "https://i"},
        {"prometheus.runbooks": "docs.example.com"},
        {"targets": {"a": {"url": "http://h/mcp", "haeders": {}}}},
        {"hub": {"enabled": True, "tokenSecret": "hub", "settings": {"cal": {"timeout": "2m"}}}},
        {"hub": {"enabled": True, "tokenSecret": "hub", "settings": {"call": {"timout": "2m"}}}},
        {"hub": {"enabled": True, "tokenSecret": "hub", "settings": {"call": {"timeout": "${env:LIMIT}"}}}},
    ],
    ids=lambda values: json.dumps(values)[:120],
)
def test_values_that_would_fail_open_or_stop_the_gateway_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(Refused):
        manifests(values=values)


def bridge_args(found: list[dict[str, Any]]) -> list[str]:
    (bridge,) = [c for c in pod(found)["containers"] if c["name"] == "bridge"]
    arguments: list[str] = bridge["args"]
    return arguments


def pod(found: list[dict[str, Any]]) -> dict[str, Any]:
    spec: dict[str, Any] = by_kind(found, "Deployment", "agentgateway")["spec"]["template"]["spec"]
    return spec


def test_a_bridge_that_is_not_well_takes_no_gateway_out_of_service() -> None:
    (bridge,) = [c for c in pod(manifests())["containers"] if c["name"] == "bridge"]
    assert bridge["livenessProbe"]["httpGet"]["path"] == "/livez"
    assert "readinessProbe" not in bridge


def test_routes_of_ones_own_are_kept_as_they_are() -> None:
    route = {"name": "x", "matches": [{"path": {"pathPrefix": "/x"}}], "policies": {"extAuthz": WAITS}}
    document = static_config(values={"global.agentgateway.routes": [route]})
    assert document["binds"][0]["listeners"][0]["routes"] == [route]


@pytest.mark.parametrize("install", INSTALLS)
def test_every_container_runs_without_rights(install: str) -> None:
    for deployment in (m for m in manifests(values=INSTALLS[install]) if m["kind"] == "Deployment"):
        spec = deployment["spec"]["template"]["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["automountServiceAccountToken"] is False
        for container in (*spec["containers"], *spec.get("initContainers", [])):
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["readOnlyRootFilesystem"] is True
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert container["resources"]["limits"]["memory"]


def test_the_token_of_an_endpoint_is_mounted_and_not_written_out() -> None:
    found = manifests(values=EVERYTHING)
    assert "--token-file=/etc/holdfast/token/token" in bridge_args(found)
    secret = {"secretName": "hub-token", "defaultMode": 0o440}
    assert {"name": "token", "secret": secret} in pod(found)["volumes"]


def test_metrics_are_read_by_those_who_are_named_alone() -> None:
    (rule,) = by_kind(manifests(), "NetworkPolicy")["spec"]["ingress"]
    assert rule["ports"] == [{"port": "http", "protocol": "TCP"}]


@pytest.mark.requirement("GW-6")
def test_under_the_gateway_api_the_timeout_is_the_backends_and_the_policy_has_none() -> None:
    found = manifests(
        *ASKS, f"{AUTH}.timeout=7s", values={"global.agentgateway.mode": "gateway-api", "targets": TARGETS}
    )
    backend, policy = (by_kind(found, f"Agentgateway{kind}", "ext-auth")["spec"] for kind in ("Backend", "Policy"))
    assert backend["policies"]["http"]["requestTimeout"] == "7s"
    assert backend["static"] == {"host": "ext-authz.agents.svc.cluster.local", "port": 9100}
    ext_auth = policy["traffic"]["extAuth"]
    assert ext_auth["backendRef"]["name"] == by_kind(found, "AgentgatewayBackend", "ext-auth")["metadata"]["name"]
    assert ext_auth["failureMode"] == "FailClosed"
    assert "timeout" not in json.dumps(policy).lower()
    assert {m["kind"] for m in found} == {"Gateway", "HTTPRoute", "AgentgatewayBackend", "AgentgatewayPolicy"}


def test_two_targets_never_share_a_resource() -> None:
    targets = {name: {"url": "http://h/mcp"} for name in ("a-b", "a.b", "a_b", "A-b")}
    found = manifests(values={"global.agentgateway.mode": "gateway-api", "targets": targets})
    names = [m["metadata"]["name"] for m in found if m["kind"] == "HTTPRoute"]
    assert len(set(names)) == 4


def test_the_hub_is_rendered_only_where_it_is_asked_for() -> None:
    assert not [m for m in manifests() if "hub" in m["metadata"]["name"]]
    found = manifests("hub.enabled=true", "hub.tokenSecret=hub", values={"targets": TARGETS})
    assert by_kind(found, "Deployment", "hub")["spec"]["template"]["spec"]["containers"][0]["args"][0] == "serve"
    assert "holdfast-hub" in by_kind(found, "ConfigMap", "agentgateway")["data"]["config.yaml"]


@pytest.mark.requirement("SEC-17")
def test_both_pods_may_reach_names_and_servers_but_not_the_metadata_of_the_cloud() -> None:
    found = manifests("hub.enabled=true", "hub.tokenSecret=hub")
    policies = [one["spec"] for one in found if one["kind"] == "NetworkPolicy"]
    assert len(policies) == 2
    for policy in policies:
        assert policy["policyTypes"] == ["Ingress", "Egress"]
        names, servers, *_ = policy["egress"]
        assert {(port["port"], port["protocol"]) for port in names["ports"]} == {(53, "UDP"), (53, "TCP")}
        blocks = [peer["ipBlock"] for peer in servers["to"] if "ipBlock" in peer]
        assert "169.254.0.0/16" in blocks[0]["except"]


@pytest.mark.requirement("SEC-17")
def test_named_peers_are_the_only_ones_that_are_reached() -> None:
    peer = {"ipBlock": {"cidr": "10.1.2.0/24"}}
    found = manifests("hub.enabled=true", "hub.tokenSecret=hub", values={"networkPolicy.to": [peer]})
    hub = by_kind(found, "NetworkPolicy", "-hub")["spec"]
    assert [rule.get("to") for rule in hub["egress"]] == [None, [peer]]


@pytest.mark.requirement("SEC-17")
@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ({"url": "http://h/mcp", "headers": {"Authorization": "Bearer hunter2"}}, "no place for a secret"),
        ({"url": "http://user:hunter2@h/mcp"}, "targets.x.url: Does not match"),
        ({"command": "npx", "env": {"TOKEN": "hunter2"}}, "no place for a secret"),
        ({"url": "http://h/mcp", "headers": {"X-Key": "${env:KEY:-hunter2}"}}, "no place for a secret"),
        ({"url": "http://h/mcp", "oauth": {"clientId": "me", "clientSecret": "hunter2"}}, "no place for a secret"),
    ],
    ids=["header", "user info", "variable", "default", "client secret"],
)
def test_a_literal_secret_never_gets_into_a_config_map(target: dict[str, Any], reason: str) -> None:
    with pytest.raises(Refused, match=reason) as refused:
        manifests("hub.enabled=true", "hub.tokenSecret=hub", values={"targets": {"x": target}})
    assert "hunter2" not in str(refused.value)


@pytest.mark.requirement("SEC-17")
def test_a_reference_to_a_variable_gets_into_the_config_map() -> None:
    target = {
        "url": "http://h/mcp",
        "headers": {"Authorization": "Bearer ${env:KEY}"},
        "oauth": {"clientId": "me", "clientSecret": "${env:CLIENT_SECRET}"},
    }
    found = manifests("hub.enabled=true", "hub.tokenSecret=hub", values={"targets": {"x": target}})
    assert "${env:KEY}" in by_kind(found, "ConfigMap", "-hub")["data"]["mcp.json"]
