"""What replicas tell each other, by kind: evidence about servers, decisions of operators, listings, and configurations.

Each class is one kind of record: the hub tells it what is new here, and ``Fleet`` tells it what another replica wrote.

- ``SharedEvidence``: failures and recoveries of servers, and who has the right to probe. One replica probes a server
  that is down, and all learn what it found (FLEET-2, FLEET-4). The slot of each replica gets it as an event of its
  machine.
- ``SharedDecisions``: switches and approvals. A decision holds here at once. It holds everywhere when every replica
  that is present has read it. If the store does not answer, the operator is told "this replica only" (FLEET-3).
- ``SharedQuestions``: calls that wait for a person, who may decide at any replica (SEC-19). They have arguments in
  them, so they are sealed: the store is not trusted with content.
- ``SharedListings``: the hash of each listing, and its content if that is not too large. A replica that has no listing
  of a server yet shows the content to its clients, unverified. One that has another listing asks the server again. The
  hash and the content are made in a thread: a listing may have megabytes.
- ``ConfigComparison``: digests of what each replica runs. A digest covers the names of the servers and what makes a
  difference to clients. Left out is what may differ between machines that serve the same: folders, and the values of
  variables and headers. It is keyed with the session key, so a reader of the store cannot find an address or an
  argument by guessing. A replica that leaves does not count: it gets no new clients.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import zlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import anyio.to_thread
import msgspec

from holdfast.config import ServerSpec
from holdfast.core import (
    ConfigAgreement,
    FleetRecord,
    Listing,
    events as on,
    evidence_event,
    evidence_value,
    keyed_tool,
    record_key,
    replica_tag,
)
from holdfast.fleet.peers import Presence
from holdfast.hub import listing_from, listing_pieces
from holdfast.keys import KeyRing

if TYPE_CHECKING:
    from holdfast.fleet.fleet import ReplicaState

__all__ = [
    "ConfigComparison",
    "SharedDecisions",
    "SharedEvidence",
    "SharedListings",
    "SharedQuestions",
    "config_digests",
    "packed",
    "unpacked",
]


class SharedEvidence:
    """The link of the slots to the other replicas."""

    def __init__(self, state: ReplicaState, presence: Presence) -> None:
        self._state = state
        self._presence = presence

    def claim(self, server: str, at: float | None, number: int) -> None:
        """A slot needs the right to probe at that time, or not any more."""
        definition = self._state.host.definition_of(server) or ""
        self._state.member.probes.want(server, at, number, self._state.now(), definition=definition)
        self._state.wake.set()

    def release(self, server: str, delay: float) -> None:
        """A slot used its right to probe."""
        self._state.member.probes.release(server, delay)
        self._state.wake.set()

    def share(self, server: str, evidence: on.Event) -> None:
        """A slot learned something about its server."""
        definition = self._state.host.definition_of(server)
        # That a server is up is news only if the fleet holds it for down: else each start of a replica would tell it.
        is_news = not isinstance(evidence, on.PeerRecovered) or self._is_down(server)
        if definition is not None and is_news:
            self._state.write(record_key("evidence", server), evidence_value(evidence, definition), again=True)

    def learn(self, server: str, definition: str, record: FleetRecord) -> None:
        """Another replica learned something about a server."""
        if (event := evidence_event(record, definition)) is not None:
            self._state.host.handle(server, event)

    def prober_of(self, server: str) -> str:
        """The replica that has the right to probe a server that is down, or gets it next; empty if it is not down."""
        member = self._state.member
        following = member.replica if member.is_alone else member.probes.turns(server)[0]
        return self.probers.get(server) or (following if self._is_down(server) else "")

    @property
    def probers(self) -> dict[str, str]:
        """The replica that has the right to probe a server, for the servers that one has it for."""
        told = ((name, about.get("probes")) for name, about in self._presence.others.items())
        found = {str(server): name for name, many in told if isinstance(many, list) for server in many}
        member = self._state.member
        return found | dict.fromkeys(member.probes.told(), member.replica)

    def _is_down(self, server: str) -> bool:
        known = self._state.kept(record_key("evidence", server))
        return known is not None and known.get("up") is False


EVERYWHERE_SECONDS: Final = 2.0
"""How long a switch waits for the other replicas before it is answered "this replica only"."""


class SharedDecisions:
    """Switches and approvals, as the hub tells them and hears of them."""

    def __init__(self, state: ReplicaState) -> None:
        self._state = state

    @property
    def is_settled(self) -> bool:
        """Whether a first sight is one for the whole fleet."""
        return self._state.is_settled

    @property
    def not_shared_since(self) -> float | None:
        """Since when the store does not answer, in seconds since the epoch; None while it does."""
        return self._state.not_shared_since

    def note_pin(self, server: str, tool: str, text: Mapping[str, Any], approved: bool) -> None:
        """A tool was seen for the first time, or its change was approved."""
        self._state.write(record_key("pin", server, tool), {"text": text}, first=not approved)

    def note_switch(self, server: str, disabled: bool) -> None:
        """An operator enabled or disabled a server here."""
        self._state.write(record_key("switch", server), {"off": disabled}, again=True)

    def learn(self, kind: str, server: str, tool: str, value: Mapping[str, Any]) -> None:
        """Another replica decided something."""
        if kind == "switch":
            self._state.host.follow_switch(server, value.get("off") is True)
        elif isinstance(value.get("text"), dict):
            self._state.host.follow_pin(server, tool, value["text"])

    def settled(self) -> None:
        """Share what was decided here before this hub joined, unless the fleet decided otherwise."""
        for server in self._state.host.disabled_servers():
            # A decision of the fleet is newer than what this hub kept while it was away.
            if self._state.kept(record_key("switch", server)) is None:
                self.note_switch(server, disabled=True)

    @property
    def not_shared(self) -> tuple[str, ...]:
        """The servers whose switch or approvals hold on this replica only, because the store does not answer."""
        if self._state.is_shared:
            return ()
        return tuple(dict.fromkeys(keyed_tool(key)[0] for key in self._state.member.outbox.decisions()))

    async def scope(self, server: str) -> str:
        """Where the latest switch and approvals of a server hold, in words. It waits, two seconds at most."""
        if not await self._is_everywhere(self._decisions(server)):
            return "this replica only"
        count = len(self._state.member.peers)
        return f"all {count} replicas" if count > 1 else "the fleet"

    def _decisions(self, server: str) -> list[FleetRecord]:
        """The latest switch and approvals of a server."""
        pins, book = record_key("pin", server, ""), self._state.member.book
        return [
            record
            for record in book.values()
            if record.key == record_key("switch", server) or record.key.startswith(pins)
        ]

    async def _is_everywhere(self, decisions: list[FleetRecord]) -> bool:
        """Wait until every replica that is present has seen these writes; False if that takes too long."""
        state, member = self._state, self._state.member
        if state.not_shared_since is not None or member.strangers:
            return False  # known before: an approval of many tools would wait for each of them
        until = state.now() + EVERYWHERE_SECONDS
        member.pace.watch_writes(until)
        state.wake.set()
        # After each exchange, and not at the end once more: no exchange has brought anything since.
        while not all(member.is_everywhere(one, state.now()) for one in decisions):
            if not await state.waiting.wait(state.changed, until):
                return False
        return True


LARGEST_LISTING = 48 * 1024
"""Bytes of a compressed listing that replicas share; of a larger one they share the hash alone."""

LARGEST_UNPACKED = 512 * 1024
"""Bytes of its text: those who learn it read it on the event loop. Text that says little compresses a thousandfold."""


QUESTION_PURPOSE: Final = "call questions"


class SharedQuestions:
    """Calls that wait for a person, as the hub tells them and hears of them."""

    def __init__(self, state: ReplicaState, keys: Callable[[], KeyRing]) -> None:
        self._state = state
        self._keys = keys

    @property
    def home(self) -> str:
        """This replica's name in the ids of questions."""
        return replica_tag(self._state.member.replica)

    def note_question(self, question: str, value: Mapping[str, Any] | None, until: float) -> None:
        """A call waits for a person here; None: not any more."""
        self._share("question", question, value, until)

    def note_verdict(self, question: str, value: Mapping[str, Any], until: float) -> None:
        """A person decided here about a call of another replica."""
        self._share("verdict", question, value, until)

    def learn(self, kind: str, question: str, value: Mapping[str, Any]) -> None:
        """A call waits for a person at another replica, or she decided there."""
        opened = self._opened(kind, question, value)
        if kind == "question":
            self._state.host.follow_question(question, opened)
        elif opened is not None:
            self._state.host.follow_verdict(question, opened)

    def _share(self, kind: str, question: str, value: Mapping[str, Any] | None, until: float) -> None:
        if not self._state.is_open:
            return
        content: dict[str, object] = {"until": until}
        if value is not None:
            written = msgspec.msgpack.encode(value)
            content["sealed"] = self._keys().seal_text(written, purpose=QUESTION_PURPOSE, about=_about(kind, question))
        self._state.write(f"{kind}/{question}", content)

    def _opened(self, kind: str, question: str, value: Mapping[str, Any]) -> Mapping[str, Any] | None:
        sealed, about = str(value.get("sealed", "")), _about(kind, question)
        content = self._keys().open_text(sealed, purpose=QUESTION_PURPOSE, about=about)
        try:
            return msgspec.msgpack.decode(content, type=dict[str, Any]) if content is not None else None
        except msgspec.MsgspecError:
            return None  # of another version


