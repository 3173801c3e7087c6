"""A resource that a result mentions can be read where the result was read, and is the same server's."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from holdfast.core import uri_lead
from holdfast.core.catalog import Kind, NameKey
from holdfast.endpoint import EndpointAddress
from holdfast.endpoint.message import relinked
from holdfast.wire.raw_json import RawObject
from tests.harness.served_hub import Era, Person, Served, front
from tests.peers.peer_server import running

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("HUB-2", "HUB-3")]


@asynccontextmanager
async def _alike() -> AsyncIterator[Served]:
    """Three servers that list the same resources and templates, two of them under names that differ by a blank."""
    async with (
        running() as one,
        running() as other,
        front({"one": {"url": one.url}, "an other": {"url": other.url}, "an-other": {"url": other.url}}) as served,
    ):
        yield served


async def _linked(client: Client, tool: str, uris: list[str]) -> list[str]:
    result: Any = await client.call_tool(tool, {"uris": uris})
    links = [str(block.uri) for block in result.content if block.type == "resource_link"]
    assert links == [str(block.resource.uri) for block in result.content if block.type == "resource"]
    return links


async def test_a_link_in_a_result_is_read_from_the_server_that_gave_it(client_era: Era, ada: Person) -> None:
    async with _alike() as served, ada.client(served.all, client_era) as client:
        for server in served.hub.servers:
            tool = served.hub.catalog.names[NameKey(Kind.TOOL, server, "link")]
            for uri in ("note://one", "note://of/ada", "hidden://in/a/result"):
                (link,) = await _linked(client, tool, [uri])
                found = served.app.state.front.endpoint_of(EndpointAddress()).server.view.find(Kind.RESOURCE, link)
                assert (found.server, found.original) == (server, uri)
                read: Any = await client.read_resource(link)
                assert read.contents[0].text == f"the text of {uri}"
                assert str(read.contents[0].uri) == link


async def test_contents_have_the_uri_that_was_asked_for_also_where_the_list_has_another(ada: Person) -> None:
    async with _alike() as served, ada.client(served.all, "modern") as client:
        first = served.hub.catalog.owners[Kind.RESOURCE, "note://one"].server
        asked = f"{uri_lead(first, 0)}note://one"
        read: Any = await client.read_resource(asked)
        assert [str(one.uri) for one in read.contents] == [asked]


@pytest.mark.requirement("SEC-21", "HUB-3")
async def test_no_server_takes_a_uri_that_names_another_server(tmp_path: Path) -> None:
    catchers = [{"uriTemplate": text, "name": "t"} for text in ("{+all}", "from-one+{+all}", "hidden://{+all}")]
    (tmp_path / "resources.templates.list").write_text(json.dumps({"resourceTemplates": catchers}))
    taken = {"resources": [{"uri": "from-one+hidden://a", "name": "a"}]}
    (tmp_path / "resources.list").write_text(json.dumps(taken))
    heavy = {"command": sys.executable, "args": ["-m", "tests.peers.heavy_server", str(tmp_path)]}
    async with running() as one, front({"evil": heavy, "one": {"url": one.url}}) as served:
        view = served.app.state.front.endpoint_of(EndpointAddress()).server.view
        for uri in ("hidden://a", "hidden://b"):
            link = view.uris.shown("one", uri)
            assert view.find(Kind.RESOURCE, link) == NameKey(Kind.RESOURCE, "one", uri)
        (listed,) = [entry.name for entry in served.hub.catalog.resources if entry.server == "evil"]
        assert listed == "from-evil+from-one+hidden://a"
        assert view.find(Kind.RESOURCE, listed) == NameKey(Kind.RESOURCE, "evil", "from-one+hidden://a")


async def test_links_stay_as_they_are_where_a_server_is_alone_or_its_uris_are_its_own(ada: Person) -> None:
    async with _alike() as served:
        async with ada.client(served.one("an other"), "modern") as alone:
            assert await _linked(alone, "link", ["note://one"]) == ["note://one"]
        catalog = served.hub.catalog
        first = catalog.owners[Kind.RESOURCE, "note://one"].server
        tool = catalog.names[NameKey(Kind.TOOL, first, "link")]
        async with ada.client(served.all, "modern") as client:
            assert await _linked(client, tool, ["note://one", "note://of/ada"]) == [
                "note://one",
                "note://of/ada",
            ]


@pytest.mark.parametrize(
    "result",
    [
        {"content": [{"type": "text", "text": "a://b"}, 7, {"type": "resource_link"}, {"type": "resource"}]},
        {"messages": [{"role": "user", "content": {"type": "text", "text": "x"}}, None, {"content": [3]}]},
        {"contents": [None, {"text": "x"}], "structuredContent": {"uri": "a://b"}},
        {"content": None, "messages": 4},
    ],
)
async def test_what_is_no_link_is_left_alone_however_odd_it_is(result: dict[str, Any]) -> None:
    assert (await relinked(RawObject.of(result), lambda uri: f"from-x+{uri}")).value() == result


async def test_links_in_the_messages_of_a_prompt_are_found_too() -> None:
    link = {"type": "resource_link", "name": "it", "uri": "a://b"}
    result = {"messages": [{"role": "user", "content": link}, {"role": "user", "content": [link]}]}
    found = (await relinked(RawObject.of(result), lambda uri: f"from-x+{uri}")).value()["messages"]
    assert found[0]["content"]["uri"] == found[1]["content"][0]["uri"] == "from-x+a://b"
