"""Replicas send requests on to each other: plain HTTP, over TLS that only this fleet can speak, or a private socket."""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest

from holdfast.access import ClientKey, Principal
from holdfast.access.quotas import Quotas
from holdfast.endpoint import EndpointAddress
from holdfast.errors import HoldfastError, UsageError
from holdfast.fleet import (
    ABOUT_HEADER,
    PRINCIPAL_HEADER,
    PeerAddress,
    PeerFailed,
    PeerLeaves,
    PeerRefused,
    Peers,
    PeerUnreachable,
    peers as peers_module,
    written,
)
from holdfast.fleet.peers import LEAVES_SECONDS, ClientHomeFinder, bind_peer, bind_unix
from holdfast.front import tls
from holdfast.front.peer_requests import PeerListener, refuse_forwarded
from holdfast.front.requests import BodyBudget, Reply, Request
from holdfast.identity import FleetIdentity
from holdfast.keys import KeyRing
from tests.harness.waiting import all_blocked, came_true

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("FLEET-5")]

KEY, OTHER = b"the session key of this fleet, long enough", b"the session key of another fleet, long enough"
LOCAL = PeerAddress.parse("tcp://127.0.0.1:0")
PATIENCE = 20.0


class Endpoints:
    """A hub that notes what comes, and answers as a test says."""

    def __init__(self) -> None:
        self.refusing = False
        self.bodies = BodyBudget(Quotas())
        self.came: list[tuple[Request, Principal]] = []
        self.released: list[ClientKey] = []
        self.gone = anyio.Event()
        self.go_on = anyio.Event()

    def endpoint_of(self, address: EndpointAddress) -> Endpoints | None:
        return None if address.server == "unknown" else self

    def release(self, owner: ClientKey) -> None:
        self.released.append(owner)

    async def serve(self, request: Request, reply: Reply) -> None:
        self.came.append((request, request.principal))
        body = await request.body(1 << 20)
        match request.headers.get("x-act"):
            case "moved":
                refuse_forwarded(reply, 421, "the connections of this client are on another replica now")
            case "abort":
                reply.abort()
            case "stream":
                with request.ending_with_client(self.gone.set):
                    reply.event(b'{"n":1}')
                    await self.go_on.wait()
                reply.event(b'{"n":2}')
                reply.end()
            case _:
                reply.plain(200, b"echo " + body)


class OfUsers:
    """The endpoints for the slots of users at other replicas."""

    async def admit(self, request: Request, reply: Reply) -> OfUsers:
        return self

    async def serve(self, request: Request, reply: Reply) -> None:
        reply.plain(200, b"as a hub")


class Fleet:
    """Peers that know each other's addresses."""

    def __init__(self) -> None:
        self.known: dict[str, str] = {}
        self.joined: dict[str, str] = {}
        """Replicas that are known after a second look."""
        self.hubs: dict[str, Endpoints] = {}
        self.listeners: dict[str, PeerListener] = {}
        self.stack = AsyncExitStack()

    def addresses(self) -> dict[str, str]:
        return self.known

    async def look_again(self) -> None:
        self.known |= self.joined

    async def add(
        self, name: str, *, keys: Callable[[], KeyRing] = lambda: KeyRing([KEY]), at: PeerAddress | None = LOCAL
    ) -> Peers:
        peers = Peers(FleetIdentity(keys, name), advertise=at)
        peers.join(cast("Any", self))
        self.known[name] = peers.address
        tasks = await self.stack.enter_async_context(anyio.create_task_group())
        self.stack.callback(tasks.cancel_scope.cancel)
        hub = self.hubs[name] = Endpoints()
        paths = cast("Any", OfUsers())
        listener = self.listeners[name] = PeerListener(cast("Any", hub), peers, paths, lambda user: user == "ada")
        tasks.start_soon(peers.run)
        tasks.start_soon(listener.run)
        await all_blocked()
        return peers


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    made = Fleet()
    with anyio.fail_after(PATIENCE):
        async with made.stack:
            yield made


async def send(
    peers: Peers, to: str, body: bytes = b"hello", *, act: str = "", path: str = "/mcp", about: object = None
) -> bytes:
    principal = {"name": "ada", "groups": ["g"], "scopes": ["s"], "source": "token"}
    headers = {"content-type": "application/json", PRINCIPAL_HEADER: written(principal), "x-act": act}
    headers[ABOUT_HEADER] = json.dumps(about)
    async with peers.request(to, "POST", path, headers, body) as answer:
        return bytes(await answer.read(1 << 20) or b"")


