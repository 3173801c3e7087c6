"""The other replicas of a fleet: the link to them, who is present, and which of them has which client.

The link is plain HTTP, by our own client, to the listener that each replica advertises. A request that belongs to
another replica is sent there as the HTTP request that it is, with three headers more: which replica sends it on, which
one it is meant for, and the principal that its credentials stand for. What the replicas ask each other beside that are
small POSTs with JSON (``ask``).

Who may ask is proven before the first byte of a request: over TCP by TLS with the certificates of the fleet
(``identity``), over a Unix socket by the kernel, which names the user at the other end. So a peer is trusted like this
hub itself. What it says about a client is still verified where it is used: a session id opens only for its principal.

What can happen, and what it means for the request:
- ``PeerUnreachable``: no connection came to stand, or it leads to another replica. Nothing of the request was sent.
- ``PeerRefused``: the replica answered that it does not do this. Nothing was done.
- ``PeerLeaves``: it refused because it is shutting down. The others may not know that yet: its presence in the store
  says it a moment later. So this replica remembers it, and tells the replica to which it sends the request next.
- ``PeerFailed``: the connection broke after the request was sent. Whether the replica acted is not known, so nothing
  is sent again.

A machine that is gone closes no connection. The system finds that out (keepalive), so that no request waits for hours.

Each replica tells with every exchange that it is there, where the others reach it, and what its callers use. A replica
that shuts down tells that it leaves. What was read last counts, also while the store does not answer.

A client with connections of its own has a *home*: the one replica that has these connections. The processes of a user
have one too. No replica assigns homes. Each computes them alike, as a hash over the replicas that are present
(``core/replicas/agreement``), so that no request waits for an agreement. A session that names its home keeps it for as
long as that replica is there.

What must never happen: two replicas serve one client with two connections, each with a state of its own. Two replicas
may know different presences for a moment, so ``ClientHomeFinder`` looks whenever the presence was read, and closes the
connections of clients whose home is another replica by now. A request that comes to the wrong replica is sent on
(``LivesElsewhere``). A replica that leaves closes none of them: what is in use there stays to the end.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import ipaddress
import json
import logging
import os
import socket
from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote, urlsplit

import anyio

from holdfast._version import __version__
from holdfast.access import ClientKey
from holdfast.core import home_of, replica_tag, replicas_with_tag
from holdfast.endpoint import Client, LivesElsewhere
from holdfast.errors import HoldfastError, UsageError
from holdfast.hub import Hub
from holdfast.identity import FleetIdentity, peer_name
from holdfast.wire import ConnectFailed, ConnectTimedOut, HttpOrigin, NotHttp, Pool, Response

if TYPE_CHECKING:
    from holdfast.fleet.fleet import Fleet, ReplicaState

__all__ = [
    "ABOUT_HEADER",
    "OPERATIONS",
    "PRINCIPAL_HEADER",
    "REFUSED_HEADER",
    "SENDER_HEADER",
    "TARGET_HEADER",
    "ClientHomeFinder",
    "PeerAddress",
    "PeerFailed",
    "PeerLeaves",
    "PeerRefused",
    "PeerUnreachable",
    "Peers",
    "Presence",
    "bind_peer",
    "bind_unix",
    "first_words",
    "home_name",
    "said_in",
    "written",
]

log = logging.getLogger("holdfast.fleet")

SENDER_HEADER: Final = "holdfast-forwarded"
"""The replica that sends a request on. A request with it goes no further."""

TARGET_HEADER: Final = "holdfast-to"
"""The replica that a request is meant for: an address may have passed to another one."""

PRINCIPAL_HEADER: Final = "holdfast-principal"
"""The principal that the credentials of the client stand for; the credentials themselves are not sent on."""

REFUSED_HEADER: Final = "holdfast-refused"
"""In an answer: the replica does not do this. ``moved`` if the request belongs to another one by now."""

ABOUT_HEADER: Final = "holdfast-about"
"""What a replica asks about. Of a request that is sent on: its endpoint, and replicas that said that they leave."""

OPERATIONS: Final = "/replicas/"
"""The paths of what replicas ask each other."""

CONNECT_SECONDS: Final = 2.0
"""How long a connection to a replica may take, with its handshake."""

LARGEST_ANSWER: Final = 1024 * 1024
"""Bytes of the answer to ``ask``."""

AT_ONCE: Final = 8
"""Replicas that are asked at the same time."""

LEAVES_SECONDS: Final = 10.0
"""How long a replica counts as leaving that said so. Its presence says it by then, or has ended."""

WATCH_SECONDS: Final = 1.0
"""How often a replaced key is looked for."""

KEEPALIVE_SECONDS, KEEPALIVE_TRIES = 5, 3
"""A machine that does not acknowledge anything for 15 to 20 s is gone."""


class PeerUnreachable(Exception):
    """No connection to the replica came to stand: it got nothing of the request."""


class PeerFailed(Exception):
    """The connection broke after the request was sent: whether the replica acted is not known."""


class PeerRefused(Exception):
    """The replica answered that it does not do this. ``moved``: the request belongs to another replica by now."""

    def __init__(self, reason: str, *, moved: bool = False) -> None:
        super().__init__(reason)
        self.moved = moved


class PeerLeaves(PeerRefused):
    """The replica is shutting down, and did nothing for the request."""


class Peers:
    """The other replicas, for the parts of a hub that ask them something, and the socket on which they reach this one.

    The front serves that socket: it takes ``listener``, and answers what replicas ask.
    """

    def __init__(self, identity: FleetIdentity, *, advertise: PeerAddress | None = None) -> None:
        self.identity = identity
        self.listener: socket.socket | None = None
        """The listening socket, until its server takes it; None for a replica that the others cannot reach."""
        self.address = ""
        """Where other replicas reach this one; empty if they cannot."""
        if advertise is not None:
            self.listener, bound = bind_peer(advertise)
            self.address = str(bound)
        self.directory: Presence
        """Who is present, by signed presence; from ``join`` on."""
        self._pools: dict[str, tuple[str, Pool]] = {}
        self._leaves: dict[str, float] = {}
        """The replicas that said that they leave, and until when that counts."""
        self._limit = anyio.CapacityLimiter(AT_ONCE)

    @property
    def replica(self) -> str:
        """The name of this replica."""
        return self.identity.name

    def join(self, directory: Presence) -> None:
        """Know the others by their signed presence, before any of them is asked."""
        self.directory = directory

    @property
    def present(self) -> tuple[str, ...]:
        """The other replicas that are present, also those that cannot be asked."""
        return tuple(sorted(name for name in self.directory.addresses() if name != self.replica))

    @property
    def others(self) -> tuple[str, ...]:
        """The other replicas that are present and can be reached."""
        return tuple(sorted(name for name, at in self.directory.addresses().items() if at and name != self.replica))

    async def with_tag(self, tag: str) -> list[str]:
        """The other replicas that a tag may name; one that just joined is looked for."""
        found = replicas_with_tag(tag, self.present)
        if not found and tag != replica_tag(self.replica):
            await self.directory.look_again()
            found = replicas_with_tag(tag, self.present)
        return found

    @property
    def leaving(self) -> frozenset[str]:
        """The replicas that said a moment ago that they leave."""
        now = anyio.current_time() if self._leaves else 0.0
        return frozenset(name for name, until in self._leaves.items() if until > now)

    def note_leaving(self, replicas: Iterable[str]) -> None:
        """These replicas said that they leave, to this replica or to another one."""
        until = anyio.current_time() + LEAVES_SECONDS
        present = self.directory.addresses()
        # Only those that are present: the header comes from a peer, and must not fill the table.
        self._leaves.update((name, until) for name in replicas if name in present and name not in self.leaving)

    @asynccontextmanager
    async def request(
        self, replica: str, method: str, path: str, headers: Mapping[str, str], body: bytes | None = None
    ) -> AsyncIterator[Response]:
        """Send a request to a replica; the head of its answer is here, its body may come later. The block closes it."""
        at, pool = await self._pool(replica)
        said = {**headers, SENDER_HEADER: quote(self.replica), TARGET_HEADER: quote(replica)}
        try:
            answer = await pool.request(method, path, said, body)
        except (ConnectFailed, ConnectTimedOut) as exc:
            # Nothing was sent: the caller may send the request elsewhere, which it may not after ``PeerFailed``.
            raise PeerUnreachable(f"the replica {replica} cannot be reached at {at}: {_reason(exc)}") from exc
        except (OSError, EOFError, NotHttp) as exc:
            raise PeerFailed(_reason(exc)) from exc
        try:
            if (refused := answer.headers.get(REFUSED_HEADER)) is not None:
                if answer.status == 503:
                    self.note_leaving((replica,))
                    raise PeerLeaves(unquote(refused))
                raise PeerRefused(unquote(refused), moved=answer.status == 421)
            yield answer
        except (OSError, EOFError, NotHttp) as exc:
            raise PeerFailed(_reason(exc)) from exc
        finally:
            answer.close()

    async def ask(
        self, replica: str, operation: str, about: Mapping[str, Any], body: bytes = b"", *, within: float
    ) -> Mapping[str, Any]:
        """Ask a replica, and return its whole answer."""
        headers = {"content-type": "application/json", ABOUT_HEADER: written(about)}
        try:
            with anyio.fail_after(within):
                async with self.request(replica, "POST", OPERATIONS + operation, headers, body) as answer:
                    if answer.status != 200:
                        raise PeerFailed(f"it answered {answer.status}")
                    whole = await answer.read(LARGEST_ANSWER)
        except TimeoutError as exc:
            raise PeerFailed(f"no answer within {within:g} s") from exc
        return said_in(bytes(whole or b"").decode(errors="replace"))

    async def ask_all(self, operation: str, about: Mapping[str, Any], *, within: float) -> dict[str, Mapping[str, Any]]:
        """The answers of the other replicas; one that does not answer is left out."""
        found: dict[str, Mapping[str, Any]] = {}

        async def ask(replica: str) -> None:
            async with self._limit:
                try:
                    found[replica] = await self.ask(replica, operation, about, within=within)
                except (PeerUnreachable, PeerRefused, PeerFailed) as exc:
                    log.debug("%s was not asked at %s: %s", operation, replica, exc)

        async with anyio.create_task_group() as tasks:
            for replica in self.others:
                tasks.start_soon(ask, replica)
        return found

    async def run(self) -> None:
        """Keep the connections in order until cancelled; then close them."""
        known = self.identity.authorities()
        try:
            while True:
                await anyio.sleep(WATCH_SECONDS)
                now = self.identity.authorities()
                gone = [name for name in self._pools if name not in self.directory.addresses()]
                # A connection stays as trusted as it was when it was made: one of a removed key has to end (FLEET-5).
                lost = [*self._pools] if not set(known) <= set(now) else gone
                known = now
                # All are taken out before the first wait: a request that comes meanwhile makes new ones, which stay.
                for _, pool in [self._pools.pop(name) for name in lost]:
                    await pool.aclose()
        finally:
            with anyio.CancelScope(shield=True):
                for _, pool in self._pools.values():
                    await pool.aclose()
            self._pools.clear()
            if self.listener is not None:
                self.listener.close()

    async def _pool(self, replica: str) -> tuple[str, Pool]:
        """The address of a replica, and the connections to it."""
        if replica not in self.directory.addresses():
            await self.directory.look_again()
        address = self.directory.addresses().get(replica)
        if address is None:
            raise PeerUnreachable(f"the replica {replica} is not present")
        if not address:
            raise PeerUnreachable(f"the replica {replica} was started without --advertise")
        known = self._pools.get(replica)
        if known is not None and known[0] == address:
            return known
        try:
            made = self._pools[replica] = address, self._made(replica, PeerAddress.parse(address))
        except UsageError as exc:
            raise PeerUnreachable(f"the replica {replica} has no usable address: {exc.message}") from exc
        # After the new ones are in their place: else two requests would each make some, and leave those of the first.
        if known is not None:
            await known[1].aclose()
        return made

    def _made(self, replica: str, at: PeerAddress) -> Pool:
        if at.path:
            return Pool(HttpOrigin("localhost", 80, False, unix=at.path), connect_within=CONNECT_SECONDS)

        def check(transport: asyncio.Transport) -> None:
            found = peer_name(transport.get_extra_info("ssl_object"))
            # Addresses of pods are used again: a certificate of the fleet is not enough, it must be that replica's.
            if found != replica:
                raise ConnectFailed(f"another replica answers there: {found[:100]}")
            _keep_alive(transport.get_extra_info("socket"))

        origin = HttpOrigin(at.host, at.port, True)
        return Pool(origin, tls=self.identity.client(), connect_within=CONNECT_SECONDS, check=check)

    def __repr__(self) -> str:
        return f"<Peers of {self.replica!r} at {self.address or 'no address'}: {len(self.others)} others>"


def written(about: Mapping[str, Any]) -> str:
    """An object for a header."""
    return json.dumps(about, separators=(",", ":"))


def said_in(text: str) -> dict[str, Any]:
    """The object in a header or a body; empty if there is none."""
    try:
        read = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return read if isinstance(read, dict) else {}


def _keep_alive(connection: Any) -> None:
    with suppress(OSError, AttributeError):  # not every system has all of them
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_TRIES)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, KEEPALIVE_SECONDS * KEEPALIVE_TRIES * 1000)


def _reason(exc: BaseException) -> str:
    if isinstance(exc, TimeoutError):
        return "no answer in time"
    return (str(exc) or type(exc).__name__).splitlines()[0][:200]


_HINT = "write tcp://HOST:PORT with an address that the other replicas reach, or unix:/PATH on one machine"

_LONGEST_PATH = 100
"""Bytes. Systems allow 103 to 107 for a Unix socket."""


@dataclass(frozen=True)
class PeerAddress:
    """The address of one replica for its peers."""

    host: str = ""
    port: int = 0
    path: str = ""

    @classmethod
    def parse(cls, text: str) -> PeerAddress:
        """Read an address; raises ``UsageError``."""
        if text.startswith("unix:"):
            path = text.removeprefix("unix:")
            if not path.startswith("/") or len(os.fsencode(path)) > _LONGEST_PATH or "\0" in path:
                raise UsageError(f"{text!r} is no path of a Unix socket", hint=_HINT)
            return cls(path=path)
        if text.count(":") > 2 and "[" not in text and text.startswith("tcp://"):
            number, _, last = text.removeprefix("tcp://").rpartition(":")
            text = f"tcp://[{number}]:{last}"  # the address of a pod has no brackets
        try:
            parts = urlsplit(text)
            host, port = parts.hostname, parts.port
        except ValueError as exc:
            raise UsageError(f"{text!r} is no address for replicas", hint=_HINT) from exc
        extra = parts.path.strip("/") or parts.query or parts.fragment or parts.username
        if parts.scheme != "tcp" or not host or port is None or extra:
            raise UsageError(f"{text!r} is no address for replicas", hint=_HINT)
        return cls(host=host, port=port)

    def __str__(self) -> str:
        if self.path:
            return f"unix:{self.path}"
        return f"tcp://[{self.host}]:{self.port}" if ":" in self.host else f"tcp://{self.host}:{self.port}"


def bind_peer(address: PeerAddress) -> tuple[socket.socket, PeerAddress]:
    """A listening socket for an address, and the address to advertise: port 0 takes a free one.

    An address of another machine (a name, or one behind a translation) is listened for on all interfaces.
    """
    try:
        if address.path:
            return bind_unix(Path(address.path)), address
        listener = _bind_host(address)
    except OSError as exc:
        raise HoldfastError(
            f"cannot listen for other replicas on {address}: {exc.strerror or exc}",
            hint="give --advertise another port, or end the program that uses it",
        ) from exc
    return listener, replace(address, port=listener.getsockname()[1])


def _bind_host(address: PeerAddress) -> socket.socket:
    try:
        number = ipaddress.ip_address(address.host)
    except ValueError:
        return socket.create_server(("", address.port))
    family = socket.AF_INET6 if number.version == 6 else socket.AF_INET
    try:
        return socket.create_server((address.host, address.port), family=family)
    except OSError as exc:
        if exc.errno != errno.EADDRNOTAVAIL:
            raise
        return socket.create_server(("::" if number.version == 6 else "", address.port), family=family)


def bind_unix(path: Path) -> socket.socket:
    """A Unix socket of this user alone, which listens; ``OSError`` if a program serves there already."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.is_socket() and not _is_served(path):
            path.unlink()  # left behind by a hub that was killed
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen(1024)
    except BaseException:
        listener.close()
        raise
    return listener


