"""The records of users' logins: how they are named and sealed, and which version of them counts. No Redis is used."""

from __future__ import annotations

import logging
from typing import Any, cast

import pytest

from holdfast.auth import UserRow
from holdfast.core import FleetMember, FleetRecord
from holdfast.fleet import CommandUserTokens, FleetUserTokens, RedisAddress
from holdfast.fleet.user_logins import LoginSeal
from holdfast.keys import KeyRing
from tests.auth.grants import grant

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("AUTH-8", "SEC-13")]

OLD, NEW, LOST = b"the older key of users, 32 bytes", b"the newer key of users, 32 bytes", b"k" * 32


class Copy:
    """A replica's copy of the records."""

    def __init__(self) -> None:
        self.member = FleetMember("a")
        self.wall = 1.0

    def write(self, key: str, value: object) -> None:
        self.wall += 1.0
        self.member.write(key, value, self.wall)


def tokens(copy: Copy, *keys: bytes) -> FleetUserTokens:
    """The logins in a copy, with these keys; they know every record of it."""
    made = FleetUserTokens(cast("Any", copy), keys=lambda: KeyRing(keys), leases=cast("Any", None), place="redis://r")
    for key in copy.member.book:
        made.learn(key.partition("/")[2], {})
    return made


def put(copy: Copy, who: str, number: int, *keys: bytes, token: str = "first") -> None:
    with tokens(copy, *keys).changing(who) as grants:
        one = grant(number, access_token=token)
        grants[one.key] = one


def shown(rows: list[UserRow]) -> list[tuple[str, str]]:
    return [(row.principal, row.grant.access_token if row.grant is not None else "") for row in rows]


def test_a_login_is_read_with_the_key_that_sealed_it_and_only_under_its_own_name() -> None:
    copy = Copy()
    put(copy, "ada", 1, NEW)
    (record,) = copy.member.book.values()
    kind, user, one = record.key.split("/")
    assert (kind, len(user), len(one)) == ("login", 32, 32)
    assert "ada" not in record.value
    seal = LoginSeal(KeyRing([NEW]))
    assert seal.opened(record) == UserRow("ada", grant(1).key, grant(1, access_token="first"))
    moved = FleetRecord("login/another/name", record.stamp, record.value)
    for unreadable in (moved, FleetRecord(record.key, record.stamp, '{"sealed": 5}')):
        row = seal.opened(unreadable)
        assert row is not None
        assert (row.principal, row.grant) == ("unknown", None)
    assert seal.opened(FleetRecord(record.key, record.stamp, '{"removed": true}')) is None
    assert LoginSeal(KeyRing([OLD])).opened(record) == LoginSeal(KeyRing([NEW])).opened(moved)


def test_the_rows_are_in_the_order_of_their_users_and_those_that_no_key_opens_are_last() -> None:
    copy = Copy()
    put(copy, "zoe", 1, NEW)
    put(copy, "lost", 1, LOST)
    put(copy, "ada", 2, NEW)
    put(copy, "ada", 1, NEW)
    found = tokens(copy, NEW)
    assert shown(found.rows()) == [("ada", "first"), ("ada", "first"), ("zoe", "first"), ("unknown", "")]
    assert [row.key for row in found.rows("ada")] == [grant(1).key, grant(2).key]
    assert found.rows("eve") == []


def test_of_two_versions_under_two_keys_the_later_one_counts_in_whichever_order_they_are_found() -> None:
    for first, second in ((OLD, NEW), (NEW, OLD)):
        copy = Copy()
        put(copy, "ada", 1, first, token="earlier")
        put(copy, "ada", 1, second, token="later")
        assert len(copy.member.book) == 2
        for keys in ((OLD, NEW), (NEW, OLD)):
            assert shown(tokens(copy, *keys).rows("ada")) == [("ada", "later")]


