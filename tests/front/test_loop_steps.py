"""No input holds up the event loop: no step takes more than 50 ms of CPU, at any limit of any entry (SEC-7)."""

from __future__ import annotations

import json
import string
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from holdfast.errors import LoadFailed
from holdfast.serve.run import keep_collections_short
from tests.front.heavy_inputs import SHAPES, SIZE, Attack, Target, attacks, call_message
from tests.front.loop_steps import LONGEST_STEP, TRIES, LoopSteps, measured_loop, too_long
from tests.harness.served_hub import Served, front
from tests.harness.waiting import came_true

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("SEC-7")]


@dataclass
class Hub:
    """A served hub whose event loop is measured."""

    served: Served
    target: Target
    steps: LoopSteps

    async def longest(self, act: Callable[[], Awaitable[object]], tries: int = TRIES) -> float:
        return await self.steps.longest_in(act, tries)

    async def attacked(self, attack: Attack, tries: int = TRIES) -> float:
        async def act() -> None:
            await anyio.to_thread.run_sync(attack.run, self.target)

        return await self.longest(act, tries)


@asynccontextmanager
async def _hub(folder: Path, **more: Any) -> AsyncIterator[Hub]:
    server = {"command": sys.executable, "args": ["-m", "tests.peers.heavy_server", str(folder)]}
    settings: dict[str, Any] = {"call": {"timeout": "3s"}, "breaker": {"threshold": 1000}, **more}
    with measured_loop() as steps:
        async with front({"heavy": server}, **settings) as served:
            target = Target(served.base, folder)
            keep_collections_short(served.hub)
            await anyio.to_thread.run_sync(target.greet)
            yield Hub(served, target, steps)


async def _worst(folder: Path, *, every: bool) -> dict[str, float]:
    """The inputs by their longest step, the longest first."""
    took: dict[str, float] = {}
    async with _hub(folder) as hub:
        for attack in attacks(every=every):
            took[str(attack)] = await hub.attacked(attack)
    return dict(sorted(took.items(), key=lambda one: -one[1]))


async def test_no_message_at_the_limit_holds_up_the_event_loop(tmp_path: Path) -> None:
    took = await _worst(tmp_path, every=False)
    assert {what: seconds for what, seconds in took.items() if seconds > LONGEST_STEP} == {}


def _write_down(took: dict[str, float]) -> None:
    results = Path("test-results")
    results.mkdir(exist_ok=True)
    lines = [f"{1000 * seconds:6.1f} ms  {what}\n" for what, seconds in took.items()]
    (results / "loop-steps.txt").write_text("".join(lines))


@pytest.mark.long
@pytest.mark.timeout(3600)  # 480 inputs of 15 MB
async def test_no_message_of_any_shape_holds_up_the_event_loop(tmp_path: Path) -> None:
    took = await _worst(tmp_path, every=True)
    _write_down(took)
    assert {what: seconds for what, seconds in took.items() if seconds > LONGEST_STEP} == {}


def _listing(**tool: object) -> bytes:
    tools = [{"name": f"tool_{number}", "inputSchema": {"type": "object"}, **tool} for number in range(10_000)]
    return json.dumps({"tools": tools}).encode()


LISTINGS: dict[str, Callable[[], bytes]] = {
    "ten thousand tools": _listing,
    "ten thousand tools of one name": lambda: _listing(name="same"),
    "a tool with a schema of small objects": lambda: (
        b'{"tools":[{"name":"a","inputSchema":{"type":"object","x":' + SHAPES["small objects"](SIZE) + b"}}]}"
    ),
    "a tool with a long description": lambda: (
        b'{"tools":[{"name":"a","inputSchema":{"type":"object"},"description":' + SHAPES["text"](SIZE) + b"}]}"
    ),
    "tools that are none": lambda: b'{"tools":' + SHAPES["small lists"](SIZE) + b"}",
}


async def _listed(hub: Hub, listing: str, tries: int = TRIES) -> float:
    async def act() -> None:
        data = await anyio.to_thread.run_sync(LISTINGS[listing])
        await anyio.to_thread.run_sync((hub.target.folder / "tools.list").write_bytes, data)
        with suppress(LoadFailed):
            await hub.served.hub.reconnect("heavy")
        await anyio.to_thread.run_sync(hub.target.post, b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}')

    return await hub.longest(act, tries)


