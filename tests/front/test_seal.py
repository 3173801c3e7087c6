"""The seal of session ids: no id opens that was changed, that belongs to another, that expired or that was ended.

Each mutant at the end leaves out one of the checks; the same property must then fail.
"""

from __future__ import annotations

import base64
import os
import string
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings, strategies as st

from holdfast.front import session_id as sealing
from holdfast.front.session_id import (
    LONGEST_ID,
    SessionIds,
    SessionKeys,
    SessionTicket,
    TicketSeal,
    fitted,
)
from holdfast.front.session_store import IDLE_SECONDS, NOTE_SECONDS, SESSION_SECONDS, SessionStore
from holdfast.keys import KeyRing

pytestmark = pytest.mark.requirement("FLEET-1")

KEY = b"a key of at least thirty-two bytes"
RING = TicketSeal(KeyRing([KEY]))
NOW = 1_800_000_000.0

_NAMES = st.text(max_size=40)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(max_size=300),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=60), inner, max_size=4),
    max_leaves=20,
)
_TICKETS = st.builds(
    SessionTicket,
    st.binary(min_size=16, max_size=16),
    st.sampled_from(["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"]),
    st.integers(0, 2**40),
    st.text(max_size=100),
    st.dictionaries(st.sampled_from(["name", "version"]), st.text(max_size=300)),
    st.dictionaries(st.sampled_from(["roots", "sampling", "elicitation", "experimental", "extensions"]), _VALUES),
)


def _ticket(**changes: Any) -> SessionTicket:
    fields: dict[str, Any] = {
        "id": b"0123456789abcdef",
        "version": "2025-11-25",
        "issued": int(NOW),
        "home": "here",
        "client": {"name": "test", "version": "1"},
        "capabilities": {"sampling": {}},
    }
    return SessionTicket(**(fields | changes))


@given(_TICKETS, st.none() | _NAMES, _NAMES)
@settings(max_examples=60, deadline=None)
def test_what_was_sealed_opens_for_the_same_endpoint_and_principal(
    ticket: SessionTicket, endpoint: str | None, principal: str
) -> None:
    fit, dropped = fitted(ticket)
    session_id = RING.seal(fit, endpoint=endpoint, principal=principal)
    assert len(session_id) <= LONGEST_ID
    assert set(session_id) <= set(string.ascii_letters + string.digits + "-_")
    assert RING.open(session_id, endpoint=endpoint, principal=principal) == fit
    assert (fit.id, fit.version, fit.issued) == (ticket.id, ticket.version, ticket.issued)
    if not dropped:
        assert fit.capabilities == ticket.capabilities


@pytest.mark.parametrize("bit", range(8))
def test_an_id_with_any_changed_bit_does_not_open(bit: int) -> None:
    session_id = RING.seal(_ticket(), endpoint=None, principal="local")
    for place in range(len(session_id)):
        changed = bytearray(session_id.encode())
        changed[place] ^= 1 << bit
        assert RING.open(changed.decode("latin-1"), endpoint=None, principal="local") is None


def test_an_id_whose_unused_bits_were_changed_does_not_open() -> None:
    for size in range(3):  # so that each length of the last group is met
        session_id = RING.seal(_ticket(home="h" * size), endpoint=None, principal="local")
        alphabet = string.ascii_uppercase + string.ascii_lowercase + string.digits + "-_"
        for last in alphabet.replace(session_id[-1], ""):
            assert RING.open(session_id[:-1] + last, endpoint=None, principal="local") is None


@given(st.text(max_size=200) | st.binary(max_size=900).map(lambda raw: base64.urlsafe_b64encode(raw).decode()))
@example("")
@example("=")
@example("A" * 5_000)
@example("\ud800")
@settings(max_examples=60, deadline=None)
def test_what_no_hub_made_does_not_open(text: str) -> None:
    assert RING.open(text, endpoint=None, principal="local") is None


@given(st.none() | _NAMES, _NAMES, st.none() | _NAMES, _NAMES)
@example(None, "a", "", "a")
@example("a", "bc", "ab", "c")
@settings(max_examples=60, deadline=None)
def test_an_id_opens_at_no_other_endpoint_and_for_no_other_principal(
    endpoint: str | None, principal: str, other_endpoint: str | None, other_principal: str
) -> None:
    session_id = RING.seal(_ticket(), endpoint=endpoint, principal=principal)
    same = (endpoint, principal) == (other_endpoint, other_principal)
    opened = RING.open(session_id, endpoint=other_endpoint, principal=other_principal)
    assert (opened is not None) == same


def test_every_key_of_the_ring_opens_and_the_first_one_seals() -> None:
    new, old = b"the new key, which is long enough too", KEY
    before = RING.seal(_ticket(), endpoint=None, principal="local")
    both = TicketSeal(KeyRing([new, old]))
    after = both.seal(_ticket(), endpoint=None, principal="local")
    assert both.open(before, endpoint=None, principal="local") == _ticket()
    assert TicketSeal(KeyRing([new])).open(after, endpoint=None, principal="local") == _ticket()
    assert TicketSeal(KeyRing([new])).open(before, endpoint=None, principal="local") is None


def test_the_same_ticket_has_a_new_id_each_time_and_the_id_shows_nothing() -> None:
    ids = {RING.seal(_ticket(client={"name": "visible"}), endpoint=None, principal="secret") for _ in range(50)}
    assert len(ids) == 50
    assert not any(b"visible" in base64.urlsafe_b64decode(one + "==") for one in ids)
    assert KEY.decode() not in repr(RING)


