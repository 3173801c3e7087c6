"""What must run once, as the chart writes it: rendered by Helm, and both kinds of pods run here for real."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.serve_process import COMMAND, Served, spawned
from tests.deploy.chart import Refused, by_kind, manifests
from tests.deploy.pods import container_of
from tests.harness.waiting import asked
from tests.peers.ports import free_port

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("FLEET-6", "FLEET-10")]

KEY = "k" * 48
TOKEN = "what-callers-show-the-hub"
SECRETS = {"hub": {"token": TOKEN}, "keys": {"session-key": KEY}}
ORIGIN = {"command": sys.executable, "args": ["-m", "tests.peers.peer_server", "legacy"], "cwd": str(Path.cwd())}
TARGETS: dict[str, Any] = {"db": {**ORIGIN, "timeout": "2m", "prefix": "sql"}, "web": {"url": "https://x.example/mcp"}}


def installed(targets: dict[str, Any] = TARGETS, **more: Any) -> list[dict[str, Any]]:
    hub = {"enabled": True, "tokenSecret": "hub", "sessionKeySecret": "keys", "replicas": 2, "singletons": ["db"]}
    return manifests(values={"hub": {**hub, **more}, "targets": targets})


def servers_of(found: list[dict[str, Any]], name: str) -> dict[str, Any]:
    servers: dict[str, Any] = json.loads(by_kind(found, "ConfigMap", name)["data"]["mcp.json"])["mcpServers"]
    return servers


def test_the_replicas_have_the_address_of_the_hub_that_runs_it_and_keep_what_they_decide() -> None:
    found = installed()
    assert servers_of(found, "-hub") == {
        "db": {"hub": "demo-singletons:8767", "timeout": "2m", "prefix": "sql"},
        "web": TARGETS["web"],
    }
    assert servers_of(found, "-singletons") == {"db": TARGETS["db"]}


def test_one_pod_runs_them_behind_a_service_that_the_replicas_alone_reach() -> None:
    found = installed()
    runs = by_kind(found, "StatefulSet")["spec"]
    labels = runs["template"]["metadata"]["labels"]
    service = by_kind(found, "Service", "-singletons")
    policy = by_kind(found, "NetworkPolicy", "-singletons")["spec"]
    assert runs["replicas"] == 1
    assert service["metadata"]["name"] == runs["serviceName"] == "demo-singletons"
    assert service["spec"]["selector"].items() <= labels.items()
    assert policy["podSelector"]["matchLabels"].items() <= labels.items()
    (way_in,) = policy["ingress"]
    hubs = by_kind(found, "Deployment", "-hub")["spec"]["template"]["metadata"]["labels"]
    (peer,) = way_in["from"]
    assert peer["podSelector"]["matchLabels"].items() <= hubs.items()
    assert [port["port"] for port in way_in["ports"]] == ["hubs"]
    assert not labels.items() >= by_kind(found, "Service", "-hub")["spec"]["selector"].items()


def test_a_singleton_needs_a_key_and_must_be_a_target() -> None:
    with pytest.raises(Refused, match=r"hub\.singletons needs hub\.sessionKeySecret"):
        installed(replicas=1, sessionKeySecret="")
    with pytest.raises(Refused, match="names shop, which is not among the targets"):
        installed(singletons=["shop"])
    assert not [one for one in installed(singletons=[]) if "singletons" in one["metadata"]["name"]]


@asynccontextmanager
async def pod(found: list[dict[str, Any]], kind: str, name: str, folder: Path) -> AsyncIterator[Served]:
    """The only container of a pod, run here; the name of the service leads to this machine."""
    maps = {one["metadata"]["name"]: one["data"] for one in found if one["kind"] == "ConfigMap"}
    here = {
        name: {file: text.replace("demo-singletons:", "127.0.0.1:") for file, text in files.items()}
        for name, files in maps.items()
    }
    spec = by_kind(found, kind, name)["spec"]["template"]["spec"]
    container = container_of(spec, folder, maps=here, secrets=SECRETS)
    environ: dict[str, Any] = {**container.environ, "HOLDFAST_LOG_FORMAT": "console"}
    command = [*COMMAND, *container.arguments]
    async with spawned(command, folder, folder, stdin=subprocess.DEVNULL, **environ) as hub:
        await hub.said("ready when:")
        yield hub


async def test_a_replica_calls_a_server_that_the_pod_of_the_singletons_runs(tmp_path: Path) -> None:
    port = free_port()
    inner = installed({"db": TARGETS["db"]}, port=free_port(), singletonPort=port)
    outer = installed({"db": TARGETS["db"]}, port=free_port(), singletonPort=port, lameDuckSeconds=0)
    async with (
        pod(inner, "StatefulSet", "-singletons", tmp_path / "inner") as runs_it,
        pod(outer, "Deployment", "-hub", tmp_path / "outer") as replica,
    ):
        await runs_it.said("db: connected")
        client = replica.loader(authorization=f"Bearer {TOKEN}", host="demo-hub")

        async def lists() -> bool:
            return "sql__pid" in {tool.name for tool in (await client.load()).tools}

        await asked(lists)
        assert (await client.call("hub", "sql__echo", {"text": "hi"})).text == "hi"
