"""What a replica makes of the presence of the others: where a user's processes run, and when it asks once more."""

from __future__ import annotations

import math
import socket
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from holdfast.core.replicas.member import ExchangePace
from holdfast.fleet.peers import NEWS_SECONDS, ROSTER_SECONDS, Presence

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("FLEET-1")]

HERE, THERE = socket.gethostname(), "another-host"
USERS = [f"user-{number}" for number in range(40)]


def about(address: str = "", host: str = HERE, **more: object) -> dict[str, object]:
    return {"address": address, "host": host, **more}


def seen_from(
    replica: str, told: Mapping[str, Mapping[str, object]], *, leaving: frozenset[str] = frozenset()
) -> Presence:
    """What one of the replicas knows of all, with a link to the others if it has an address."""
    others = {name: SimpleNamespace(about=one) for name, one in told.items()}
    member = SimpleNamespace(replica=replica, peers=others, about=dict(told[replica]))
    address = str(told[replica].get("address", ""))
    peers: Any = SimpleNamespace(address=address, leaving=leaving, join=lambda _: None) if address else None
    state: Any = SimpleNamespace(member=member, not_shared_since=None)
    return Presence(state, peers)


def homes(told: Mapping[str, Mapping[str, object]], **more: Any) -> set[str]:
    """Where the users live, by all replicas that others can reach; they agree."""
    found = set()
    names = {str(one["address"]).removeprefix("tcp://"): name for name, one in told.items() if one["address"]}
    for user in USERS:
        by_replica = {name: seen_from(name, told, **more).user_home(user) for name in names.values()}
        said = {name if home is None else names[home] for name, home in by_replica.items()}
        assert len(said) == 1, by_replica
        assert by_replica[next(iter(said))] is None, "its home runs it itself"
        found |= said
    return found


@pytest.mark.requirement("SEC-13")
def test_every_replica_finds_the_same_home_of_a_user_among_those_that_can_be_reached() -> None:
    told = {name: about(f"tcp://10.0.0.{at}:1", f"host-{at}") for at, name in enumerate("abc")}
    assert homes(told) == {*"abc"}
    assert homes(told | {"d": about(host=THERE)}) == {*"abc"}, "one without an address cannot be asked"
    assert homes(told | {"c": about()}) == {*"ab"}
    on_sockets = {name: about(f"/run/{name}.sock") for name in "ab"}
    assert homes(on_sockets) == {*"ab"}


def test_a_replica_that_leaves_or_has_its_socket_on_another_host_is_no_home() -> None:
    told = {"a": about("/run/a.sock"), "b": about("/run/b.sock", THERE), "c": about("tcp://10.0.0.1:1", THERE)}
    by_a = {seen_from("a", told).user_home(user) for user in USERS}
    assert by_a == {None, "10.0.0.1:1"}
    leaves = told | {"c": about("tcp://10.0.0.1:1", THERE, leaving=True)}
    assert {seen_from("a", leaves).user_home(user) for user in USERS} == {None}
    said = frozenset({"c"})
    assert {seen_from("a", told, leaving=said).user_home(user) for user in USERS} == {None}
    assert seen_from("a", leaves | {"a": about("/run/a.sock", leaving=True)}).user_home("user-1") is None


def test_workers_of_one_supervisor_have_one_process_of_a_user() -> None:
    told = {name: about(f"tcp://10.0.0.{at}:1", group=f"of {name > 'b'}") for at, name in enumerate("abcd")}
    for user in USERS:
        by_group = [{seen_from(name, told).user_home(user) for name in names} for names in ("ab", "cd")]
        assert sorted(home is not None for (home,) in by_group) == [False, True]
    alone = {"a": about(host=HERE), "b": about(host=HERE)}
    assert {seen_from("a", alone).user_home(user) for user in USERS} == {None}, "it can reach no other replica"


class Asked:
    """A presence that is asked to look again, at the time 10."""

    def __init__(self, last: float, *, shared: bool = True, answers_after: float = math.inf) -> None:
        self.pace = ExchangePace()
        self.pace.last_roster = last
        self.answers_after = answers_after
        self.waits: list[float] = []
        self.wake = anyio.Event()
        state: Any = SimpleNamespace(
            member=SimpleNamespace(pace=self.pace),
            now=lambda: 10.0,
            not_shared_since=None if shared else 1.0,
            wake=self.wake,
            changed=anyio.Event(),
            waiting=SimpleNamespace(wait=self._wait),
        )
        self.presence = Presence(state, None)

    async def _wait(self, changed: anyio.Event, until: float) -> bool:
        self.waits.append(until)
        if len(self.waits) > self.answers_after:
            self.pace.last_roster = 10.0
        return len(self.waits) < 5


@pytest.mark.parametrize(
    ("asked", "waits"),
    [
        (lambda: Asked(1.0, shared=False), 0),
        (lambda: Asked(10.0 - NEWS_SECONDS), 5),
        (lambda: Asked(9.0, answers_after=0), 1),
        (lambda: Asked(9.0, answers_after=2), 3),
        (lambda: Asked(9.0), 5),
    ],
)
async def test_an_unknown_replica_is_asked_for_once_and_waited_for_a_bounded_time(
    asked: Callable[[], Asked], waits: int
) -> None:
    one = asked()
    await one.presence.look_again()
    assert one.waits == [10.0 + ROSTER_SECONDS] * waits
    assert one.wake.is_set() == one.pace.urgent == (waits > 0)


async def test_who_was_asked_for_a_moment_ago_is_asked_for_after_the_rest_of_that_time() -> None:
    one = Asked(10.0 - NEWS_SECONDS / 2, answers_after=0)
    await one.presence.look_again()
    assert one.waits == [pytest.approx(10.0 + NEWS_SECONDS / 2)]
    assert not one.wake.is_set(), "the roster was read meanwhile"


def test_what_a_replica_tells_is_known_apart_from_what_it_knows_of_others() -> None:
    told = {"a": about("tcp://10.0.0.1:1"), "b": about(), "c": about(leaving=True), "d": about(leaving="yes")}
    presence = seen_from("a", told)
    assert [*presence.staying] == ["a", "b", "d"]
    assert presence.possible_homes == {"a", "b", "d"}
    assert [*presence.others] == ["b", "c", "d"]
    assert [*presence.replicas] == ["a", "b", "c", "d"]
    assert presence.addresses() == {"a": "tcp://10.0.0.1:1", "b": "", "c": "", "d": ""}
    state: Any = presence._state
    state.not_shared_since = 1.0
    assert presence.others == {}, "it is old"
    del state.member.peers["a"]
    assert {*presence.replicas} == {*"abcd"}, "it is always there itself"
    assert presence.possible_homes == {"a", "b", "d"}
