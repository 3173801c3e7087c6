"""The three renders, Helm's, compose's and the bridge's, say the same in everything that matters."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.gateway.model import EXT_AUTH_TIMEOUT, GATEWAY_VERSION, OUTAGE_STATUS, family_of
from holdfast.gateway.render import MARK, blocks, check_config
from tests.deploy.chart import ASKS, AUTH, ROOT, by_kind, manifests, static_config
from tests.gateway.schemas import VERSIONS, schema_of

IN_IMAGE = ("authz", "cel", "fleet", "gateway", "otel")
COMPOSE = ROOT / "deploy" / "compose"
TARGETS = {"github": {"url": "https://api.example.com/mcp"}, "old": {"type": "sse", "url": "http://old.internal/sse"}}


def holdfast(*arguments: str | Path) -> str:
    surroundings = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "holdfast", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=surroundings, timeout=60, check=True).stdout


def interpolated(arguments: list[str], **variables: str) -> list[str]:
    """The arguments as docker compose passes them, with ``${NAME:-default}`` replaced."""
    return [
        re.sub(r"\$\{(\w+):-([^}]*)\}", lambda found: variables.get(found.group(1), found.group(2)), argument)
        for argument in arguments
    ]


def written_by(arguments: list[str], folder: Path, *, bootstrap: str) -> dict[str, Any]:
    """What the bridge writes when it is called as the chart or the compose file calls it."""
    (folder / "bootstrap.yaml").write_text(bootstrap)
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": TARGETS}))
    places = {"--bootstrap": "bootstrap.yaml", "--output": "config.yaml", "--targets": "mcp.json"}
    given = [argument for argument in arguments if argument.partition("=")[0] not in (*places, "--listen")]
    here = [f"{option}={folder / name}" for option, name in places.items()]
    holdfast(*given, *here, "--once", "--no-watch")
    document: dict[str, Any] = yaml.safe_load((folder / "config.yaml").read_text())
    return document


def essence(document: dict[str, Any]) -> dict[str, Any]:
    """A config without what may differ: where the service is, and the fingerprint."""
    copy: dict[str, Any] = json.loads(json.dumps(document))
    for _, block in blocks(copy):
        block["host"] = re.sub(r"^.*:", "authz:", block["host"])
    copy["backends"] = [one for one in copy.get("backends", []) if not one["name"].startswith(MARK)]
    return {key: value for key, value in copy.items() if value}


@pytest.mark.requirement("GW-3")
@pytest.mark.parametrize("version", VERSIONS)
def test_helm_the_command_and_the_bridge_render_the_same(tmp_path: Path, version: str) -> None:
    setting = f"global.agentgateway.version={version}"
    static = static_config(*ASKS, setting, "bridge.enabled=false", values={"targets": TARGETS})
    found = manifests(*ASKS, setting, values={"targets": TARGETS})
    (bridge,) = [
        container
        for container in by_kind(found, "Deployment", "agentgateway")["spec"]["template"]["spec"]["containers"]
        if container["name"] == "bridge"
    ]
    bootstrap = by_kind(found, "ConfigMap", "agentgateway")["data"]["config.yaml"]
    bridged = written_by(bridge["args"], tmp_path, bootstrap=bootstrap)
    asked = ("--config", tmp_path / "mcp.json", "--gateway-version", version, "--ext-auth-host", "authz:9100")
    rendered = yaml.safe_load(holdfast("gateway", "render", *asked))
    assert essence(static) == essence(bridged) == essence(rendered)
    check_config(bridged, family_of(version), schema_of(version))


@pytest.mark.requirement("GW-3")
def test_helm_and_compose_come_to_the_same_with_the_same_targets(tmp_path: Path) -> None:
    services = yaml.safe_load((COMPOSE / "compose.yaml").read_text())["services"]
    bootstrap = (COMPOSE / "agentgateway.yaml").read_text()
    composed = written_by(interpolated(services["bridge"]["command"]), tmp_path, bootstrap=bootstrap)
    static = static_config(*ASKS, "bridge.enabled=false", values={"targets": TARGETS})
    assert essence(composed) == essence(static)


@pytest.mark.requirement("GW-2", "GW-3")
@pytest.mark.parametrize("service", ["seed", "bridge"])
def test_one_variable_changes_every_timeout_of_the_compose_files(tmp_path: Path, service: str) -> None:
    services = yaml.safe_load((COMPOSE / "compose.yaml").read_text())["services"]
    arguments = interpolated(services[service]["command"], HOLDFAST_EXT_AUTH_TIMEOUT="42s")
    bootstrap = (COMPOSE / "agentgateway.yaml").read_text()
    document = written_by([one for one in arguments if one != "--seed"], tmp_path, bootstrap=bootstrap)
    timeouts = [block["policies"]["http"]["requestTimeout"] for _, block in blocks(document)]
    assert timeouts == ["42s"] * (1 + len(TARGETS))


@pytest.mark.requirement("GW-3")
def test_one_default_is_in_force_in_all_three() -> None:
    composed = yaml.safe_load((COMPOSE / "agentgateway.yaml").read_text())
    for document in (composed, static_config(*ASKS), static_config(*ASKS, f"{AUTH}.timeout=null")):
        ((_, block),) = blocks(document)
        assert block["policies"]["http"]["requestTimeout"] == EXT_AUTH_TIMEOUT
        assert block["failureMode"] == {"denyWithStatus": OUTAGE_STATUS}


@pytest.mark.requirement("GW-3")
def test_the_compose_files_bootstrap_is_what_the_program_renders() -> None:
    surroundings = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "HOLDFAST_TEST_WARM": "1"}
    ran = subprocess.run([sys.executable, "deploy/generate.py", "--check"], cwd=ROOT, env=surroundings, check=False)
    assert ran.returncode == 0, "run `python deploy/generate.py`"


def test_the_compose_file_is_whole() -> None:
    document = yaml.safe_load((COMPOSE / "compose.yaml").read_text())
    services = document["services"]
    for service in services.values():
        assert set(service.get("depends_on", {})) <= set(services)
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["user"] == "65532:65532"
        for volume in service["volumes"]:
            source = volume.partition(":")[0]
            assert (COMPOSE / source).exists() if source.startswith(".") else source in document["volumes"]
    assert services["agentgateway"]["image"].endswith(f":v{GATEWAY_VERSION}")
    assert services["agentgateway"]["ports"] == ["127.0.0.1:8080:8080"]
    assert services["hub"]["ports"] == ["127.0.0.1:4653:4653"]
    for name in ("seed", "bridge"):
        assert f"--gateway-version={GATEWAY_VERSION}" in services[name]["command"]


def test_the_image_is_pinned_and_runs_as_nobody() -> None:
    lines = (ROOT / "deploy" / "docker" / "Dockerfile").read_text().splitlines()
    (base,) = [line.partition("=")[2] for line in lines if line.startswith("ARG BASE=")]
    assert re.fullmatch(r"python:\d+\.\d+\.\d+-slim-\w+", base)
    assert [line for line in lines if line.startswith("USER ")] == ["USER 65532:65532"]
    stages = {line.partition(" AS ")[2] for line in lines if line.startswith("FROM ")}
    assert {line.split()[1] for line in lines if line.startswith("FROM ")} - stages == {"${BASE}"}


def test_everything_that_the_image_needs_is_locked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *(one for name in IN_IMAGE for one in extras[name])]
    lock = (ROOT / "deploy" / "docker" / "requirements.lock").read_text()
    locked = dict(re.findall(r"^([a-z0-9-]+)==(\S+)(?: ; .*)? \\$", lock, flags=re.MULTILINE))
    assert {re.split(r"[><=~!\[ ]", name)[0].lower() for name in wanted} <= set(locked)
    assert "://" not in lock
