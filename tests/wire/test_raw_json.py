from __future__ import annotations

import json

import pytest
from hypothesis import given, strategies as st

from holdfast.wire.raw_json import (
    BadJson,
    RawObject,
    dumps,
    fields,
    items,
    join_fields,
    join_items,
    loads,
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
