"""Every pair of eras, client and server: every action of one side reaches the other."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any
from urllib.parse import quote

import anyio
import mcp_types as types
import pytest
from mcp import MCPError

from tests.harness.served_hub import Era, Person, front, text_of
from tests.peers.peer_server import running

pytestmark = pytest.mark.anyio

META: Any = {"test/mark": 1}


@pytest.mark.requirement("HUB-1", "HUB-2", "HUB-3")
async def test_tools_are_listed_and_called_under_the_catalogs_names(
    client_era: Era, server_era: Era, ada: Person
) -> None:
    async with (
        running(server_era) as origin,
        front({"o": {"url": origin.url}}) as served,
        ada.client(served.all, client_era) as client,
    ):
        names = [tool.name for tool in (await client.list_tools()).tools]
        result = await client.call_tool("o__echo", {"text": "hi", "none": None}, meta=META)
    assert "o__echo" in names
    assert text_of(result) == "hi"
    assert result.structured_content == {"text": "hi"}
    assert (result.meta or {})["test/mark"] == 1


@pytest.mark.requirement("HUB-8")
async def test_one_server_alone_keeps_its_names_and_its_words(client_era: Era, server_era: Era, ada: Person) -> None:
    async with (
        running(server_era) as origin,
        front({"o": {"url": origin.url}}) as served,
        ada.client(served.one("o"), client_era) as client,
    ):
        names = [tool.name for tool in (await client.list_tools()).tools]
        result = await client.call_tool("echo", {"text": "hi"})
        instructions = client.instructions
    assert names[0] == "echo"
    assert "holdfast_status" not in names
    assert text_of(result) == "hi"
    assert instructions == "Origin says: be kind."


@pytest.mark.requirement("HUB-1", "HUB-8")
async def test_an_address_with_a_slash_at_its_end_leads_to_the_endpoint(client_era: Era, ada: Person) -> None:
    """Some servers and frameworks write `/mcp/`, and people copy it."""
    async with running() as origin, front({"o": {"url": origin.url}}) as served:
        for url, tool in ((f"{served.all}/?tools=all", "o__echo"), (f"{served.one('o')}/", "echo")):
            async with ada.client(url, client_era) as client:
                assert text_of(await client.call_tool(tool, {"text": "hi"})) == "hi"


@pytest.mark.requirement("HUB-8")
@pytest.mark.parametrize("name", ["io.github.example/echo", "a%2Fb", "with space/ü"])
async def test_a_server_whose_name_has_a_slash_has_its_own_endpoint(name: str, client_era: Era, ada: Person) -> None:
    """VS Code writes the names of the registry into its file, and each of them has a slash."""
    async with (
        running() as origin,
        front({name: {"url": origin.url}}) as served,
        ada.client(served.one(quote(name, safe="")), client_era) as client,
    ):
        assert text_of(await client.call_tool("echo", {"text": "hi"})) == "hi"


@pytest.mark.requirement("HUB-2")
async def test_prompts_resources_templates_and_completions_pass(client_era: Era, server_era: Era, ada: Person) -> None:
    async with (
        running(server_era) as origin,
        front({"o": {"url": origin.url}}) as served,
        ada.client(served.all, client_era) as client,
    ):
        prompts = [prompt.name for prompt in (await client.list_prompts()).prompts]
        greeting = await client.get_prompt("o__greet", {"who": "Bo"})
        resources = [str(one.uri) for one in (await client.list_resources()).resources]
        templates = [one.uri_template for one in (await client.list_resource_templates()).resource_templates]
        listed = await client.read_resource("note://one")
        templated = await client.read_resource("note://of/bo")
        completed = await client.complete(types.PromptReference(name="o__greet"), {"name": "who", "value": "B"})
    assert prompts == ["o__greet"]
    assert greeting.messages[0].content.text == "Greet Bo."  # type: ignore[union-attr]  # it is a text
    assert resources == ["note://one", "holdfast://status"]
    assert templates == ["note://of/{who}"]
    assert [one.contents[0].text for one in (listed, templated)] == [  # type: ignore[union-attr]  # they are texts
        "the text of note://one",
        "the text of note://of/bo",
    ]
    assert completed.completion.values == ["B!"]


@pytest.mark.requirement("HUB-2")
async def test_all_progress_comes_in_order_and_before_the_result(client_era: Era, server_era: Era, ada: Person) -> None:
    steps: list[Any] = []

    async def progressed(progress: float, total: float | None, message: str | None) -> None:
        steps.append((progress, total, message))

    async with (
        running(server_era) as origin,
        front({"o": {"url": origin.url}}) as served,
        ada.client(served.all, client_era) as client,
    ):
        await client.call_tool("o__count", {"n": 20}, progress_callback=progressed)
        with anyio.fail_after(5):
            while len(steps) < 20:  # the SDK's client runs callbacks in tasks of their own
                await anyio.lowlevel.checkpoint()
    assert sorted(steps) == [(n, 20, f"step {n}") for n in range(1, 21)]


@pytest.mark.requirement("HUB-2", "HUB-7")
@pytest.mark.parametrize(
    ("kind", "answer"), [("elicit", "ada's blue"), ("sample", "ada says so"), ("roots", "file:///ada")]
)
async def test_what_a_server_asks_the_client_answers(
    client_era: Era, server_era: Era, kind: str, answer: str, ada: Person
) -> None:
    async with (
        running(server_era) as origin,
        front({"o": {"url": origin.url}}) as served,
        ada.client(served.all, client_era) as client,
    ):
        result = await client.call_tool("o__ask", {"kind": kind})
    assert text_of(result).startswith(answer)
    assert ada.asked == [kind]


@pytest.mark.requirement("HUB-2")
async def test_a_client_that_gives_up_cancels_the_servers_work(client_era: Era, server_era: Era, ada: Person) -> None:
    async with (
        running(server_era) as origin,
        front({"o": {"url": origin.url}}) as served,
        ada.client(served.all, client_era) as client,
    ):
        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(client.call_tool, "o__hang", {})
                await origin.hanging.wait()
                tasks.cancel_scope.cancel()
            await origin.cancelled.wait()


@pytest.mark.requirement("HUB-2")
async def test_log_messages_reach_the_client_that_wants_them(client_era: Era, server_era: Era, ada: Person) -> None:
    level: Any = {"log_level": "info"} if client_era == "modern" else {}
    async with (
        running(server_era) as origin,
        front({"o": {"url": origin.url}}) as served,
        ada.client(served.all, client_era, **level) as client,
    ):
        if client_era == "legacy":
            await _send(client, types.SetLevelRequest(params=types.SetLevelRequestParams(level="info")))
        await client.call_tool("o__log", {"level": "debug", "text": "too much"})
        await client.call_tool("o__log", {"level": "error", "text": "heard"})
        await ada.until(lambda: bool(ada.logs))
    assert ada.logs == [("error", "heard")]


@pytest.mark.requirement("HUB-2")
async def test_an_error_of_the_servers_own_passes_as_it_is(client_era: Era, server_era: Era, ada: Person) -> None:
    async with (
        running(server_era) as origin,
        front({"o": {"url": origin.url}}) as served,
        ada.client(served.all, client_era) as client,
    ):
        with pytest.raises(MCPError) as caught:
            await client.call_tool("o__fail", {})
    assert (caught.value.code, caught.value.message, caught.value.error.data) == (
        -32123,
        "it failed",
        {"why": "asked to"},
    )


@pytest.mark.requirement("HUB-2")
async def test_a_changed_list_is_told_and_listed(client_era: Era, server_era: Era, ada: Person) -> None:
    async with (
        running(server_era) as origin,
        front({"o": {"url": origin.url}}) as served,
        ada.client(served.all, client_era) as client,
        _listening(client, client_era),
    ):
        await client.call_tool("o__grow", {})
        await ada.until(lambda: "notifications/tools/list_changed" in ada.notices)
        names = [tool.name for tool in (await client.list_tools()).tools]
    assert "o__grown0" in names


@pytest.mark.requirement("HUB-2", "HUB-7")
async def test_a_watched_resource_that_changes_is_told(client_era: Era, server_era: Era, ada: Person) -> None:
    async with (
        running(server_era) as origin,
        front({"o": {"url": origin.url}}) as served,
        ada.client(served.all, client_era) as client,
    ):
        async with _listening(client, client_era, "note://one"):
            if client_era == "legacy":
                await _send(client, types.SubscribeRequest(params=types.SubscribeRequestParams(uri="note://one")))
            await origin.until(lambda: "note://one" in origin.subscribed)
            await client.call_tool("o__touch", {"uri": "note://two"})
            await client.call_tool("o__touch", {"uri": "note://one"})
            await ada.until(lambda: bool(ada.updated))
        if client_era == "legacy":
            await _send(client, types.UnsubscribeRequest(params=types.UnsubscribeRequestParams(uri="note://one")))
        await origin.until(lambda: not origin.subscribed)
    assert set(ada.updated) == {"note://one"}


async def _send(client: Any, request: Any) -> None:
    """A legacy request, without the SDK's warning that the modern era has dropped it."""
    await client.session.send_request(request, types.EmptyResult)


def _listening(client: Any, era: Era, *uris: str) -> Any:
    """What a modern client must do to be told of changes; a legacy one is told without asking."""
    if era == "legacy":
        return nullcontext()
    return client.listen(tools_list_changed=True, resource_subscriptions=uris)