async def test_no_list_at_the_limit_holds_up_the_event_loop(tmp_path: Path) -> None:
    async with _hub(tmp_path) as hub:
        took = {listing: await _listed(hub, listing) for listing in LISTINGS}
    assert {what: seconds for what, seconds in took.items() if seconds > LONGEST_STEP} == {}


def _templates(text: str) -> bytes:
    made = [{"uriTemplate": text.format(number), "name": f"t{number}"} for number in range(2_000)]
    return json.dumps({"resourceTemplates": made}).encode()


@pytest.mark.parametrize(
    "template", ["n{}://{{x}}", "x:{{a}}/{}", "x:{{a}}/" + "{{b}}-{{c}}.{{d}}/" + "e" * 200 + "{}"]
)
async def test_no_number_of_templates_and_links_holds_up_the_event_loop(template: str, tmp_path: Path) -> None:
    link = b'{"type":"resource_link","uri":"x:%d/b-c/e","name":"n"}'
    links = b"[" + b",".join(link % number for number in range(2_000)) + b"]"
    nested = b",".join([b'{"role":"user","content":' + links + b"}"] * 10)
    read = b'{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"x:%s/b-c/e"}}' % (b"a" * 60_000)
    prompt = b'{"jsonrpc":"2.0","id":1,"method":"prompts/get","params":{"name":"heavy__ask"}}'
    async with _hub(tmp_path) as hub:
        (tmp_path / "resources.templates.list").write_bytes(_templates(template))
        await hub.served.hub.reconnect("heavy")
        await came_true(lambda: len(hub.served.hub.catalog.templates) == 2_000)
        (tmp_path / "tools.call").write_bytes(b'{"content":' + links + b"}")
        (tmp_path / "prompts.get").write_bytes(b'{"messages":[' + nested + b"]}")
        took = {}
        for what, body in {"links": call_message(b"{}"), "prompt": prompt, "read": read}.items():
            took[what] = await hub.longest(partial(anyio.to_thread.run_sync, hub.target.post, body))
    assert too_long(took) == {}


async def test_no_templates_with_many_variables_hold_up_the_event_loop(tmp_path: Path) -> None:
    letters = string.ascii_letters + string.digits
    made = [{"uriTemplate": f"x:{'x'.join(f'{{{one}}}' for one in letters[at:])}", "name": "t"} for at in range(50)]
    read = b'{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"x:%s"}}'
    async with _hub(tmp_path) as hub:
        (tmp_path / "resources.templates.list").write_text(json.dumps({"resourceTemplates": made}))
        await hub.served.hub.reconnect("heavy")
        await came_true(lambda: len(hub.served.hub.catalog.templates) == len(made))
        took = {}
        for length in (1_000, 8_000):
            body = read % (b"x" * length)
            took[f"{length} characters"] = await hub.longest(partial(anyio.to_thread.run_sync, hub.target.post, body))
    assert too_long(took) == {}


async def test_no_number_of_suggested_values_holds_up_the_event_loop(tmp_path: Path) -> None:
    access = {"default": "allow", "rules": [{"effect": "deny", "resources": ["x:hidden"]}]}
    listed = {"resourceTemplates": [{"uriTemplate": "x:{a}", "name": "t"}]}
    (tmp_path / "resources.templates.list").write_text(json.dumps(listed))
    params = b'{"ref":{"type":"ref/resource","uri":"x:{a}"},"argument":{"name":"a","value":""}}'
    body = b'{"jsonrpc":"2.0","id":1,"method":"completion/complete","params":' + params + b"}"
    took, answers = {}, []
    async with _hub(tmp_path, access=access) as hub:

        async def act() -> None:
            answers.append(await anyio.to_thread.run_sync(hub.target.post, body))

        for values in (b'"\\ud800","seen"', b",".join([b"0"] * 800_000)):
            (tmp_path / "completion.complete").write_bytes(b'{"completion":{"values":[' + values + b"]}}")
            took[f"{len(values)} bytes"] = await hub.longest(act)
    assert too_long(took) == {}
    assert b'"values":["seen"]' in answers[0]
    assert b'"values":[]' in answers[-1]


