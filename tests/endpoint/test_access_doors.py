"""Every door of the hub keeps the access rules: compared with a plain reading of them, and one by one (SEC-14).

Three principals with tokens of several widths, two servers that record what reached them. Each request has a credential
of its own. What the rules do not list is not there; what they list and refuse is a denial; neither reaches a server.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple

import httpx2
import pytest
from hypothesis import Phase, given, settings, strategies as st

from holdfast.access import Principal, TokenPolicy
from holdfast.config import AccessRule, AccessSettings, Config, Settings, config_from_mapping
from holdfast.core import Kind, NameKey
from holdfast.errors import CallForbidden, UnknownTool
from holdfast.front.app import create_app
from holdfast.hub import Hub
from tests.access.plain_policy import Caller, PlainPolicy
from tests.access.test_policy import GROUPS, SCOPES, arguments, policies, some
from tests.clients.raw import MODERN_META, initialize
from tests.harness.web import serving
from tests.peers.recording_server import PROMPTS, RESOURCES, TEMPLATES, TOOLS, RecordingServer, recording

SERVERS = ("jira", "files")
PEOPLE = ("ci", "https://idp#ann", "gateway#bob")
BOTH = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
MODERN = {**BOTH, "mcp-protocol-version": "2026-07-28"}
LEGACY = {**BOTH, "mcp-protocol-version": "2025-11-25"}

callers = st.builds(
    Caller, name=st.sampled_from(PEOPLE), groups=some(GROUPS).map(frozenset), scopes=some(SCOPES).map(frozenset)
)


class Wanted(NamedTuple):
    """One thing that is asked for."""

    kind: str
    server: str
    name: str


wanted = st.one_of(
    st.builds(Wanted, kind=st.just("tool"), server=st.sampled_from(SERVERS), name=st.sampled_from(TOOLS)),
    st.builds(Wanted, kind=st.just("prompt"), server=st.sampled_from(SERVERS), name=st.sampled_from(PROMPTS)),
    st.builds(Wanted, kind=st.just("resource"), server=st.sampled_from(SERVERS), name=st.sampled_from(RESOURCES)),
)


def token_of(caller: Caller) -> str:
    """A token that says who has it."""
    return json.dumps([caller.name, sorted(caller.groups), sorted(caller.scopes)])


async def verify(token: str, path: str = "") -> Principal | None:
    name, groups, scopes = json.loads(token)
    return Principal(name=name, groups=frozenset(groups), scopes=frozenset(scopes), source="jwt")


@dataclass
class Doors:
    """A served hub, and every way in."""

    hub: Hub
    base: str
    http: httpx2.AsyncClient
    servers: dict[str, RecordingServer]
    sessions: dict[str, str] = field(default_factory=dict)
    """A legacy session of each principal: it begins with a token without groups and scopes."""
    ids: Iterator[int] = field(default_factory=lambda: count(1))

    async def rule(self, access: AccessSettings) -> None:
        """Let these rules be in force."""
        config = self.hub.config
        await self.hub.registry.apply(
            Config(servers=config.servers, settings=Settings(access=access, call=config.settings.call))
        )
        for server in self.servers.values():
            server.saw.clear()

    def saw(self) -> list[tuple[str, str, str]]:
        """What reached the servers since the last look."""
        seen = [(name, kind, what) for name, server in self.servers.items() for kind, what in server.saw]
        for server in self.servers.values():
            server.saw.clear()
        return seen

    async def ask(self, caller: Caller, path: str, method: str, **params: Any) -> dict[str, Any]:
        """The answer to one modern request."""
        async with self.stream(caller, path, method, **params) as answer:
            await answer.aread()
            return _message(answer)

    @asynccontextmanager
    async def stream(self, caller: Caller, path: str, method: str, **params: Any) -> AsyncIterator[httpx2.Response]:
        """The answer to one modern request, as it comes; ``_meta`` is what it says besides the usual."""
        headers = {**MODERN, "mcp-method": method, "authorization": f"Bearer {token_of(caller)}"}
        if method in ("tools/call", "prompts/get", "resources/read") or method.startswith("tasks/"):
            headers["mcp-name"] = str(params.get("name") or params.get("uri") or params.get("taskId"))
        params["_meta"] = {**MODERN_META, **params.get("_meta", {})}
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        async with self.http.stream("POST", self.base + path, content=json.dumps(body), headers=headers) as answer:
            yield answer

    async def ask_in_session(self, caller: Caller, method: str, **params: Any) -> dict[str, Any]:
        """The answer to a request in the legacy session of the principal, with this token."""
        headers = {**LEGACY, "authorization": f"Bearer {token_of(Caller(name=caller.name))}"}
        session = self.sessions.get(caller.name)
        if session is None:
            begun = await self.http.post(f"{self.base}/mcp", json=initialize(), headers=headers)
            session = self.sessions[caller.name] = begun.headers["mcp-session-id"]
        headers |= {"authorization": f"Bearer {token_of(caller)}", "mcp-session-id": session}
        body = {"jsonrpc": "2.0", "id": next(self.ids), "method": method, "params": params}
        return _message(await self.http.post(f"{self.base}/mcp", content=json.dumps(body), headers=headers))


def _message(answer: httpx2.Response) -> dict[str, Any]:
    if "event-stream" in answer.headers.get("content-type", ""):
        data = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: {")]
        found: dict[str, Any] = json.loads(data[-1])
        return found
    whole: dict[str, Any] = {"status": answer.status_code, **(answer.json() if answer.content else {})}
    return whole


@asynccontextmanager
async def open_doors(**options: Any) -> AsyncIterator[Doors]:
    async with recording("jira") as jira, recording("files") as files, httpx2.AsyncClient(timeout=60) as http:
        servers = {"jira": jira, "files": files}
        definitions = {name: {"url": server.url} for name, server in servers.items()}
        hub = Hub(config_from_mapping({"mcpServers": definitions, "holdfast": options}))
        app = create_app(hub, tokens=TokenPolicy(verify=verify))
        async with hub, serving(app) as base:
            assert await hub.ready(60)
            yield Doors(hub, base, http, servers)


class DoorsInTurn:
    """A served hub that runs while an example runs: Hypothesis draws the next one while nothing else does."""

    def __init__(self, runner: asyncio.Runner) -> None:
        self._runner = runner
        self._ended = asyncio.Event()
        self._begun: asyncio.Future[Doors] = runner.get_loop().create_future()
        self._task = runner.get_loop().create_task(self._host())

    async def _host(self) -> None:
        async with open_doors() as made:
            self._begun.set_result(made)
            await self._ended.wait()

    def run(self, work: Callable[[Doors], Awaitable[None]]) -> None:
        async def with_doors() -> None:
            await work(await self._begun)

        self._runner.run(with_doors())

    def close(self) -> None:
        async def end() -> None:
            self._ended.set()
            await self._task

        self._runner.run(end())


@pytest.fixture(scope="module")
def doors() -> Iterator[DoorsInTurn]:
    with asyncio.Runner() as runner:
        made = DoorsInTurn(runner)
        yield made
        made.close()


LISTS = {
    "tools/list": ("tool", TOOLS, "tools", "name"),
    "prompts/list": ("prompt", PROMPTS, "prompts", "name"),
    "resources/list": ("resource", RESOURCES, "resources", "uri"),
    "resources/templates/list": ("resource", TEMPLATES, "resourceTemplates", "uriTemplate"),
}


class Check:
    """One set of rules against every door, for one caller."""

    def __init__(self, doors: Doors, plain: PlainPolicy, caller: Caller) -> None:
        self.doors, self.plain, self.caller = doors, plain, caller

    def lists(self, kind: str, server: str, name: str) -> bool:
        return self.plain.lists(self.caller, kind, server, name)

    def sees(self, server: str) -> bool:
        """Whether the server is there at all, as its endpoint shows it."""
        return self.doors.hub.registry.policy.grants(
            Principal(name=self.caller.name, groups=self.caller.groups, scopes=self.caller.scopes)
        ).may_see_server(server)

    async def check_lists(self) -> None:
        for method, (kind, names, key, by) in LISTS.items():
            for server in SERVERS:
                answer = await self.doors.ask(self.caller, f"/servers/{server}/mcp", method)
                expected = {name for name in names if self.lists(kind, server, name)}
                if not self.sees(server):
                    assert answer["status"] == 404
                    assert not expected
                    continue
                assert {one[by] for one in answer["result"][key]} == expected, (method, server)
                assert answer["result"]["cacheScope"] == "private"
            for era in (self.doors.ask(self.caller, "/mcp", method), self.doors.ask_in_session(self.caller, method)):
                items = (await era)["result"][key]
                own = ("holdfast_status", "holdfast://status")
                assert len([one for one in items if one[by] not in own]) == sum(
                    self.lists(kind, server, name) for server in SERVERS for name in names
                ), method

    async def check_texts(self) -> None:
        """The names of servers in what the hub says of itself."""
        told = [
            await self.doors.ask(self.caller, "/mcp", "server/discover"),
            await self.doors.ask(self.caller, "/mcp?tools=find", "server/discover"),
            await self.doors.ask(self.caller, "/mcp?tools=find", "tools/list"),
            await self.doors.ask(self.caller, "/mcp", "tools/call", name="holdfast_status", arguments={}),
            await self.doors.ask(self.caller, "/mcp", "resources/read", uri="holdfast://status"),
        ]
        for server in SERVERS:
            if not self.sees(server):
                assert all(server not in json.dumps(one["result"]) for one in told)

    async def check_request(self, thing: Wanted, given_: dict[str, Any]) -> None:
        listed = self.lists(*thing)
        effect = self.plain.effect(self.caller, *thing, given_)
        if effect == "ask":
            return  # the call waits for a person: tests/endpoint/test_call_gate.py
        async for answer in self.answers(thing, given_):
            saw = self.doors.saw()
            assert saw == ([(thing.server, thing.kind, thing.name)] if effect == "allow" else []), (answer, effect)
            text = json.dumps(answer)
            if effect == "allow":
                assert "result" in answer
                assert not answer["result"].get("isError"), answer
            elif listed:
                assert "denied" in text, answer
                assert "Unknown" not in text
            else:
                assert "Unknown" in text or answer.get("status") == 404, answer
                assert "denied" not in text
                self.check_suggestions(text, thing)

    def check_suggestions(self, text: str, thing: Wanted) -> None:
        names = TOOLS if thing.kind == "tool" else PROMPTS
        for server in SERVERS:
            for name in names:
                if (server, name) != (thing.server, thing.name) and not self.lists(thing.kind, server, name):
                    assert f"{server}__{name}" not in text

    async def answers(self, thing: Wanted, given_: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """What each door answers; one after the other, so that what reached a server is of this one."""
        ask, at_one = self.doors.ask, f"/servers/{thing.server}/mcp"
        name = f"{thing.server}__{thing.name}"
        match thing.kind:
            case "tool":
                yield await ask(self.caller, at_one, "tools/call", name=thing.name, arguments=given_)
                yield await ask(self.caller, "/mcp", "tools/call", name=name, arguments=given_)
                yield await self.doors.ask_in_session(self.caller, "tools/call", name=name, arguments=given_)
                inner = {"name": name, "arguments": given_}
                for own in ("call_tool", "call_readonly_tool"):
                    yield await ask(self.caller, "/mcp?tools=find", "tools/call", name=own, arguments=inner)
            case "prompt":
                yield await ask(self.caller, at_one, "prompts/get", name=thing.name, arguments={})
                yield await ask(self.caller, "/mcp", "prompts/get", name=name, arguments={})
                yield await self.doors.ask_in_session(self.caller, "prompts/get", name=name, arguments={})
            case _:
                yield await ask(self.caller, at_one, "resources/read", uri=thing.name)
                uri = self.doors.hub.catalog.names[NameKey(Kind.RESOURCE, thing.server, thing.name)]
                yield await ask(self.caller, "/mcp", "resources/read", uri=uri)
                yield await self.doors.ask_in_session(self.caller, "resources/read", uri=uri)

    async def check_found(self) -> None:
        query = {"query": "issue secret get delete", "limit": 20}
        answer = await self.doors.ask(self.caller, "/mcp?tools=find", "tools/call", name="find_tools", arguments=query)
        hits = {hit["name"] for hit in answer["result"].get("structuredContent", {"tools": []})["tools"]}
        listed = {f"{server}__{name}" for server in SERVERS for name in TOOLS if self.lists("tool", server, name)}
        assert hits == listed
        names = [f"{server}__{name}" for server in SERVERS for name in TOOLS][:5]
        answer = await self.doors.ask(
            self.caller, "/mcp?tools=find", "tools/call", name="describe_tools", arguments={"names": names}
        )
        described = {tool["name"] for tool in answer["result"]["structuredContent"]["tools"]}
        assert described == listed & {*names}

    async def check_completion(self) -> None:
        for server in SERVERS:
            for kind, ref, name in (
                *(("prompt", {"type": "ref/prompt", "name": name}, name) for name in PROMPTS),
                *(("resource", {"type": "ref/resource", "uri": uri}, uri) for uri in TEMPLATES),
            ):
                argument = {"name": "n", "value": "x"}
                path = f"/servers/{server}/mcp"
                answer = await self.doors.ask(self.caller, path, "completion/complete", ref=ref, argument=argument)
                listed = self.lists(kind, server, name)
                assert ("result" in answer) is listed, answer
                assert self.doors.saw() == ([(server, "completion", name)] if listed else [])


@pytest.mark.requirement("SEC-14", "HUB-9")
@settings(max_examples=15, deadline=None, phases=(Phase.explicit, Phase.generate))  # an example takes half a second
@given(policies, callers, callers, st.lists(wanted, min_size=2, max_size=4), arguments)
def test_every_door_decides_as_the_rules_read(
    doors: DoorsInTurn,
    access: AccessSettings,
    one: Caller,
    other: Caller,
    things: list[Wanted],
    given_: dict[str, Any],
) -> None:
    async def run(opened: Doors) -> None:
        await opened.rule(access)
        plain = PlainPolicy(access)
        for caller in (one, other, one):
            check = Check(opened, plain, caller)
            for thing in things:
                await check.check_request(thing, given_ if thing.kind == "tool" else {})
        await Check(opened, plain, one).check_lists()
        check = Check(opened, plain, other)
        await check.check_lists()
        await check.check_texts()
        await check.check_found()
        await check.check_completion()

    doors.run(run)


BOUND = AccessSettings(
    rules=(
        AccessRule(effect="deny", tools=("get_secret",)),
        AccessRule(effect="deny", tools=("get_issue",), when="arguments.n > 10"),
    ),
    default="allow",
)


@pytest.mark.anyio
@pytest.mark.requirement("SEC-14")
async def test_a_program_that_holds_the_hub_is_local_and_bound_by_rules_without_subjects() -> None:
    async with open_doors() as opened:
        await opened.rule(BOUND)
        hub = opened.hub
        assert "jira__get_secret" not in {tool.name for tool in hub.tools()}
        assert "jira__get_secret" not in {hit.name for hit in await hub.find_tools("secret issue", limit=20)}
        with pytest.raises(UnknownTool) as hidden:
            await hub.call_tool("jira__get_secret", {})
        assert "get_secret" not in hidden.value.hint
        await hub.call_tool("jira__get_issue", {"n": 1})
        with pytest.raises(CallForbidden) as refused:
            await hub.call_tool("jira__get_issue", {"n": 11})
        assert refused.value.rule == "rules[1]"
        assert opened.saw() == [("jira", "tool", "get_issue")]


@pytest.mark.anyio
@pytest.mark.requirement("SEC-14")
async def test_a_method_that_no_rule_covers_passes_only_where_nothing_is_limited() -> None:
    async with open_doors() as opened:
        await opened.rule(BOUND)
        answer = await opened.ask(Caller(name="ci"), "/servers/jira/mcp", "vendor/method")
        assert answer["error"]["message"] == "Method not found"


HIDING = AccessSettings(
    rules=(
        AccessRule(effect="allow", principals=("ci",)),
        AccessRule(effect="deny", principals=("ci",), resources=("vault://secret*", "vault://*/keys")),
        AccessRule(effect="deny", resources=("vault://hidden",)),
    )
)
VAULT_KEY = NameKey(Kind.TEMPLATE, "jira", "vault://{x}")
VAULT = {"type": "ref/resource", "uri": "vault://{x}"}


@pytest.mark.anyio
@pytest.mark.requirement("SEC-14")
async def test_a_completion_suggests_no_resource_that_the_rules_hide() -> None:
    async with open_doors() as opened:
        for server in opened.servers.values():
            server.suggests = ["open", "secret", "secret/a", "a/keys", "%73ecret", "a" * 70_000, "hidden"]
        await opened.rule(HIDING)
        asked: dict[str, Any] = {"ref": VAULT, "argument": {"name": "x", "value": ""}}
        at_one = await opened.ask(Caller(name="ci"), "/servers/jira/mcp", "completion/complete", **asked)
        assert at_one["result"]["completion"] == {"values": ["open"]}
        by_prefix = {**asked, "ref": {**VAULT, "uri": opened.hub.catalog.names[VAULT_KEY]}}
        at_all = await opened.ask_in_session(Caller(name="ci"), "completion/complete", **by_prefix)
        assert at_all["result"]["completion"] == {"values": ["open"]}
        made_up = {**asked, "ref": {**VAULT, "uri": "other://{x}"}}
        unknown = await opened.ask(Caller(name="ci"), "/servers/jira/mcp", "completion/complete", **made_up)
        assert "error" in unknown, "its server may look at the name of the argument alone"
        values = (await opened.hub.complete(by_prefix["ref"], asked["argument"]))["completion"]["values"]
        assert values == ["open", "secret", "secret/a", "a/keys", "%73ecret"]


GETTING = AccessSettings(
    rules=(AccessRule(effect="allow", prompts=("get_*",), resources=("note://get_*",)),), default="deny"
)
TWO_NAMES: dict[str, Any] = {"name": "delete_advice", "uri": "note://get_{x}"}


@pytest.mark.anyio
@pytest.mark.requirement("SEC-14")
async def test_a_reference_with_two_names_is_judged_by_its_type_and_reaches_its_server_with_one() -> None:
    async with open_doors() as opened:
        await opened.rule(GETTING)
        argument, ci = {"name": "n", "value": ""}, Caller(name="ci")
        path, method = "/servers/jira/mcp", "completion/complete"
        by_allowed_uri = {"type": "ref/prompt", **TWO_NAMES}
        hidden = await opened.ask(ci, path, method, ref=by_allowed_uri, argument=argument)
        assert hidden["error"]["message"].startswith("Unknown prompt: delete_advice")
        no_uri = {"type": "ref/prompt", "name": "delete_advice", "uri": None}
        hidden = await opened.ask(ci, path, method, ref=no_uri, argument=argument)
        assert hidden["error"]["message"].startswith("Unknown prompt: delete_advice")
        assert opened.saw() == []
        by_template = {"type": "ref/resource", **TWO_NAMES}
        assert "result" in await opened.ask(ci, path, method, ref=by_template, argument=argument)
        assert opened.saw() == [("jira", "completion", "note://get_{x}")]


@pytest.mark.anyio
@pytest.mark.requirement("SEC-14")
async def test_a_program_completes_by_the_type_of_a_reference_too() -> None:
    async with open_doors() as opened:
        await opened.rule(AccessSettings(rules=(AccessRule(effect="deny", prompts=("delete_*",)),), default="allow"))
        template = opened.hub.catalog.names[NameKey(Kind.TEMPLATE, "jira", "note://get_{x}")]
        with pytest.raises(UnknownTool):
            await opened.hub.complete({"type": "ref/prompt", **TWO_NAMES, "uri": template}, {"name": "n", "value": ""})
        assert opened.saw() == []
