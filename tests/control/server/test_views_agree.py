"""One server in each state, seen through every view: none contradicts another in state, words, next try or hint."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import anyio
import pytest
from mcp import Client
from rich.console import Console

from holdfast.cli.output import page_of
from holdfast.cli.status_view import card, needs_attention, state_words, table
from holdfast.config import config_from_mapping
from holdfast.control.models import Server
from holdfast.core.lifecycle.table import State
from holdfast.core.machine import Health
from holdfast.core.messages import span
from holdfast.hub.hub import Hub
from holdfast.hub.journal import CallEnded
from holdfast.testing import FakeClock
from tests.control.server.controlled_hub import Steered, steered
from tests.control.server.test_metrics import Scrape
from tests.harness.open_hubs import reaches, settled, until
from tests.harness.served_hub import text_of
from tests.peers.http_fault import Behaviour, Request, respond
from tests.peers.mcp_http import McpPeer

pytestmark = pytest.mark.anyio

DOWN = respond(503, "mending")

WORDS = {
    "starting": ("is starting up and not ready yet", "MCP servers still starting up"),
    "lost": ("was lost (", "MCP servers lost and being reconnected"),
    "spent": ("has not been ready for", "MCP servers not ready for a while"),
    "refusing": ("calls to it fail", "MCP servers whose calls fail"),
    "permanent": ("is unavailable: ", "MCP servers that failed to load"),
    "denied": ("denied access: ", "MCP servers that denied access"),
    "disabled": ("isabled",),
    "idle": ("Idle: ",),
    "connected": ("Connected; ",),
}
"""The words for each situation; those of one stand in no text about another."""

TIME = re.compile(r"(?i)(?:next try|asked again|try again|the first call) (now|in \d+ \w+)")
"""A time to try again, as any text says it."""


@dataclass
class Seen:
    """What every view says of a server at one moment."""

    health: Health
    api: Server
    status: dict[str, Any]
    resource: dict[str, Any]
    metrics: Scrape
    texts: dict[str, str]
    """By view."""
    refusal: dict[str, Any] | None
    """What a refused call says beside its text."""
    due_at_call: float | None
    """The next try when the call was refused: it may have waited."""


Stage = Callable[[Hub, McpPeer, FakeClock], Awaitable[None]]


async def pass_time(hub: Hub, clock: FakeClock, seconds: float, *, step: float = 1.0) -> None:
    machine = hub.registry.slots["a"].machine
    for _ in range(round(seconds / step)):
        await clock.advance(step)
        await until(hub, "a", lambda: machine.dialing is None)


async def starting(hub: Hub, peer: McpPeer, clock: FakeClock) -> None:
    await reaches(hub, "a", State.RECONNECTING)


async def lost(hub: Hub, peer: McpPeer, clock: FakeClock) -> None:
    peer.script = DOWN
    with pytest.raises(Exception, match="503"):
        await hub.reconnect("a")


async def spent(hub: Hub, peer: McpPeer, clock: FakeClock) -> None:
    await starting(hub, peer, clock)
    await pass_time(hub, clock, 90)


async def spent_after_it_was_up(hub: Hub, peer: McpPeer, clock: FakeClock) -> None:
    await lost(hub, peer, clock)
    await pass_time(hub, clock, 90)


async def broken(hub: Hub, peer: McpPeer, clock: FakeClock) -> None:
    await reconfigured(hub, {"command": "holdfast-no-such-program"})
    await reaches(hub, "a", State.PERMANENTLY_FAILED)


async def denied(hub: Hub, peer: McpPeer, clock: FakeClock) -> None:
    peer.script = respond(403, "not you")
    with pytest.raises(Exception, match="not you"):
        await hub.reconnect("a")


async def unconfirmed(hub: Hub, peer: McpPeer, clock: FakeClock) -> None:
    peer.script = respond(403)
    with pytest.raises(Exception, match="403"):
        await hub.reconnect("a")


async def denied_at_refreshes(hub: Hub, peer: McpPeer, clock: FakeClock) -> None:
    peer.script = respond(401)
    await pass_time(hub, clock, 180, step=10)
    await reaches(hub, "a", State.DENIED)


async def denied_for_long(hub: Hub, peer: McpPeer, clock: FakeClock) -> None:
    await denied_at_refreshes(hub, peer, clock)
    await pass_time(hub, clock, 70, step=10)


async def denied_calls(hub: Hub, peer: McpPeer, clock: FakeClock) -> None:
    peer.script = respond(401)
    with pytest.raises(Exception, match="401"):
        await hub.call_tool("a__echo", {})
    await pass_time(hub, clock, 1)
    await until(hub, "a", lambda: hub.server_health("a").status == "denied")


async def refusing(hub: Hub, peer: McpPeer, clock: FakeClock) -> None:
    def script(request: Request) -> Behaviour:
        return respond(500, "broken") if b'"tools/call"' in request.body else peer.healthy

    peer.script = script
    for _ in range(3):
        with pytest.raises(Exception, match="500"):
            await hub.call_tool("a__echo", {})
        await pass_time(hub, clock, 1)


async def disabled(hub: Hub, peer: McpPeer, clock: FakeClock) -> None:
    await hub.toggle("a", enabled=False)
    await reaches(hub, "a", State.DISABLED)


async def idle(hub: Hub, peer: McpPeer, clock: FakeClock) -> None:
    await reconfigured(hub, {"url": f"{peer.url}?lazy", "lazy": True})
    await pass_time(hub, clock, 400, step=100)
    await reaches(hub, "a", State.IDLE)


async def connected(hub: Hub, peer: McpPeer, clock: FakeClock) -> None:
    pass


async def reconfigured(hub: Hub, definition: dict[str, Any]) -> None:
    await hub.apply(config_from_mapping({"mcpServers": {"a": defined(**definition)}, "holdfast": SETTINGS}))


def defined(**definition: Any) -> dict[str, Any]:
    """A server that shows one tool: texts count in the singular too."""
    return {**definition, "tools": ["echo"]}


SETTINGS: dict[str, Any] = {"call": {"readyTimeout": "1ms"}, "doctorTool": "on"}

STAGES: list[tuple[Stage, str, State]] = [
    (starting, "starting", State.RECONNECTING),
    (lost, "lost", State.RECONNECTING),
    (spent, "spent", State.PERMANENTLY_FAILED),
    (spent_after_it_was_up, "spent", State.PERMANENTLY_FAILED),
    (broken, "permanent", State.PERMANENTLY_FAILED),
    (denied, "denied", State.DENIED),
    (unconfirmed, "denied", State.DENIED),
    (denied_at_refreshes, "denied", State.DENIED),
    (denied_for_long, "denied", State.DENIED),
    (denied_calls, "denied", State.CONNECTED),
    (refusing, "refusing", State.CONNECTED),
    (disabled, "disabled", State.DISABLED),
    (idle, "idle", State.IDLE),
    (connected, "connected", State.CONNECTED),
]


async def looked_at(served: Steered, clock: FakeClock, lines: list[str]) -> Seen:
    """Ask every view about the server, and call it last: a call may change its state."""
    hub = served.hub
    health = hub.server_health("a")
    api = await served.control.server("a")
    page = page_of(Console(width=200))
    async with Client(f"{served.base}/mcp", mode="legacy", cache=None) as client:
        instructions = client.instructions or ""
        status = await client.call_tool("holdfast_status", {"server": "a"})
        diagnosis = await client.call_tool("holdfast_doctor", {"server": "a"})
        read: Any = (await client.read_resource("holdfast://status")).contents[0]
        scrape = Scrape((await served.ask("/metrics")).text)
        logged = [line.text for line in (await served.control.logs("a")).lines]
        refused = await called(client, hub, clock) if health.status not in ("available", "idle") else None
        due_at_call = hub.server_health("a").next_try
    (told,) = [line for line in text_of(status).splitlines() if line.startswith("a: ")]
    texts = {
        "summary": api.summary,
        "status table": "\n".join(line.plain for line in table([api], api.since, page)),
        "status in full": "\n".join(line.plain for line in card(api, api.since, page)),
        "attention": "\n".join(line.plain for line in needs_attention([api], page)),
        "instructions": "\n".join(line for line in instructions.splitlines() if line.startswith("**MCP servers")),
        "holdfast_status": told,
        "holdfast_doctor": text_of(diagnosis),
        "warning": "".join(hub.warnings().for_user),
        "warning for models": hub.warnings().for_model,
        "log of the hub": "\n".join(lines),
        "log of the server": "\n".join(logged),
        "call": text_of(refused) if refused is not None else "",
    }
    meta: Any = (refused.meta or {}).get("holdfast/failure") if refused is not None else None
    structured: Any = status.structured_content
    resource = json.loads(read.text)["servers"]["a"]
    return Seen(health, api, structured["servers"]["a"], resource, scrape, texts, meta, due_at_call)


async def called(client: Any, hub: Hub, clock: FakeClock) -> Any:
    """The answer to a call that is refused; time goes by for one that waits for the server."""
    ended = anyio.Event()
    hub.listen(lambda record: ended.set() if isinstance(record, CallEnded) else None)
    async with anyio.create_task_group() as tasks:

        async def pass_moments() -> None:
            while not ended.is_set():
                await clock.advance(0.02)

        tasks.start_soon(pass_moments)
        with anyio.fail_after(20):
            result = await client.call_tool("a__echo", {"text": "hi"})
        tasks.cancel_scope.cancel()
    return result


@pytest.mark.requirement("MSG-1", "MSG-2", "MSG-3", "MSG-8", "MSG-9", "HUB-4")
@pytest.mark.parametrize(("stage", "words", "state"), STAGES, ids=[stage.__name__ for stage, _, _ in STAGES])
async def test_no_view_of_a_server_contradicts_another(
    stage: Stage, words: str, state: State, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock()
    warned: list[tuple[str, str, str]] = []
    made_with = {"clock": clock, "chance": lambda: 0.0, "on_warning": lambda *told: warned.append(told)}
    caplog.set_level(logging.INFO, "holdfast.hub")
    async with AsyncExitStack() as stack:
        peer = await stack.enter_async_context(McpPeer())
        never_up = stage in (starting, spent)
        if never_up:
            peer.script = DOWN
        served = await stack.enter_async_context(steered({"a": defined(url=peer.url)}, made_with=made_with, **SETTINGS))
        if not never_up:
            await settled(served.hub, peer)
        await stage(served.hub, peer, clock)
        assert served.hub.server_health("a").state is state
        lines = [record.getMessage() for record in caplog.records if record.name == "holdfast.hub"]
        seen = await looked_at(served, clock, lines[-1:])
    one_state(seen, state)
    one_kind_of_words(seen, words, warned)
    one_reason_each(seen)
    one_time(seen)
    one_hint(seen)


def one_state(seen: Seen, state: State) -> None:
    """Every view has the name of the state that people read, and none another."""
    shown = state.shown
    assert {seen.api.state, seen.status["state"], seen.resource["state"], state_words(seen.api)} == {shown}
    assert [one for one in State if seen.metrics.value("holdfast_server_state", server="a", state=one.shown)] == [state]
    assert seen.api.status == seen.status["status"] == seen.resource["status"] == seen.health.status
    assert seen.refusal is None or seen.refusal["state"] == shown
    assert seen.refusal is None or seen.health.failure is None or seen.refusal["class"] == seen.health.status
    assert seen.texts["holdfast_status"].startswith(f"a: {shown}")
    assert f" {shown} " in seen.texts["status table"]
    assert f" {shown} for " in seen.texts["status in full"]
    if state in (State.PERMANENTLY_FAILED, State.DENIED):
        assert f"a: {shown}: {seen.health.reason}" in seen.texts["log of the hub"]
        assert f"{shown}: {seen.health.reason}" in seen.texts["log of the server"]
    said = "\n".join(seen.texts.values())
    assert "permanently" not in said
    assert " permanent " not in said
    assert " transient " not in said
    assert not re.search(r"\b1 (?:tools|servers|calls|failures|attempts|records|events)\b", said)


def one_kind_of_words(seen: Seen, expected: str, warned: list[tuple[str, str, str]]) -> None:
    """The words are those of one situation, in every view that has any."""
    about = {**seen.texts, "on_warning": warned[-1][2] if warned else ""}
    for view, text in about.items():
        for kind, phrases in WORDS.items():
            if any(phrase in text for phrase in phrases):
                # A log, a timeline and the callback tell what happened; a server that is up, or off, has no failure.
                history = view in ("log of the server", "log of the hub", "status in full", "on_warning")
                earlier = view == "on_warning" and warned[-1][1] == seen.health.status
                assert kind == expected or earlier or (history and kind in ("connected", "disabled")), (view, text)
    failing = expected in ("starting", "lost", "spent", "refusing", "permanent", "denied")
    for view in ("summary", "instructions", "warning", "warning for models", "call"):
        if failing or view == "summary":
            assert any(phrase in about[view] for phrase in WORDS[expected]), (view, about[view])
        elif view != "call":
            assert not about[view], (view, about[view])
    for view, text in about.items():
        assert not re.search(r"will not work\W.*(?i:try|tries|again|next)", text), (view, text)


def one_reason_each(seen: Seen) -> None:
    """A text that has the reason has it once."""
    reason = seen.health.reason
    if reason and seen.health.failure is not None:
        assert seen.api.reason == seen.status["reason"] == reason
        assert seen.refusal is None or seen.refusal["reason"] == reason
        for view in ("summary", "attention", "instructions", "holdfast_status", "warning", "call", "status table"):
            assert seen.texts[view].count(reason) <= 1, (view, seen.texts[view])


def one_time(seen: Seen) -> None:
    """Every view names the same time of the next try; only a call may be refused for longer."""
    due = seen.health.next_try
    assert seen.api.retry_in == pytest.approx(due, abs=0.1)
    assert seen.status["retryIn"] == pytest.approx(due, abs=1)
    for view, text in seen.texts.items():
        if not view.startswith("log"):
            due = seen.due_at_call if view == "call" else seen.health.next_try
            said = {when.lower() for when in TIME.findall(text)}
            assert due is not None or not said
            assert said <= {"now" if due is None or due < 0.5 else f"in {span(due)}"}, (view, text)
        else:  # a server that answers is asked sooner than the attempt that costs budget
            assert not re.search(r"attempt \d+ in \d", text), text
    own = seen.health.retry_in
    by_itself = re.findall(r"by itself (now|in \d+ \w+)\.", seen.texts["holdfast_doctor"])
    assert by_itself == ([] if own is None else ["now" if own < 0.5 else f"in {span(own)}"])
    if seen.refusal is not None and seen.due_at_call is not None:
        assert seen.refusal["retryIn"] == pytest.approx(max(seen.due_at_call, 1.0), abs=1)


def one_hint(seen: Seen) -> None:
    """The command line shows the advice of the page, word for word."""
    shown = " ".join(seen.texts["status in full"].split())
    for text in (seen.api.summary, seen.api.action, seen.api.command):
        assert " ".join(text.split()) in shown
    assert seen.api.action or not seen.api.command
    for command in re.findall(r"run `([^`]+)`", seen.health.reason):
        assert command == seen.api.command
        assert f"A person types: {command}" in seen.texts["holdfast_doctor"]
