"""Large messages are read as small ones are, or refused; no form of one makes more parts than the bounds allow."""

from __future__ import annotations

import asyncio
import json

import pytest

from holdfast import turns
from holdfast.wire.raw_json import (
    LOADED_BYTES,
    MEMBER_BYTES,
    MOST_ITEMS,
    MOST_LISTS,
    MOST_MEMBERS,
    MOST_ODD_PARTS,
    SMALL_BYTES,
    BadJson,
    Fields,
    NotAnObject,
    RawObject,
    fields,
    have_lone_surrogate,
    items,
    may_begin,
    split,
    split_answer,
)

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("LIFE-28"), pytest.mark.requirement("SEC-7")]

TEXT = b"x" * (SMALL_BYTES + 10)
RESULT = b'{"content":[{"type":"text","text":"%b"}],"n":1.0e-7, "u":"\\ud83d"}' % TEXT
PLAIN = RESULT.replace(b"\\ud83d", "ä".encode())
COMMAS = b'"' + b"a, b; " * MOST_MEMBERS + b'"'
"""A long text with more commas than an object may have members."""

DENSE = b"[" + b'"",' * 2 * MOST_MEMBERS + b'""]'

READABLE = (
    b'{"jsonrpc":"2.0","id":7,"result":%b}' % PLAIN,
    b' {"id" : -7, "jsonrpc": "2.0", "result" :%b} \r\n' % PLAIN,
    b'{"jsonrpc":"2.0","id":7,"result":%b}' % RESULT,
    b'{"result":%b,"jsonrpc":"2.0","id":7}' % PLAIN,
    b'{"jsonrpc":"2.0","id":7,"result":%b,"more":{}}' % PLAIN,
    b'{"jsonrpc":"2.0","id":7,"error":%b}' % PLAIN,
    b'{"jsonrpc":"2.0","id":7,"result":{"text":"%b"},"id":8}' % TEXT,
    b'{"jsonrpc":"2.0","id":7,"result":{"content":[{"type":"text","text":%b}]}}' % COMMAS,
    b'{"jsonrpc":"2.0","id":7,"params":{"name":"write","arguments":{"text":%b}}}' % COMMAS,
)
NOT_JSON = (
    b'{"jsonrpc":"2.0","id":7,"result":%b' % PLAIN,
    b'{"jsonrpc":"2.0","id":7,"result":%b}}' % PLAIN,
    b'{"jsonrpc":"2.0","id":7,"result":%b}' % PLAIN[:-1],
    b'{"jsonrpc":"2.0","id":7,"result":{"text":"%b}' % TEXT,
    b'{"jsonrpc":"2.0","id":7,"result":{"n":NaN,"text":"%b"}}' % TEXT,
    b'{"jsonrpc":"2.0","id":7,"result":{"text":"%b\xff"}}' % TEXT,
    b'{"jsonrpc":"2.0","id":7,"result":{"deep":%b,"text":"%b"}}' % (b"[" * 20_000 + b"]" * 20_000, TEXT * 20),
)


@pytest.mark.parametrize("kind", [bytes, bytearray])
@pytest.mark.parametrize("message", READABLE, ids=range(len(READABLE)))
async def test_a_large_message_has_the_members_that_a_reader_of_the_whole_finds(
    message: bytes, kind: type[bytes | bytearray]
) -> None:
    members = await split(kind(message))
    assert {key: json.loads(bytes(value)) for key, value in members.items()} == json.loads(message)


@pytest.mark.parametrize("message", NOT_JSON, ids=range(len(NOT_JSON)))
async def test_a_large_message_that_is_no_json_is_refused(message: bytes) -> None:
    with pytest.raises(BadJson):
        await split(message)


async def test_line_ends_between_the_tokens_of_a_large_message_become_spaces() -> None:
    members = await split(b'{"result":{"content":[\n\r\n],"text":"%b"}}' % TEXT)
    assert b"\n" not in bytes(members["result"])
    assert json.loads(bytes(members["result"]))["content"] == []


def _members(count: int) -> bytes:
    return b"{" + b",".join(b'"%d":1' % number for number in range(count)) + b"}"


async def test_an_object_has_as_many_members_as_the_bound_and_no_more() -> None:
    assert len(fields(_members(MOST_MEMBERS))) == MOST_MEMBERS
    with pytest.raises(BadJson, match="too many parts"):
        await split(_members(MOST_MEMBERS + 2))


async def test_members_cannot_hide_behind_a_name_that_occurs_twice() -> None:
    many = _members(MOST_MEMBERS + 2)[1:-1]
    for message in (b'{"content":[],%b,"content":[1,2]}' % many, b'{%b,"text":"%b"}' % (many, b"," * 1000)):
        with pytest.raises(BadJson, match="too many parts"):
            fields(message)


@pytest.mark.parametrize("kind", [bytes, bytearray])
@pytest.mark.parametrize("message", READABLE, ids=range(len(READABLE)))
async def test_a_result_is_split_with_its_message_as_by_itself(message: bytes, kind: type[bytes | bytearray]) -> None:
    value = json.loads(message)
    members, result = await split_answer(kind(message))
    assert members.keys() >= value.keys() & {"id", "result", "error", "method"}
    assert _id_in(members) == value["id"]
    if "result" not in value:
        assert result is None
        return
    assert isinstance(result, RawObject)
    assert result.is_large
    assert {key: json.loads(bytes(one)) for key, one in result.members.items()} == value["result"]
    assert json.loads(result.written()) == value["result"]


def _id_in(members: Fields) -> object:
    return json.loads(bytes(members["id"]))


