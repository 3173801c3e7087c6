"""Clients that join a hub by its socket: the hello, the conversation, and a hub that leaves (DX-8, DX-9)."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import anyio
import pytest

from holdfast.front import stdio as join
from holdfast.front.line_peek import heads_of
from holdfast.front.stdio import PROTOCOL, JoinServer, SocketWriter
from tests.harness.served_hub import front
from tests.harness.waiting import came_true
from tests.peers.peer_server import running

pytestmark = [pytest.mark.anyio]

HELLO = {"join": PROTOCOL, "cwd": "/home/ann", "pid": 7}
BEGIN = {"question": 100, "sent": 0, "environment": {"TOKEN": "t"}}
INITIALIZE = {
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "editor", "version": "1"}},
}


class Listener(socket.socket):
    """A socket that cannot be accepted from for a while."""

    faults: ClassVar[list[int]] = []
    """The errors of the next attempts."""

    def accept(self) -> tuple[socket.socket, Any]:
        if self.faults:
            raise OSError(self.faults.pop(), "as the test wants it")
        return super().accept()


class Place:
    """A socket in a folder of the test."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.closed = 0

    def listen(self) -> socket.socket | None:
        listener = Listener(socket.AF_UNIX)
        listener.bind(str(self.path))
        listener.listen()
        return listener

    def close(self) -> None:
        self.closed += 1


class Surroundings:
    """The variables that the hub lacks, and the folders of clients: those under ``/projects`` are projects."""

    matter = False

    def __init__(self) -> None:
        self.offered: list[tuple[str, Mapping[str, str]]] = []
        self.inside: list[str] = []
        self.has_room = True

    async def wanted(self, folder: str) -> list[str]:
        return ["TOKEN", "OTHER"]

    async def offer(self, client: str, variables: Mapping[str, str]) -> None:
        self.offered.append((client, variables))

    def of(self, named: str, working: str) -> str | None:
        return next((one for one in (named, working) if one.startswith("/projects")), None)

    async def enter(self, folder: str, variables: Mapping[str, str]) -> bool:
        self.inside.append(folder)
        return self.has_room

    def leave(self, folder: str) -> None:
        self.inside.remove(folder)

    async def touch(self, folder: str) -> bool:
        raise NotImplementedError