def test_a_ticket_of_a_typical_client_makes_a_short_id() -> None:
    capabilities = {"roots": {"listChanged": True}, "sampling": {}, "elicitation": {"form": {}, "url": {}}}
    ticket = _ticket(client={"name": "claude-code", "version": "2.1.0"}, capabilities=capabilities)
    assert len(RING.seal(ticket, endpoint="github", principal="caller")) < 200


def test_settings_that_are_too_large_are_dropped_and_the_capability_stays() -> None:
    noise = os.urandom(3_000).hex()
    capabilities = {"sampling": {"tools": noise}, "roots": {}, "experimental": {"large": noise, "small": {"a": 1}}}
    fit, dropped = fitted(_ticket(capabilities=capabilities))
    assert fit.capabilities == {"sampling": {}, "roots": {}, "experimental": {"small": {"a": 1}}}
    assert set(dropped) == {"sampling", "experimental.large"}


def test_a_ticket_of_another_form_does_not_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealing, "_packed", lambda _: b"no deflate stream")
    session_id = RING.seal(_ticket(), endpoint=None, principal="local")
    assert RING.open(session_id, endpoint=None, principal="local") is None


# Expiry and end.


class _Hub:
    """Session ids at a time that the test chooses."""

    def __init__(self) -> None:
        self.now = NOW
        self.ids = SessionIds(SessionKeys([KEY], shared=False), SessionStore(), wall=lambda: self.now)

    def issue(self, principal: str = "local") -> str:
        made, _ = self.ids.issue(
            endpoint=None, principal=principal, version="2025-11-25", client={}, capabilities={"roots": {}}
        )
        return made

    async def opens(self, session_id: str, principal: str = "local") -> bool:
        return await self.ids.open(session_id, endpoint=None, principal=principal) is not None

    async def use(self, session_id: str) -> None:
        opened = await self.ids.open(session_id, endpoint=None, principal="local")
        assert opened is not None
        await self.ids.keep(opened[0], seen=self.now)


async def _another_principal() -> None:
    hub = _Hub()
    assert not await hub.opens(hub.issue("ada"), "bob")


async def _idle() -> None:
    hub = _Hub()
    session_id = hub.issue()
    hub.now += IDLE_SECONDS + NOTE_SECONDS
    assert not await hub.opens(session_id)


async def _too_old() -> None:
    hub = _Hub()
    session_id = hub.issue()
    while hub.now < NOW + SESSION_SECONDS - IDLE_SECONDS / 2:
        hub.now += IDLE_SECONDS / 2
        await hub.use(session_id)
    hub.now += IDLE_SECONDS / 2
    assert not await hub.opens(session_id)


async def _ended() -> None:
    hub = _Hub()
    session_id = hub.issue()
    opened = await hub.ids.open(session_id, endpoint=None, principal="local")
    assert opened is not None
    await hub.ids.end(opened[0])
    hub.ids._ended.clear()  # as in a new process: the store is what remembers
    await hub.ids.keep(opened[0], seen=hub.now)  # a late note of another hub
    assert not await hub.opens(session_id)


CLOSED = {"another principal": _another_principal, "idle": _idle, "too old": _too_old, "ended": _ended}


@pytest.mark.anyio
@pytest.mark.parametrize("why", CLOSED)
async def test_an_id_does_not_open(why: str) -> None:
    await CLOSED[why]()


@pytest.mark.anyio
async def test_a_session_in_use_opens_for_thirty_days() -> None:
    hub = _Hub()
    session_id = hub.issue()
    while hub.now < NOW + SESSION_SECONDS - IDLE_SECONDS:
        hub.now += IDLE_SECONDS - 1
        await hub.use(session_id)
    assert await hub.opens(session_id)


@pytest.mark.anyio
async def test_with_a_shared_key_and_no_shared_store_idleness_cannot_be_known_and_the_longest_life_holds() -> None:
    hub = _Hub()
    hub.ids.keys.shared = True
    session_id = hub.issue()
    hub.now += 3 * IDLE_SECONDS
    assert await hub.opens(session_id)
    hub.now = NOW + SESSION_SECONDS
    assert not await hub.opens(session_id)


def _without_principal(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sealing, "_bound_to", lambda endpoint, _: repr(endpoint).encode())


def _without_expiry(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sealing, "is_expired", lambda *_, **__: False)


def _without_tombstone(patch: pytest.MonkeyPatch) -> None:
    save = SessionStore.save

    async def forgetful(self: SessionStore, session: bytes, record: Any) -> None:
        if not record.ended:
            await save(self, session, record)

    patch.setattr(SessionStore, "save", forgetful)


MUTANTS: list[tuple[Callable[[pytest.MonkeyPatch], None], str]] = [
    (_without_principal, "another principal"),
    (_without_expiry, "idle"),
    (_without_expiry, "too old"),
    (_without_tombstone, "ended"),
]


@pytest.mark.anyio
@pytest.mark.parametrize(("mutate", "why"), MUTANTS)
async def test_a_seal_without_one_of_its_checks_is_found_out(
    mutate: Callable[[pytest.MonkeyPatch], None], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutate(monkeypatch)
    with pytest.raises(AssertionError):
        await CLOSED[why]()