@pytest.mark.parametrize("anyio_backend", [("asyncio", {"use_uvloop": True})], ids=["uvloop"])
async def test_replicas_reach_each_other_on_the_event_loop_of_a_served_hub(fleet: Fleet, tmp_path: Path) -> None:
    a = await fleet.add("a")
    await fleet.add("b")
    await fleet.add("c", at=PeerAddress.parse(f"unix:{tmp_path}/c"))
    assert [await send(a, to) for to in ("b", "c")] == [b"echo hello"] * 2


async def test_a_request_is_sent_on_as_it_is_with_its_principal_and_goes_no_further(fleet: Fleet) -> None:
    a = await fleet.add("a")
    await fleet.add("b")
    assert await send(a, "b", path="/servers/x/mcp") == b"echo hello"
    ((request, principal),) = fleet.hubs["b"].came
    assert (request.head.method, request.head.path, request.forwarded) == ("POST", "/servers/x/mcp", True)
    assert principal == Principal(name="ada", groups=frozenset("g"), scopes=frozenset("s"), source="token")
    assert not {name for name in request.headers if name.startswith("holdfast-")}
    assert await send(a, "b", b"again") == b"echo again"
    assert len(fleet.listeners["b"].connections) == 1, "the connection is kept"


async def test_workers_of_one_machine_use_private_sockets(fleet: Fleet, tmp_path: Path) -> None:
    a = await fleet.add("a")
    await fleet.add("b", at=PeerAddress.parse(f"unix:{tmp_path}/b"))
    assert await send(a, "b") == b"echo hello"
    assert (tmp_path / "b").stat().st_mode & 0o777 == 0o600


async def test_a_stream_comes_piece_by_piece_and_ends_with_its_reader(fleet: Fleet) -> None:
    a = await fleet.add("a")
    await fleet.add("b")
    hub = fleet.hubs["b"]
    async with a.request("b", "POST", "/mcp", {"x-act": "stream"}, b"") as answer:
        assert b'{"n":1}' in bytes(await answer.next_chunk() or b"")
        hub.go_on.set()
        rest = b""
        while (piece := await answer.next_chunk()) is not None:
            rest += piece
        assert b'{"n":2}' in rest
    hub.go_on = anyio.Event()
    async with a.request("b", "POST", "/mcp", {"x-act": "stream"}, b"") as answer:
        await answer.next_chunk()
    await hub.gone.wait()


async def test_a_replica_with_another_key_is_not_heard(fleet: Fleet) -> None:
    a, stranger = await fleet.add("a"), await fleet.add("b", keys=lambda: KeyRing([OTHER]))
    for one, to in ((a, "b"), (stranger, "a")):
        with pytest.raises((PeerUnreachable, PeerFailed)):
            await send(one, to)
    assert not fleet.hubs["a"].came
    assert not fleet.hubs["b"].came


async def test_an_address_that_another_replica_took_over_gets_nothing(fleet: Fleet, tmp_path: Path) -> None:
    a = await fleet.add("a")
    await fleet.add("c")
    await fleet.add("d", at=PeerAddress.parse(f"unix:{tmp_path}/d"))
    fleet.known |= {"b": fleet.known["c"], "e": fleet.known["d"]}
    with pytest.raises(PeerUnreachable, match="another replica answers there: c"):
        await send(a, "b")
    with pytest.raises(PeerRefused, match="another replica has this address now"):
        await send(a, "e")
    assert not fleet.hubs["c"].came
    assert not fleet.hubs["d"].came


async def test_what_cannot_be_done_is_refused_with_its_reason(fleet: Fleet) -> None:
    a = await fleet.add("a")
    await fleet.add("b")
    await fleet.add("silent", at=None)
    with pytest.raises(PeerRefused, match="has no such server") as unknown:
        await send(a, "b", about={"endpoint": "unknown"})
    assert not unknown.value.moved
    with pytest.raises(PeerRefused, match="on another replica now") as moved:
        await send(a, "b", act="moved")
    assert moved.value.moved
    with pytest.raises(PeerRefused, match="it knows no dance"):
        await a.ask("b", "dance", {}, within=5)
    fleet.hubs["b"].refusing = True
    with pytest.raises(PeerLeaves, match="shutting down"):
        await send(a, "b")
    assert a.leaving == {"b"}
    with pytest.raises(PeerUnreachable, match="started without --advertise"):
        await send(a, "silent")
    with pytest.raises(PeerUnreachable, match="is not present"):
        await send(a, "nobody")