def _about(kind: str, question: str) -> bytes:
    """What a sealed value is bound to: a verdict about one call must not be moved to another."""
    return f"{kind} {question}".encode()


class SharedListings:
    """The listings of this replica and of the others."""

    def __init__(self, state: ReplicaState) -> None:
        self._state = state
        self._new: dict[str, Listing] = {}
        """Published here, and not shared yet."""
        self._hashes: dict[str, str] = {}

    def published(self, listing: Listing) -> None:
        """This hub published a listing; peers learn it soon."""
        self._new[listing.server] = listing

    async def share(self) -> None:
        """Share the listings that changed."""
        listings, self._new = self._new, {}
        for server, listing in listings.items():
            definition = self._state.host.definition_of(server)
            if definition is None:
                continue
            digest, content = await anyio.to_thread.run_sync(packed, listing)
            self._hashes[server] = digest
            if (self._state.kept(record_key("listing", server)) or {}).get("hash") != digest:
                value = {"definition": definition, "hash": digest, "content": content}
                self._state.write(record_key("listing", server), value)

    def learn(self, server: str, definition: str, value: Mapping[str, Any]) -> None:
        """Another replica published a listing."""
        host = self._state.host
        # During a roll replicas may have different definitions under one name: their tools are not the same.
        if value.get("definition") != definition:
            return
        if not host.needs_listing(server):
            if value.get("hash") != self._hashes.get(server):
                host.handle(server, on.PeerPublished())
        elif (listing := unpacked(server, value.get("content"))) is not None:
            host.follow_listing(listing)


