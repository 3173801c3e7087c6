"""The bridge as a real process, in peace and under faults: the last good config survives, and health says so."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

from tests.gateway.bridge_process import (
    RunningBridge,
    becomes,
    bridge,
    content,
    gateway,
    mcp_json,
    replace,
    routes_in,
    seeded,
    together,
)
from tests.peers.http_fault import Behaviour, FaultServer, accept_and_ignore, oversized, respond
from tests.peers.ports import free_port

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("GW-5")]

NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount")
TOKEN = "t0ken-that-must-stay-secret"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "config.yaml"


@pytest.fixture
def targets(tmp_path: Path) -> Path:
    file = tmp_path / "mcp.json"
    file.write_text(mcp_json("a"))
    return file


def identity(file: Path) -> tuple[int, int]:
    """What changes when a file is replaced."""
    stat = file.stat()
    return stat.st_ino, stat.st_mtime_ns


def ok(health: dict[str, Any]) -> bool:
    return bool(health["status"] == "ok")


def can_mount() -> bool:
    """Whether this machine lets us mount a small disk for ourselves."""
    mounting = [*NAMESPACE, "mount", "-t", "tmpfs", "none", "/mnt"]
    return (
        shutil.which("unshare") is not None
        and not subprocess.run(mounting, capture_output=True, check=False).returncode
    )


@asynccontextmanager
async def bridge_on(source: FaultServer, folder: Path) -> AsyncIterator[RunningBridge]:
    """A bridge that asks an endpoint, and watches no gateway."""
    async with bridge(folder, "--targets-url", source.origin, "--no-watch") as running:
        yield running


async def asked_again(source: FaultServer, times: int = 3) -> None:
    """Wait until the source was asked so many times more."""
    enough = len(source.requests) + times

    async def asked() -> bool:
        return len(source.requests) >= enough

    await becomes(asked)


async def test_targets_become_routes_and_the_gateway_is_seen_to_take_them(
    tmp_path: Path, config: Path, targets: Path
) -> None:
    async with together(tmp_path, "--targets", targets) as (running, proxy):
        assert routes_in(config) == ["a"]
        replace(targets, mcp_json("b", "a"))
        status, health = await running.until(lambda seen: ok(seen) and seen["config"]["routes"] == 3)
        await proxy.says("Config reloaded successfully")
        assert status == 200
        assert routes_in(config) == ["a", "b"]
        assert (health["role"], health["gateway"]["state"], health["source"]["state"]) == ("active", "taken", "fresh")
        assert (await running.metrics())["healthy"] == 1


async def test_a_config_that_did_not_change_is_not_written_again(tmp_path: Path, config: Path) -> None:
    source = FaultServer(respond(200, mcp_json("a")))
    async with source, bridge_on(source, tmp_path) as running:
        await running.until(ok)
        before = identity(config)
        await asked_again(source)
        assert identity(config) == before
        metrics = await running.metrics()
    assert metrics["config_writes_total"] == 1


async def test_a_source_that_is_down_leaves_the_config_and_is_not_reported_as_healthy(
    tmp_path: Path, config: Path
) -> None:
    source = FaultServer(respond(200, mcp_json("a", "b")))
    async with source, bridge_on(source, tmp_path) as running:
        _, good = await running.until(ok)
        before = content(config)
        await source.stop()
        status, health = await running.until(lambda seen: bool(seen["status"] == "degraded"))
        assert status == 503
        assert health["source"]["state"] == "stale"
        assert "connection refused" in health["source"]["error"]
        assert health["source"]["last_success"] >= good["source"]["last_success"]
        assert content(config) == before
        metrics = await running.metrics()
        assert (metrics["healthy"], metrics["source_up"], metrics["routes"]) == (0, 0, 3)
        async with source:
            status, _ = await running.until(ok)
            assert status == 200


@pytest.mark.parametrize(
    ("garbage", "said"),
    [
        (respond(200, "<!doctype html><title>Welcome</title>", content_type="text/html"), "not an mcp.json"),
        (respond(200, "[]"), "not an mcp.json"),
        (respond(200, "{}"), 'it has no "mcpServers"'),
        (respond(200, '{"mcpServers": {"a": '), "not an mcp.json"),
        (respond(200, '{"mcpServers": 7}'), "not an mcp.json"),
        (respond(200, b"\xff\xfe\x00"), "not an mcp.json"),
        (respond(500, TOKEN), "500"),
        (respond(401, "who are you"), "401"),
        (oversized(20 << 20), "exceeded the bound"),
    ],
    ids=["a page", "a list", "an empty object", "cut short", "no servers", "bytes", "an error", "a refusal", "a flood"],
)
async def test_garbage_from_the_source_leaves_the_config(
    tmp_path: Path, config: Path, garbage: Behaviour, said: str
) -> None:
    source = FaultServer([respond(200, mcp_json("a")), garbage])
    async with source, bridge_on(source, tmp_path) as running:
        _, health = await running.until(lambda seen: bool(seen["status"] == "degraded"))
        assert said in health["source"]["error"]
        assert routes_in(config) == ["a"]


async def test_an_empty_registry_keeps_the_last_routes_and_is_not_reported_as_healthy(
    tmp_path: Path, config: Path, targets: Path
) -> None:
    async with together(tmp_path, "--targets", targets) as (running, _):
        replace(targets, mcp_json())
        status, health = await running.until(lambda seen: bool(seen["status"] == "degraded"))
        assert (status, health["source"]["empty"], health["source"]["state"]) == (503, True, "stale")
        assert "--allow-empty" in health["source"]["error"]
        assert routes_in(config) == ["a"]
        metrics = await running.metrics()
        assert (metrics["healthy"], metrics["source_empty"], metrics["routes"]) == (0, 1, 2)
        replace(targets, mcp_json("b"))
        # The source is read before the routes are written.
        await running.until(lambda seen: ok(seen) and not seen["source"]["empty"] and routes_in(config) == ["b"])


async def test_a_registry_that_is_empty_after_a_restart_keeps_the_last_routes(
    tmp_path: Path, config: Path, targets: Path
) -> None:
    async with bridge(tmp_path, "--targets", targets, "--no-watch") as running:
        await running.until(ok)
    replace(targets, mcp_json())
    async with bridge(tmp_path, "--targets", targets, "--no-watch", name="later") as running:
        await running.until(lambda seen: bool(seen["status"] == "degraded"))
        assert routes_in(config) == ["a"]


async def test_a_registry_of_nothing_but_commands_is_empty_too(tmp_path: Path, config: Path, targets: Path) -> None:
    async with bridge(tmp_path, "--targets", targets, "--no-watch") as running:
        await running.until(ok)
        replace(targets, '{"mcpServers": {"local": {"command": "x"}}}')
        _, health = await running.until(lambda seen: bool(seen["status"] == "degraded"))
        assert list(health["source"]["left_out"]) == ["local"]
        assert routes_in(config) == ["a"]


async def test_an_empty_registry_that_is_allowed_removes_every_route(
    tmp_path: Path, config: Path, targets: Path
) -> None:
    async with bridge(tmp_path, "--targets", targets, "--no-watch", "--allow-empty") as running:
        await running.until(ok)
        replace(targets, mcp_json())
        emptied = lambda seen: ok(seen) and seen["source"]["empty"] and routes_in(config) == []  # noqa: E731
        status, health = await running.until(emptied)
        assert (status, health["source"]["error"]) == (200, None)


async def test_a_timeout_under_a_second_is_warned_about(tmp_path: Path, targets: Path) -> None:
    options = ("--ext-auth-timeout", "200ms", "--no-watch")
    async with bridge(tmp_path, "--targets", targets, *options) as running:
        _, health = await running.until(ok)
        (warning,) = health["config"]["warnings"]
        assert "the timeout 200ms is under 1 s" in warning
        assert f"warning: {warning}" in running.log


async def test_a_silent_source_does_not_stop_the_bridge_from_reporting(tmp_path: Path, targets: Path) -> None:
    source = FaultServer(accept_and_ignore)
    async with source, bridge_on(source, tmp_path) as running:
        status, health = await running.health()
    assert (status, health["status"], health["source"]["state"]) == (503, "starting", "not yet")


async def test_the_token_goes_to_the_endpoint_and_nowhere_else(tmp_path: Path, config: Path) -> None:
    token = tmp_path / "token"
    token.touch(mode=0o600)
    token.write_text(f"{TOKEN}\n")
    async with FaultServer(respond(200, mcp_json("a"))) as source:
        options = ("--targets-url", f"{source.origin}/targets?key={TOKEN}", "--token-file", token, "--no-watch")
        async with bridge(tmp_path, *options) as running:
            _, health = await running.until(ok)
            assert source.requests[0].headers["authorization"] == f"Bearer {TOKEN}"
            token.write_text("another")
            await asked_again(source)
            assert source.requests[-1].headers["authorization"] == "Bearer another"
            token.unlink()
            _, stale = await running.until(lambda seen: bool(seen["status"] == "degraded"))
            assert TOKEN not in running.log + str(health) + str(stale) + str(content(config))


async def test_a_token_is_not_sent_in_the_clear_beyond_this_machine(tmp_path: Path) -> None:
    options = ("--targets-url", "http://hub.invalid/targets", "--no-watch")
    async with bridge(tmp_path, *options, env={"HOLDFAST_TARGETS_TOKEN": TOKEN}) as running:
        _, health = await running.until(lambda seen: bool(seen["status"] == "degraded"))
        assert "plain http" in health["source"]["error"]
        assert TOKEN not in running.log


async def test_the_bridges_environment_cannot_be_read_through_a_source(tmp_path: Path, config: Path) -> None:
    document = '{"mcpServers": {"a": {"url": "http://h/${env:SECRET}"}, "b": {"url": "http://h/mcp"}}}'
    async with FaultServer(respond(200, document)) as source:
        options = ("--targets-url", source.origin, "--no-watch")
        async with bridge(tmp_path, *options, env={"SECRET": TOKEN}) as running:
            _, health = await running.until(ok)
            assert list(health["source"]["left_out"]) == ["a"]
            assert routes_in(config) == ["b"]
            assert TOKEN not in str(content(config)) + running.log


async def test_a_source_learns_no_folder_and_reads_no_file_of_the_bridge(tmp_path: Path, config: Path) -> None:
    pipe = tmp_path / "pipe.env"
    os.mkfifo(pipe)  # reading it would never end
    servers = {
        "a": {"url": "http://h/${userHome}"},
        "b": {"url": "http://h/mcp"},
        "c": {"command": "server", "envFile": str(pipe)},
    }
    async with (
        FaultServer(respond(200, json.dumps({"mcpServers": servers}))) as source,
        bridge(tmp_path, "--targets-url", source.origin, "--no-watch") as running,
    ):
        _, health = await running.until(ok)
        assert sorted(health["source"]["left_out"]) == ["a", "c"]
        assert routes_in(config) == ["b"]


async def test_a_full_disk_leaves_the_config_and_is_told(tmp_path: Path, targets: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if not can_mount():
        pytest.skip("this machine does not let us mount a small disk")
    mounting = f"mount -t tmpfs -o size=64k,mode=0755 none '{disk}' && exec \"$@\""
    small_disk = (*NAMESPACE, "sh", "-c", mounting, "sh")
    names = [f"server-{number:03}" for number in range(200)]
    async with bridge(
        tmp_path, "--targets", targets, "--no-watch", "--output", disk / "config.yaml", before=small_disk
    ) as running:
        await running.until(ok)
        seen_by_bridge = Path(f"/proc/{running.process.pid}/root{disk}/config.yaml")
        before = content(seen_by_bridge)
        replace(targets, mcp_json("a", *names))
        status, health = await running.until(lambda seen: bool(seen["status"] == "degraded"))
        assert status == 503
        assert (health["config"]["state"], health["source"]["state"]) == ("last good kept", "fresh")
        assert "No space left on device" in health["config"]["error"]
        assert content(seen_by_bridge) == before
        assert [file.name for file in seen_by_bridge.parent.iterdir() if file.name.startswith(".")] == []
        assert (await running.metrics())["config_write_failures_total"] >= 1
        replace(targets, mcp_json("a", "b"))
        await running.until(ok)
        assert routes_in(seen_by_bridge) == ["a", "b"]


async def test_a_gateway_that_is_down_is_told_and_found_when_it_comes(
    tmp_path: Path, config: Path, targets: Path
) -> None:
    port = free_port()
    async with bridge(tmp_path, "--targets", targets, "--admin-address", f"127.0.0.1:{port}") as running:
        status, health = await running.until(lambda seen: bool(seen["gateway"]["state"] == "down"))
        assert (status, health["status"]) == (503, "degraded")
        assert "connection refused" in health["gateway"]["error"]
        assert routes_in(config) == ["a"]
        async with gateway(tmp_path, port=port):
            _, health = await running.until(ok)
            assert health["gateway"]["state"] == "taken"
        _, health = await running.until(lambda seen: bool(seen["gateway"]["state"] == "down"))
        assert health["gateway"]["last_success"] is not None
        assert routes_in(config) == ["a"]


async def test_a_config_that_the_gateway_rejects_is_noticed_and_the_last_good_one_put_back(
    tmp_path: Path, config: Path, targets: Path
) -> None:
    bootstrap = tmp_path / "bootstrap.yaml"
    good = {"binds": [{"port": 8080, "listeners": [{"name": "mcp", "routes": []}]}]}
    bootstrap.write_text(yaml.safe_dump(good))
    async with together(tmp_path, "--targets", targets, "--bootstrap", bootstrap) as (running, proxy):
        before = content(config)
        replace(bootstrap, yaml.safe_dump({**good, "fieldOfTheFuture": {}}))
        status, health = await running.until(lambda seen: bool(seen["gateway"]["state"] == "refused"))
        await proxy.says("Failed to reload config")
        assert (status, health["status"], health["config"]["state"]) == (503, "degraded", "last good kept")
        assert content(config) == before
        # A gateway that starts now can start.
        async with gateway(tmp_path, name="another"):
            pass
        metrics = await running.metrics()
        assert (metrics["gateway_refusals_total"], metrics["gateway_restores_total"]) == (1, 1)
        replace(bootstrap, yaml.safe_dump(good))
        await running.until(ok)
        assert content(config) == before


async def test_a_bridge_for_another_version_than_the_gateways_is_found_out(tmp_path: Path, targets: Path) -> None:
    await seeded(tmp_path)
    async with gateway(tmp_path, version="1.4.1") as proxy:
        options = ("--targets", targets, "--admin-address", proxy.admin, "--accept-within", "1s")
        async with bridge(tmp_path, *options, version="0.12.0") as running:
            status, health = await running.until(lambda seen: bool(seen["gateway"]["state"] == "refused"))
            await proxy.says("timeout")
    assert (status, health["status"]) == (503, "degraded")


async def test_a_gateway_that_cannot_start_on_a_new_config_gets_its_last_one_back(
    tmp_path: Path, config: Path, targets: Path
) -> None:
    bootstrap = tmp_path / "bootstrap.yaml"
    good = {"binds": [{"port": 8080, "listeners": [{"name": "mcp", "routes": []}]}]}
    bootstrap.write_text(yaml.safe_dump(good))
    port = free_port()
    options = ("--targets", targets, "--bootstrap", bootstrap, "--accept-within", "1s")
    async with bridge(tmp_path, *options, "--admin-address", f"127.0.0.1:{port}") as running:
        await running.until(lambda seen: bool(seen["gateway"]["state"] == "down"))
        async with gateway(tmp_path, port=port):
            await running.until(ok)
        before = content(config)
        replace(bootstrap, yaml.safe_dump({**good, "fieldOfTheFuture": {}}))
        await becomes(lambda: restored(running))
        assert content(config) == before
        async with gateway(tmp_path, port=port, name="again"):
            await running.until(lambda seen: bool(seen["gateway"]["state"] == "refused"))
        assert content(config) == before


async def restored(running: RunningBridge) -> bool:
    return (await running.metrics())["gateway_restores_total"] >= 1


async def test_of_two_bridges_one_writes_and_the_other_stands_by_until_it_is_gone(
    tmp_path: Path, config: Path, targets: Path
) -> None:
    async with bridge(tmp_path, "--targets", targets, "--no-watch", name="first") as first:
        await first.until(ok)
        async with bridge(tmp_path, "--targets", targets, "--no-watch", name="second") as second:
            status, health = await second.until(lambda seen: bool(seen["role"] == "standby"))
            assert (status, health["status"]) == (200, "standby")
            assert (await second.metrics())["active"] == 0
            assert "another bridge writes" in second.log
            replace(targets, mcp_json("a", "b"))
            await first.until(lambda seen: bool(seen["config"]["routes"] == 3 and ok(seen)))
            assert (await second.metrics())["config_writes_total"] == 0
            first.kill()
            await second.until(lambda seen: bool(seen["role"] == "active" and ok(seen)))
            replace(targets, mcp_json("c"))
            await second.until(lambda seen: bool(seen["config"]["routes"] == 2 and ok(seen)))
            assert routes_in(config) == ["c"]


async def test_a_file_changed_by_another_program_is_written_again(tmp_path: Path, config: Path, targets: Path) -> None:
    async with together(tmp_path, "--targets", targets) as (running, _):
        before = content(config)
        replace(config, "binds: []\n")

        async def put_right() -> bool:
            return content(config) == before

        await becomes(put_right)
        await running.until(ok)
        assert "another program changed" in running.log


async def test_without_a_source_at_the_start_a_config_that_is_there_stays(
    tmp_path: Path, config: Path, targets: Path
) -> None:
    async with bridge(tmp_path, "--targets", targets, "--no-watch") as running:
        await running.until(ok)
    before = content(config)
    replace(targets, "{}")
    async with bridge(tmp_path, "--targets", targets, "--no-watch", name="later") as running:
        _, health = await running.until(lambda seen: bool(seen["status"] == "degraded"))
        assert content(config) == before
        assert 'it has no "mcpServers"' in health["source"]["error"]


async def test_without_a_source_and_a_config_the_bootstrap_is_put_in_place(tmp_path: Path, config: Path) -> None:
    async with bridge(tmp_path, "--targets", tmp_path / "none.json", "--no-watch") as running:
        # The source is read before the config is written, and an answer may come from between the two.
        _, health = await running.until(lambda seen: bool(seen["config"]["state"] == "current"))
        assert routes_in(config) == []
        assert health["status"] == "degraded"


@pytest.mark.requirement("GW-4")
async def test_a_bootstrap_that_begins_to_fail_open_is_not_written(tmp_path: Path, config: Path, targets: Path) -> None:
    bootstrap = tmp_path / "bootstrap.yaml"
    good = "binds: [{listeners: [{routes: [{name: ui, policies: {extAuthz: {host: 'a:1', failureMode: %s}}}]}]}]"
    bootstrap.write_text(good % "deny")
    async with bridge(tmp_path, "--targets", targets, "--bootstrap", bootstrap, "--no-watch") as running:
        await running.until(ok)
        before = content(config)
        replace(bootstrap, good % "allow")
        status, health = await running.until(lambda seen: bool(seen["status"] == "degraded"))
        assert status == 503
        assert "it fails open" in health["config"]["error"]
        assert content(config) == before


async def test_a_bridge_that_is_asked_to_end_ends_well_and_lets_another_write(tmp_path: Path, targets: Path) -> None:
    async with bridge(tmp_path, "--targets", targets, "--no-watch") as running:
        await running.until(ok)
        os.kill(running.process.pid, signal.SIGTERM)
        assert await running.process._process.wait() == 0
        async with bridge(tmp_path, "--targets", targets, "--no-watch", name="next") as following:
            await following.until(ok)
        assert "Traceback" not in running.log


async def test_the_bridge_is_alive_even_where_it_is_not_well(tmp_path: Path) -> None:
    async with bridge(tmp_path, "--targets", tmp_path / "none.json", "--no-watch") as running:
        await running.until(lambda seen: bool(seen["status"] == "degraded"))
        assert await _livez(running) == 200


async def _livez(running: RunningBridge) -> int:
    async with httpx2.AsyncClient(trust_env=False) as client:
        return (await client.get(f"{running.url}/livez")).status_code