async def test_a_replica_that_joined_a_moment_ago_is_looked_for_before_it_counts_as_gone(fleet: Fleet) -> None:
    a = await fleet.add("a")
    await fleet.add("b")
    fleet.joined["b"] = fleet.known.pop("b")
    assert await send(a, "b") == b"echo hello"


async def test_a_replica_that_is_gone_got_nothing_and_one_that_breaks_off_may_have_acted(fleet: Fleet) -> None:
    a = await fleet.add("a")
    await fleet.add("b")
    with pytest.raises(PeerFailed):
        await send(a, "b", act="abort")
    fleet.listeners["b"].close()
    with pytest.raises(PeerUnreachable, match="the replica b cannot be reached at tcp://127"):
        await send(a, "b")
    assert len(fleet.hubs["b"].came) == 1, "nothing is sent twice"


async def test_all_replicas_are_asked_and_one_that_does_not_answer_is_left_out(fleet: Fleet) -> None:
    a = await fleet.add("a")
    for name in ("b", "c", "d"):
        await fleet.add(name)
    fleet.listeners["c"].close()
    answers = await a.ask_all("forget", {"principal": "ada", "key": "k"}, within=5)
    assert answers == {"b": {}, "d": {}}
    assert fleet.hubs["b"].released == fleet.hubs["d"].released == [ClientKey("ada", "k")]


async def test_a_replica_that_started_again_is_asked_at_its_new_address_and_the_old_connection_ends(
    fleet: Fleet, tmp_path: Path
) -> None:
    a = await fleet.add("a")
    await fleet.add("b")
    assert await send(a, "b") == b"echo hello"
    (before,), first = fleet.listeners["b"].connections, fleet.hubs["b"]
    await fleet.add("b", at=PeerAddress.parse(f"unix:{tmp_path}/b"))
    assert await send(a, "b") == b"echo hello"
    assert (len(first.came), len(fleet.hubs["b"].came)) == (1, 1)
    await came_true(lambda: before.out.lost)


async def test_the_connections_to_a_replica_that_left_end_by_themselves(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers_module, "WATCH_SECONDS", 0.01)
    a = await fleet.add("a")
    for name in ("b", "c"):
        await fleet.add(name)
        assert await send(a, name) == b"echo hello"
    ((left,), (stays,)) = (fleet.listeners[name].connections for name in ("b", "c"))
    del fleet.known["b"]
    await came_true(lambda: left.out.lost)
    assert await send(a, "c") == b"echo hello"
    assert not stays.out.lost


async def test_a_replica_that_is_gone_while_it_is_dialed_got_nothing(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers_module, "WATCH_SECONDS", 0.01)
    monkeypatch.setattr(peers_module, "CONNECT_SECONDS", 0.5)
    a = await fleet.add("a")

    async def keep_silent(stream: anyio.abc.SocketStream) -> None:
        del fleet.known["b"]  # it ended, and its connections are closed within 0.01 s
        async with stream:
            await anyio.sleep_forever()

    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, keep_silent)
        fleet.known["b"] = f"tcp://127.0.0.1:{listener.extra(anyio.abc.SocketAttribute.local_port)}"
        with pytest.raises(PeerUnreachable, match="the replica b cannot be reached at tcp://127"):
            await send(a, "b")
        tasks.cancel_scope.cancel()