def packed(listing: Listing) -> tuple[str, str | None]:
    """The hash of a listing, and its content, if that is not too large. It takes a while: for a thread."""
    digest, packer = hashlib.blake2s(digest_size=16), zlib.compressobj()
    small, size = bytearray(), 0
    for piece in listing_pieces(listing, sort_keys=True):
        data = piece.encode()
        # The digest goes on where the content stops: it tells a change also of a listing that is too large to share.
        digest.update(data)
        size += len(data)
        if size <= LARGEST_UNPACKED:
            small += packer.compress(data)
    small += packer.flush()
    fits = size <= LARGEST_UNPACKED and len(small) <= LARGEST_LISTING
    return digest.hexdigest(), base64.b64encode(small).decode() if fits else None


def unpacked(server: str, content: object) -> Listing | None:
    """The listing in a shared content; None if it cannot be read, or is too large."""
    if not isinstance(content, str):
        return None
    try:
        unpacker = zlib.decompressobj()
        # Bounded while it unpacks: a few kilobytes may stand for gigabytes.
        text = unpacker.decompress(base64.b64decode(content), LARGEST_UNPACKED)
        return listing_from(server, json.loads(text)) if not unpacker.unconsumed_tail else None
    except (ValueError, KeyError, TypeError, RecursionError, zlib.error):
        return None


