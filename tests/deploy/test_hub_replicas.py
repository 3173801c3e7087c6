"""Several hubs in the chart: one key, an end in steps that fit the grace period, and ways in that keep streams open."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.config import config_from_mapping
from holdfast.fleet import PeerAddress
from holdfast.front.requests import COMMENT_SECONDS
from tests.cli.balancer import HAPROXY
from tests.cli.serve_process import run
from tests.deploy.chart import Refused, by_kind, manifests
from tests.deploy.test_chart import HUBS, QUEUE

pytestmark = pytest.mark.requirement("FLEET-10")

ROOT = Path(__file__).parents[2]
ONE = ("hub.enabled=true", "hub.tokenSecret=hub")
KEYED = (*ONE, "hub.sessionKeySecret=keys")


def _pod(found: list[dict[str, Any]], name: str = "-hub") -> dict[str, Any]:
    spec: dict[str, Any] = by_kind(found, "Deployment", name)["spec"]["template"]["spec"]
    return spec


@pytest.mark.parametrize("more", [("hub.replicas=2",), ("hub.autoscaling.enabled=true",)])
def test_more_than_one_hub_needs_a_session_key_and_no_claim(more: tuple[str, ...]) -> None:
    with pytest.raises(Refused, match=r"needs hub\.sessionKeySecret"):
        manifests(*ONE, *more)
    with pytest.raises(Refused, match=r"hub\.stateClaim holds the state of one hub"):
        manifests(*KEYED, *more, "hub.stateClaim=state")
    manifests(*KEYED, *more)


def test_the_session_key_is_mounted_from_its_secret_and_every_replica_takes_every_session() -> None:
    found = manifests(values={"hub": HUBS})
    (container,) = _pod(found)["containers"]
    assert "--session-key-file=/etc/holdfast/session/session-key" in container["args"]
    secret = {
        "secretName": "hub-session",
        "defaultMode": 0o440,
        "items": [{"key": "session-key", "path": "session-key"}],
    }
    assert {"name": "session-key", "secret": secret} in _pod(found)["volumes"]
    assert "sessionAffinity" not in by_kind(found, "Service", "-hub")["spec"]
    assert "--session-key-file" not in str(manifests(*ONE))


def test_the_grace_period_fits_the_steps_of_the_end() -> None:
    steps = ("hub.preStopSeconds=7", "hub.lameDuckSeconds=8", "hub.drainSeconds=90")
    pod = _pod(manifests(*ONE, *steps))
    (container,) = pod["containers"]
    assert pod["terminationGracePeriodSeconds"] > 7 + 8 + 90
    assert {"--lame-duck=8", "--drain=90"} <= set(container["args"])
    assert "time.sleep(7)" in container["lifecycle"]["preStop"]["exec"]["command"][-1]
    (plain,) = _pod(manifests(*ONE, "hub.preStopSeconds=0"))["containers"]
    assert "lifecycle" not in plain


@pytest.mark.parametrize(
    ("values", "seconds"),
    [
        ({}, 60),  # the default of `call.timeout`
        ({"hub.settings": {"call": {"timeout": "2m"}}}, 120),
        ({"hub.settings": {"call": {"timeout": "90500ms"}}}, 91),
        ({"hub.settings": {"call": {"timeout": "1.5h", "hardTimeout": "2h"}}}, 5400),
        ({"targets": {"slow": {"url": "http://h/mcp", "timeout": "5m"}, "x": {"url": "http://h/mcp"}}}, 300),
        ({"targets": {"slow": {"url": "http://h/mcp", "timeout": 300}}}, 300),
        ({"targets": {"slow": {"url": "http://h/mcp", "timeout": 3600000}}}, 3600),
        ({"targets": {"quick": {"url": "http://h/mcp", "timeout": "5s"}}}, 60),
        ({"hub.settings": {"call": {"timeout": "2m"}}, "hub.drainSeconds": 7}, 7),
        ({"hub.drainSeconds": 0}, 0),
    ],
)
def test_an_ending_hub_waits_as_long_as_a_call_may_take(values: dict[str, Any], seconds: int) -> None:
    found = manifests(*ONE, values=values)
    pod = _pod(found)
    assert f"--drain={seconds}" in pod["containers"][0]["args"]
    assert pod["terminationGracePeriodSeconds"] == 2 + 5 + seconds + 15
    mounted = json.loads(by_kind(found, "ConfigMap", "-hub")["data"]["mcp.json"])
    assert mounted.get("holdfast", {}) == values.get("hub.settings", {})
    config_from_mapping({**mounted, "mcpServers": {}})  # the settings are ones that the hub takes


def test_hubs_are_spread_are_ready_before_others_end_and_are_not_all_evicted() -> None:
    found = manifests(values={"hub": HUBS})
    deployment = by_kind(found, "Deployment", "-hub")["spec"]
    assert deployment["replicas"] == 3
    assert deployment["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    (spread,) = _pod(found)["topologySpreadConstraints"]
    assert spread["labelSelector"]["matchLabels"] == deployment["selector"]["matchLabels"]
    budget = by_kind(found, "PodDisruptionBudget", "-hub")["spec"]
    assert (budget["maxUnavailable"], budget["selector"]) == (1, deployment["selector"])
    (container,) = _pod(found)["containers"]
    assert container["startupProbe"]["httpGet"]["path"] == "/healthz"


def test_extra_variables_volumes_and_the_account_reach_the_pod() -> None:
    found = manifests(values={"hub": HUBS})
    pod = _pod(found)
    (container,) = pod["containers"]
    assert {"name": "TZ", "value": "UTC"} in container["env"]
    assert {"name": "ca", "mountPath": "/etc/ca", "readOnly": True} in container["volumeMounts"]
    assert {"name": "ca", "secret": {"secretName": "ca"}} in pod["volumes"]
    assert pod["serviceAccountName"] == by_kind(found, "ServiceAccount", "-hub")["metadata"]["name"]
    named = _pod(manifests(*ONE, "hub.serviceAccount.name=existing"))
    assert named["serviceAccountName"] == "existing"
    assert named["automountServiceAccountToken"] is False


def test_a_scaled_hub_leaves_the_number_to_the_autoscaler() -> None:
    found = manifests(*KEYED, "hub.autoscaling.enabled=true", "hub.autoscaling.cpuMillicores=500")
    assert "replicas" not in by_kind(found, "Deployment", "-hub")["spec"]
    (metric,) = by_kind(found, "HorizontalPodAutoscaler")["spec"]["metrics"]
    assert metric["resource"]["target"] == {"type": "AverageValue", "averageValue": "500m"}
    own = manifests(values={"hub": {**HUBS, "autoscaling": {"enabled": True, "metrics": [QUEUE]}}})
    assert by_kind(own, "HorizontalPodAutoscaler")["spec"]["metrics"] == [QUEUE]


def test_the_ways_in_keep_streams_open_and_the_hub_accepts_their_names() -> None:
    found = manifests(values={"hub": HUBS})
    (container,) = _pod(found)["containers"]
    assert {"--allow-host=hub.example", "--allow-host=mcp.example"} <= set(container["args"])
    ingress = by_kind(found, "Ingress")
    annotations = ingress["metadata"]["annotations"]
    assert annotations["nginx.ingress.kubernetes.io/proxy-buffering"] == "off"
    assert int(annotations["nginx.ingress.kubernetes.io/proxy-read-timeout"]) >= 3 * COMMENT_SECONDS
    (rule,) = ingress["spec"]["rules"]
    assert [path["path"] for path in rule["http"]["paths"]] == ["/mcp", "/servers"]  # the control API stays inside
    (route,) = by_kind(found, "HTTPRoute", "-hub")["spec"]["rules"]
    assert route["timeouts"] == {"request": "0s", "backendRequest": "0s"}
    (policy,) = by_kind(found, "NetworkPolicy", "-hub")["spec"]["ingress"]
    assert "from" not in policy
    peers = [{"namespaceSelector": {"matchLabels": {"name": "ingress"}}}]
    (narrow,) = by_kind(manifests(values={"hub": HUBS, "networkPolicy.hubFrom": peers}), "NetworkPolicy", "-hub")[
        "spec"
    ]["ingress"]
    assert narrow["from"][2:] == peers


def test_pods_with_ipv6_addresses_listen_and_advertise() -> None:
    pod = _pod(manifests(*KEYED, "hub.fleet.urlSecret=redis", "hub.host=::"))
    (container,) = pod["containers"]
    arguments = [one.replace("$(POD_IP)", "fd00:10:244::1f") for one in container["args"]]
    assert "--host=::" in arguments
    (advertised,) = [one.partition("=")[2] for one in arguments if one.startswith("--advertise=")]
    assert PeerAddress.parse(advertised) == PeerAddress(host="fd00:10:244::1f", port=8766)


@pytest.mark.parametrize(
    "setting", ["hub.ingress.enabled=true", "hub.route.enabled=true"], ids=["an ingress", "a route"]
)
def test_a_way_in_without_a_host_name_is_refused(setting: str) -> None:
    with pytest.raises(Refused, match="accepts only the host names that it knows"):
        manifests(*ONE, setting)


def test_the_hub_alone_has_no_gateway_no_bridge_and_is_reached_by_those_who_are_named() -> None:
    peers = [{"namespaceSelector": {"matchLabels": {"name": "agents"}}}]
    scraper = [{"podSelector": {"matchLabels": {"name": "prometheus"}}}]
    alone = ("gateway.enabled=false", *ONE, "prometheus.rules=true", "prometheus.podMonitor=true")
    found = manifests(*alone, values={"networkPolicy.hubFrom": peers, "networkPolicy.metricsFrom": scraper})
    assert "agentgateway" not in json.dumps(found)
    assert "bridge" not in json.dumps([one for one in found if one["kind"] != "PrometheusRule"])
    kinds = [one["kind"] for one in found]
    assert sorted(kinds) == sorted({*kinds}), "one of each"
    assert {"Deployment", "Service", "ConfigMap", "NetworkPolicy", "PodDisruptionBudget", "Pod"} <= {*kinds}
    (rule,) = by_kind(found, "NetworkPolicy", "-hub")["spec"]["ingress"]
    tester, *named = rule["from"]
    labels = by_kind(found, "Pod", "-test")["metadata"]["labels"]
    assert tester["podSelector"]["matchLabels"].items() <= labels.items()
    assert named == [*peers, *scraper]
    (unnamed,) = by_kind(manifests(*alone), "NetworkPolicy", "-hub")["spec"]["ingress"]
    assert "from" not in unnamed
    with pytest.raises(Refused, match="there is nothing to install"):
        manifests("gateway.enabled=false")


def test_under_the_gateway_api_too_the_hub_is_reached_by_those_who_are_named_alone() -> None:
    peers = [{"namespaceSelector": {"matchLabels": {"name": "gateways"}}}]
    found = manifests(*ONE, "global.agentgateway.mode=gateway-api", values={"networkPolicy.hubFrom": peers})
    (rule,) = by_kind(found, "NetworkPolicy", "-hub")["spec"]["ingress"]
    assert rule["from"][1:] == peers


def test_with_jwts_alone_the_gateway_forwards_them_and_no_token_is_mounted() -> None:
    claims = {"groupsClaim": "roles", "userClaim": "oid"}
    jwt = {"issuer": "https://i", "audience": "mcp", "keys": "https://i/keys", **claims}
    found = manifests(values={"hub": {"enabled": True, "jwt": jwt}})
    (container,) = _pod(found)["containers"]
    given = {"--jwt-issuer=https://i", "--jwt-audience=mcp", "--jwt-keys=https://i/keys", "--jwt-groups-claim=roles"}
    assert {*given, "--jwt-user-claim=oid"} <= set(container["args"])
    assert "token" not in {volume["name"] for volume in _pod(found)["volumes"]}
    assert "hub-token" not in json.dumps(found)
    text = by_kind(found, "ConfigMap", "agentgateway")["data"]["config.yaml"]
    (route,) = yaml.safe_load(text)["binds"][0]["listeners"][0]["routes"]
    assert route["policies"]["backendAuth"] == {"passthrough": {}}
    for broken in ({**jwt, "keys": ""}, {**jwt, "issuer": ""}):
        with pytest.raises(Refused, match="go together"):
            manifests(values={"hub": {"enabled": True, "tokenSecret": "hub", "jwt": broken}})
    with pytest.raises(Refused, match=r"set hub\.tokenSecret or hub\.controlTokenSecret"):
        manifests("prometheus.podMonitor=true", values={"hub": {"enabled": True, "jwt": jwt}})
    with pytest.raises(Refused, match=r"bridge\.fromHub needs hub\.controlTokenSecret"):
        manifests("bridge.fromHub=true", values={"hub": {"enabled": True, "jwt": jwt}})


def test_a_service_monitor_reads_the_metrics_of_the_hubs_service_with_its_token() -> None:
    found = manifests(*ONE, "prometheus.serviceMonitor=true")
    monitor, service = by_kind(found, "ServiceMonitor")["spec"], by_kind(found, "Service", "-hub")
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    (endpoint,) = monitor["endpoints"]
    assert endpoint["port"] == service["spec"]["ports"][0]["name"]
    assert endpoint["authorization"]["credentials"] == {"name": "hub", "key": "token"}


def test_the_gateways_session_key_comes_from_its_secret_through_the_bridge(tmp_path: Path) -> None:
    found = manifests("global.agentgateway.sessionKeySecret=gateway-key")
    pod = _pod(found, "agentgateway")
    secret = {
        "secretName": "gateway-key",
        "defaultMode": 0o440,
        "items": [{"key": "session-key", "path": "session-key"}],
    }
    assert {"name": "session-key", "secret": secret} in pod["volumes"]
    for container in (*pod["initContainers"], *(one for one in pod["containers"] if one["name"] == "bridge")):
        assert "--session-key-file=/etc/holdfast/session/session-key" in container["args"]
    with pytest.raises(Refused, match=r"needs bridge\.enabled"):
        manifests("global.agentgateway.sessionKeySecret=gateway-key", "bridge.enabled=false")

    bootstrap, key, output = tmp_path / "config.yaml", tmp_path / "session-key", tmp_path / "out.yaml"
    bootstrap.write_text(by_kind(found, "ConfigMap", "agentgateway")["data"]["config.yaml"])
    key.write_text("0123456789abcdef" * 4 + "\n")
    command = ["gateway", "bridge", "--gateway-version=1.4.1", f"--bootstrap={bootstrap}", f"--output={output}"]
    authorized = ["--ext-auth-host=a:1", f"--session-key-file={key}", "--seed"]
    ran = run(*command, *authorized, home=tmp_path)
    assert ran.returncode == 0, ran.stderr
    written = yaml.safe_load(output.read_text())["config"]
    assert written == {"adminAddr": "127.0.0.1:15000", "session": {"key": "0123456789abcdef" * 4}}
    assert "0123456789abcdef" not in ran.stdout + ran.stderr
    key.write_text("not a key")
    refused = run(*command, *authorized, home=tmp_path)
    assert refused.returncode != 0
    assert "64 hex digits" in refused.stderr


def test_the_hubs_of_a_fleet_get_the_address_of_redis_its_authority_and_a_port_for_each_other() -> None:
    found = manifests(values={"hub": {**HUBS, "fleet": {"urlSecret": "redis", "caSecret": "redis-ca"}}})
    pod = _pod(found)
    (container,) = pod["containers"]
    environ = {one["name"]: one for one in container["env"]}
    assert environ["HOLDFAST_FLEET"]["valueFrom"] == {"secretKeyRef": {"name": "redis", "key": "url"}}
    assert environ["HOLDFAST_FLEET_CA"]["value"] == "/etc/holdfast/fleet/ca.crt"
    assert {"name": "fleet-ca", "mountPath": "/etc/holdfast/fleet", "readOnly": True} in container["volumeMounts"]
    assert "--advertise=tcp://$(POD_IP):8766" in container["args"]
    assert {"name": "peers", "containerPort": 8766} in container["ports"]
    selector = {"podSelector": {"matchLabels": by_kind(found, "Deployment", "-hub")["spec"]["selector"]["matchLabels"]}}
    policy = by_kind(found, "NetworkPolicy", "-hub")["spec"]
    peers = {"port": "peers", "protocol": "TCP"}
    assert [rule["from"] for rule in policy["ingress"] if peers in rule["ports"]] == [[selector]]
    assert [rule["to"] for rule in policy["egress"] if peers in rule.get("ports", ())] == [[selector]]
    plain = manifests(*KEYED, "hub.fleet.url=rediss://redis:6379?fleet=blue", "hub.fleet.peerPort=0")
    (container,) = _pod(plain)["containers"]
    assert {"name": "HOLDFAST_FLEET", "value": "rediss://redis:6379?fleet=blue"} in container["env"]
    assert "advertise" not in str(plain)
    assert "fleet" not in str(_pod(manifests(*KEYED))).lower()


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ((*ONE, "hub.fleet.url=redis://redis"), r"hub\.fleet needs hub\.sessionKeySecret"),
        ((*KEYED, "hub.fleet.url=redis://redis", "hub.fleet.urlSecret=redis"), "exclude each other"),
        ((*KEYED, "hub.fleet.url=redis://:hunter2@redis"), r"hub\.fleet\.urlSecret"),
        ((*KEYED, "hub.fleet.url=http://redis"), "fleet"),
        ((*KEYED, "hub.fleet.url=redis://redis", "hub.fleet.peerPort=8765"), "must differ"),
    ],
)
def test_a_fleet_that_cannot_work_is_refused_with_the_reason(values: tuple[str, ...], said: str) -> None:
    with pytest.raises(Refused, match=said):
        manifests(*values)


@pytest.mark.skipif(HAPROXY is None, reason="haproxy is not installed")
def test_the_compose_file_of_a_fleet_serves_hubs_that_haproxy_and_the_program_understand(tmp_path: Path) -> None:
    folder = ROOT / "deploy" / "compose"
    services = yaml.safe_load((folder / "fleet.yaml").read_text())["services"]
    hubs = [name for name, one in services.items() if one.get("command", [""])[0] == "serve"]
    balanced = (folder / "haproxy.cfg").read_text()
    assert len(hubs) == 3
    for name in hubs:
        assert f"server {name} {name}:4653" in balanced
        assert services[name]["environment"]["HOLDFAST_FLEET"].startswith("redis://redis:6379")
        assert services[name]["environment"]["HOLDFAST_ADVERTISE"] == f"tcp://{name}:8766"
    assert HAPROXY is not None
    checked = subprocess.run(
        [HAPROXY, "-c", "-f", folder / "haproxy.cfg"], capture_output=True, text=True, check=False, timeout=30
    )
    assert checked.returncode == 0, checked.stderr
    (tmp_path / "token").write_text("a-token-that-is-long-enough-for-all")
    (tmp_path / "token").chmod(0o600)
    (tmp_path / "mcp.json").write_text('{"mcpServers": {}}')
    # On a free port: a hub may run here.
    here = {"/etc/holdfast/targets": str(tmp_path), "/etc/holdfast/secrets": str(tmp_path), "--port=4653": "--port=0"}
    arguments = list(services["hub-1"]["command"])
    for there, place in here.items():
        arguments = [one.replace(there, place) for one in arguments]
    refused = run(*arguments, home=tmp_path / "home", HOLDFAST_FLEET="redis://redis:6379?fleet=compose")
    assert "cannot read the session key file" in refused.stderr, refused.stderr


@pytest.mark.requirement("SEC-20")
def test_people_sign_in_with_a_client_secret_of_an_existing_secret() -> None:
    people = {
        "enabled": True,
        "publicUrl": "https://hub.example",
        "jwt": {"issuer": "https://i", "keys": "https://i/keys"},
        "oidc": {"clientId": "hub", "clientSecret": "hub-oidc"},
    }
    pod = _pod(manifests(values={"gateway": {"enabled": False}, "hub": people}))
    (container,) = pod["containers"]
    for given in (
        "--public-url=https://hub.example",
        "--oidc-client-id=hub",
        "--oidc-client-secret-file=/etc/holdfast/oidc/client-secret",
    ):
        assert given in container["args"]
    assert not [one for one in container["args"] if one.startswith("--jwt-audience")]
    (volume,) = [one for one in pod["volumes"] if one["name"] == "oidc"]
    assert volume["secret"]["secretName"] == "hub-oidc"
    for missing in ("publicUrl", "jwt"):
        less = {**people, "tokenSecret": "t", missing: {} if missing == "jwt" else ""}
        with pytest.raises(Refused, match="hub"):
            manifests(values={"gateway": {"enabled": False}, "hub": less})