async def test_a_replica_that_leaves_is_remembered_for_a_moment_and_only_if_it_is_present(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = await fleet.add("a")
    await fleet.add("b")
    now = anyio.current_time()
    monkeypatch.setattr(anyio, "current_time", lambda: now)
    assert a.leaving == frozenset()
    a.note_leaving(["b", "unknown"])
    assert a.leaving == {"b"}
    now += LEAVES_SECONDS - 0.5
    a.note_leaving(["b"])  # said once more, by a replica that heard of it from this one
    assert a.leaving == {"b"}
    now += 0.5
    assert a.leaving == frozenset()


async def test_a_replica_that_cannot_be_asked_is_present_and_is_no_one_to_ask(fleet: Fleet) -> None:
    a = await fleet.add("a")
    await fleet.add("c")
    await fleet.add("b", at=None)
    assert (a.present, a.others) == (("b", "c"), ("c",))


async def test_an_answer_that_is_late_or_means_nothing_is_a_failure_and_no_answer(fleet: Fleet, tmp_path: Path) -> None:
    a = await fleet.add("a")
    head = b"HTTP/1.1 %d x\r\nconnection: close\r\ncontent-length: 3\r\n\r\n[1]"
    answers = [head % 500, head % 200]

    async def answer(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            await stream.receive()
            await (stream.send(answers.pop(0)) if answers else anyio.sleep_forever())

    async with await anyio.create_unix_listener(tmp_path / "odd") as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, answer)
        fleet.known["odd"] = f"unix:{tmp_path}/odd"
        with pytest.raises(PeerFailed, match="it answered 500"):
            await a.ask("odd", "forget", {}, within=5)
        assert await a.ask("odd", "forget", {}, within=5) == {}
        with pytest.raises(PeerFailed, match=r"no answer within 0\.05 s"):
            await a.ask("odd", "forget", {}, within=0.05)
        tasks.cancel_scope.cancel()


async def test_connections_of_a_removed_key_end_and_the_next_request_makes_others(fleet: Fleet) -> None:
    ring = [KeyRing([OTHER, KEY])]
    a = await fleet.add("a", keys=lambda: ring[0])
    await fleet.add("b", keys=lambda: ring[0])
    assert await send(a, "b") == b"echo hello"
    (first,) = fleet.listeners["b"].connections
    ring[0] = KeyRing([KEY])
    await came_true(lambda: first.out.lost)
    assert await send(a, "b") == b"echo hello"


async def test_the_system_finds_out_that_the_machine_of_a_replica_is_gone(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_: list[int] = []
    real = socket.socket.setsockopt

    def noted(self: socket.socket, *arguments: int) -> None:
        set_.append(arguments[1])
        real(self, *arguments)

    a = await fleet.add("a")
    await fleet.add("b")
    monkeypatch.setattr("asyncio.trsock.TransportSocket.setsockopt", lambda one, *rest: noted(one._sock, *rest))
    await send(a, "b")
    assert {socket.SO_KEEPALIVE, socket.TCP_KEEPIDLE, socket.TCP_USER_TIMEOUT} <= set(set_)


@asynccontextmanager
async def bare(address: str) -> AsyncIterator[anyio.abc.SocketStream]:
    at = PeerAddress.parse(address)
    async with await anyio.connect_tcp(at.host, at.port) as stream:
        yield stream


@pytest.mark.requirement("SEC-11")
async def test_a_stranger_comes_to_no_request_and_its_silence_is_cut(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "HANDSHAKE_SECONDS", 0.2)
    a = await fleet.add("a")
    async with bare(a.address) as silent:
        with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
            await silent.receive()
    async with bare(a.address) as plain:
        await plain.send(b"POST /mcp HTTP/1.1\r\nhost: a\r\n\r\n")
        assert b"this port serves TLS" in await plain.receive()
    unproven = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    unproven.check_hostname, unproven.verify_mode = False, ssl.CERT_NONE
    at = PeerAddress.parse(a.address)

    async def asks() -> None:
        async with await anyio.connect_tcp(at.host, at.port, ssl_context=unproven) as one:
            await one.send(b"POST /mcp HTTP/1.1\r\nhost: a\r\nholdfast-to: a\r\ncontent-length: 0\r\n\r\n")
            await one.receive()

    with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError, ssl.SSLError)):
        await asks()
    assert not fleet.hubs["a"].came


LONGEST_PATH = "/" + "x" * 99


@pytest.mark.parametrize("text", ["", "10.0.0.1:80", "http://a:1", "tcp://a", "tcp://:1", "tcp://a:x", "tcp://a:1/x",
                                  "tcp://a:1?x", "tcp://a:1#x", "tcp://ada@a:1", "unix:relative", "unix:/a\0b",
                                  f"unix:{LONGEST_PATH}x"])  # fmt: skip
