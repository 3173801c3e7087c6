"""Servers that run once for each folder: when they run, who sees them, and who may choose a folder."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import ListRootsResult, Root, TextContent

from holdfast.access import LOCAL, Principal, TokenPolicy
from holdfast.config import Config, TrustStore, id_in_folder, load_config
from holdfast.front.app import create_app
from holdfast.hub.hub import Hub
from holdfast.hub.reload import Reloader
from holdfast.serve import client_context
from holdfast.serve.client_context import ClientVariables, FolderClients, FolderUse, ProjectServers, project_folder_of
from holdfast.testing import FakeClock
from tests.harness.joined import SERVER
from tests.harness.waiting import came_true
from tests.harness.web import serving

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("DX-9")]


def _config(folder: Path, **servers: object) -> Path:
    file = folder / "mcp.json"
    file.write_text(json.dumps({"mcpServers": servers}))
    return file


def _as_it_is(config: Config) -> Config:
    return config


@pytest.mark.parametrize(
    ("named", "working", "found"),
    [
        ("", "/", None),
        ("", "{home}", None),
        ("", "{above}", None),
        ("", "{home}/code", "{home}/code"),
        ("code", "{home}", "{home}/code"),
        ("{home}", "{home}/code", "{home}"),
        ("{home}/missing", "{home}/code", None),
        ("", "", None),
    ],
)
async def test_a_clients_folder_is_the_one_that_it_names_else_where_it_works_unless_that_is_no_project(
    named: str, working: str, found: str | None, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    (home / "code").mkdir(parents=True)
    put = {"home": str(home), "above": str(home.parent)}
    seen = project_folder_of(named.format(**put), working.format(**put), {"HOME": str(home)})
    assert seen == (found.format(**put) if found is not None else None)


async def test_a_definition_runs_once_for_each_folder_in_use_and_not_by_itself(tmp_path: Path) -> None:
    file = _config(tmp_path, a={"command": "x"}, p={"command": "x", "scope": "project", "args": ["${workspaceFolder}"]})
    projects = ProjectServers(file, {"HOME": str(tmp_path)}, _as_it_is)
    config = load_config(file)
    alone = projects.of(config)
    assert not alone.servers["p"].enabled
    assert alone.servers["a"].enabled
    one, two = tmp_path / "one", tmp_path / "two"
    for folder in (one, two):
        folder.mkdir()
        projects.in_use[str(folder)] = FolderUse(clients=1)
    both = projects.of(config)
    for folder in (one, two):
        copy = both.servers[id_in_folder("p", str(folder))]
        assert (copy.cwd, copy.args, copy.plain_name, copy.enabled) == (folder, (str(folder),), "p", True)


async def test_the_servers_of_a_folder_end_a_moment_after_its_last_client_left(tmp_path: Path) -> None:
    clock, reloads = FakeClock(), [0]

    async def reload() -> None:
        reloads[0] += 1

    projects = ProjectServers(_config(tmp_path), {}, _as_it_is)
    clients = FolderClients(projects, reload, clock)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(clients.run)
        assert await clients.enter("/a", {"KEY": "first"})
        assert await clients.enter("/a", {"KEY": "second"})
        assert projects.in_use["/a"].variables == {"KEY": "first"}
        assert reloads == [1]
        clients.leave("/a")
        await clock.advance(3600)
        assert "/a" in projects.in_use, "it still has a client"
        clients.leave("/a")
        await clock.advance(5)
        assert "/a" in projects.in_use, "a client may come back"
        await clock.advance(6)
        assert not projects.in_use
        assert reloads == [2]
        tasks.cancel_scope.cancel()


async def test_there_is_a_most_of_folders_in_use_and_those_that_are_stay_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def reload() -> None:
        pass

    monkeypatch.setattr(client_context, "MOST_FOLDERS", 2)
    projects = ProjectServers(_config(tmp_path), {}, _as_it_is)
    clients = FolderClients(projects, reload, FakeClock())
    assert await clients.enter("/a", {})
    assert await clients.touch("/b")
    assert not await clients.enter("/c", {})
    assert not await clients.touch("/c")
    assert await clients.enter("/b", {}), "it is in use already"
    assert sorted(projects.in_use) == ["/a", "/b"]


async def test_a_project_file_that_is_too_large_is_not_used_although_it_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    environ = {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state")}
    folder = tmp_path / "project"
    folder.mkdir()
    theirs = _config(folder, theirs={"command": "x"})
    TrustStore(environ).trust(theirs, theirs.read_bytes())
    own = _config(tmp_path, mine={"command": "x"})
    projects = ProjectServers(own, environ, _as_it_is)
    projects.in_use[str(folder)] = FolderUse(clients=1)
    copy = id_in_folder("theirs", str(folder))
    assert copy in projects.of(load_config(own)).servers
    monkeypatch.setattr(client_context, "LARGEST_FILE", theirs.stat().st_size - 1)
    assert copy not in projects.of(load_config(own)).servers
    assert "too large for a project file" in caplog.text


@pytest.mark.parametrize("is_local", [True, False])
async def test_over_http_the_first_root_of_a_local_client_is_its_folder_and_that_of_a_remote_one_is_not(
    is_local: bool, tmp_path: Path
) -> None:
    (tmp_path / "server.py").write_text(SERVER)
    project = tmp_path / "project"
    project.mkdir()
    server = {"command": sys.executable, "args": [str(tmp_path / "server.py"), str(tmp_path / "notes")]}
    file = _config(tmp_path, p={**server, "scope": "project"})
    projects = ProjectServers(file, {"HOME": "/nowhere"}, _as_it_is)
    hub = Hub(projects.of(load_config(file)))
    folders = FolderClients(projects, Reloader(hub, file, part=projects.of).reload, hub.registry.clock)
    asked: list[str] = []

    async def roots(context: object) -> ListRootsResult:
        asked.append("roots")
        return ListRootsResult(roots=[Root.model_validate({"uri": project.as_uri()})])

    tokens = None if is_local else TokenPolicy(tokens={"ada": "secret"})
    headers = {} if is_local else {"authorization": "Bearer secret"}
    web = create_app(hub, tokens=tokens, folders=folders)
    async with hub, serving(web) as base, httpx2.AsyncClient(trust_env=False, headers=headers) as http:
        transport = streamable_http_client(f"{base}/mcp", http_client=http)
        with anyio.fail_after(30):
            async with Client(transport, mode="legacy", cache=None, list_roots_callback=roots) as client:
                listed = [tool.name for tool in (await client.list_tools()).tools]
                assert ("p__where" in listed) is is_local
                assert asked == (["roots"] if is_local else [])
                assert list(projects.in_use) == ([str(project)] if is_local else [])
                if is_local:
                    (where,) = (await client.call_tool("p__where")).content
                    assert isinstance(where, TextContent)
                    assert where.text == str(project)
        assert not any(use.clients for use in projects.in_use.values())


async def test_over_http_a_local_client_names_its_folder_and_a_remote_one_cannot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "server.py").write_text(SERVER)
    project = tmp_path / "project"
    project.mkdir()
    server = {"command": sys.executable, "args": [str(tmp_path / "server.py"), str(tmp_path / "notes")]}
    file = _config(tmp_path, p={**server, "scope": "project"})
    projects = ProjectServers(file, {"HOME": "/nowhere"}, _as_it_is)
    hub = Hub(projects.of(load_config(file)))
    reloader = Reloader(hub, file, part=projects.of)
    folders = FolderClients(projects, reloader.reload, hub.registry.clock)
    async with hub, serving(create_app(hub, folders=folders)) as base, httpx2.AsyncClient(trust_env=False) as http:

        async def tools(query: str) -> tuple[int, Any]:
            meta = {
                "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                "io.modelcontextprotocol/clientCapabilities": {},
            }
            said = await http.post(
                f"{base}/mcp{query}",
                json={"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": meta}},
                headers={
                    "accept": "application/json, text/event-stream",
                    "mcp-protocol-version": "2026-07-28",
                    "mcp-method": "tools/list",
                },
            )
            return said.status_code, said.json()

        with anyio.fail_after(30):
            status, listed = await tools(f"?folder={project}")
            assert status == 200
            assert "p__where" in [tool["name"] for tool in listed["result"]["tools"]]
            _, elsewhere = await tools("")
            assert [tool["name"] for tool in elsewhere["result"]["tools"]] == ["holdfast_status"]
            assert (await tools("?folder=/no/such/folder"))[0] == 404
            assert (await tools("?folder=relative"))[0] == 404
            stranger = Principal(name="ada")
            monkeypatch.setattr("holdfast.front.http.LOCAL", stranger)
            refused, why = await tools(f"?folder={project}")
        assert refused == 404
        assert "local clients" in why["error"]
        assert LOCAL.name == "local"


async def test_a_client_is_asked_for_its_roots_only_where_a_folder_makes_a_difference(tmp_path: Path) -> None:
    """A question before the first answer costs a round trip, and two seconds where a client does not answer."""
    (tmp_path / "server.py").write_text(SERVER)
    server = {"command": sys.executable, "args": [str(tmp_path / "server.py"), str(tmp_path / "notes")]}
    projects = ProjectServers(
        _config(tmp_path, p=server), {"HOME": "/nowhere", "XDG_STATE_HOME": str(tmp_path)}, _as_it_is
    )
    seen: list[bool] = []

    def read(**more: object) -> None:
        projects.of(load_config(_config(tmp_path, p={**server, **more})))
        seen.append(projects.matter)

    read()
    read(scope="project")
    TrustStore({"XDG_STATE_HOME": str(tmp_path)}).trust(tmp_path / "mcp.json", b"{}")
    read()
    assert seen == [False, True, True], "a trusted file may give its folder servers"


async def test_a_pipe_in_the_folder_of_a_client_holds_up_no_client(tmp_path: Path) -> None:
    """It is in the place of a project's file. Its reader waited for ever, and had a thread that all clients share."""
    own, pipe = tmp_path / "mcp.json", tmp_path / "project" / ".mcp.json"
    own.write_text('{"mcpServers": {"a": {"command": "x", "env": {"A": "${env:KEY}"}}}}')
    pipe.parent.mkdir()
    os.mkfifo(pipe)
    unused: Any = None
    variables = ClientVariables(unused, own, reload=unused, findings={}, found=unused, environ={})
    found: list[set[str]] = []

    async def ask() -> None:
        found.append(await variables.wanted(str(pipe.parent)))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        try:
            await came_true(lambda: found, within=5)
        finally:
            with suppress(OSError):  # a reader that waits gets the end of the file
                os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
    assert found == [{"PATH", "KEY"}]
