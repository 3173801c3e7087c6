"""JSON-RPC on one connection: order, correlation, and bounds on what a server may do to us."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import anyio
import anyio.abc
import pytest
from hypothesis import given, strategies as st
from mcp import MCPError
from mcp_types import INTERNAL_ERROR

from holdfast.config.settings import Limits
from holdfast.core import LEFT_OUT
from holdfast.core.evidence import Evidence, NetworkFailure, NetworkFault, NotMcp, OverBound, Unexpected
from holdfast.errors import ServerFailure
from holdfast.types import ProgressFn
from holdfast.wire.dispatcher import NO_HOOKS, DuplexDispatcher, Incoming
from holdfast.wire.in_flight import InFlight
from holdfast.wire.raw_json import SMALL_BYTES, BadJson
from holdfast.wire.rpc import (
    LONGEST_ERROR,
    NOTICE_BYTES,
    NOTICES_WAITING,
    REQUESTS_FROM_SERVER,
    Message,
    RpcPeer,
    call_message,
)

pytestmark = pytest.mark.anyio

GONE = NetworkFailure(fault=NetworkFault.CLOSED, stood=True)


class Script(Incoming):
    """What a server sends by itself, and the answers of this side to it."""

    def __init__(self, in_flight: InFlight) -> None:
        super().__init__("test", NO_HOOKS, in_flight)
        self.notices: list[tuple[str, Mapping[str, Any] | None]] = []

    def pass_on(self, method: str, params: Mapping[str, Any] | None) -> None:
        self.notices.append((method, params))

    async def asked(self, method: str, params: Mapping[str, Any] | None) -> dict[str, Any]:
        if method == "break":
            raise ZeroDivisionError
        if method == "refuse":
            raise MCPError(-32601, "no such thing")
        if method == "unwritable":
            return {"asked": object()}
        if method == "wait":
            await anyio.sleep_forever()
        return {"asked": method}


class Wire(DuplexDispatcher):
    """A dispatcher whose other end is the test: ``sent`` is what went out, ``say`` is what comes in."""

    def __init__(self, limits: Limits | None = None) -> None:
        super().__init__(limits or Limits())
        self.sent: list[Message] = []
        self.wrote = anyio.Event()
        self.blocked: anyio.Event | None = None
        self.incoming = script = Script(self.in_flight)
        self.notices = script.notices
        self._say, self._heard = anyio.create_memory_object_stream[tuple[object, ...]](math.inf)

    def say(self, *messages: object) -> None:
        """These come in one read: no caller runs in between."""
        self._say.send_nowait(messages)

    def hang_up(self) -> None:
        self._say.close()

    async def written(self, count: int) -> list[Message]:
        with anyio.fail_after(5):
            while len(self.sent) < count:
                await self.wrote.wait()
                self.wrote = anyio.Event()
        return self.sent

    async def _write(self, data: bytes, *, doing: str, headers: Mapping[str, str]) -> int | None:
        if self.blocked is not None:
            await self.blocked.wait()
        self.sent.append(json.loads(data))
        self.wrote.set()
        return None

    async def _read(self, tasks: anyio.abc.TaskGroup) -> Evidence:
        with self._heard:
            async for messages in self._heard:
                for message in messages:
                    await self.rpc.take(json.dumps(message).encode())
        return GONE

    async def told(self, method: str, callback: ProgressFn) -> Message:
        """A call whose progress goes to a callback, as a connection makes it."""
        request = self.in_flight.start(None, callback, idle=60, within=60)
        result = await self.call(request, method, {}, headers={})
        await request.delivered()
        self.in_flight.end(request)
        return result.value()

    async def asked(self, method: str = "a", *, tell: bool = True) -> Message:
        return (await self.ask(method, {}, tell=tell)).value()


@asynccontextmanager
async def wired(limits: Limits | None = None) -> AsyncIterator[Wire]:
    wire = Wire(limits)
    with anyio.fail_after(30):
        wire.start()
        yield wire
        wire.hang_up()
        await wire.gone()
        await wire.aclose()


def answer(request_id: object, **result: object) -> Message:
    return {"jsonrpc": "2.0", "id": request_id, "result": result}


def progress(token: object, step: object, **more: object) -> Message:
    params = {"progressToken": token, "progress": step, **more}
    return {"jsonrpc": "2.0", "method": "notifications/progress", "params": params}


class Steps:
    """A progress callback that is slow on purpose and keeps what it was told."""

    def __init__(self) -> None:
        self.told: list[tuple[float, float | None, str | None]] = []

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        await anyio.lowlevel.checkpoint()
        self.told.append((progress, total, message))


async def test_a_burst_of_progress_is_told_in_order_and_all_of_it_before_the_result() -> None:
    steps = Steps()
    async with wired() as wire, anyio.create_task_group() as tasks:

        async def server() -> None:
            (request,) = await wire.written(1)
            token = request["params"]["_meta"]["progressToken"]
            wire.say(*(progress(token, n, total=500, message=f"step {n}") for n in range(500)))
            wire.say(answer(request["id"], done=True))

        tasks.start_soon(server)
        result = await wire.told("tools/call", steps)
        assert result == {"done": True}
        assert steps.told == [(float(n), 500.0, f"step {n}") for n in range(500)]


async def test_progress_goes_to_the_call_it_belongs_to() -> None:
    first, second = Steps(), Steps()
    async with wired() as wire, anyio.create_task_group() as tasks:
        tasks.start_soon(wire.told, "a", first)
        tasks.start_soon(wire.told, "b", second)
        one, two = (await wire.written(2))[:2]
        wire.say(progress(two["id"], 2), progress(one["id"], 1), progress("nobody", 3), progress(None, 4))
        wire.say(answer(two["id"]), answer(one["id"]), progress(one["id"], 5))
    assert (first.told, second.told) == ([(1.0, None, None)], [(2.0, None, None)])


async def test_progress_that_its_call_was_told_is_no_notice_to_anybody_else() -> None:
    steps = Steps()
    async with wired() as wire, anyio.create_task_group() as tasks:
        tasks.start_soon(wire.told, "a", steps)
        (request,) = await wire.written(1)
        wire.say(progress(request["id"], 1), progress("nobody", 2), progress(request["id"], 3), answer(request["id"]))
    assert steps.told == [(1.0, None, None), (3.0, None, None)]
    assert [params["progress"] for _, params in wire.notices if params is not None] == [2]


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"progress": 1, "total": None, "message": None}, (1, None, None)),
        ({"progress": 2.5, "total": 10**30, "message": "\u00e4 \U0001f600"}, (2.5, 10**30, "\u00e4 \U0001f600")),
        ({"progress": 3, "message": "cut \ud83d"}, (3, None, "cut \ud83d")),
        ({"progress": 4, "total": 10**400, "message": 5, "other": {"deep": [1]}}, (4, None, None)),
        ({"progress": 5, "message": "x" * 100_000}, (5, None, "x" * 100_000)),
    ],
    ids=["plain", "unicode", "lone surrogate", "odd", "large"],
)
async def test_progress_says_the_same_however_it_is_written(more: dict[str, object], told: object) -> None:
    steps = Steps()
    async with wired() as wire, anyio.create_task_group() as tasks:
        tasks.start_soon(wire.told, "a", steps)
        (request,) = await wire.written(1)
        wire.say(progress(request["id"], more["progress"], **{k: v for k, v in more.items() if k != "progress"}))
        wire.say(progress(str(request["id"]), 9))
        wire.say(answer(request["id"]))
    assert steps.told == [told, (9, None, None)]


@pytest.mark.parametrize("odd", ["soon", None, True, [], 10**400])
async def test_progress_that_is_no_number_is_dropped_and_harms_nobody(odd: object) -> None:
    steps = Steps()
    async with wired() as wire, anyio.create_task_group() as tasks:
        tasks.start_soon(wire.told, "a", steps)
        (request,) = await wire.written(1)
        wire.say(progress(request["id"], odd, total=odd, message=odd), progress(request["id"], 1.5, total=odd))
        wire.say(answer(request["id"]))
    assert steps.told[-1][0] == 1.5


async def test_a_progress_callback_that_raises_does_not_cost_the_result() -> None:
    async def broken(progress: float, total: float | None, message: str | None) -> None:
        raise ZeroDivisionError

    async with wired() as wire, anyio.create_task_group() as tasks:

        async def server() -> None:
            (request,) = await wire.written(1)
            wire.say(progress(request["id"], 1), answer(request["id"], fine=True))

        tasks.start_soon(server)
        assert await wire.told("a", broken) == {"fine": True}


@pytest.mark.parametrize("spelled", [str, int])
async def test_an_answer_is_known_by_its_id_as_a_number_or_as_a_text(spelled: type) -> None:
    async with wired() as wire, anyio.create_task_group() as tasks:
        results: list[Message] = []

        async def ask(method: str) -> None:
            results.append(await wire.asked(method))

        tasks.start_soon(ask, "a")
        tasks.start_soon(ask, "b")
        one, two = (await wire.written(2))[:2]
        wire.say(answer(spelled(two["id"]), n=2), answer(spelled(one["id"]), n=1))
    assert {result["n"] for result in results} == {1, 2}


async def test_late_and_foreign_answers_are_dropped() -> None:
    async with wired() as wire, anyio.create_task_group() as tasks:
        with anyio.move_on_after(0.01):
            await wire.asked("a", tell=False)

        async def server() -> None:
            await wire.written(2)
            wire.say(answer(1, late=True), answer(12345), answer(None), answer([1]), answer({}), answer(1.5))
            wire.say(answer(2, fresh=True))

        tasks.start_soon(server)
        assert await wire.asked("b") == {"fresh": True}


@pytest.mark.requirement("LIFE-9")
async def test_an_error_without_an_id_is_for_the_only_one_who_still_waits_right_after_another_answer() -> None:
    async with wired() as wire, anyio.create_task_group() as tasks:
        results: list[Message] = []

        async def ask() -> None:
            results.append(await wire.asked("a"))

        tasks.start_soon(ask)
        (first,) = await wire.written(1)

        async def server() -> None:
            await wire.written(2)
            nameless = {"jsonrpc": "2.0", "id": None, "error": {"code": -32700, "message": "what?"}}
            wire.say(answer(first["id"], n=1), answer(first["id"], n=2), nameless)

        tasks.start_soon(server)
        with pytest.raises(MCPError, match="what"):
            await wire.asked("b")
    assert results == [{"n": 1}], "the first answer counts"


async def test_an_error_answer_is_raised_with_its_code_and_data() -> None:
    async with wired() as wire, anyio.create_task_group() as tasks:

        async def server() -> None:
            (request,) = await wire.written(1)
            wire.say({"jsonrpc": "2.0", "id": request["id"], "error": {"code": -1, "message": "no", "data": [1]}})

        tasks.start_soon(server)
        with pytest.raises(MCPError) as refused:
            await wire.asked("a")
    assert (refused.value.code, refused.value.message, refused.value.error.data) == (-1, "no", [1])


@pytest.mark.parametrize("error", ["no", 5, [], {"code": "x", "message": 5}, {"message": ""}])
async def test_however_badly_an_error_is_written_it_is_the_answer_to_its_request(error: object) -> None:
    async with wired() as wire, anyio.create_task_group() as tasks:

        async def server() -> None:
            (request,) = await wire.written(1)
            wire.say({"jsonrpc": "2.0", "id": request["id"], "error": error})

        tasks.start_soon(server)
        with pytest.raises(MCPError) as refused:
            await wire.asked("a")
    assert refused.value.message == (error if error == "no" else "the server gave an error without a message")


@pytest.mark.parametrize("body", [{"result": 5}, {"result": None}, {}, {"error": None, "result": []}])
async def test_an_answer_that_is_none_fails_the_one_who_asked_and_no_other(body: Message) -> None:
    async with wired() as wire, anyio.create_task_group() as tasks:

        async def server() -> None:
            (request,) = await wire.written(1)
            wire.say({"jsonrpc": "2.0", "id": request["id"], **body})
            wire.say(answer((await wire.written(2))[1]["id"], fine=True))

        tasks.start_soon(server)
        with pytest.raises(ServerFailure) as failed:
            await wire.asked("a")
        assert isinstance(failed.value.evidence, NotMcp)
        assert await wire.asked("b") == {"fine": True}


async def test_when_the_connection_goes_everyone_who_waits_is_told_at_once_and_later_comers_too() -> None:
    failures: list[ServerFailure] = []

    async def ask(wire: Wire) -> None:
        try:
            await wire.asked("a")
        except ServerFailure as failure:
            failures.append(failure)

    async with wired() as wire:
        async with anyio.create_task_group() as tasks:
            for _ in range(10):
                tasks.start_soon(ask, wire)
            await wire.written(10)
            wire.hang_up()
        await ask(wire)
    assert [failure.evidence for failure in failures] == [GONE] * 11
    assert len({id(failure) for failure in failures}) == 11


async def test_a_fault_of_ours_while_reading_ends_the_connection_and_tells_who_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with wired() as wire, anyio.create_task_group() as tasks:

        async def trip(message: object) -> None:
            raise ZeroDivisionError("a bug")

        async def server() -> None:
            await wire.written(1)
            monkeypatch.setattr(wire.rpc, "take", trip)
            wire.say({})

        tasks.start_soon(server)
        with pytest.raises(ServerFailure) as failed:
            await wire.asked("a")
    assert failed.value.evidence == Unexpected(type="ZeroDivisionError")


@pytest.mark.requirement("LOAD-9")
async def test_the_callers_deadline_covers_the_write_too() -> None:
    async with wired() as wire:
        wire.blocked = anyio.Event()
        with anyio.move_on_after(0.05) as limit:
            await wire.asked()
        assert limit.cancelled_caught
        wire.blocked.set()
        wire.blocked = None


@pytest.mark.parametrize("tell", [True, False])
async def test_a_caller_that_no_longer_waits_is_taken_back_with_a_notice_unless_told_not_to(*, tell: bool) -> None:
    async with wired() as wire:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(wire.asked, tell=tell))
            (request,) = await wire.written(1)
            tasks.cancel_scope.cancel()
        if tell:
            notice = (await wire.written(2))[1]
            assert (notice["method"], notice["params"]["requestId"]) == ("notifications/cancelled", request["id"])
        await anyio.wait_all_tasks_blocked()
        assert len(wire.sent) == 1 + tell


async def test_notices_reach_their_handler_in_order() -> None:
    async with wired() as wire:
        wire.say(*({"jsonrpc": "2.0", "method": f"n{n}"} for n in range(50)))
        await anyio.wait_all_tasks_blocked()
        assert [method for method, _ in wire.notices] == [f"n{n}" for n in range(50)]


@pytest.mark.requirement("SEC-4")
async def test_a_flood_of_notices_ends_this_connection_and_says_which_bound_it_broke() -> None:
    async with wired(Limits(notifications_per_second=10)) as wire, anyio.create_task_group() as tasks:

        async def server() -> None:
            await wire.written(1)
            wire.say(*({"jsonrpc": "2.0", "method": "n"} for _ in range(1000)))

        tasks.start_soon(server)
        with pytest.raises(ServerFailure) as failed:
            await wire.asked("a")
    assert isinstance(failed.value.evidence, OverBound)
    assert failed.value.evidence.setting == "holdfast.limits.notificationsPerSecond"


@pytest.mark.requirement("SEC-4")
@pytest.mark.requirement("SEC-4")
@pytest.mark.parametrize(
    "message", [answer(77), {"jsonrpc": "2.0", "id": 1, "method": "wait"}], ids=["answers", "asks"]
)
async def test_a_flood_of_messages_that_settle_nothing_ends_this_connection(message: Message) -> None:
    limits = Limits(notifications_per_second=10)
    async with wired(limits) as wire:
        for _ in range(51):
            wire.say(message)
        assert isinstance(await wire.gone(), OverBound)


async def test_a_handler_of_notices_rests_while_none_comes() -> None:
    async with wired() as wire:
        wire.say({"jsonrpc": "2.0", "method": "notifications/message"})
        await anyio.wait_all_tasks_blocked()
        assert len(wire.notices) == 1


async def test_notices_that_nobody_takes_do_not_pile_up() -> None:
    async def send(message: Message) -> None:
        raise AssertionError("nothing is to be sent")

    peer = RpcPeer(send, Limits(notifications_per_second=10**6), InFlight())
    for n in range(10 * NOTICES_WAITING):
        await peer.take(b'{"jsonrpc": "2.0", "method": "n%d"}' % n)
    assert f"<Notices waiting={NOTICES_WAITING} " in repr(peer._notices)


async def test_what_a_server_asks_of_us_is_answered_under_its_own_id() -> None:
    async with wired() as wire:
        for message_id, method in [("x-1", "ping"), (7, "break"), ("8", "refuse")]:
            wire.say({"jsonrpc": "2.0", "id": message_id, "method": method})
        sent = {message["id"]: message for message in await wire.written(3)}
    assert sent["x-1"]["result"] == {"asked": "ping"}
    assert sent[7]["error"]["code"] == -32603
    assert sent["8"]["error"] == {"code": -32601, "message": "no such thing"}


@pytest.mark.requirement("LIFE-14")
async def test_an_answer_of_ours_that_cannot_be_sent_costs_that_answer_alone() -> None:
    async with wired() as wire:
        wire.say({"jsonrpc": "2.0", "id": 7, "method": "unwritable"}, {"jsonrpc": "2.0", "id": 8, "method": "a"})
        assert [message["id"] for message in await wire.written(1)] == [8]
        wire.say({"jsonrpc": "2.0", "id": 9, "method": "a"})
        assert [message["id"] for message in await wire.written(2)] == [8, 9]


async def test_a_server_can_take_its_own_request_back() -> None:
    async with wired() as wire:
        wire.say({"jsonrpc": "2.0", "id": 1, "method": "wait"})
        await anyio.wait_all_tasks_blocked()
        assert repr(wire.rpc._requests) == "<ServerRequests [1]>"
        wire.say({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "1"}})
        await anyio.wait_all_tasks_blocked()
        assert repr(wire.rpc._requests) == "<ServerRequests []>"
        assert wire.sent == []


@pytest.mark.requirement("SEC-4")
@pytest.mark.parametrize("same_id", [True, False])
async def test_a_server_that_asks_without_end_and_never_reads_fills_no_memory(*, same_id: bool) -> None:
    async with wired() as wire:
        wire.blocked = anyio.Event()
        wire.say(*({"jsonrpc": "2.0", "id": 1 if same_id else n, "method": "ping"} for n in range(5000)))
        await anyio.wait_all_tasks_blocked()
        wire.blocked.set()
        await anyio.wait_all_tasks_blocked()
        assert len(wire.sent) == (1 if same_id else 2 * REQUESTS_FROM_SERVER)
        wire.blocked = None
        wire.say({"jsonrpc": "2.0", "id": "again", "method": "ping"})
        assert (await wire.written(len(wire.sent) + 1))[-1]["id"] == "again"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
messages = json_values | st.fixed_dictionaries(
    {},
    optional={
        "jsonrpc": st.just("2.0") | json_values,
        "id": json_values,
        "method": st.sampled_from(["ping", "notifications/progress", "notifications/cancelled"]) | json_values,
        "params": json_values
        | st.dictionaries(st.sampled_from(["progressToken", "progress", "requestId"]), json_values),
        "result": json_values,
        "error": json_values,
    },
)


@pytest.mark.requirement("SEC-4")
@given(st.lists(messages, max_size=5))
def test_whatever_a_server_sends_is_routed_or_refused_as_evidence(some: list[object]) -> None:
    async def send_all() -> None:
        async with anyio.create_task_group() as tasks:
            wire = Wire()
            wire.rpc.start(tasks, wire.incoming)
            for message in some:
                with suppress(ServerFailure, BadJson):
                    await wire.rpc.take(json.dumps(message).encode())
            wire.hang_up()
            wire._heard.close()
            tasks.cancel_scope.cancel()

    anyio.run(send_all)


def test_a_progress_token_is_asked_for_only_where_somebody_listens() -> None:
    params = {"name": b'"x"', "_meta": b'{"trace":"1"}'}
    plain = json.loads(call_message(7, "tools/call", params, progress=False))["params"]
    asked = json.loads(call_message(7, "tools/call", params, progress=True))["params"]
    assert plain == {"name": "x", "_meta": {"trace": "1"}}
    assert asked == {"name": "x", "_meta": {"trace": "1", "progressToken": 7}}


async def test_a_peer_that_reads_no_more_fails_what_it_has_not_read_whole() -> None:
    in_flight = InFlight()
    requests = [in_flight.start(idle=60, within=60) for _ in range(4)]
    for request, sent_at in zip(requests, (9, 10, 11, None), strict=True):
        request.sent_at = sent_at
    in_flight.fail_unread(10, NetworkFailure(fault=NetworkFault.CLOSED, sent=False))
    assert [request.settled for request in requests] == [False, False, True, False]
    with pytest.raises(ServerFailure) as unread:
        await requests[2].result()
    assert unread.value.evidence == NetworkFailure(fault=NetworkFault.CLOSED, sent=False)
    in_flight.fail_unread(None, NetworkFailure(fault=NetworkFault.CLOSED, sent=True))
    assert [request.settled for request in requests] == [True, True, True, False]


def test_a_request_under_way_shows_what_it_waits_for() -> None:
    async def look() -> None:
        async with wired() as wire, anyio.create_task_group() as tasks:
            tasks.start_soon(wire.asked)
            (request,) = await wire.written(1)
            assert "<InFlight [1]>" in repr(wire)
            assert repr(wire.in_flight.waiting(1)) == "<RequestInFlight 1 for None due in inf s>"
            wire.say(answer(request["id"]))

    anyio.run(look)


@pytest.mark.requirement("LIFE-28")
@pytest.mark.parametrize(
    "meta",
    [
        b"{}",
        b'{"a":1}',
        b'{ "a" : [1.50] }',
        b'{"progressToken":"theirs","a":1}',
        b'{"progress\\u0054oken":"theirs","a":1}',
        b'{"a":{"progressToken":"theirs"}}',
    ],
)
async def test_a_call_has_our_progress_token_once_and_all_else_of_its_meta(meta: bytes) -> None:
    pairs: list[tuple[str, Any]] = []

    def noted(members: list[tuple[str, Any]]) -> dict[str, Any]:
        pairs.extend(members)
        return dict(members)

    sent = json.loads(call_message(5, "tools/call", {"name": b'"x"', "_meta": meta}, progress=True))["params"]
    assert sent == {"name": "x", "_meta": {**json.loads(meta), "progressToken": 5}}
    json.loads(call_message(5, "tools/call", {"_meta": meta}, progress=True), object_pairs_hook=noted)
    assert [value for key, value in pairs if key == "progressToken" and value != "theirs"] == [5]
    assert sum(key == "progressToken" for key, _ in pairs) == 1 + (b'{"a":{"progressToken"' in meta)


@pytest.mark.requirement("SEC-7")
@pytest.mark.parametrize("text", ["ä" * SMALL_BYTES, "\n" * SMALL_BYTES, "x" * SMALL_BYTES])
@pytest.mark.parametrize("data", [[1], {"large": "x" * SMALL_BYTES}], ids=["small data", "large data"])
async def test_the_text_of_a_large_error_is_cut_and_its_large_data_is_left_out(text: str, data: object) -> None:
    async with wired() as wire, anyio.create_task_group() as tasks:
        failed: list[MCPError] = []

        async def call() -> None:
            with pytest.raises(MCPError) as raised:
                await wire.asked("tools/call")
            failed.append(raised.value)

        tasks.start_soon(call)
        (request,) = await wire.written(1)
        wire.say({"jsonrpc": "2.0", "id": request["id"], "error": {"code": 7, "message": text, "data": data}})
    (error,) = failed
    kept = error.error.message.removesuffix(" … (cut)")
    assert text.startswith(kept)
    assert len(kept) >= LONGEST_ERROR
    assert (error.error.code, error.error.data) == (7, [1] if data == [1] else LEFT_OUT)


@pytest.mark.requirement("SEC-7")
@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        ({"message": "short", "data": "x" * SMALL_BYTES}, INTERNAL_ERROR, "short"),
        ({"code": 7, "message": ["x" * SMALL_BYTES]}, 7, "the server gave an error without a message"),
        ({"code": "x" * SMALL_BYTES}, INTERNAL_ERROR, "the server gave an error without a message"),
        ("x" * SMALL_BYTES, INTERNAL_ERROR, "x" * LONGEST_ERROR + " … (cut)"),
        (["x" * SMALL_BYTES], INTERNAL_ERROR, "the server gave an error without a message"),
    ],
)
async def test_a_large_error_that_is_written_badly_is_an_answer_all_the_same(
    error: object, code: int, message: str
) -> None:
    async with wired() as wire, anyio.create_task_group() as tasks:

        async def call() -> None:
            with pytest.raises(MCPError) as raised:
                await wire.asked("tools/call")
            assert (raised.value.error.code, raised.value.error.message) == (code, message)

        tasks.start_soon(call)
        (request,) = await wire.written(1)
        wire.say({"jsonrpc": "2.0", "id": request["id"], "error": error})


@pytest.mark.requirement("SEC-7", "SEC-21")
async def test_of_a_large_notice_what_is_small_passes_on() -> None:
    large = {"x": "x" * NOTICE_BYTES, "_meta": {"holdfast/a": 1, "own": 1}}
    steps = Steps()
    async with wired() as wire, anyio.create_task_group() as tasks:
        tasks.start_soon(wire.told, "tools/call", steps)
        (request,) = await wire.written(1)
        for method in ("message", "tools/list_changed", "cancelled", "resources/updated"):
            wire.say({"jsonrpc": "2.0", "method": f"notifications/{method}", "params": {**large, "level": "info"}})
        token = request["params"]["_meta"]["progressToken"]
        wire.say(progress(token, 1, **large))
        wire.say(answer(request["id"]))
    small = {"level": "info", "_meta": {"own": 1}}
    size = len(json.dumps({**large, "level": "info"}))
    assert wire.notices == [
        ("notifications/message", {**small, "data": f"(Holdfast left out a log message of {size:,} bytes)"}),
        ("notifications/tools/list_changed", small),
        ("notifications/cancelled", small),
    ]
    assert steps.told == [(1, None, None)]