def test_a_write_touches_what_changed_and_removes_what_is_gone_under_every_key() -> None:
    copy = Copy()
    put(copy, "ada", 1, OLD)
    put(copy, "ada", 2, NEW)
    both = tokens(copy, NEW, OLD)
    before = {key: record.stamp for key, record in copy.member.book.items()}
    with both.changing("ada"):
        pass
    assert {key: record.stamp for key, record in copy.member.book.items()} == before
    with both.changing("ada") as grants:
        del grants[grant(1).key]
    assert shown(both.rows("ada")) == [("ada", "first")]
    values = [record.value for record in copy.member.book.values()]
    assert values.count('{"removed":true}') == 1
    assert len(values) == 2, "nothing is written under a name that never was there"
    with both.changing("ada") as grants:
        one = grant(2, access_token="second")
        grants[one.key] = one
    assert shown(both.rows("ada")) == [("ada", "second")]


def test_the_stamp_of_a_user_changes_with_her_logins_alone() -> None:
    copy = Copy()
    found = tokens(copy, NEW)
    assert (found.stamp("ada"), found.stamp()) == ((), 0)
    with found.changing("ada") as grants:
        grants[grant(1).key] = grant(1)
    ada, everyone = found.stamp("ada"), found.stamp()
    assert everyone == 1
    with found.changing("bob") as grants:
        grants[grant(1).key] = grant(1)
    assert found.stamp("ada") == ada
    assert found.stamp() == 2
    found.learn("no-login", {})
    assert found.stamp() == 2, "a record without a grant is none of a login"
    assert repr(found) == "<FleetUserTokens of 2 users in redis://r>"


async def test_what_an_older_key_sealed_is_sealed_again_once_and_the_rest_stays(
    caplog: pytest.LogCaptureFixture,
) -> None:
    copy = Copy()
    put(copy, "lost", 1, LOST)
    put(copy, "gone", 1, NEW)
    with tokens(copy, NEW).changing("gone") as grants:
        grants.clear()
    put(copy, "ada", 1, OLD, token="old")
    put(copy, "ada", 2, OLD, token="old")
    put(copy, "bob", 1, NEW, token="new")
    put(copy, "eve", 1, OLD, token="earlier")
    put(copy, "eve", 1, NEW, token="later")
    put(copy, "lost", 2, LOST)
    bob = LoginSeal(KeyRing([NEW])).records("bob", grant(1).key)[0]
    before = copy.member.book[bob]
    both = tokens(copy, NEW, OLD)
    with caplog.at_level(logging.ERROR):
        await both._seal_again()
    assert copy.member.book[bob] is before
    assert shown(tokens(copy, NEW).rows()) == [
        ("ada", "old"),
        ("ada", "old"),
        ("bob", "new"),
        ("eve", "later"),
        *[("unknown", "")] * 3,
    ], "the two of a lost key, and the earlier one of eve, which no one uses any more"
    assert shown(tokens(copy, OLD).rows("ada")) == [], "what the older key sealed is removed"
    (said,) = caplog.messages
    assert said == (
        "no key in force opens 2 logins of users in redis://r: they stay there, and their users log in again. "
        "Put the old key back to use them: see HOLDFAST_USER_KEY"
    )
    stamps = {key: record.stamp for key, record in copy.member.book.items()}
    await tokens(copy, NEW, OLD)._seal_again()
    assert {key: record.stamp for key, record in copy.member.book.items()} == stamps


async def test_where_every_login_opens_nothing_is_said(caplog: pytest.LogCaptureFixture) -> None:
    copy = Copy()
    put(copy, "ada", 1, OLD)
    await tokens(copy, NEW, OLD)._seal_again()
    assert caplog.messages == []


def test_a_command_names_its_store_without_the_password() -> None:
    address = RedisAddress.parse("redis://ada:hunter22@host:1?fleet=blue")
    found = CommandUserTokens(address, keys=KeyRing([NEW]), session_keys=KeyRing([OLD]))
    assert (found.place, found.stamp()) == ("redis://host:1?fleet=blue", 0)
    assert repr(found) == "<CommandUserTokens in redis://host:1?fleet=blue>"
