"""The ids of sessions in the books of one hub: their longest life, their last use, and their end, to the second."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.front import session_id, session_store
from holdfast.front.session_id import SessionIds, SessionKeys, SessionTicket, is_expired
from holdfast.front.session_store import IDLE_SECONDS, NOTE_SECONDS, SESSION_SECONDS, SessionRecord, SessionStore

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("FLEET-1")]

NOW = 1_800_000_000.0


class Hub:
    """The ids of a hub, at a time that the test chooses."""

    def __init__(self, *, shared: bool = False, one_machine: bool = False) -> None:
        self.now = NOW
        self.store = SessionStore()
        keys = SessionKeys([b"a key of at least thirty-two bytes"], shared=shared)
        self.ids = SessionIds(keys, self.store, home="here", wall=lambda: self.now, one_machine=one_machine)

    def issue(self, capabilities: dict[str, Any] | None = None) -> tuple[str, SessionTicket]:
        return self.ids.issue(
            endpoint="files",
            principal="ada",
            version="2025-11-25",
            client={"name": "e"},
            capabilities=capabilities or {},
        )

    async def opens(self, made: str) -> bool:
        return await self.ids.open(made, endpoint="files", principal="ada") is not None


def test_a_session_is_over_at_its_last_second_and_not_before() -> None:
    ticket = SessionTicket(b"1" * 16, "2025-11-25", 1_000, "here", {}, {})
    longest, idle = 1_000 + SESSION_SECONDS, 5_000 + IDLE_SECONDS
    assert [is_expired(ticket, now=longest + late, seen=longest) for late in (-1, 0)] == [False, True]
    assert [is_expired(ticket, now=idle + late, seen=5_000.0) for late in (-1, 0)] == [False, True]


async def test_an_id_tells_who_made_it_and_when_and_is_for_its_endpoint_and_principal_alone() -> None:
    hub = Hub()
    made, ticket = hub.issue({"roots": {}})
    said = (ticket.version, ticket.issued, ticket.home, ticket.client, ticket.capabilities, len(ticket.id))
    assert said == ("2025-11-25", int(NOW), "here", {"name": "e"}, {"roots": {}}, 16)
    assert await hub.ids.open(made, endpoint="files", principal="ada") == (ticket, None)
    assert await hub.ids.open(made, endpoint="other", principal="ada") is None
    assert await hub.ids.open(made, endpoint="files", principal="bob") is None
    assert len(SessionIds().home) == 8, "a process without a name has one of its own"


async def test_a_session_opens_until_a_day_and_an_hour_after_its_last_use() -> None:
    hub = Hub()
    made, ticket = hub.issue()
    hub.now = NOW + IDLE_SECONDS + NOTE_SECONDS - 1
    assert await hub.opens(made)
    hub.now += 1
    assert not await hub.opens(made)
    record = SessionRecord(until=ticket.issued + SESSION_SECONDS, seen=NOW + 100)
    await hub.store.save(ticket.id, record)
    assert await hub.ids.open(made, endpoint="files", principal="ada") == (ticket, record)
    hub.now += 99
    assert await hub.opens(made)
    hub.now += 1
    assert not await hub.opens(made)


async def test_the_longest_life_of_a_session_is_over_at_its_second() -> None:
    hub = Hub()
    _, ticket = hub.issue()
    hub.now = NOW + SESSION_SECONDS - 1
    assert not hub.ids.is_over(ticket)
    hub.now += 1
    assert hub.ids.is_over(ticket)


async def test_an_end_is_known_at_once_and_kept_for_as_long_as_the_session_might_live() -> None:
    hub = Hub()
    made, ticket = hub.issue()
    _, other = hub.issue()
    assert (hub.ids.has_ended(ticket), await hub.ids.is_ended(ticket.id)) == (False, False)
    hub.now += 50
    await hub.ids.end(ticket)
    assert (hub.ids.has_ended(ticket), await hub.ids.is_ended(ticket.id), await hub.opens(made)) == (True, True, False)
    assert (hub.ids.has_ended(other), await hub.ids.is_ended(other.id)) == (False, False)
    kept = SessionRecord(until=int(NOW) + SESSION_SECONDS, seen=NOW + 50, ended=True)
    assert hub.store.records == {ticket.id: kept}
    hub.ids._ended.clear()  # as in a new process
    assert (hub.ids.has_ended(ticket), await hub.ids.is_ended(ticket.id)) == (False, True)
    await hub.store.save(other.id, SessionRecord(until=4e9, seen=NOW))
    assert not await hub.ids.is_ended(other.id), "it is known, and goes on"


async def test_as_many_ends_as_may_be_are_remembered_and_the_oldest_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_id, "MOST_ENDED", 2)
    ids = Hub().ids
    for session in (b"1", b"2"):
        ids.ended(session)
    assert [*ids._ended] == [b"1", b"2"]
    ids.ended(b"3")
    assert [*ids._ended] == [b"2", b"3"]
    assert session_store.MOST_ENDED == 10_000


async def test_a_note_of_use_goes_forward_and_changes_nothing_else() -> None:
    hub = Hub()
    _, ticket = hub.issue()
    await hub.ids.note(ticket, seen=NOW + 10)
    first = SessionRecord(until=int(NOW) + SESSION_SECONDS, seen=NOW + 10)
    assert hub.store.records == {ticket.id: first}
    await hub.ids.keep(ticket, seen=NOW + 20, log_level="error", subscribed=[("a", "file:///x")])
    for seen in (NOW + 5, NOW + 20, NOW + 30):
        await hub.ids.note(ticket, seen=seen)
        assert hub.store.records[ticket.id] == SessionRecord(
            until=int(NOW) + SESSION_SECONDS,
            seen=max(seen, NOW + 20),
            log_level="error",
            subscribed=frozenset({("a", "file:///x")}),
        )
    await hub.ids.end(ticket)
    ended = hub.store.records[ticket.id]
    await hub.ids.note(ticket, seen=NOW + 99)
    assert hub.store.records[ticket.id] is ended


@pytest.mark.parametrize(
    ("shared", "one_machine", "knows"), [(False, False, True), (True, False, False), (True, True, True)]
)
async def test_the_lists_of_a_client_are_kept_for_as_long_as_its_session_can_be_idle(
    shared: bool, one_machine: bool, knows: bool
) -> None:
    hub = Hub(shared=shared, one_machine=one_machine)
    _, ticket = hub.issue()
    await hub.ids.keep_listed(ticket, {"tools/list": "0:aa"})
    until = NOW + IDLE_SECONDS + 2 * NOTE_SECONDS
    assert hub.store.lists == ({ticket.id: (until, {"tools/list": "0:aa"})} if knows else {})
    assert hub.ids.knows_lists is knows


async def test_a_client_that_declares_too_much_is_named_in_the_log_with_what_it_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    hub = Hub()
    _, whole = hub.issue({"roots": {}})
    assert (whole.capabilities, caplog.text) == ({"roots": {}}, "")
    noise = "".join(f"{number:08x}" for number in range(0, 2**32 - 1, 2**22 + 12_345))
    _, fit = hub.issue({"sampling": {"tools": noise * 3}, "roots": {}})
    assert fit.capabilities == {"sampling": {}, "roots": {}}
    assert "the client 'e' declares more than fits a session id: without 1 capabilities ('sampling')" in caplog.text