_PROMPT = b'{"jsonrpc":"2.0","id":1,"method":"prompts/get","params":{"name":"heavy__ask"}}'
_READ = b'{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"from-heavy+file:///a"}}'
_MANY = b",{}" * 500_000
_MEMBERS = b"{" + b",".join(b'"%d":0' % number for number in range(90_000)) + b"}"


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        (call_message(b"{}"), b'{"content":[],"structuredContent":%b}' % SHAPES["other letters"](SIZE)),
        (call_message(b"{}"), b'{"content":[%b],"structuredContent":1}' % (b" " * SIZE)),
        (_PROMPT, b'{"messages":[{"role":"user","content":["resource"%b]}]}' % _MANY),
        (call_message(b"{}"), b'{"content":[{"_meta":{}}%b]}' % _MANY),
        (call_message(b"{}"), b'{"content":[%b]}' % b",".join([b'{"_meta":%b}' % _MEMBERS] * 8)),
        (_PROMPT, b'{"messages":[%b]}' % b",".join([b'{"content":[{"_meta":{}}%b]}' % (b",{}" * 190)] * 4_000)),
        (
            call_message(b"{}"),
            b'{"inputRequests":{"_meta":{},%b}}' % b",".join(b'"%d":{}' % at for at in range(99_000)),
        ),
        (_READ, b'{"contents":[{}%b]}' % _MANY),
    ],
    ids=[
        "values for text",
        "spaces for content",
        "blocks of a prompt",
        "blocks that may have own keys",
        "members that may be own keys",
        "blocks of many messages",
        "questions",
        "contents",
    ],
)
async def test_no_parts_of_a_result_hold_up_the_event_loop(body: bytes, answer: bytes, tmp_path: Path) -> None:
    method = json.loads(body)["method"]
    async with _hub(tmp_path) as hub:
        (tmp_path / method.replace("/", ".")).write_bytes(answer)
        took = {method: await hub.longest(partial(anyio.to_thread.run_sync, hub.target.post, body))}
        seen = hub.steps.what
    assert too_long(took) == {}, seen


def _no_bound_on_lists(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("holdfast.turns.STEP_SECONDS", 1e9)


def _no_thread_for_catalogs(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("holdfast.hub.publisher.AT_ONCE", 1 << 60)


@pytest.mark.parametrize("mutant", [_no_bound_on_lists, _no_thread_for_catalogs])
async def test_a_list_that_is_read_or_published_at_once_is_noticed(
    mutant: Callable[[pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    async with _hub(tmp_path) as hub:
        assert await _listed(hub, "ten thousand tools", tries=1) > LONGEST_STEP


def _parsing_on_the_loop(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("holdfast.wire.raw_json.MOST_MEMBERS", 1 << 30)


def _masking_before_cutting(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("holdfast.wire.rpc.LONGEST_ERROR", 1 << 30)
    patch.setattr("holdfast.core.redact.LONGEST_MASKED", 1 << 30)
    patch.setattr("holdfast.core.redact.cut", lambda text, most=0: text)


def _names_of_any_length(patch: pytest.MonkeyPatch) -> None:
    for module in ("wire.raw_json", "endpoint.message"):
        patch.setattr(f"holdfast.{module}.SMALL_BYTES", 1 << 30)
    patch.setattr("holdfast.core.names.LONGEST_COMPARED", 1 << 30)


def _meta_of_any_size(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("holdfast.wire.raw_json.LOADED_BYTES", 1 << 30)
    for module in ("wire.raw_json", "endpoint.message"):
        patch.setattr(f"holdfast.{module}.SMALL_BYTES", 1 << 30)


@pytest.mark.parametrize(
    ("mutant", "attack"),
    [
        (_parsing_on_the_loop, Attack("a result itself", "members", 8 << 20)),
        (_masking_before_cutting, Attack("the message of an error", "text", 2 << 20)),
        (_names_of_any_length, Attack("the name of a tool", "text", 6 << 20)),
        (_meta_of_any_size, Attack("the _meta of a call", "small objects", 6 << 20)),
    ],
)
async def test_an_old_freeze_is_noticed(
    mutant: Callable[[pytest.MonkeyPatch], None], attack: Attack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    async with _hub(tmp_path) as hub:
        assert await hub.attacked(attack, tries=1) > LONGEST_STEP


@pytest.mark.requirement("SEC-4")
async def test_a_log_message_over_the_bound_is_left_out_and_that_is_said(tmp_path: Path) -> None:
    async with _hub(tmp_path) as hub:
        small = await anyio.to_thread.run_sync(Attack("a log message", "text", 1_000).run, hub.target)
        large = await anyio.to_thread.run_sync(Attack("a log message", "text", 300 << 10).run, hub.target)
    assert b"x" * 1_000 in small
    assert b"Holdfast left out a log message of 307," in large
    assert b"x" * 1_000 not in large