def test_a_bad_address_is_refused_with_a_hint(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        PeerAddress.parse(text)
    assert "tcp://HOST:PORT" in (refused.value.hint or "")


def test_an_address_of_ipv6_needs_no_brackets() -> None:
    assert str(PeerAddress.parse("tcp://fd00::12:8766")) == "tcp://[fd00::12]:8766"
    assert PeerAddress.parse("tcp://[::1]:0") == PeerAddress(host="::1", port=0)


def test_an_address_is_written_as_it_is_read() -> None:
    for text in ("tcp://replica-1.example:8766", "tcp://10.0.0.1:80", f"unix:{LONGEST_PATH}"):
        assert str(PeerAddress.parse(text)) == text


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ("tcp://127.0.0.1:0", "127.0.0.1"),
        ("tcp://[::1]:0", "::1"),
        ("tcp://localhost:0", "0.0.0.0"),
        ("tcp://192.0.2.1:0", "0.0.0.0"),
        ("tcp://[2001:db8::1]:0", "::"),
    ],
    ids=["own", "own-v6", "a-name", "translated", "translated-v6"],
)
def test_an_address_of_another_machine_is_listened_for_on_all_interfaces(text: str, bound: str) -> None:
    listener, told = bind_peer(PeerAddress.parse(text))
    with listener:
        host, port = listener.getsockname()[:2]
    assert (host, told) == (bound, PeerAddress(host=PeerAddress.parse(text).host, port=port))


def test_a_private_socket_replaces_one_that_a_killed_hub_left_and_no_other_file(tmp_path: Path) -> None:
    path = tmp_path / "replica"
    bind_unix(path).close()
    assert path.is_socket()
    with bind_unix(path), pytest.raises(OSError, match="in use"):
        bind_unix(path)
    path.unlink()
    path.write_text("a file of the user")
    with pytest.raises(OSError, match="in use"):
        bind_unix(path)
    assert path.read_text() == "a file of the user"


def test_an_address_in_use_is_named() -> None:
    first = Peers(FleetIdentity(lambda: KeyRing([KEY]), "a"), advertise=LOCAL)
    with pytest.raises(HoldfastError, match="cannot listen for other replicas on tcp"):
        Peers(FleetIdentity(lambda: KeyRing([KEY]), "b"), advertise=PeerAddress.parse(first.address))
    assert first.listener is not None
    first.listener.close()


async def test_clients_that_left_are_not_kept_while_no_replica_comes_or_goes() -> None:
    """A worker serves for months, and each session of a per-client server is another client."""
    clients = SimpleNamespace(servers_of={b"stays": {"s"}}, release=lambda owner: None)
    hub = SimpleNamespace(registry=SimpleNamespace(clients=clients, users=SimpleNamespace(review_homes=lambda: None)))
    presence = SimpleNamespace(watch=lambda changed: None, possible_homes=frozenset({"here"}))
    fleet = SimpleNamespace(replica="here", presence=presence, member=SimpleNamespace(about={}))
    homes = ClientHomeFinder(cast("Any", hub), cast("Any", fleet), cast("Any", SimpleNamespace(address="unix:/here")))
    for owner in (b"stays", *(number.to_bytes(4) for number in range(5_000))):
        await homes.check(cast("Any", SimpleNamespace(owner=owner, home="")))
    assert b"stays" in homes._owners
    assert len(homes._owners) < 2_500


async def test_clients_whose_home_is_another_one_now_are_let_go_here_unless_this_replica_leaves() -> None:
    owners = [number.to_bytes(4) for number in range(100)]
    released, reviewed, watching = list[bytes](), list[bool](), list[Callable[[], None]]()
    clients = SimpleNamespace(servers_of={owner: {"s"} for owner in owners}, release=released.append)
    users = SimpleNamespace(review_homes=lambda: reviewed.append(True))
    hub = SimpleNamespace(registry=SimpleNamespace(clients=clients, users=users))
    presence = SimpleNamespace(watch=watching.append, possible_homes=frozenset({"here"}))
    about: dict[str, object] = {"leaving": True}
    fleet = SimpleNamespace(replica="here", presence=presence, member=SimpleNamespace(about=about))
    homes = ClientHomeFinder(cast("Any", hub), cast("Any", fleet), cast("Any", SimpleNamespace(address="unix:/here")))
    for owner in owners:
        await homes.check(cast("Any", SimpleNamespace(owner=owner, home="")))
    (review,) = watching
    presence.possible_homes = frozenset({"here", "there"})
    review()
    assert (released, reviewed) == ([], []), "what is in use stays to the end"
    about["leaving"] = False
    review()
    review()
    assert 20 < len(released) < 80
    assert set(homes._owners) == set(owners) - set(released)
    assert reviewed == [True], "once for each change"
