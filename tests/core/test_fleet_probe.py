"""The right to probe a server that is down: when it is claimed, whose turn it is, and what a lone replica does."""

from __future__ import annotations

import pytest

from holdfast.core import FleetMember, Granted, SharedStore, record_key
from holdfast.core.replicas.member import ALONE_SECONDS
from holdfast.core.replicas.probe_rights import GRACE_SECONDS, LEAD_SECONDS, PATIENCE_SECONDS, PROBE_SECONDS
from holdfast.core.replicas.store import ClaimAnswer, ClaimRelease
from tests.core.test_fleet_pace import SETTLED, Asking

pytestmark = pytest.mark.requirement("FLEET-2", "FLEET-4")

NAMES = ("a", "b", "c")


def joined() -> tuple[SharedStore, dict[str, Asking]]:
    """Three replicas that know each other."""
    store = SharedStore()
    found = {name: Asking(store, name) for name in NAMES}
    for end in (SETTLED - 1, SETTLED):
        for one in found.values():
            one.until(end)
    return store, found


def granted(member: FleetMember, now: float) -> bool:
    return any(isinstance(one, Granted) for one in member.tick(now))


def test_the_right_is_claimed_before_it_is_due() -> None:
    store, found = joined()
    first = found[found["a"].member.probes.turns("s")[0]]
    first.member.probes.want("s", SETTLED + 30, 1, SETTLED)
    first.until(SETTLED + 30 - LEAD_SECONDS - 0.01)
    assert store.claims == {}, "not long before: another replica may be the better one by then"
    first.until(SETTLED + 29.5)
    assert [holder for holder, _ in store.claims.values()] == [first.member.replica]
    assert first.member.probes.told() == ["s"], "a call at that time need not wait for the store"


def test_a_right_that_is_not_used_ends_although_the_store_answers() -> None:
    """Else no replica would try the server any more: the store gives the right to no other."""
    store = SharedStore()
    only = Asking(store)
    only.until(SETTLED)
    only.member.probes.want("s", SETTLED + 5, 1, SETTLED)
    only.until(SETTLED + 5)
    assert only.member.probes.told() == ["s"]
    only.until(SETTLED + 5 + PROBE_SECONDS + 1)
    assert only.member.probes.told() == []
    assert not any(holder for holder, _ in store.claims.values())


def test_a_right_to_a_definition_that_is_not_wanted_any_more_goes_back_to_the_store() -> None:
    """Also while the right to the new definition is there: replicas that still have the old one may try it."""
    only = Asking(SharedStore())
    only.until(SETTLED)
    probes = only.member.probes
    probes.want("s", SETTLED + 1, 1, SETTLED, definition="new")
    (asked,) = probes.claims(SETTLED + 1)
    probes.answered(ClaimAnswer(asked.key, True), SETTLED + 1, SETTLED + 1)
    assert probes.told() == ["s"]
    assert probes.answered(ClaimAnswer("probe/old/s", True), SETTLED + 1, SETTLED + 1) == []
    assert probes.to_release == [ClaimRelease("probe/old/s")]


def test_one_whose_turn_comes_later_leaves_the_first_a_moment() -> None:
    store, found = joined()
    second = found[found["a"].member.probes.turns("s")[1]]
    second.member.probes.want("s", SETTLED + 30, 1, SETTLED)
    second.until(SETTLED + 30)
    assert store.claims == {}
    second.until(SETTLED + 30 + 2 * GRACE_SECONDS)
    assert [holder for holder, _ in store.claims.values()] == [second.member.replica]


@pytest.mark.parametrize("server", [f"s{number}" for number in range(8)])
def test_the_turn_moves_on_after_a_failed_try(server: str) -> None:
    _, found = joined()
    tried = found["a"].member.probes.turns(server)[0]
    found[tried].member.write(record_key("evidence", server), {"up": False}, 1.0)
    for end in (SETTLED + 1, SETTLED + 2):
        for one in found.values():
            one.until(end)
    following = {one.member.probes.turns(server)[0] for one in found.values()}
    assert len(following) == 1, "all replicas find the same"
    assert following != {tried}


def test_a_lone_replica_gives_itself_the_right_in_time() -> None:
    member = FleetMember("a")
    member.request(0.0, chance=0.5, nonce="n")
    member.probes.want("s", 20.0, 1, 0.0)
    member.failed(ALONE_SECONDS)
    assert member.is_alone
    assert not granted(member, 19.9)
    assert granted(member, 20.0)


def test_a_store_that_refuses_the_right_for_long_is_not_believed() -> None:
    member = FleetMember("a")
    member.probes.want("s", 20.0, 1, 0.0)
    assert not granted(member, 20.0 + PATIENCE_SECONDS - 1.5)
    assert granted(member, 20.0 + PATIENCE_SECONDS)