log = logging.getLogger("holdfast.fleet")

MOST_GROUPS = 3
"""How many of several different configurations a sentence names, and how many replicas of each."""

MOST_KEYS = 4
"""More keys than these are not in use at the same time."""

DIGEST_BYTES = 12


class ConfigComparison:
    """Compares what this replica runs with what the others run."""

    def __init__(self, state: ReplicaState, presence: Presence, keys: Callable[[], KeyRing]) -> None:
        self._state = state
        self._presence = presence
        self._keys = keys
        self._servers: Mapping[str, ServerSpec] | None = None
        """What the digest is of that was told last."""
        self._digested_with: KeyRing | None = None
        self._agreement = ConfigAgreement()

    async def share(self) -> None:
        """Tell the others what this replica runs, if that changed."""
        servers, keys = self._state.host.servers(), self._keys()
        if servers is not self._servers or keys != self._digested_with:
            self._state.member.about["config"] = await anyio.to_thread.run_sync(config_digests, servers, keys)
            self._servers, self._digested_with = servers, keys

    def compare(self, store: str) -> None:
        """The presence of all replicas was read."""
        told = {name: about.get("config") for name, about in self._presence.staying.items()}
        digests = {name: [str(one) for one in many] for name, many in told.items() if isinstance(many, list)}
        if self._agreement.note(digests, self._state.now()):
            log.warning("%s: %s", store, self.notice)

    @property
    def groups(self) -> tuple[tuple[str, ...], ...]:
        """The replicas by configuration, if they run different ones for longer than a roll takes; else empty."""
        return self._agreement.groups if self._state.is_shared else ()

    @property
    def notice(self) -> str:
        """What the operator should know about different configurations; empty if there are none."""
        if not (groups := self.groups):
            return ""
        more = f", and {len(groups) - MOST_GROUPS} more" if len(groups) > MOST_GROUPS else ""
        return (
            f"the replicas run {len(groups)} different configurations ({'; '.join(map(_named, groups[:MOST_GROUPS]))}"
            f"{more}): what clients get depends on the replica that answers. Give all replicas the same configuration"
        )


def _named(replicas: tuple[str, ...]) -> str:
    more = f" and {len(replicas) - MOST_GROUPS} more" if len(replicas) > MOST_GROUPS else ""
    return f"{', '.join(replicas[:MOST_GROUPS])}{more}"


def config_digests(servers: Mapping[str, ServerSpec], keys: KeyRing) -> list[str]:
    """The digest under each key, the newest first."""
    text = repr([_what_matters(servers[name]) for name in sorted(servers)]).encode()
    signatures = keys.signatures(text, purpose="fleet configuration", size=DIGEST_BYTES)
    return [one.hex() for one in signatures[:MOST_KEYS]]


def _what_matters(server: ServerSpec) -> tuple[object, ...]:
    if server.problems:
        return (server.id, server.enabled)
    # Names alone, of headers and variables: their values are secrets, and each replica may have its own.
    headers = sorted(server.headers) if isinstance(server.headers, Mapping) else ()
    return (
        server.id,
        server.enabled,
        server.transport,
        server.command,
        server.args,
        sorted(server.env),
        server.url,
        headers,
        server.tools.include,
        server.tools.exclude,
        server.prefix,
        server.era,
        server.approvals,
        server.sharing,
    )
