"""The hubs of the chart and of the compose file, run as processes: what was rendered starts, and the hubs agree.

There is no cluster and no Docker here. What these would do is done by hand: variables are filled in, volumes become
folders, and each pod has an address of its own, 127.0.0.x. Nothing else of the rendered commands is changed, but the
address that a hub listens on: all pods are on this machine.
"""

from __future__ import annotations

import json
import os
import re
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
import yaml

from holdfast.testing import StdioServer
from tests.cli.serve_process import COMMAND, Served, run, spawned
from tests.deploy.chart import ROOT, by_kind, manifests
from tests.deploy.pods import container_of, inside, write
from tests.harness.waiting import asked
from tests.peers.redis import RedisPeer, has_redis

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.long,
    pytest.mark.requirement("FLEET-2", "FLEET-6", "FLEET-10"),
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux has all of 127.0.0.0/8 without setup"),
    pytest.mark.skipif(not has_redis(), reason="redis-server is not installed"),
]

ADDRESSES = ("127.0.0.11", "127.0.0.12", "127.0.0.13")
TOKEN = "the-token-of-the-callers-of-this-test"
SECRETS = {
    "hub": {"token": TOKEN, "control": "the-control-token-of-this-test"},
    "keys": {"session-key": "the-session-key-of-this-test-is-long-enough"},
}


@dataclass(frozen=True)
class Pod:
    """A hub as it would be started: its arguments, its variables, and its folders here."""

    arguments: list[str]
    environ: dict[str, str]
    root: Path
    port: int
    address: str

    @property
    def state(self) -> str:
        return self.environ["XDG_STATE_HOME"]

    def says(self, *command: str) -> Any:
        ran = run(*command, home=self.root, XDG_STATE_HOME=self.state)
        assert ran.returncode in (0, 1), ran.stderr
        return ran.stdout


def free_ports() -> tuple[int, int]:
    """Two ports that are free on each of the addresses."""
    with socket.socket() as one, socket.socket() as two:
        one.bind(("0.0.0.0", 0))
        two.bind(("0.0.0.0", 0))
        return one.getsockname()[1], two.getsockname()[1]


# The chart.


def pods_of_chart(folder: Path, targets: Mapping[str, Any], redis: str) -> list[Pod]:
    port, peers = free_ports()
    hub = {
        "enabled": True,
        "tokenSecret": "hub",
        "replicas": len(ADDRESSES),
        "sessionKeySecret": "keys",
        "fleet": {"urlSecret": "redis", "peerPort": peers},
        "port": port,
        "lameDuckSeconds": 0,
    }
    found = manifests(values={"hub": hub, "targets": dict(targets)})
    deployment = by_kind(found, "Deployment", "-hub")
    assert deployment["spec"]["replicas"] == len(ADDRESSES)
    maps = {one["metadata"]["name"]: one["data"] for one in found if one["kind"] == "ConfigMap"}
    secrets = {**SECRETS, "redis": {"url": redis}}
    spec = deployment["spec"]["template"]["spec"]
    pods = []
    for address in ADDRESSES:
        root = folder / address
        container = container_of(spec, root, maps=maps, secrets=secrets, address=address)
        arguments = [one.replace("--host=0.0.0.0", f"--host={address}") for one in container.arguments]
        pods.append(Pod(arguments, container.environ, root, port, address))
    return pods


# The compose file.