@pytest.mark.parametrize("message", NOT_JSON, ids=range(len(NOT_JSON)))
async def test_a_large_answer_that_is_no_json_is_refused(message: bytes) -> None:
    with pytest.raises(BadJson):
        await split_answer(message)


async def test_other_tasks_have_a_turn_after_each_pass_over_a_large_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two passes in one step would take more than 50 ms for the densest messages."""
    monkeypatch.setattr(turns, "STEP_SECONDS", -1.0)
    given = 0

    async def sleep(seconds: float) -> None:
        nonlocal given
        given += 1

    monkeypatch.setattr(asyncio, "sleep", sleep)
    passes = {}
    for message in (READABLE[0], READABLE[5], b'{"id":7,"result":{"content":%b}}' % DENSE):
        given = 0
        await split_answer(message)
        passes[message] = given
    # Line ends, UTF-8, lists and commas are looked for; then the message is split, twice if it has many commas. In a
    # result, names are looked for last.
    assert list(passes.values()) == [6, 6, 7]


def _members_of(size: int) -> bytes:
    """A result with so many bytes outside of its large members, and more commas than it may have members."""
    few = b'{"id":7,"result":{"content":%b,"x":"' % DENSE
    return few + b"x" * (size + len(DENSE) - len(few) - 3) + b'"}}'


async def test_what_is_outside_of_the_large_members_of_a_result_has_a_bound() -> None:
    _, most = await split_answer(_members_of(MEMBER_BYTES * MOST_MEMBERS))
    assert isinstance(most, RawObject)
    _, more = await split_answer(_members_of(MEMBER_BYTES * MOST_MEMBERS + 1))
    assert isinstance(more, BadJson)


async def test_a_result_with_too_many_members_is_refused_and_its_message_is_read() -> None:
    members, result = await split_answer(b'{"jsonrpc":"2.0","id":7,"result":%b}' % _members(MOST_MEMBERS + 2))
    assert isinstance(result, BadJson)
    assert _id_in(members) == 7
    most, split_result = await split_answer(b'{"jsonrpc":"2.0","id":8,"result":%b}' % _members(MOST_MEMBERS - 9))
    assert _id_in(most) == 8
    assert isinstance(split_result, RawObject)
    assert len(split_result.members) == MOST_MEMBERS - 9


@pytest.mark.parametrize("before", [0, 1, SMALL_BYTES - 3, SMALL_BYTES - 1, SMALL_BYTES, SMALL_BYTES + 5])
@pytest.mark.parametrize("name", [b'"_meta"', b'"\\u005fmeta"', b'"_m\\u0065ta"'])
async def test_a_name_is_found_wherever_it_is_in_a_large_result(name: bytes, before: int) -> None:
    text = b"x" * before
    assert may_begin(b'[{"text":"%b",%b:{}},"%b"]' % (text, name, TEXT), b"_meta")
    assert not may_begin(b'[{"text":"%b","meta":{}},"%b\\u00e9"]' % (text, TEXT), b"_meta")


def test_a_list_has_as_many_items_as_the_bound_and_no_more() -> None:
    assert len(items(b"[" + b"1," * MOST_ITEMS + b"1]")) == MOST_ITEMS + 1
    with pytest.raises(BadJson, match="too many parts"):
        items(b"[" + b"1," * (MOST_ITEMS + 1) + b"1]")


async def test_a_message_of_lists_in_lists_is_read_up_to_a_bound() -> None:
    deep = 500
    nested = b",".join([b"[" * deep + b"]" * deep] * (MOST_LISTS // deep - 1))
    for method in (b'"result":{"content":', b'"params":{"x":'):
        members, _ = await split_answer(b'{"id":7,%b[%b]}}' % (method, nested))
        assert _id_in(members) == 7
        with pytest.raises(BadJson, match="too many parts"):
            await split_answer(b'{"id":7,%b[%b,%b]}}' % (method, nested, b"[" * deep + b"]" * deep))


def test_half_of_a_surrogate_pair_is_read_up_to_a_bound() -> None:
    small = b'{"a":"\\ud83d","text":"%b"}' % (b"x" * (LOADED_BYTES - 100))
    assert bytes(fields(small)["a"]) == b'"\\ud83d"'
    with pytest.raises(BadJson, match="half of a surrogate pair"):
        fields(small + b" " * 100)


def test_few_parts_are_split_where_one_has_half_of_a_surrogate_pair() -> None:
    few = b'["\\ud83d"%b]' % (b", [0]" * (MOST_ODD_PARTS - 2))
    assert [bytes(one) for one in items(few)][:2] == [b'"\\ud83d"', b"[0]"]
    with pytest.raises(BadJson, match="too many parts"):
        items(few[:-1] + b",0,0]")
    assert {key: bytes(one) for key, one in fields(b' {"a": "\\ud83d" , "b":{"c":[]}}').items()} == {
        "a": b'"\\ud83d"',
        "b": b'{"c":[]}',
    }


@pytest.mark.parametrize(
    ("value", "lone"),
    [
        (b'"\\ud83d\\ude00"', False),
        (b'"\\ud83d"', True),
        (b'{"a":["\\ude00"]}', True),
        (b'"\\\\ud83d"', False),
        (b'"\\u0041"', False),
        (b'["plain"]', False),
    ],
)
def test_text_that_is_no_unicode_is_found(value: bytes, lone: bool) -> None:
    assert have_lone_surrogate([b"1", value]) is lone


async def test_a_large_list_is_no_object() -> None:
    with pytest.raises(NotAnObject):
        await split(b'["%b"]' % TEXT)