class Joined:
    """The process of a client."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    def tell(self, **about: Any) -> None:
        self.send({"holdfast": about})

    def send(self, message: object) -> None:
        self.writer.write(json.dumps(message).encode() + b"\n")

    async def read(self) -> Any:
        """The next line; None at the end."""
        with anyio.fail_after(20), suppress(ConnectionResetError):
            line = await self._reader.readline()
            return json.loads(line) if line else None

    async def ask(self, key: int, method: str, **params: Any) -> Any:
        self.send({"jsonrpc": "2.0", "id": key, "method": method, "params": params})
        while (answer := await self.read()).get("id") != key:
            pass
        return answer["result"]


class Scene:
    server: JoinServer

    def __init__(self, place: Place, around: Surroundings) -> None:
        self.place, self.around = place, around
        self.changes = 0

    def changed(self) -> None:
        self.changes += 1

    @asynccontextmanager
    async def joined(self, hello: Mapping[str, Any] = HELLO, **begin: Any) -> AsyncIterator[tuple[Joined, Any]]:
        reader, writer = await asyncio.open_unix_connection(str(self.place.path))
        client = Joined(reader, writer)
        client.tell(**hello)
        answer = await client.read()
        if answer is not None and "error" not in answer["holdfast"]:
            client.tell(**BEGIN | begin)
        try:
            yield client, answer and answer["holdfast"]
        finally:
            writer.close()


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    place, around = Place(tmp_path / "socket"), Surroundings()
    async with running("legacy") as origin, front({"o": {"url": origin.url}}, profiles={"work": ["o/echo"]}) as served:
        scene = Scene(place, around)
        scene.server = JoinServer(
            served.app.state.front, place, around, around, version="1.2", background=True, changed=scene.changed
        )
        serving = asyncio.create_task(scene.server.run())
        await came_true(place.path.exists)
        yield scene
        serving.cancel()
        await asyncio.wait([serving])
    assert place.closed == 1, "a second time would take the name from the next hub"


@pytest.mark.requirement("DX-8")
async def test_a_client_that_joined_is_served_and_shown_until_it_leaves(scene: Scene) -> None:
    async with scene.joined() as (client, answer):
        assert answer == {
            "join": PROTOCOL, "version": "1.2", "pid": os.getpid(), "background": True, "wants": ["OTHER", "TOKEN"],
        }  # fmt: skip
        shaken = await client.ask(1, **INITIALIZE["params"], method="initialize")  # type: ignore[arg-type]
        assert shaken["serverInfo"]["name"] == "holdfast"
        called = await client.ask(2, "tools/call", name="o__echo", arguments={"text": "hi"})
        assert called["content"][0]["text"] == "hi"
        (shown,) = scene.server.clients
        assert (shown.program, shown.folder, shown.pid) == ("editor", "/home/ann", 7)
        before = scene.changes
    await came_true(lambda: not scene.server.clients)
    assert scene.changes > before > 0
    assert scene.around.offered == [("the client in /home/ann", {"TOKEN": "t"})]


@pytest.mark.requirement("SEC-4")
async def test_a_message_that_is_too_long_is_refused_under_its_id_and_the_client_goes_on(scene: Scene) -> None:
    async with scene.joined() as (client, _):
        await client.ask(1, **INITIALIZE["params"], method="initialize")  # type: ignore[arg-type]
        client.writer.write(b'{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"x":"')
        for _ in range(17):
            client.writer.write(b"x" * (1 << 20))
            await client.writer.drain()
        client.writer.write(b'"}}\n')
        refused = await client.read()
        assert refused["id"] == 2
        assert "is refused" in refused["error"]["message"]
        assert await client.ask(3, "ping") == {}


@pytest.mark.requirement("SEC-4")
async def test_a_process_whose_hello_is_too_long_is_disconnected(scene: Scene) -> None:
    async with scene.joined({**HELLO, "folder": "x" * (17 << 20)}) as (_, answer):
        assert answer is None


@pytest.mark.requirement("DX-8")
async def test_clients_are_shown_in_the_order_in_which_they_came(scene: Scene) -> None:
    async with AsyncExitStack() as open_ones:
        for pid in (30, 10, 20):
            client, _ = await open_ones.enter_async_context(scene.joined({**HELLO, "pid": pid}))
            await client.ask(1, **INITIALIZE["params"], method="initialize")  # type: ignore[arg-type]
        assert [one.pid for one in scene.server.clients] == [30, 10, 20]


@pytest.mark.requirement("DX-9")
@pytest.mark.parametrize("has_room", [True, False])
async def test_a_client_is_in_its_folder_while_it_is_connected(scene: Scene, has_room: bool) -> None:
    scene.around.has_room = has_room
    async with scene.joined({**HELLO, "cwd": "/projects/a", "tools": "find"}) as (client, _):
        await client.ask(1, **INITIALIZE["params"], method="initialize")  # type: ignore[arg-type]
        assert scene.around.inside == ["/projects/a"]
        assert [one.folder for one in scene.server.clients] == ["/projects/a"]
        listed = await client.ask(2, "tools/list")
        assert listed["tools"][0]["name"] == "find_tools"
    await came_true(lambda: not scene.server.clients)
    assert scene.around.inside == ([] if has_room else ["/projects/a"])


@pytest.mark.parametrize(
    ("hello", "words"),
    [
        ({"join": 99}, "another version"),
        ({**HELLO, "tools": "some"}, "there is no endpoint with `tools=some`: write tools=all or tools=find"),
        ({**HELLO, "profile": "gone"}, "there is no profile 'gone'; known: work"),
        ({**HELLO, "folder": "/nowhere"}, "--folder names `/nowhere`, which is no folder"),
    ],
)
async def test_a_client_that_asks_for_what_is_not_there_is_told_so(
    scene: Scene, hello: dict[str, Any], words: str
) -> None:
    async with scene.joined(hello) as (client, answer):
        assert words in answer["error"]
        assert await client.read() is None
    assert scene.server.clients == []


async def test_a_profile_that_is_there_is_shown(scene: Scene) -> None:
    async with scene.joined({**HELLO, "profile": "work"}) as (client, _):
        await client.ask(1, **INITIALIZE["params"], method="initialize")  # type: ignore[arg-type]
        listed = await client.ask(2, "tools/list")
    assert [tool["name"] for tool in listed["tools"]] == ["o__echo", "holdfast_status"]


@pytest.mark.parametrize("line", [b"no json\n", b'{"holdfast": 7}\n', b"[]\n", b"{}\n", b""])
async def test_what_is_no_hello_ends_its_connection_alone(scene: Scene, line: bytes) -> None:
    reader, writer = await asyncio.open_unix_connection(str(scene.place.path))
    writer.write(line)
    writer.write_eof()
    with anyio.fail_after(20):
        assert await reader.read() == b""
    writer.close()
    async with scene.joined() as (client, _):
        assert await client.ask(1, "ping") == {}


@pytest.mark.requirement("DX-8")
async def test_a_process_that_is_killed_before_it_read_its_answers_ends_its_connection_alone(scene: Scene) -> None:
    async with scene.joined() as (first, _):
        await first.ask(1, "ping")
        with socket.socket(socket.AF_UNIX) as killed:
            killed.connect(str(scene.place.path))
            for line in ({"holdfast": HELLO}, {"holdfast": BEGIN}, {"jsonrpc": "2.0", "id": 1, "method": "ping"}):
                killed.sendall(json.dumps(line).encode() + b"\n")
            with anyio.fail_after(20):
                await came_true(lambda: len(_unread(killed).splitlines()) == 2)
        with anyio.fail_after(20):
            await came_true(lambda: len(scene.server.clients) == 1)
        await first.ask(2, "ping")


def _unread(one: socket.socket) -> bytes:
    """What came, which stays unread: such a connection is reset when it is closed."""
    with suppress(BlockingIOError):
        return one.recv(1 << 16, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    return b""


BEGUN_BEFORE = {"handshake": json.dumps({"jsonrpc": "2.0", "id": 1, **INITIALIZE})}


@pytest.mark.requirement("DX-8")
@pytest.mark.parametrize(
    ("hello", "begun"),
    [
        ({}, {"environment": ["TOKEN"]}),
        ({}, {"sent": "many"}),
        ({}, {"sent": 10**400}),
        ({}, {"question": None}),
        ({}, {"question": float("inf")}),
        ({}, {"handshake": 7}),
        ({}, {"handshake": "no json", "level": 3}),
        ({}, {**BEGUN_BEFORE, "subscribed": 7}),
        ({}, {**BEGUN_BEFORE, "listed": [["a"], {}]}),
        ({}, {**BEGUN_BEFORE, "level": {"a": 1}}),
        ({"pid": float("inf")}, {}),
        ({"pid": 10**400}, {}),
        ({"pid": "x", "folder": ["/projects"]}, {}),
    ],
)
async def test_a_process_that_says_what_was_not_agreed_ends_its_connection_alone(
    scene: Scene, hello: dict[str, Any], begun: dict[str, Any]
) -> None:
    async with scene.joined() as (first, _):
        await first.ask(1, "ping")
        with socket.socket(socket.AF_UNIX) as odd:
            odd.connect(str(scene.place.path))
            with suppress(BrokenPipeError):
                for line in ({"holdfast": HELLO | hello}, {"holdfast": BEGIN | begun}):
                    odd.sendall(json.dumps(line).encode() + b"\n")
            await anyio.wait_readable(odd)
            odd.shutdown(socket.SHUT_WR)
            with anyio.fail_after(20), suppress(ConnectionResetError):
                await anyio.wait_readable(odd)
                while odd.recv(1 << 16):
                    await anyio.wait_readable(odd)
        await first.ask(2, "ping")
        async with scene.joined() as (other, _):
            await other.ask(1, "ping")


async def test_over_the_limit_of_clients_the_next_one_is_refused(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join, "MOST_CLIENTS", 1)
    async with scene.joined() as (first, _):
        await first.ask(1, "ping")
        async with scene.joined() as (_, answer):
            assert answer is None


@pytest.mark.requirement("SEC-11")
async def test_a_hub_without_a_descriptor_left_lets_clients_join_when_it_has_one(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Listener, "faults", [errno.EMFILE, errno.ECONNABORTED])
    async with scene.joined() as (client, _):
        await client.ask(1, "ping")
    assert Listener.faults == []


async def test_a_client_that_had_another_hub_goes_on_as_it_was(scene: Scene) -> None:
    handshake = json.dumps({"jsonrpc": "2.0", "id": 1, **INITIALIZE})
    call = {"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": {"name": "o__bump", "arguments": {}}}
    before: dict[str, Any] = {
        "handshake": handshake,
        "level": "error",
        "subscribed": ["note://one"],
        "listed": ["tools/list", "x"],
    }
    async with scene.joined(HELLO, **before, sent=1) as (client, _):
        client.send(call)
        told: list[Any] = []
        while len(told) < 2:
            told.append(await client.read())
        assert "notifications/tools/list_changed" in {one.get("method") for one in told}
        (answer,) = [one for one in told if one.get("id") == 5]
        assert "Its outcome is uncertain" in answer["result"]["content"][0]["text"], "another hub may have sent it"
        assert [one.program for one in scene.server.clients] == ["editor"]


async def test_a_hub_that_leaves_tells_its_clients_and_waits_for_them(scene: Scene) -> None:
    async with scene.joined() as (client, _):
        await client.ask(1, "ping")
        assert not await scene.server.leave(0), "one is still here"
        assert await client.read() == {"holdfast": {"leaving": True}}
    assert await scene.server.leave(20)
    with pytest.raises(ConnectionRefusedError):
        async with scene.joined():
            pass


# What is written to a socket.


class Transport:
    def __init__(self) -> None:
        self.unread = 0

    def get_write_buffer_size(self) -> int:
        return self.unread


class Writer:
    def __init__(self, reads: int = 0) -> None:
        """``reads`` bytes of what is unread are read each time that the hub waits for it."""
        self.transport = Transport()
        self.wrote: list[bytes] = []
        self.reads = reads
        self.waits = 0
        self.closing = False

    async def drain(self) -> None:
        self.waits += 1
        self.transport.unread -= self.reads

    def is_closing(self) -> bool:
        return self.closing

    def write(self, line: bytes) -> None:
        self.wrote.append(line)


async def test_what_a_client_leaves_unread_is_bounded() -> None:
    raw, told = Writer(), []
    writer = SocketWriter(raw, lambda: told.append(1), limit=10)  # type: ignore[arg-type]
    assert writer.write(b"x" * 20), "nothing is unread"
    raw.transport.unread = 5
    assert writer.write(b"x" * 5)
    assert not writer.write(b"x" * 6)
    assert writer.write(b"x" * 6, extra=1)
    assert (len(raw.wrote), len(told)) == (3, 3)


@pytest.mark.parametrize(
    ("reads", "closing", "waits", "left"), [(10, False, 3, 0), (0, False, 1, 30), (10, True, 0, 30)]
)
async def test_at_the_end_a_hub_waits_for_a_client_that_reads(reads: int, closing: bool, waits: int, left: int) -> None:
    raw = Writer(reads)
    raw.transport.unread, raw.closing = 30, closing
    await SocketWriter(raw, lambda: None).close()  # type: ignore[arg-type]
    assert (raw.waits, raw.transport.unread) == (waits, left)


@pytest.mark.parametrize(
    ("line", "heads"),
    [
        (b'{"id": 1, "method": "a"}', [(1, "a", False)]),
        (b'{"method": "a"}', [(None, "a", False)]),
        (b'{"id": "x", "error": {}}', [("x", None, True)]),
        (b'{"id": true, "method": 7}', [(None, None, False)]),
        (b'[{"id": 1, "result": {}}, 7]', [(1, None, False)]),
        (b"no json", []),
        (b'{"jsonrpc":"2.0","id":7,"result":' + b" " * 5_000 + b"{}}", [(7, None, False)]),
        (b'{"jsonrpc":"2.0","id":"a","error":' + b" " * 5_000 + b"{}}", [("a", None, True)]),
        (b'{"id": 3, "method": "big", "params": "' + b"x" * 3_000_000 + b'"}', [(3, "big", False)]),
        (b'{"method": "big", "params": "' + b"x" * 3_000_000 + b'", "id": 4}', [(4, "big", False)]),
        (b'{"params": "' + b"x" * 3_000_000 + b'"}', [(None, None, False)]),
    ],
    ids=range(11),
)
def test_a_line_is_known_by_its_head_also_where_it_is_large(line: bytes, heads: list[tuple[Any, ...]]) -> None:
    assert [(one.id, one.method, one.failed) for one in heads_of(line)] == heads


class Told:
    """A server of those that joined, as far as one connection needs it; it counts what it is told."""

    def __init__(self) -> None:
        limits = SimpleNamespace(message_bytes=1_000)
        config = SimpleNamespace(settings=SimpleNamespace(limits=limits))
        self.front = SimpleNamespace(hub=SimpleNamespace(config=config))
        self.changes = 0

    def changed(self) -> None:
        self.changes += 1


async def test_people_are_told_of_a_client_when_what_is_shown_of_it_changed_and_not_with_each_line() -> None:
    told, reader, writer = Told(), asyncio.StreamReader(), cast("Any", None)
    connection = join._Connection(cast("Any", told), cast("Any", None), reader, writer)
    connection._look()
    assert told.changes == 0, "it did not begin"
    exchange = SimpleNamespace(program="", roots=None)
    connection._exchange = cast("Any", exchange)
    counted = []
    for program in ("", "", "editor", "editor", "other"):
        exchange.program = program
        connection._look()
        counted.append(told.changes)
    assert counted == [1, 1, 2, 2, 3]


async def test_a_client_is_shown_with_the_folder_that_is_known_best_and_a_process_that_can_be_one() -> None:
    connection = join._Connection(cast("Any", Told()), cast("Any", None), asyncio.StreamReader(), cast("Any", None))

    def shown(**hello: Any) -> tuple[str, str, int]:
        connection._hello = hello
        found = connection.shown
        return found.program, found.folder, found.pid

    assert shown() == ("", "", 0)
    assert connection._name() == "the client of process 0"
    assert shown(cwd="/home/ann", pid=7) == ("", "/home/ann", 7)
    assert connection._name() == "the client in /home/ann"
    for pid, known in ((1, 1), (0, 0), (-1, 0), ("7", 0), (join.LARGEST_PID, join.LARGEST_PID)):
        assert shown(pid=pid)[2] == known
    assert shown(pid=join.LARGEST_PID + 1)[2] == 0
    assert shown(cwd="x" * (join.LONGEST_FOLDER + 1))[1] == "x" * join.LONGEST_FOLDER
    exchange = SimpleNamespace(program="editor", roots=None)
    connection._exchange = cast("Any", exchange)
    assert shown(cwd="/cwd") == ("editor", "/cwd", 0)
    exchange.roots = SimpleNamespace(folder="")
    assert shown(cwd="/cwd")[1] == "/cwd"
    exchange.roots = SimpleNamespace(folder="/roots")
    assert shown(cwd="/cwd")[1] == "/roots"
    connection._folder = "/project"
    assert shown(cwd="/cwd")[1] == "/project"


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (b"", EOFError),
        (b"[]\n", TypeError),
        (b'{"holdfast":7}\n', TypeError),
        (b"{}\n", KeyError),
        (b"no json\n", ValueError),
    ],
)
def test_a_line_of_the_process_itself_is_an_object_in_an_object(line: bytes, fault: type[Exception]) -> None:
    with pytest.raises(fault):
        join._own_line(line)
    assert join._own_line(b'{"holdfast":{"join":1}}\n') == {"join": 1}


def test_of_faults_that_came_together_the_first_one_is_named() -> None:
    inner = ExceptionGroup("inner", [KeyError("a"), ValueError("b")])
    assert join._cause(ExceptionGroup("outer", [inner, OSError()])) == "KeyError"
    assert join._cause(OSError()) == "OSError"


def test_a_line_of_a_socket_may_be_as_large_as_its_bound_and_any_line_goes_to_one_who_has_read_all() -> None:
    written: list[bytes] = []
    size = 0
    transport = SimpleNamespace(get_write_buffer_size=lambda: size)
    writer = SocketWriter(
        cast("Any", SimpleNamespace(transport=transport, write=written.append)), lambda: written.append(b"!"), limit=10
    )
    assert writer.write(b"x" * 50)
    assert written == [b"x" * 50, b"!"]
    size = 6
    assert (writer.unread, writer.write(b"1234"), writer.write(b"12345")) == (6, True, False)
    assert (writer.write(b"12345", extra=1), writer.write(b"123456", extra=1)) == (True, False)
    assert written[2:] == [b"1234", b"!", b"12345", b"!"]
