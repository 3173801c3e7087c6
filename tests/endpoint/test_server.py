"""Who answers a request: the hub, a server, or no one, and what its sender is told then (HUB-2, HUB-3)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from mcp import MCPError
from mcp_types import INVALID_PARAMS, METHOD_NOT_FOUND, MISSING_REQUIRED_CLIENT_CAPABILITY

from holdfast.access import LOCAL, Principal
from holdfast.core import Item
from holdfast.endpoint import Broker, Client, EndpointAddress, McpServer, View, server as servers
from holdfast.endpoint.tasks import ServerTask
from holdfast.endpoint.view import ALL_SERVERS
from holdfast.wire import TASKS_EXTENSION
from tests.endpoint.test_clients import Line, call
from tests.endpoint.test_view import ANN, BOB, RULES, opened, publish
from tests.harness.served_hub import front
from tests.peers.peer_server import running

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("HUB-2", "HUB-3")]

ABLE: dict[str, Any] = {"extensions": {TASKS_EXTENSION: {}}}


class Scene:
    """An endpoint whose servers are not connected; a call that would go to one says which, and with what."""

    def __init__(self, view: View) -> None:
        self.server = McpServer(Broker(view.hub), view)

    async def ask(
        self, method: str, *, modern: bool = False, who: Principal = LOCAL, can: Any = None, **params: Any
    ) -> tuple[str, dict[str, Any]]:
        client = Client(self.server.view, Line(), can or {}, modern=modern, owner="o", identity=who)
        one = await call(client, Line(), method=method, **params)
        one.view = self.server.view.seen_by(who)
        by = self.server._router.route(one)
        assert by is None, "the hub answers it itself"
        return one.server, {key: bytes(value).decode() for key, value in one.sent.items()}

    async def refused(self, method: str, **more: Any) -> tuple[int, str]:
        with pytest.raises(MCPError) as refused:
            await self.ask(method, **more)
        return refused.value.error.code, refused.value.error.message


@asynccontextmanager
async def scene(*names: str, address: EndpointAddress = ALL_SERVERS, **settings: Any) -> AsyncIterator[Scene]:
    async with opened(*names, **settings) as hub:
        for name in names:
            publish(hub, name, templates=(Item(f"{name}://{{x}}"),))
        yield Scene(View(hub, address))


async def test_a_request_goes_to_the_server_of_its_name_with_the_name_that_the_server_gave() -> None:
    async with scene("a", "b") as many:
        assert await many.ask("tools/call", name="b__read", arguments={"x": 1}) == (
            "b",
            {"name": '"read"', "arguments": '{"x": 1}'},
        )
        assert await many.ask("prompts/get", name="a__greet") == ("a", {"name": '"greet"'})
        assert await many.ask("resources/read", uri="mem://b") == ("b", {"uri": '"mem://b"'})
        of_prompt: dict[str, Any] = {
            "ref": {"type": "ref/prompt", "name": "a__greet"},
            "argument": {"name": "x", "value": ""},
        }
        server, sent = await many.ask("completion/complete", **of_prompt)
        assert (server, sent["ref"]) == ("a", '{"type":"ref/prompt","name":"greet"}')
        of_template: dict[str, Any] = {
            "ref": {"type": "ref/resource", "uri": "b://{x}"},
            "argument": {"name": "x", "value": ""},
        }
        assert (await many.ask("completion/complete", **of_template))[0] == "b"
    async with scene("a", "b", address=EndpointAddress("a")) as one:
        assert await one.ask("tools/call", name="read") == ("a", {"name": '"read"'})
        assert await one.ask("x/own", anything=1) == ("a", {"anything": "1"}), "no method of the protocol"


@pytest.mark.parametrize(
    ("method", "params", "code", "words"),
    [
        ("tools/call", {"name": "c__read"}, INVALID_PARAMS, "Unknown tool: c__read; did you mean "),
        ("tools/call", {}, INVALID_PARAMS, "Invalid request parameters"),
        ("tools/call", {"name": 7}, INVALID_PARAMS, "Invalid request parameters"),
        ("tools/call", {"name": "a__read", "arguments": [1]}, INVALID_PARAMS, "Invalid request parameters"),
        ("tools/call", {"Name": "a__read"}, INVALID_PARAMS, "Name is another spelling"),
        ("prompts/get", {"name": "x"}, INVALID_PARAMS, "Unknown prompt: x"),
        ("resources/read", {"uri": "x://y"}, -32002, "Unknown resource: x://y"),
        (
            "completion/complete",
            {"ref": {"type": "ref/prompt", "name": "a__greet", "NAME": "x"}, "argument": {"name": "x", "value": ""}},
            INVALID_PARAMS,
            "NAME is another spelling",
        ),
        ("x/own", {}, METHOD_NOT_FOUND, "x/own is not forwarded from here: this endpoint has many servers"),
        ("tasks/get", {"taskId": "x"}, INVALID_PARAMS, "there is no such task here"),
        ("tasks/update", {"taskId": "x"}, METHOD_NOT_FOUND, "Method not found"),
    ],
)
async def test_what_leads_to_no_server_is_refused_with_the_reason(
    method: str, params: dict[str, Any], code: int, words: str
) -> None:
    async with scene("a", "b") as many:
        found = await many.refused(method, **params)
        assert (found[0], found[1][: len(words)]) == (code, words)


@pytest.mark.requirement("HUB-16")
async def test_a_task_leads_back_to_its_server_for_the_methods_of_each_era() -> None:
    async with scene("a", "b") as many:
        ids = many.server.broker.task_ids
        shown = ids.shown(ServerTask("b", "inner"), LOCAL.name)
        for method in ("tasks/get", "tasks/result", "tasks/cancel"):
            assert await many.ask(method, taskId=shown) == ("b", {"taskId": '"inner"'})
        for method in ("tasks/get", "tasks/update", "tasks/cancel"):
            assert (await many.ask(method, modern=True, can=ABLE, taskId=shown))[0] == "b"
            code, _ = await many.refused(method, modern=True, taskId=shown)
            assert code == MISSING_REQUIRED_CLIENT_CAPABILITY
        assert (await many.refused("tasks/result", modern=True, can=ABLE, taskId=shown))[0] == METHOD_NOT_FOUND
        assert "no such task" in (await many.refused("tasks/get", who=ANN, taskId=shown))[1]
        gone = ids.shown(ServerTask("gone", "inner"), LOCAL.name)
        assert "no such task" in (await many.refused("tasks/get", taskId=gone))[1]


@pytest.mark.requirement("HUB-16")
async def test_the_endpoint_of_a_server_that_runs_no_tasks_forwards_what_is_asked_about_one() -> None:
    async with running("legacy") as origin, front({"o": {"url": origin.url}}) as served:
        alone = Scene(View(served.hub, EndpointAddress("o")))
        assert await alone.ask("tasks/get", taskId="x") == ("o", {"taskId": '"x"'}), "it is a method of its own there"
        assert "no such task" in (await Scene(View(served.hub)).refused("tasks/get", taskId="x"))[1]


@pytest.mark.requirement("SEC-14")
async def test_a_method_without_a_rule_passes_only_where_nothing_of_its_server_is_limited() -> None:
    for server, who, passes in (("a", ANN, False), ("b", BOB, True), ("a", BOB, False)):
        async with scene("a", "b", address=EndpointAddress(server), access=RULES) as one:
            if passes:
                assert (await one.ask("x/own", who=who))[0] == server
            else:
                assert await one.refused("x/own", who=who) == (METHOD_NOT_FOUND, "Method not found")


async def test_each_user_has_a_part_of_the_endpoint_where_servers_are_per_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "MOST_USERS", 2)
    async with scene("u", sharing="per-user") as one:
        whole = one.server
        assert whole.of(LOCAL.name) is whole
        ann, bob = whole.of("ann"), whole.of("bob")
        assert (ann.view.principal, bob.view.principal) == ("ann", "bob")
        assert whole.of("ann") is ann
        whole.of("cy")
        assert whole.of("ann") is ann, "it was used last"
        assert whole.of("bob") is not bob
    async with scene("a") as shared:
        assert shared.server.of("ann") is shared.server
