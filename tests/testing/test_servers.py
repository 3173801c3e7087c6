"""The scripted servers do what they are told: a user's test must be able to rely on them."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import anyio
import pytest

import holdfast.testing
from holdfast import Hub, load
from holdfast.errors import CallDenied, ConnectionClosed, HoldfastError
from holdfast.testing import Fault, HttpServer, StdioServer
from tests.harness.waiting import came_true

pytestmark = pytest.mark.anyio

ERAS: list[Literal["legacy", "modern"]] = ["legacy", "modern"]


def hub_of(server: HttpServer | StdioServer, **settings: object) -> Hub:
    return Hub.from_config({"mcpServers": {"it": server.definition}, "holdfast": settings})


@pytest.mark.parametrize("era", ERAS)
async def test_both_servers_answer_in_either_era(era: Literal["legacy", "modern"]) -> None:
    def add(arguments: Mapping[str, Any]) -> str:
        return str(arguments["a"] + arguments["b"])

    async with HttpServer({"add": add}, era=era) as http:
        with StdioServer({"say": "hello"}, era=era) as child:
            result = await load({"mcpServers": {"http": http.definition, "child": child.definition}})
            assert sorted(result.available) == ["child", "http"]
            by_name = {tool.name: tool for tool in result.tools}
            assert (await by_name["add"].call({"a": 2, "b": 3})).text == "5"
            assert (await by_name["say"].call({})).text == "hello"
            assert (await by_name["add"].call({})).is_error
            assert http.asked.count("tools/call") == 2
            assert child.asked.count("tools/call") == 1


@pytest.mark.parametrize("era", ERAS)
async def test_a_changed_list_is_told_over_http(era: Literal["legacy", "modern"]) -> None:
    async with HttpServer({"one": "1"}, era=era) as server, hub_of(server) as hub:
        await hub.ready(10)
        await server.set_tools({"one": "1", "two": "2"})
        await came_true(lambda: len(hub.catalog.tools) == 2)


async def test_a_changed_list_is_told_over_stdio() -> None:
    with StdioServer({"one": "1"}) as server:
        async with hub_of(server) as hub:
            await hub.ready(10)
            server.set_tools({"one": "1", "two": "2"})
            await came_true(lambda: len(hub.catalog.tools) == 2)


async def test_a_server_that_denies_over_http_says_403_and_heals() -> None:
    async with HttpServer({"one": "1"}) as server, hub_of(server) as hub:
        await hub.ready(10)
        await server.fail(Fault.DENY)
        with pytest.raises(CallDenied, match="403"):
            await hub.call_tool("it__one")
        await server.heal()
        assert (await hub.call_tool("it__one")).text == "1"


async def test_a_server_that_hangs_over_http_answers_once_it_is_healed() -> None:
    async with (
        HttpServer({"one": "1"}, stream=False) as server,
        hub_of(server) as hub,
        anyio.create_task_group() as tasks,
    ):
        await hub.ready(10)
        await server.fail(Fault.HANG)
        got: list[str] = []

        async def call() -> None:
            got.append((await hub.call_tool("it__one")).text)

        tasks.start_soon(call)
        await came_true(lambda: server.asked[-1] == "tools/call")
        assert got == []
        await server.heal()
        await came_true(lambda: got == ["1"])


async def test_a_server_that_refuses_is_found_again_on_its_port() -> None:
    async with HttpServer({"one": "1"}) as server:
        await server.fail(Fault.REFUSE)
        assert (await load({"mcpServers": {"it": server.definition}})).permanent == ["it"]
        await server.heal()
        assert (await load({"mcpServers": {"it": server.definition}})).available == ["it"]


@pytest.mark.parametrize("kind", ["http", "stdio"])
async def test_a_server_that_dies_ends_the_connection_in_place_of_an_answer(kind: str) -> None:
    async with HttpServer({"one": "1"}, stream=False) as http:
        with StdioServer({"one": "1"}) as child:
            server: HttpServer | StdioServer = http if kind == "http" else child
            async with hub_of(server) as hub:
                await hub.ready(10)
                dying = server.fail(Fault.DIE)
                if dying is not None:
                    await dying
                with pytest.raises(ConnectionClosed) as caught:
                    await hub.call_tool("it__one")
                assert caught.value.uncertain


async def test_a_child_can_be_killed_and_is_started_again() -> None:
    with StdioServer({"one": "1"}) as server:
        async with hub_of(server) as hub:
            await hub.ready(10)
            server.kill()
            await came_true(lambda: len(server.pids) == 2)
            assert (await hub.call_tool("it__one")).text == "1"
        for fault in (Fault.DENY, Fault.BUSY):
            with pytest.raises(ValueError, match="cannot answer with a status"):
                server.fail(fault)


async def test_a_child_stops_noting_messages_when_its_log_is_full() -> None:
    with StdioServer({"one": "1"}) as server:
        log = Path(str(server.definition["args"][-1]))  # type: ignore[index]  # a list of texts
        log.write_bytes(b"\n" * holdfast.testing.script.LARGEST_LOG)  # noqa: ASYNC240 - nothing else runs yet
        async with hub_of(server) as hub:
            await hub.ready(10)
            assert (await hub.call_tool("it__one")).text == "1"
        assert server.asked == []
        assert len(server.pids) == 1


async def test_a_busy_server_answers_503_until_it_is_healed() -> None:
    async with HttpServer({"one": "1"}) as server, hub_of(server) as hub:
        await hub.ready(10)
        await server.fail(Fault.BUSY)
        with pytest.raises(HoldfastError, match="503"):
            await hub.call_tool("it__one")
        await server.heal()
        assert (await hub.call_tool("it__one")).text == "1"


async def test_a_tool_may_say_how_it_is_listed_and_use_its_arguments() -> None:
    greet = {"text": "hello, {name}", "description": "Greet a person", "inputs": {"name": "Who it is"}}
    async with HttpServer({"greet": greet}) as http:
        with StdioServer({"greet": greet}) as child:
            for tool in (await load({"mcpServers": {"a": http.definition, "b": child.definition}})).tools:
                assert tool.description == "Greet a person"
                assert tool.input_schema["required"] == ["name"]
                assert (await tool.call({"name": "Ada"})).text == "hello, Ada"
                refused = await tool.call({})
                assert refused.is_error
                assert "the argument `name` is missing" in refused.text


def test_nothing_here_needs_a_test_framework() -> None:
    folder = Path(holdfast.testing.__file__).parent
    imported = {
        name.partition(".")[0]
        for path in folder.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        for name in _imports(node)
    }
    assert imported - sys.stdlib_module_names == {"anyio", "holdfast"}


def test_importing_it_loads_no_mcp_client() -> None:
    code = "import sys, holdfast.testing; sys.exit('mcp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=30).returncode == 0


def _imports(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module] if isinstance(node, ast.ImportFrom) and node.module else []


async def test_a_server_goes_down_in_the_middle_of_a_run_and_comes_back() -> None:
    async with HttpServer({"forecast": "sunny"}) as weather:
        weather.fail_after(1)
        async with Hub.from_config({"mcpServers": {"weather": weather.definition}}) as hub:
            await hub.ready(10)
            assert (await hub.call_tool("weather__forecast")).text == "sunny"
            with pytest.raises(HoldfastError):
                await hub.call_tool("weather__forecast")
            await weather.heal()
            with anyio.fail_after(20):
                await weather.arrived("tools/list", times=2)
            assert (await hub.call_tool("weather__forecast")).text == "sunny"


def test_a_process_that_writes_its_log_at_the_end_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    remove, late = os.rmdir, iter(["start 1"])

    def rmdir(path: str, *, dir_fd: int | None = None) -> None:
        for line in late:
            (folder / "log").write_text(line)
        remove(path, dir_fd=dir_fd)

    with StdioServer({"a": "one"}) as server:
        arguments = server.definition["args"]
        assert isinstance(arguments, list)
        folder = Path(arguments[-1]).parent
        monkeypatch.setattr(os, "rmdir", rmdir)
    assert not folder.exists()