def _is_served(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe, suppress(OSError):
        probe.connect(str(path))
        return True
    return False


# Who is present.

ROSTER_SECONDS: Final = 1.0
"""How long the question who is present may take."""
NEWS_SECONDS: Final = 0.1
"""Who is present is asked again after this time at the soonest, however often unknown replicas are named."""


def first_words(started: float, address: str, worker: tuple[str, int] | None) -> dict[str, object]:
    """What a replica tells about itself. Of a worker: its supervisor, and its number there."""
    own = {"host": socket.gethostname(), "pid": os.getpid(), "version": __version__, "started": round(started, 3)}
    return own | {"address": address} | ({"group": worker[0], "worker": worker[1]} if worker is not None else {})


class Presence:
    """The replicas that are present, this one included."""

    def __init__(self, state: ReplicaState, peers: Peers | None) -> None:
        self._state = state
        self._peers = peers
        self._watchers: list[Callable[[], None]] = []
        self._told: dict[str, Callable[[], object]] = {}
        if peers is not None:
            peers.join(self)

    # What this replica tells.

    def tell(self, key: str, said: Callable[[], object]) -> None:
        """Tell the others this with each exchange: what callers use of this replica."""
        self._told[key] = said

    def describe(self, **about: object) -> None:
        """Tell the others more about this replica, soon."""
        self._state.member.about |= about
        self._state.member.pace.hurry()
        self._state.wake.set()

    def refresh(self) -> None:
        """An exchange begins."""
        self._state.member.about |= {key: said() for key, said in self._told.items()}

    # What the others tell.

    def watch(self, changed: Callable[[], None]) -> None:
        """Call this when the presence of all replicas was read, and when the store does not answer any more."""
        self._watchers.append(changed)

    def read(self) -> None:
        """The presence of all replicas was read, or the store does not answer."""
        for changed in self._watchers:
            changed()

    async def look_again(self) -> None:
        """Learn who is present, if the store answers: a request named a replica that is not known here."""
        state, member = self._state, self._state.member
        asked_at = state.now()
        if state.not_shared_since is not None:
            return
        # A name that no replica has would otherwise cost the store a question for each request of a stranger.
        soonest = member.pace.last_roster + NEWS_SECONDS
        if asked_at < soonest:
            await state.waiting.wait(anyio.Event(), soonest)
        if not member.pace.has_roster(asked_at):
            member.pace.want_roster()
            state.wake.set()
        while not member.pace.has_roster(asked_at):
            if not await state.waiting.wait(state.changed, asked_at + ROSTER_SECONDS):
                return

    def addresses(self) -> dict[str, str]:
        """Where the replicas that are present can be asked directly."""
        return {name: str(peer.about.get("address", "")) for name, peer in self._state.member.peers.items()}

    @property
    def staying(self) -> dict[str, Mapping[str, object]]:
        """What each replica tells that does not leave."""
        peers = self._state.member.peers
        return {name: peer.about for name, peer in peers.items() if peer.about.get("leaving") is not True}

    @property
    def possible_homes(self) -> frozenset[str]:
        """The replicas that can have the connections of clients: those last known, without those that leave."""
        leaving = self._peers.leaving if self._peers is not None else frozenset()
        return (frozenset(self.staying) - leaving) | {self._state.member.replica}

    def user_home(self, principal: str) -> str | None:
        """The address of the replica that runs the processes of a user; None if it is this one.

        It is a hash of the principal over the replicas that others can reach, and no session names it: a user may have
        several sessions, and has one process of a server. Workers of one supervisor have one process that runs all.
        """
        # Every replica must find the same home: all of it follows from what replicas share, and from a hash.
        own, staying = self._state.member.replica, self.staying
        host, group = socket.gethostname(), self._state.member.about.get("group")
        known = {name: address for name, address in self.addresses().items() if name in self.possible_homes}
        if self._peers is not None:
            known[own] = self._peers.address
        reached = {
            name: address
            for name, address in known.items()
            if address and (name == own or address.startswith("tcp:") or staying[name].get("host") == host)
        }
        home = home_of(f"user\0{principal}", "", reached) if reached else own
        if home == own or (group and staying[home].get("group") == group):
            return None
        return reached[home].removeprefix("tcp://")

    @property
    def others(self) -> dict[str, Mapping[str, object]]:
        """What each other replica tells; nothing while the store does not answer."""
        if self._state.not_shared_since is not None:
            return {}
        member = self._state.member
        return {name: peer.about for name, peer in member.peers.items() if name != member.replica}

    @property
    def replicas(self) -> dict[str, Mapping[str, object]]:
        """What each replica tells that is present, as of the last good exchange; this one always."""
        member = self._state.member
        known = {name: peer.about for name, peer in sorted(member.peers.items())}
        return known if member.replica in known else {**known, member.replica: member.about}

    def __repr__(self) -> str:
        return f"<Presence of {sorted(self._state.member.peers)}>"


FORGET_AFTER: Final = 1_000
"""So many clients that left may be known, beside as many as are here."""

_TASK_LOST: Final = "the task is on a replica that does not answer"


class ClientHomeFinder:
    """Finds the replica of a request; one for all endpoints of a hub."""

    def __init__(self, hub: Hub, fleet: Fleet, peers: Peers) -> None:
        self._hub = hub
        self._fleet = fleet
        self._peers = peers
        self._owners: dict[Hashable, str] = {}
        """The clients whose connections are here, and the home that the session of each names."""
        self._room = FORGET_AFTER
        """With so many of them, those that left are forgotten."""
        self._before: frozenset[str] = frozenset()
        """The replicas that could have homes, before the last one came or left."""
        self._now: frozenset[str] = frozenset()
        self._missing: set[str] = set()
        """The homes that were looked for, and not found, since the last replica came or left."""
        fleet.presence.watch(self._review)

    @property
    def tag(self) -> str:
        """Names this replica in ids that clients get."""
        return replica_tag(self._fleet.replica)

    @property
    def long_tag(self) -> str:
        """Names this replica where another one with the same short tag must not be meant."""
        return home_name(self._fleet.replica)

    async def replica_of(self, tag: str) -> str | None:
        """The other replica with this tag, if it is present; its first, should two have the same."""
        return next(iter(await self._peers.with_tag(tag)), None)

    def check_task(self, home: str) -> bool:
        """Raise ``LivesElsewhere`` if another replica has a task; False if the one that had it is gone."""
        if home == self.long_tag:
            return True
        for replica in self._fleet.member.peers:
            if home_name(replica) == home:
                raise LivesElsewhere(replica, _TASK_LOST)
        return False

    async def check(self, client: Client) -> None:
        """Raise ``LivesElsewhere`` if another replica has the connections of this client."""
        if not _is_known(client.owner) or not self._peers.address:
            return  # the others could not send anything here
        self._review()  # one that said that it leaves may not be known by its presence yet
        if client.home and client.home not in self._missing and client.home not in self._by_name():
            await self._fleet.presence.look_again()  # it may have joined a moment ago
            self._missing.add(client.home)
        home = self._home(client.owner, client.home)
        if home != self._fleet.replica:

            async def moves() -> bool:
                await self._fleet.presence.look_again()
                return self._home(client.owner, client.home) != home

            raise LivesElsewhere(home, moves=moves)
        if len(self._owners) >= self._room:
            # While no replica comes or goes there is no other moment to forget clients that left.
            here = self._hub.registry.clients.servers_of
            self._owners = {owner: named for owner, named in self._owners.items() if owner in here}
            self._room = 2 * len(self._owners) + FORGET_AFTER
        self._owners[client.owner] = client.home

    def known_elsewhere(self, client: Client) -> str | None:
        """The other replica that has the connections of a client, if it is one."""
        home = self._home(client.owner, client.home) if _is_known(client.owner) else self._fleet.replica
        return home if home != self._fleet.replica else None

    def lost_connection(self, client: Client) -> bool:
        """Whether a client had connections that are gone: before its session was rebuilt, or on an earlier home.

        A client without a session may have begun a moment ago. If a replica left lately that would have been its home,
        the answer is yes too: what the client may have lost there is not known.
        """
        if not isinstance(client.owner, ClientKey):
            return client.rebuilt
        before = self._before | {self._fleet.replica}
        return home_of(_key_of(client.owner), "", before) != self._fleet.replica

    def _home(self, owner: Hashable, named: str) -> str:
        return home_of(_key_of(owner), self._by_name().get(named, ""), self._fleet.presence.possible_homes)

    def _by_name(self) -> dict[str, str]:
        """The replicas that can be homes, by the names that sessions have for them."""
        return {home_name(replica): replica for replica in self._fleet.presence.possible_homes}

    def _review(self) -> None:
        """Replicas may have come or left: close the connections of clients whose home is another one now."""
        if self._fleet.presence.possible_homes == self._now or self._fleet.member.about.get("leaving") is True:
            return  # of a replica that leaves, connections in use stay to the end
        # The set before the last change is kept: it says which clients may have lost something by it.
        self._before, self._now = self._now, self._fleet.presence.possible_homes
        self._missing.clear()
        for owner, named in list(self._owners.items()):
            here = self._home(owner, named) == self._fleet.replica
            if not here:
                self._hub.registry.clients.release(owner)
            if not here or not self._hub.registry.clients.servers_of.get(owner):
                del self._owners[owner]
        self._hub.registry.users.review_homes()


def home_name(replica: str) -> str:
    """Names a replica in ids that live long: of tasks, and of sessions."""
    return hashlib.blake2s(replica.encode(), digest_size=8, person=b"task").hexdigest()


def _is_known(owner: Hashable) -> bool:
    """Whether a client is known beyond its request."""
    return isinstance(owner, bytes | ClientKey)


def _key_of(owner: Hashable) -> str:
    """Names a client for the hash that every replica computes alike."""
    if isinstance(owner, ClientKey):
        # With the length: "ab" + "c" and "a" + "bc" are two clients.
        return f"key\0{len(owner.principal)}:{owner.principal}{owner.key}"
    return f"session\0{owner!r}"
