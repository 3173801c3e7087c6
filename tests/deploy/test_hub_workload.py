"""The hub's container as the chart writes it, run here: its arguments, its environment, its probes."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml
from anyio import to_thread

from holdfast.control.client import ControlClient
from holdfast.control.find import RunningHub
from tests.cli.serve_process import COMMAND, Served, run, spawned
from tests.deploy.chart import Refused, by_kind, manifests
from tests.peers.http_fault import closed_port
from tests.peers.mcp_http import McpPeer

pytestmark = pytest.mark.anyio

TOKEN = "what-the-gateway-shows-the-hub"
CONTROL = "what-the-operator-shows-the-hub"
POD_IP = "10.1.2.3"


class Workload:
    """The manifests of an install, with the paths of its volumes moved to a folder."""

    def __init__(self, folder: Path, targets: dict[str, Any]) -> None:
        self.port = _free_port()
        self.found = manifests(
            "hub.enabled=true", "hub.tokenSecret=hub", f"hub.port={self.port}", values={"targets": targets}
        )
        self.pod = by_kind(self.found, "Deployment", "hub")["spec"]["template"]["spec"]
        (self.container,) = self.pod["containers"]
        self._folder = folder
        self._put("/etc/holdfast/config/mcp.json", by_kind(self.found, "ConfigMap", "-hub")["data"]["mcp.json"])
        self._put("/etc/holdfast/token/token", TOKEN)

    def _put(self, path: str, text: str) -> None:
        assert any(path.startswith(f"{mount['mountPath']}/") for mount in self.container["volumeMounts"])
        file = self._folder / path.lstrip("/")
        file.parent.mkdir(parents=True)
        file.write_text(text)
        (volume,) = [one for one in self.pod["volumes"] if one["name"] == path.split("/")[-2]]
        file.chmod(volume.get("secret", {}).get("defaultMode", 0o644))  # as the kubelet writes it

    def _moved(self, text: str) -> str:
        mounts = "|".join(re.escape(mount["mountPath"]) for mount in self.container["volumeMounts"])
        return re.sub(f"({mounts})(?=/|$)", rf"{self._folder}\1", text)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Served]:
        environ: dict[str, Any] = {
            one["name"]: self._moved(one["value"]) for one in self.container["env"] if "value" in one
        }
        taken = {one["name"]: one["valueFrom"] for one in self.container["env"] if "valueFrom" in one}
        assert taken == {
            "HOLDFAST_CONTROL_TOKEN": {"secretKeyRef": {"name": "hub", "key": "control", "optional": True}},
            "POD_IP": {"fieldRef": {"fieldPath": "status.podIP"}},
        }
        environ["HOLDFAST_CONTROL_TOKEN"] = CONTROL
        command = [*COMMAND, *(self._moved(one).replace("$(POD_IP)", POD_IP) for one in self.container["args"])]
        async with spawned(command, self._folder, self._folder, stdin=subprocess.DEVNULL, **environ) as hub:
            await hub.said("ready when:")
            yield hub

    async def probe(self, name: str) -> int:
        """What the kubelet would see."""
        get = self.container[name]["httpGet"]
        assert get["port"] == self.container["ports"][0]["name"]
        headers = {header["name"]: header["value"] for header in get["httpHeaders"]}
        async with httpx2.AsyncClient(trust_env=False) as client:
            answer = await client.get(f"http://127.0.0.1:{self.port}{get['path']}", headers=headers)
        return answer.status_code

    async def scrape(self, **headers: str) -> httpx2.Response:
        """As Prometheus does it: by the pod's own address."""
        async with httpx2.AsyncClient(trust_env=False) as client:
            named = {"host": f"{POD_IP}:{self.port}", **headers}
            return await client.get(f"http://127.0.0.1:{self.port}/metrics", headers=named)


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


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
            without_token, scraped = await workload.scrape(), await workload.scrape(authorization=f"Bearer {TOKEN}")
            hub.send(signal.SIGTERM)
            assert await hub.ended() == 0
    assert other_host.status["hub"] == "denied"
    assert known.status["hub"] == "available"
    assert without_token.status_code == 401
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


@pytest.mark.requirement("GW-5")
async def test_the_bridge_routes_what_the_hub_serves_and_not_what_was_switched_off_there(tmp_path: Path) -> None:
    output = tmp_path / "gateway.yaml"
    async with McpPeer() as peer:
        workload = Workload(tmp_path, {"github": {"url": peer.url}, "old": {"url": peer.url}})
        async with workload.running() as hub:
            base = hub.url.removesuffix("/mcp")
            await hub.said("ready when:")
            async with ControlClient(RunningHub(url=base, token=CONTROL)) as control:
                await control.disable("old")
            bridge = ["gateway", "bridge", "--gateway-version=1.4.1", f"--output={output}", "--no-watch", "--once"]
            ran = await to_thread.run_sync(
                lambda: run(*bridge, f"--targets-url={base}/api/targets", home=tmp_path, HOLDFAST_TARGETS_TOKEN=CONTROL)
            )
    assert ran.returncode == 0, ran.stderr
    (listener,) = yaml.safe_load(output.read_text())["binds"][0]["listeners"]
    assert [route["name"] for route in listener["routes"]] == ["github"]
    assert CONTROL not in ran.stdout + ran.stderr + output.read_text()


def test_the_gateway_shows_the_hubs_token_and_no_hub_serves_without_one() -> None:
    found = manifests("hub.enabled=true", "hub.tokenSecret=hub")
    pod = by_kind(found, "Deployment", "agentgateway")["spec"]["template"]["spec"]
    (gateway,) = [container for container in pod["containers"] if container["name"] == "agentgateway"]
    mounted = {mount["name"]: mount["mountPath"] for mount in gateway["volumeMounts"]}
    text = by_kind(found, "ConfigMap", "agentgateway")["data"]["config.yaml"]
    assert f"{mounted['hub-token']}/token" in text
    secret = {"secretName": "hub", "defaultMode": 0o440, "items": [{"key": "token", "path": "token"}]}
    assert {"name": "hub-token", "secret": secret} in pod["volumes"]
    with pytest.raises(Refused, match=r"hub\.tokenSecret"):
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
