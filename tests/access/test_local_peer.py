"""The uid of a local peer: read from the kernel, for real sockets of real users."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from holdfast.access.connections import Admission, ClientPeer, ConnectionLimits, PeerUids, has_left
from holdfast.access.guard import AccessRules, Refused
from holdfast.front.app import create_app
from holdfast.hub.hub import Hub
from tests.harness.waiting import came_true
from tests.harness.web import serving

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the uid of a peer")

NOBODY = 65534

_CLIENT = """
import os, socket, sys
family, host, port, uid, source = sys.argv[1:6]
if int(uid) >= 0:
    os.setgroups([]); os.setgid(int(uid)); os.setuid(int(uid))
client = socket.socket(int(family))
if source:
    client.bind((source, 0))
client.connect((host, int(port)))
print("connected", flush=True)
if sys.stdin.readline().strip() == "send and close":
    client.sendall(b"GET / HTTP/1.1\\r\\n\\r\\n")
    client.close()
    print("closed", flush=True)
    sys.stdin.readline()
"""


@contextmanager
def connected(
    family: int = socket.AF_INET, host: str = "127.0.0.1", *, uid: int = -1, listen: str = "", source: str = ""
) -> Iterator[tuple[socket.socket, subprocess.Popen[str]]]:
    """A connection from a process of that user, as the server sees it."""
    dual = listen == "::"
    with socket.socket(socket.AF_INET6 if dual else family) as listener:
        if dual:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind((listen or host, 0))
        listener.listen(4)
        port = listener.getsockname()[1]
        arguments = [str(int(family)), host, str(port), str(uid), source]
        with subprocess.Popen(
            [sys.executable, "-c", _CLIENT, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as client:
            listener.settimeout(20)
            try:
                accepted, _ = listener.accept()
                assert client.stdout is not None
                assert client.stdout.readline() == "connected\n"
                with accepted:
                    yield accepted, client
            finally:
                client.kill()


@pytest.fixture(scope="module")
def uids() -> Iterator[PeerUids]:
    found = PeerUids.open()
    assert found is not None
    yield found
    found.close()


as_root = pytest.mark.skipif(os.geteuid() != 0, reason="to become another user takes root")


@pytest.mark.requirement("SEC-10")
@pytest.mark.parametrize(
    ("family", "host", "listen"),
    [(socket.AF_INET, "127.0.0.1", ""), (socket.AF_INET6, "::1", ""), (socket.AF_INET, "127.0.0.1", "::")],
    ids=["ipv4", "ipv6", "v4-mapped"],
)
@pytest.mark.parametrize("uid", [-1, pytest.param(NOBODY, marks=as_root), pytest.param(12345, marks=as_root)])
def test_the_uid_of_a_peer_is_that_of_its_process(
    uids: PeerUids, family: int, host: str, listen: str, uid: int
) -> None:
    with connected(family, host, uid=uid, listen=listen) as (accepted, _):
        assert uids.of(accepted) == (os.geteuid() if uid < 0 else uid)


@pytest.mark.requirement("SEC-10")
def test_a_peer_that_comes_from_another_local_address_is_known_too(uids: PeerUids) -> None:
    with connected(source="127.8.9.10") as (accepted, _):
        assert uids.of(accepted) == os.geteuid()


@pytest.mark.requirement("SEC-10")
def test_a_peer_that_sent_and_closed_is_not_taken_for_root(uids: PeerUids) -> None:
    with connected() as (accepted, client):
        assert client.stdin is not None
        assert client.stdout is not None
        assert not has_left(accepted)
        client.stdin.write("send and close\n")
        client.stdin.flush()
        assert client.stdout.readline() == "closed\n"
        assert uids.of(accepted) is None
        assert has_left(accepted)


@pytest.mark.requirement("SEC-10")
@pytest.mark.anyio
@pytest.mark.parametrize(("uid", "kind"), [(12345, "user"), (None, "unknown_user")])
async def test_a_peer_whose_user_is_not_known_is_refused_and_not_called_another(uid: int | None, kind: str) -> None:
    told: list[str] = []
    rules = AccessRules(None, {"localhost"}, uids={54321}, report=lambda kind, *_: told.append(kind))
    admission = Admission(ClientPeer("127.0.0.1", uid), ConnectionLimits())
    refused = await rules.check({"host": "localhost"}, admission=admission)
    assert isinstance(refused, Refused)
    assert (refused.status, told) == (403, [kind])
    assert ("uid 12345" in refused.reason) == ("--allow-uid 12345" in refused.hint) == (uid is not None)
    assert ("cannot be determined" in refused.reason) == (uid is None)


@pytest.mark.requirement("SEC-10")
@pytest.mark.anyio
async def test_a_probe_that_closes_at_once_is_no_refused_access(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", logger="holdfast")
    hub = Hub.from_config({"mcpServers": {}})
    async with hub, serving(create_app(hub, uids={os.geteuid()}), accept=True) as base:
        port = int(base.rpartition(":")[2])
        for probe in (b"", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"):
            with socket.create_connection(("127.0.0.1", port)) as client:
                client.sendall(probe)
        await came_true(lambda: "a client closed its connection at once" in caplog.text)
    assert not [line for line in caplog.records if line.levelname == "WARNING"]


@pytest.mark.requirement("SEC-10")
def test_a_socket_that_is_not_connected_has_no_peer(uids: PeerUids) -> None:
    with socket.socket() as alone:
        assert uids.of(alone) is None
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert uids.of(ours) is None


@pytest.mark.requirement("SEC-10")
@as_root
@pytest.mark.anyio
async def test_root_is_no_exception_where_the_hub_has_another_user() -> None:
    hub = Hub.from_config({"mcpServers": {}})
    async with hub, serving(create_app(hub, uids={12345}), accept=True) as base:
        port = base.rpartition(":")[2]
        answers = [await anyio.run_process([sys.executable, "-c", _GET, port, str(uid)]) for uid in (0, NOBODY, 12345)]
    assert [answer.stdout.split()[1] for answer in answers] == [b"403", b"403", b"200"]


_GET = """
import os, socket, sys
if int(sys.argv[2]):
    os.setgroups([]); os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[2]))
