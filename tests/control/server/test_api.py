"""The control API over HTTP: it tells how every server is, and does what an operator asks."""

from __future__ import annotations

import sys

import anyio
import httpx2
import pytest

from holdfast.control.models import ApiError
from holdfast.control.server import views
from holdfast.core.catalog import Item, Listing
from holdfast.errors import CallFailed, HubRefused
from holdfast.gateway.bridge import HttpSource, SourceFailed
from holdfast.testing import Fault, HttpServer, StdioServer
from holdfast.wire.process import LONGEST_LINE
from tests.control.server.controlled_hub import TOKEN, steered

pytestmark = pytest.mark.anyio

MISSING = {"command": "no-such-command-anywhere"}
SECRET = "s3cr3t-value-of-this-test"
TALKS = "import sys; print('starting with', sys.argv[1], file=sys.stderr, flush=True); sys.exit(3)"


@pytest.mark.requirement("HUB-5")
async def test_every_server_is_told_with_its_state_its_reason_and_what_to_do() -> None:
    async with HttpServer({"a": "one", "b": "two"}) as up, HttpServer({"c": "three"}) as closed:
        await closed.fail(Fault.DENY)
        servers = {
            "up": up.definition,
            "closed": closed.definition,
            "missing": MISSING,
            "off": {**MISSING, "enabled": False},
        }
        async with steered(servers) as hub:
            found = {server.id: server for server in (await hub.control.servers()).servers}
    assert list(found) == list(servers)
    assert (found["up"].state, found["up"].status, found["up"].tools) == ("connected", "available", 2)
    assert found["up"].verified
    assert found["up"].generation == 1
    assert found["closed"].status == "denied"
    assert "It is not asked again" in found["closed"].summary
    assert found["closed"].action
    assert found["missing"].status == "permanent"
    assert "no-such-command-anywhere" in found["missing"].reason
    assert found["missing"].command == "holdfast doctor missing"
    assert found["off"].command == "holdfast enable off"
    assert [change.new for change in found["up"].timeline] == ["connecting", "connected"]


@pytest.mark.requirement("HUB-5")
async def test_servers_are_switched_off_and_on_and_made_anew() -> None:
    async with HttpServer({"a": "one"}) as up, steered({"up": up.definition}) as hub:
        assert (await hub.control.act("up", "disable")).state == "disabled"
        with pytest.raises(HubRefused) as refused:
            await hub.control.act("up", "reconnect")
        assert refused.value.status == 409
        assert (await hub.control.act("up", "enable")).state in ("connecting", "connected")
        before = await hub.control.act("up", "reconnect")
        again = await hub.control.act("up", "reconnect")
        assert (before.state, again.state) == ("connected", "connected")
        assert 1 < (before.generation or 0) < (again.generation or 0)
        assert again.reconnects_total == before.reconnects_total + 1


@pytest.mark.requirement("HUB-5")
async def test_a_reconnect_that_fails_says_why() -> None:
    async with steered({"missing": MISSING}) as hub:
        answer = await hub.ask("/api/servers/missing/reconnect", method="POST")
    assert answer.status_code == 502
    said = ApiError.model_validate_json(answer.content)
    assert "`no-such-command-anywhere` was not found" in said.error
    assert said.hint


@pytest.mark.requirement("HUB-5")
async def test_a_name_may_hold_anything() -> None:
    names = ["io.example/notes", "two words", "ünï", "a%2Fb", "logs"]
    async with steered(dict.fromkeys(names, MISSING)) as hub:
        for name in names:
            assert (await hub.control.server(name)).id == name
            assert (await hub.control.logs(name)).server == name
        for unknown in ("io.example", "nobody"):
            with pytest.raises(HubRefused) as refused:
                await hub.control.server(unknown)
            assert refused.value.status == 404


@pytest.mark.requirement("HUB-5", "MSG-6")
async def test_the_last_lines_of_a_server_are_told_and_masked() -> None:
    talks = {"command": sys.executable, "args": ["-c", TALKS, SECRET], "env": {"KEY": SECRET}}
    async with steered({"talks": talks}) as hub:
        logs = await hub.control.logs("talks")
        servers = await hub.ask("/api/servers")
        fewer = await hub.control.logs("talks", lines=1)
    written = [line.text for line in logs.lines if line.source == "stderr"]
    assert set(written) == {"starting with ***"}  # on a slow machine the hub has tried it again by now
    assert any(line.text.startswith("parked: ") for line in logs.lines if line.source == "hub")
    assert len(fewer.lines) == 1
    assert SECRET not in servers.text


LONG = (
    "import sys; sys.stderr.write('x' * int(sys.argv[2]) + sys.argv[1] + 'y' * 90000 + sys.argv[1] + '\\nthe end\\n')"
)


@pytest.mark.requirement("HUB-5", "MSG-6")
async def test_a_line_that_is_too_long_is_cut_and_shows_no_half_of_a_secret() -> None:
    befores = (LONGEST_LINE - 10, LONGEST_LINE - len(SECRET), LONGEST_LINE, 0)
    servers = {
        str(before): {"command": sys.executable, "args": ["-c", LONG, SECRET, str(before)], "env": {"KEY": SECRET}}
        for before in befores
    }
    async with steered(servers) as hub:
        for server in servers:
            logs = await hub.control.logs(server)
            long, end, *_ = [line.text for line in logs.lines if line.source == "stderr"]  # of the first try
            assert (end, long[-1]) == ("the end", "…")
            assert SECRET[:4] not in long
            assert SECRET[-4:] not in long


