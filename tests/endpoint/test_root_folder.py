"""A legacy client that names no folder is served as if it had named its first root (DX-9)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest
from mcp import MCPError

from holdfast.endpoint import Call, McpServer
from holdfast.endpoint.exchange import RootFolder, first_root

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("DX-9")]


class Folders:
    """The folders of a hub: those under ``/projects`` are projects, and the test says how many there may be."""

    matter = True

    def __init__(self) -> None:
        self.entered: list[str] = []
        self.left: list[str] = []
        self.has_room = True

    def of(self, named: str, working: str) -> str | None:
        return named or (working if working.startswith("/projects") else None)

    async def enter(self, folder: str, variables: Mapping[str, str]) -> bool:
        assert variables == {"HOME": "/home/ann"}
        self.entered.append(folder)
        return self.has_room

    def leave(self, folder: str) -> None:
        self.left.append(folder)

    async def touch(self, folder: str) -> bool:
        raise NotImplementedError


class Asked:
    """A call of a client with these roots; it counts how often the client is asked for them."""

    def __init__(self, *roots: object, method: str = "tools/list", capabilities: Any = None) -> None:
        self.roots = roots
        self.method = method
        self.client = SimpleNamespace(capabilities={"roots": {}} if capabilities is None else capabilities)
        self.times = 0

    async def ask(self, method: str, params: object) -> dict[str, Any]:
        self.times += 1
        await asyncio.sleep(0)
        if not self.roots:
            raise MCPError(-32601, "no roots")
        return {"roots": [{"uri": one} for one in self.roots]}


@pytest.fixture
def folders() -> Folders:
    return Folders()


@pytest.fixture
def root(folders: Folders) -> RootFolder:
    servers = {folder: f"the endpoint of {folder}" for folder in ("/projects/a", "/projects/b", None)}
    return RootFolder(folders, lambda folder: cast("McpServer", servers[folder]), {"HOME": "/home/ann"})


async def moved(root: RootFolder, asked: Asked) -> str | None:
    return cast("str | None", await root.server_for(cast("Call", asked)))


async def test_the_first_of_several_requests_asks_for_the_roots(root: RootFolder, folders: Folders) -> None:
    asked = Asked("file:///projects/a", "file:///projects/b")
    assert await asyncio.gather(*(moved(root, asked) for _ in range(3))) == ["the endpoint of /projects/a", None, None]
    assert await moved(root, asked) is None
    assert asked.times == 1
    assert (root.folder, folders.entered) == ("/projects/a", ["/projects/a"])


async def test_a_client_whose_roots_change_moves_and_leaves_the_folder_before(
    root: RootFolder, folders: Folders
) -> None:
    await moved(root, Asked("file:///projects/a"))
    root.forget()
    assert await moved(root, Asked("file:///projects/a")) is None, "they name the same folder"
    assert folders.entered == ["/projects/a"]
    root.forget()
    assert await moved(root, Asked("file:///projects/b")) == "the endpoint of /projects/b"
    assert folders.left == ["/projects/a"]
    root.forget()
    assert await moved(root, Asked("file:///elsewhere")) == "the endpoint of None"
    assert folders.left == ["/projects/a", "/projects/b"]
    root.leave()
    assert folders.left == ["/projects/a", "/projects/b"], "it was in no folder"


async def test_a_client_that_left_is_asked_again_when_it_comes_back(root: RootFolder, folders: Folders) -> None:
    await moved(root, Asked("file:///projects/a"))
    root.leave()
    assert folders.left == ["/projects/a"]
    assert await moved(root, Asked("file:///projects/a")) == "the endpoint of /projects/a"


async def test_a_client_without_a_project_is_served_as_before(root: RootFolder, folders: Folders) -> None:
    refused = Asked()
    assert await moved(root, refused) is None
    assert await moved(root, refused) is None
    assert (refused.times, folders.entered, root.folder) == (1, [], ""), "its refusal is an answer"


async def test_where_there_are_too_many_folders_a_client_is_served_as_before(
    root: RootFolder, folders: Folders
) -> None:
    folders.has_room = False
    assert await moved(root, Asked("file:///projects/a")) is None
    assert root.folder == ""


async def test_no_client_is_asked_where_its_answer_makes_no_difference(root: RootFolder, folders: Folders) -> None:
    for asked in (Asked("file:///projects/a", method="ping"), Asked("file:///projects/a", capabilities={"tools": {}})):
        assert await moved(root, asked) is None
        assert asked.times == 0
    folders.matter = False
    asked = Asked("file:///projects/a")
    assert await moved(root, asked) is None
    assert asked.times == 0


@pytest.mark.parametrize(
    ("answer", "path"),
    [
        ({"roots": [{"uri": "file:///projects/a%20b"}]}, "/projects/a b"),
        ({"roots": [{"uri": "file://localhost/projects/a"}, {"uri": "file:///b"}]}, "/projects/a"),
        ({"roots": [{"uri": "file://elsewhere/projects/a"}]}, ""),
        ({"roots": [{"uri": "https:///projects/a"}]}, ""),
        ({"roots": [{"uri": "file:///a%00b"}]}, ""),
        ({"roots": [{"uri": "file:relative"}]}, ""),
        ({"roots": [{"uri": "file://[/x"}]}, ""),
        ({"roots": [{"uri": 7}]}, ""),
        ({"roots": [7]}, ""),
        ({"roots": []}, ""),
        ({"roots": {"uri": "file:///a"}}, ""),
        ({}, ""),
    ],
)
def test_the_first_root_is_a_folder_of_this_machine_or_none(answer: dict[str, Any], path: str) -> None:
    assert first_root(answer) == path