def pods_of_compose(folder: Path, targets: Mapping[str, Any], redis: str) -> list[Pod]:
    port, peers = free_ports()
    services = yaml.safe_load((ROOT / "deploy/compose/fleet.yaml").read_text())["services"]
    hubs = {name: one for name, one in services.items() if name.startswith("hub-")}
    hosts = dict(zip(sorted(hubs), ADDRESSES, strict=True))
    pods = []
    for name, service in hubs.items():
        root = folder / name
        mounts = [volume.split(":")[1] for volume in service["volumes"]] + service["tmpfs"]
        write(root / "etc/holdfast/targets/mcp.json", json.dumps({"mcpServers": targets}))
        write(root / "etc/holdfast/secrets/token", TOKEN)
        write(root / "etc/holdfast/secrets/session-key", SECRETS["keys"]["session-key"])
        (root / "tmp").mkdir()

        def here(text: str, root: Path = root, mounts: list[str] = mounts) -> str:
            text = inside(root, text, mounts).replace("redis://redis:6379", redis).replace(":8766", f":{peers}")
            return re.sub(r"hub-\d", lambda found: hosts.get(found[0], found[0]), text)

        environ = {
            key: here(value) if key != "XDG_STATE_HOME" else inside(root, value, mounts)
            for key, value in service["environment"].items()
        }
        arguments = [inside(root, one, mounts) for one in service["command"]]
        arguments = [one.replace("--host=0.0.0.0", f"--host={hosts[name]}") for one in arguments]
        arguments = [one.replace("--port=4653", f"--port={port}") for one in arguments]
        pods.append(Pod(arguments, environ, root, port, hosts[name]))
    return pods


@asynccontextmanager
async def running(pods: list[Pod]) -> AsyncIterator[list[Served]]:
    async with AsyncExitStack() as stack:
        hubs = []
        for pod in pods:
            environ: dict[str, Any] = {**pod.environ, "PATH": os.environ["PATH"]}
            hubs.append(
                await stack.enter_async_context(spawned([*COMMAND, *pod.arguments], pod.root, pod.root, **environ))
            )
        async with httpx2.AsyncClient(trust_env=False) as http:
            for pod, hub in zip(pods, hubs, strict=True):

                async def ready(pod: Pod = pod, hub: Served = hub) -> bool:
                    assert hub.process.returncode is None, hub.err
                    try:  # as the kubelet and the health check of Docker ask
                        url = f"http://{pod.address}:{pod.port}/readyz"
                        return (await http.get(url, headers={"host": "localhost"})).status_code == 200
                    except httpx2.TransportError:
                        return False

                await asked(ready, within=60)
        yield hubs


@pytest.mark.parametrize("pods_of", [pods_of_chart, pods_of_compose], ids=["chart", "compose"])
async def test_three_hubs_that_were_rendered_start_find_each_other_and_agree(pods_of: Any, tmp_path: Path) -> None:
    with StdioServer({"a": "1"}) as server:
        targets = {"placed": server.definition}
        async with RedisPeer(tmp_path / "redis") as redis:
            pods = pods_of(tmp_path / "pods", targets, redis.url)
            async with running(pods) as hubs:

                async def all_present() -> bool:
                    seen = [json.loads(await status(pod))["hub"]["fleet"]["replicas"] for pod in pods]
                    addresses = [{one["address"].split("//")[1].split(":")[0] for one in found} for found in seen]
                    return all(one == set(ADDRESSES) for one in addresses)

                await asked(all_present, within=60)
                for pod, hub in zip(pods, hubs, strict=True):
                    headers = {"authorization": f"Bearer {TOKEN}"}
                    with anyio.fail_after(60):
                        assert (await called(pod, hub, "placed__a", headers)) == "1"
                assert len(server.pids) == 3, "each replica runs its own"
                said = await anyio.to_thread.run_sync(lambda: pods[0].says("disable", "placed"))
                assert "on all 3 replicas" in said
                for pod in pods:
                    (shown,) = json.loads(await status(pod))["servers"]
                    assert shown["status"] == "disabled"
                for hub in hubs:
                    assert "warning" not in hub.err.lower(), hub.err


async def status(pod: Pod) -> str:
    text: str = await anyio.to_thread.run_sync(lambda: pod.says("status", "--json"))
    return text


async def called(pod: Pod, hub: Served, tool: str, headers: Mapping[str, str]) -> str:
    assert hub.url == f"http://{pod.address}:{pod.port}/mcp"
    return (await hub.loader(**headers).call("hub", tool, {})).text