@pytest.mark.requirement("HUB-5")
async def test_a_follower_gets_lines_as_they_come() -> None:
    headers = {"authorization": f"Bearer {TOKEN}"}
    with StdioServer({"a": "one"}) as server:
        async with (
            steered({"one": server.definition}) as hub,
            httpx2.AsyncClient(trust_env=False) as http,
            http.stream("GET", f"{hub.base}/api/servers/one/logs/stream", headers=headers) as answer,
        ):
            chunks = answer.aiter_bytes()
            heard = await anext(chunks)
            server.fail(Fault.DIE)
            with pytest.raises(CallFailed):
                await hub.hub.call_tool("one__a")
            with anyio.fail_after(20):
                while b"exits on command" not in heard or b"; reconnecting" not in heard:
                    heard += await anext(chunks)
    assert b"event: line\n" in heard


@pytest.mark.requirement("HUB-5")
async def test_the_catalog_is_told_as_clients_see_it() -> None:
    async with (
        HttpServer({"a": "one"}) as first,
        HttpServer({"b": "two"}) as second,
        steered({"x": first.definition, "y": {**second.definition, "prefix": ""}}) as hub,
    ):
        catalog = await hub.control.catalog()
    assert [(tool.name, tool.server, tool.original) for tool in catalog.tools] == [("x__a", "x", "a"), ("b", "y", "b")]
    assert all(tool.verified and not tool.held for tool in catalog.tools)


@pytest.mark.requirement("SEC-5", "HUB-5")
async def test_a_changed_tool_is_shown_with_its_change_and_approved() -> None:
    async with HttpServer({"a": "one"}) as server:
        held = {**server.definition, "tools": {"holdChanged": True}}
        async with steered({"one": held}, refresh="off") as hub:
            changed = Item("a", {"name": "a", "description": "It now says more.", "inputSchema": {"type": "object"}})
            hub.hub.registry.publisher.publish(Listing(server="one", generation=1, tools=(changed,)))
            (waiting,) = (await hub.control.approvals()).approvals
            assert (waiting.server, waiting.tool, waiting.held) == ("one", "a", True)
            assert "+It now says more." in waiting.changes
            shown = await hub.control.server("one")
            assert (shown.held, shown.command) == (("a",), "holdfast approve one")
            with pytest.raises(HubRefused) as newer:
                await hub.control.approve("one", tool="a", mark="of-another-change")
            assert newer.value.status == 409
            with pytest.raises(HubRefused) as unknown:
                await hub.control.approve("one", tool="z")
            assert unknown.value.status == 404
            assert (await hub.control.approve("one", tool="a", mark=waiting.mark)).held == ()
            assert (await hub.control.approvals()).approvals == ()


@pytest.mark.requirement("SEC-5", "HUB-5")
async def test_a_server_counts_all_that_is_held_also_where_not_all_of_it_is_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(views, "MOST_HELD", 1)
    async with HttpServer({"a": "one", "b": "two"}) as server:
        held = {**server.definition, "tools": {"holdChanged": True}}
        async with steered({"one": held}, refresh="off") as hub:
            changed = [
                Item(name, {"name": name, "description": "More.", "inputSchema": {"type": "object"}}) for name in "ab"
            ]
            hub.hub.registry.publisher.publish(Listing(server="one", generation=1, tools=tuple(changed)))
            shown = await hub.control.server("one")
    assert (shown.held, shown.summary) == (("a",), "Connected; 2 tools; 2 changes since first seen are held.")


@pytest.mark.requirement("HUB-5")
async def test_a_gateway_is_told_the_addresses_that_it_can_route_to() -> None:
    async with (
        HttpServer({"a": "one"}) as up,
        HttpServer({"b": "two"}) as off,
        steered({"up": up.definition, "off": off.definition, "local": MISSING}) as hub,
    ):
        await hub.control.act("off", "disable")
        targets = await hub.control.targets()
        source = HttpSource(url=f"{hub.base}/api/targets", token=lambda: TOKEN)
        read = await source.read()
        with pytest.raises(SourceFailed):
            await HttpSource(url=f"{hub.base}/api/targets", token=lambda: "wrong").read()
    assert [(one.id, one.url) for one in targets.targets] == [("up", up.definition["url"])]
    assert set(targets.left_out) == set(read.left_out) == {"off", "local"}
    assert [(one.id, one.url) for one in read.found] == [("up", up.definition["url"])]


@pytest.mark.requirement("HUB-5")
async def test_what_cannot_be_served_is_refused_with_words() -> None:
    wrong = [
        ("GET", "/api/nothing", 404),
        ("GET", "/api/", 404),
        ("DELETE", "/api/servers/x", 405),
        ("GET", "/api/servers/x/reconnect", 405),
        ("GET", "/api/servers/x/logs?lines=0", 422),
        ("GET", "/api/servers/x/logs?lines=many", 422),
        ("GET", "/api/servers/x/logs?lines=99999999999999999999", 422),
        ("POST", "/api/servers/x/approve", 422),
    ]
    async with steered({"x": MISSING}) as hub:
        for method, path, status in wrong:
            answer = await hub.ask(path, method=method)
            assert (path, answer.status_code) == (path, status)
            assert ApiError.model_validate_json(answer.content).error


@pytest.mark.requirement("HUB-5", "OBS-1")
async def test_calls_are_counted_and_drawn() -> None:
    async with HttpServer({"a": "one"}) as up, steered({"up": up.definition}) as hub:
        for _ in range(3):
            await hub.hub.call_tool("up__a")
        server = await hub.control.server("up")
    assert (server.calls_total, server.errors_total) == (3, 0)
    assert server.activity is not None
    assert sum(server.activity.calls) == 3
    assert any(value is not None for value in server.activity.milliseconds)
