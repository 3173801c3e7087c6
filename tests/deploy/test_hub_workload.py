"""The hub's container as the chart writes it, run here: its arguments, its environment, its probes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import jwt as jwt_library
import pytest
import yaml
from anyio import to_thread
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from holdfast.control.control_client import ControlClient
from holdfast.control.hub_finder import RunningHub
from tests.cli.serve_process import COMMAND, Served, run, spawned
from tests.deploy.chart import ASKS, Refused, by_kind, manifests, static_config
from tests.deploy.pods import container_of
from tests.peers.http_fault import closed_port
from tests.peers.mcp_http import McpPeer
from tests.peers.ports import free_port

pytestmark = pytest.mark.anyio

TOKEN = "what-the-gateway-shows-the-hub"
CONTROL = "what-the-operator-shows-the-hub"
POD_IP = "10.1.2.3"
SECRETS = {"hub": {"token": TOKEN}, "control": {"control": CONTROL}}


class Workload:
    """The manifests of an install, with the paths of its volumes moved to a folder."""

    def __init__(self, folder: Path, targets: dict[str, Any], **hub: Any) -> None:
        self.port = free_port()
        given = hub or {"tokenSecret": "hub", "controlTokenSecret": "control"}
        self.found = manifests(
            values={"hub": {"enabled": True, "port": self.port, "lameDuckSeconds": 0, **given}, "targets": targets}
        )
        self.pod = by_kind(self.found, "Deployment", "hub")["spec"]["template"]["spec"]
        (self.container,) = self.pod["containers"]
        self._folder = folder

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Served]:
        maps = {one["metadata"]["name"]: one["data"] for one in self.found if one["kind"] == "ConfigMap"}
        container = container_of(self.pod, self._folder, maps=maps, secrets=SECRETS)
        shown = [*container.arguments, *container.environ.values()]
        assert not [one for one in shown if TOKEN in one or CONTROL in one], "a token is read from a file"
        environ: dict[str, Any] = container.environ
        command = [*COMMAND, *container.arguments]
        async with spawned(command, self._folder, self._folder, stdin=subprocess.DEVNULL, **environ) as hub:
            await hub.said("ready when:")
            yield hub

    async def probe(self, name: str) -> int:
        """What the kubelet would see."""
        get = self.container[name]["httpGet"]
        assert get["port"] == self.container["ports"][0]["name"]
        async with httpx2.AsyncClient(trust_env=False) as client:
            named = {"host": f"{POD_IP}:{self.port}"}  # as the kubelet names it
            answer = await client.get(f"http://127.0.0.1:{self.port}{get['path']}", headers=named)
        return answer.status_code

    async def ask(self, method: str = "GET", path: str = "/metrics", **headers: str) -> httpx2.Response:
        """As Prometheus does it: by the pod's own address."""
        async with httpx2.AsyncClient(trust_env=False) as client:
            named = {"host": f"{POD_IP}:{self.port}", **headers}
            return await client.request(method, f"http://127.0.0.1:{self.port}{path}", headers=named)

    async def helm_test(self) -> subprocess.CompletedProcess[str]:
        """Run what `helm test` would run, with the name of the service resolved to this machine."""
        pod = by_kind(self.found, "Pod", "-test")["spec"]
        container = container_of(pod, self._folder / "test", maps={}, secrets=SECRETS)
        script, *checks = container.arguments
        checks = [one.replace("://demo-hub.agents.svc:", "://127.0.0.1:") for one in checks if "demo-hub" in one]
        command = [sys.executable, *pod["containers"][0]["command"][1:], script, *checks]
        return await to_thread.run_sync(
            lambda: subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        )


async def test_the_rendered_container_serves_its_targets_and_answers_its_own_probes(tmp_path: Path) -> None:
    async with McpPeer() as peer:
        workload = Workload(tmp_path, {"github": {"url": peer.url}})
        async with workload.running() as hub:
            service = by_kind(workload.found, "Service", "-hub")
            name = f"{service['metadata']['name']}.agents.svc.cluster.local:{workload.port}"
            assert service["spec"]["ports"][0]["port"] == workload.port
            await hub.said(": connected")
            other_host = await hub.loader(Host=name).load()
            known = await hub.loader(Host=name, Authorization=f"Bearer {TOKEN}").load()
            assert await workload.probe("startupProbe") == 200
            assert await workload.probe("livenessProbe") == 200
            assert await workload.probe("readinessProbe") == 200
            without_token, scraped = await workload.ask(), await workload.ask(authorization=f"Bearer {TOKEN}")
            by_address = await workload.ask("POST", "/mcp", authorization=f"Bearer {TOKEN}")
            tested = await workload.helm_test()
            hub.send(signal.SIGTERM)
            assert await hub.ended() == 0
    assert other_host.status["hub"] == "denied"
    assert known.status["hub"] == "available"
    assert without_token.status_code == 401
    assert by_address.status_code == 421, "the address opens the metrics and the health, and nothing else"
    assert (tested.returncode, tested.stdout.count("ok: ")) == (0, 3), tested.stdout
    assert 'holdfast_server_state{server="github",state="connected"} 1.0' in scraped.text
    assert any(tool.name.startswith("github__") for tool in known.tools)
    assert TOKEN not in hub.out + hub.err
    assert CONTROL not in hub.out + hub.err


async def test_a_hub_whose_only_server_is_down_is_ready_and_says_so(tmp_path: Path) -> None:
    with closed_port() as port:
        workload = Workload(tmp_path, {"gone": {"url": f"http://127.0.0.1:{port}/mcp"}})
        async with workload.running() as hub:
            await hub.said("connection refused")
            assert await workload.probe("readinessProbe") == 200