client = socket.socket()
client.connect(("127.0.0.1", int(sys.argv[1])))
client.sendall(b"GET /healthz HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n")
print(client.recv(4096).decode())
"""


@pytest.mark.requirement("SEC-10")
def test_without_netlink_there_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> socket.socket:
        raise PermissionError("seccomp")

    monkeypatch.setattr("holdfast.access.connections.socket.socket", refused)
    assert PeerUids.open() is None


class Kernel:
    """Answers a question about a socket as the test says, after an answer to an earlier question."""

    def __init__(self, **said: Any) -> None:
        self.said: dict[str, Any] = {"kind": 20, "state": 1, "port": 4_000, "uid": 7, "inode": 9, "cut": 0, **said}
        self.asked = b""
        self.answers: list[bytes] = []

    def send(self, data: bytes) -> None:
        self.asked = data
        number, said = struct.unpack_from("=I", data, 8)[0], self.said
        ports = struct.pack("!HH", said["port"], 5_000)
        body = bytes([2, said["state"], 0, 0]) + ports + bytes(44 + 12) + struct.pack("=II", said["uid"], said["inode"])
        self.answers = [
            struct.pack("=IHHII", 0, 20, 0, number - 1, 0) + body[:-8] + struct.pack("=II", 1, 1),
            (struct.pack("=IHHII", 0, said["kind"], 0, number, 0) + body)[: 88 - said["cut"]],
        ]

    def recv(self, _: int) -> bytes:
        return self.answers.pop(0)


def peer_uid(kernel: Kernel, family: int = socket.AF_INET, peer: str = "127.0.0.1", interface: int = 0) -> int | None:
    asked: Any = PeerUids(kernel)  # type: ignore[arg-type]  # it plays a socket
    asked._unknown = NOBODY
    more = (0, interface) if family == socket.AF_INET6 else ()
    connection: Any = SimpleNamespace(
        family=family, getpeername=lambda: (peer, 4_000, *more), getsockname=lambda: (peer, 5_000, *more)
    )
    found: int | None = asked.of(connection)
    return found


@pytest.mark.requirement("SEC-10")
@pytest.mark.parametrize(
    ("said", "uid"),
    [
        ({}, 7),
        ({"kind": 2}, None),
        ({"cut": 1}, None),
        ({"state": 8}, None),
        ({"port": 4_001}, None),
        ({"inode": 0}, None),
        ({"uid": NOBODY}, None),
        ({"uid": 0}, 0),
    ],
)
def test_only_a_whole_answer_about_the_very_connection_tells_a_uid(said: dict[str, Any], uid: int | None) -> None:
    assert peer_uid(Kernel(**said)) == uid


@pytest.mark.requirement("SEC-10")
@pytest.mark.parametrize(
    ("family", "peer", "asked", "interface"),
    [
        (socket.AF_INET, "127.0.0.1", socket.AF_INET, 0),
        (socket.AF_INET6, "fe80::1%eth0", socket.AF_INET6, 3),
        (socket.AF_INET6, "::ffff:127.0.0.1", socket.AF_INET, 0),
    ],
)
def test_a_question_names_the_connection_as_the_kernel_stores_it(
    family: int, peer: str, asked: int, interface: int
) -> None:
    kernel = Kernel()
    assert peer_uid(kernel, family, peer, interface=3) == 7
    question = kernel.asked[16:]
    assert (question[0], struct.unpack_from("!HH", question, 8)) == (asked, (4_000, 5_000))
    assert struct.unpack_from("=I", question, 44) == (interface,)
    assert question[48:] == b"\xff" * 8


@pytest.mark.requirement("SEC-10")
def test_a_unix_socket_has_no_such_uid_and_a_kernel_that_does_not_know_us_is_not_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert peer_uid(Kernel(), socket.AF_UNIX) is None
    closed: list[PeerUids] = []

    def knows_nothing(self: PeerUids) -> bool:
        closed.append(self)
        return False

    monkeypatch.setattr(PeerUids, "_knows_itself", knows_nothing)
    assert PeerUids.open() is None
    assert closed[0]._netlink.fileno() == -1
    one, other = socket.socketpair()
    with one, other:
        assert not has_left(one)
