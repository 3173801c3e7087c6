from __future__ import annotations

import json

import pytest
from hypothesis import given, strategies as st

from holdfast.wire.raw_json import (
    LOADED_BYTES,
    MOST_ODD_PARTS,
    SMALL_BYTES,
    BadJson,
    KeyNames,
    RawObject,
    dump_object,
    dumps,
    fields,
    have_lone_surrogate,
    is_object,
    is_text,
    items,
    join_fields,
    join_items,
    load_members,
    load_object,
    loads,
    long_text,
    may_begin,
    read_bytes,
    text_of,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@pytest.mark.requirement("LIFE-28")
@pytest.mark.parametrize(
    "value",
    [b"1e400", b'"\\ud83d"', b'"\\ud83d\\ude00"', b"9" * 400, b'{"z": 1, "a": [1, 2]}', b'"\\\\ud83d"', b"-0.0"],
)
def test_what_json_allows_comes_out_as_the_bytes_that_went_in(value: bytes) -> None:
    members = fields(b'{"first": 1, "value" : ' + value + b', "last": {"x": "\\ud83d"}}')
    assert bytes(members["value"]) == value
    assert list(members) == ["first", "value", "last"]
    assert fields(join_fields(members)).keys() == members.keys()
    assert [bytes(one) for one in items(b"[ " + value + b" ,1]")] == [value, b"1"]


@pytest.mark.requirement("LIFE-28")
@pytest.mark.parametrize(
    "data",
    [b'{"a":NaN}', b'{"a":1', b"[1]", b'{"a":1}x', b'{"a":' + b"[" * 5000 + b"]" * 5000 + b"}", b'{"a":"\n"}', b""],
)
def test_what_is_no_json_object_is_refused(data: bytes) -> None:
    with pytest.raises(BadJson):
        fields(data)


def test_bytes_that_are_no_utf_8_are_refused() -> None:
    with pytest.raises(BadJson):
        read_bytes(b'{"a":"\xff"}')


@given(st.dictionaries(st.text(), JSON))
def test_an_object_is_the_same_after_it_was_split_and_joined(value: dict[str, object]) -> None:
    for data in (json.dumps(value).encode(), json.dumps(value, indent=1).encode()):
        assert json.loads(join_fields(fields(data))) == value


@given(st.lists(JSON))
def test_an_array_is_the_same_after_it_was_split_and_joined(value: list[object]) -> None:
    assert json.loads(join_items(items(json.dumps(value, indent=1).encode()))) == value


@given(JSON)
def test_values_are_read_and_written_alike(value: object) -> None:
    assert loads(dumps(value)) == value


def test_text_is_told_from_everything_else() -> None:
    assert text_of(b'"caf\xc3\xa9"') == "café"
    assert text_of(b'"\\ud83d"') == "\ud83d"
    assert text_of(b"1") is None
    assert text_of(None) is None


@pytest.mark.requirement("LIFE-28")
@pytest.mark.parametrize("raw", [b"{}", b'{"a":1.50,"b":"\\ud800"}', b'{ "a" : 1 }', b'{"a":1,"_meta":{"x":2}}'])
def test_an_object_that_is_led_by_more_keeps_its_own_members_as_they_are_written(raw: bytes) -> None:
    lead = {"_meta": b'{"y":3}', "kind": b'"k"'}
    led = RawObject.read(raw).led_by(lead)
    own = {key: bytes(value) for key, value in fields(raw).items()}
    for written in (led.written(), b"".join(led.pieces())):
        assert {key: bytes(value) for key, value in fields(written).items()} == lead | own
        assert list(fields(written)) == [*(key for key in lead if key not in own), *own]


@pytest.mark.requirement("SEC-7")
def test_a_value_that_is_nested_too_deep_to_be_written_is_bad_json() -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(BadJson, match="nested too deep"):
        dumps(deep)


def test_a_key_in_another_case_is_taken_for_a_name_by_some_parsers() -> None:
    names = KeyNames("method", "id")
    assert names.misspelled(["id", "method"]) == []
    assert names.misspelled(["Id", "id", "METHOD", "other"]) == ["Id", "METHOD"]


def test_an_object_is_changed_by_what_is_set_and_what_is_left_out() -> None:
    raw = RawObject.read(b'{"a": 1, "b": 2}')
    assert raw.changed({"a": None, "c": b"3", "d": None}).written() == b'{"b":2,"c":3}'
    assert raw.written() == b'{"a": 1, "b": 2}'
    assert raw.size == 2


def test_what_is_too_large_to_be_read_at_once_is_refused() -> None:
    fits = b'"%b"' % (b"x" * (LOADED_BYTES - 2))
    assert len(loads(fits)) == LOADED_BYTES - 2
    with pytest.raises(BadJson, match="too large"):
        loads(fits + b" ")
    assert RawObject({"a": fits}).value() == {"a": loads(fits)}
    with pytest.raises(BadJson, match="too large"):
        RawObject({"a": fits, "b": b"1"}).value()


def test_a_large_object_passes_as_its_bytes_with_the_values_of_its_small_members() -> None:
    large = b'{"a": 1, "b": "%b"}' % (b"x" * SMALL_BYTES)
    found = load_object(large)
    assert found == {"a": 1}
    assert dump_object(found) == large
    assert dump_object({"x": found, "y": 2}) == b'{"x":%b,"y":2}' % large
    assert dump_object({"y": 2}) == b'{"y":2}'
    assert load_object(b"[%b]" % large) is None
    assert load_object(b"[1]") is None


@pytest.mark.anyio
async def test_an_object_of_any_size_is_read_in_the_end() -> None:
    small, large = b'{"b": [1, null]}', b'["%b"]' % (b"x" * LOADED_BYTES)
    assert await load_members(RawObject({"a": small})) == {"a": {"b": [1, None]}}
    assert await load_members(RawObject({"a": small, "c": large})) == {"a": {"b": [1, None]}, "c": ["x" * LOADED_BYTES]}
    with pytest.raises(BadJson, match="NaN"):
        await load_members(RawObject({"a": b"NaN", "c": large}))


def test_text_of_any_size_is_read_as_such_and_a_name_only_up_to_a_bound() -> None:
    large = b'"%b"' % (b"x" * SMALL_BYTES)
    assert text_of(large) is None
    assert long_text(large) == "x" * SMALL_BYTES
    assert long_text(None) is long_text(b"1") is None
    assert long_text(b'"\\ud800"') == "\ud800"


def test_half_of_a_surrogate_pair_is_seen_as_an_escape_and_as_text() -> None:
    assert have_lone_surrogate([b"1", b'"\\ud800"'])
    assert not have_lone_surrogate([b'"\\ud83d\\ude00"', b'"\\u00e4"'])
    assert [is_text(one) for one in ("a", "ä", "a\ud800", "\udfff", "\ue000")] == [True, True, False, False, True]


def test_an_object_with_half_of_a_surrogate_pair_may_have_so_many_parts() -> None:
    def many(number: int) -> bytes:
        return b'{"x": "\\ud800", %b}' % b", ".join(b'"%d": %d' % (one, one) for one in range(number))

    found = fields(many(MOST_ODD_PARTS - 2))
    assert (len(found), found["x"], found["7"]) == (MOST_ODD_PARTS - 1, b'"\\ud800"', b"7")
    with pytest.raises(BadJson, match="too many parts"):
        fields(many(MOST_ODD_PARTS))
    with pytest.raises(BadJson, match="too large"):
        fields(b'{"x": "\\ud800", "y": "%b"}' % (b"x" * LOADED_BYTES))


@pytest.mark.requirement("SEC-21")
@pytest.mark.parametrize("before", [0, SMALL_BYTES - 3, SMALL_BYTES - 9, 3 * SMALL_BYTES])
@pytest.mark.parametrize("name", [b'"_meta"', b'"\\u005fmeta"', b'"other"'])
def test_a_word_is_found_wherever_a_name_has_it(before: int, name: bytes) -> None:
    raw = b'{"text":"%b",%b:{}}' % (b"x" * before, name)
    for word in (b"_meta", b"resource"):
        assert may_begin(raw, word) == (b"u005f" in name or word in name)


@pytest.mark.parametrize(
    ("data", "found"), [(None, False), (b"", False), (b"{}", True), (b"[]", False), (b"null", False), (b'"{"', False)]
)
def test_bytes_that_are_an_object_are_told_from_others_and_from_none(data: bytes | None, found: bool) -> None:
    assert is_object(data) is found