@pytest.mark.requirement("FLEET-10")
async def test_a_hub_with_jwts_alone_lets_in_their_bearers_and_the_operator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    monkeypatch.setitem(SECRETS, "issuer", {"keys.pem": public.decode()})
    claims = {"iss": "https://i", "aud": "mcp", "sub": "ann", "exp": int(time.time()) + 600}
    jwt = jwt_library.encode(claims, key, algorithm="ES256")
    files = {"secretName": "issuer", "defaultMode": 0o444, "items": [{"key": "keys.pem", "path": "keys.pem"}]}
    given = {
        "jwt": {"issuer": "https://i", "audience": "mcp", "keys": "/etc/issuer/keys.pem"},
        "extraVolumes": [{"name": "issuer", "secret": files}],
        "extraVolumeMounts": [{"name": "issuer", "mountPath": "/etc/issuer", "readOnly": True}],
        "controlTokenSecret": "control",
    }
    async with McpPeer() as peer:
        workload = Workload(tmp_path, {"it": {"url": peer.url}}, **given)
        async with workload.running() as hub:
            await hub.said(": connected")
            known = await hub.loader(Authorization=f"Bearer {jwt}").load()
            wrong = await hub.loader(Authorization=f"Bearer {TOKEN}").load()
            scraped = await workload.ask(authorization=f"Bearer {CONTROL}")
            tested = await workload.helm_test()
    assert (known.status["hub"], wrong.status["hub"]) == ("available", "denied")
    assert scraped.status_code == 200
    assert (tested.returncode, tested.stdout.count("ok: ")) == (0, 2), tested.stdout


@pytest.mark.requirement("GW-5")
async def test_the_bridge_routes_what_the_hub_serves_and_not_what_was_switched_off_there(tmp_path: Path) -> None:
    output = tmp_path / "gateway.yaml"
    async with McpPeer() as peer:
        workload = Workload(tmp_path, {"github": {"url": peer.url}, "old": {"url": peer.url}})
        async with workload.running() as hub:
            base = hub.url.removesuffix("/mcp")
            await hub.said("ready when:")
            async with ControlClient(RunningHub(url=base, token=CONTROL)) as control:
                await control.act("old", "disable")
            bridge = ["gateway", "bridge", "--gateway-version=1.4.1", f"--output={output}", "--no-watch", "--once"]
            ran = await to_thread.run_sync(
                lambda: run(*bridge, f"--targets-url={base}/api/targets", home=tmp_path, HOLDFAST_TARGETS_TOKEN=CONTROL)
            )
    assert ran.returncode == 0, ran.stderr
    (listener,) = yaml.safe_load(output.read_text())["binds"][0]["listeners"]
    assert [route["name"] for route in listener["routes"]] == ["github"]
    assert CONTROL not in ran.stdout + ran.stderr + output.read_text()


@pytest.mark.requirement("GW-4", "SEC-2")
def test_the_gateway_shows_the_hubs_token_only_for_callers_that_it_let_in() -> None:
    hub = ("hub.enabled=true", "hub.tokenSecret=hub")
    jwt = ("global.agentgateway.jwt.issuer=https://i", "global.agentgateway.jwt.jwks=https://i/keys")
    for authorized in (ASKS, jwt):
        found = manifests(*hub, *authorized)
        pod = by_kind(found, "Deployment", "agentgateway")["spec"]["template"]["spec"]
        (gateway,) = [container for container in pod["containers"] if container["name"] == "agentgateway"]
        mounted = {mount["name"]: mount["mountPath"] for mount in gateway["volumeMounts"]}
        assert f"{mounted['hub-token']}/token" in by_kind(found, "ConfigMap", "agentgateway")["data"]["config.yaml"]
        secret = {"secretName": "hub", "defaultMode": 0o440, "items": [{"key": "token", "path": "token"}]}
        assert {"name": "hub-token", "secret": secret} in pod["volumes"]
    found = manifests(*hub)
    (route,) = static_config(*hub)["binds"][0]["listeners"][0]["routes"]
    assert route["policies"]["backendAuth"] == {"passthrough": {}}, "each caller shows a credential of its own"
    assert "hub-token" not in json.dumps(found)


def test_no_hub_serves_without_credentials() -> None:
    with pytest.raises(Refused, match=r"hub\.tokenSecret.* or hub\.jwt"):
        manifests("hub.enabled=true")


def test_a_bridge_that_reads_the_hub_has_the_control_token_and_the_hubs_address() -> None:
    found = manifests("hub.enabled=true", "hub.tokenSecret=hub", "bridge.fromHub=true")
    pod = by_kind(found, "Deployment", "agentgateway")["spec"]["template"]["spec"]
    (bridge,) = [container for container in pod["containers"] if container["name"] == "bridge"]
    assert "--targets-url=http://demo-hub.agents.svc.cluster.local:8765/api/targets" in bridge["args"]
    secret = {"secretName": "hub", "defaultMode": 0o440, "items": [{"key": "control", "path": "token"}]}
    assert {"name": "token", "secret": secret} in pod["volumes"]
    assert not [argument for argument in bridge["args"] if argument.startswith("--targets=")]
    with pytest.raises(Refused, match=r"bridge\.fromHub needs hub\.enabled"):
        manifests("bridge.fromHub=true")


def test_the_hubs_targets_are_the_installs_own() -> None:
    targets = {"github": {"url": "https://api.example.com/mcp"}}
    found = manifests("hub.enabled=true", "hub.tokenSecret=hub", values={"targets": targets})
    assert json.loads(by_kind(found, "ConfigMap", "-hub")["data"]["mcp.json"]) == {"mcpServers": targets}
