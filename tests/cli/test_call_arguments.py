"""``key=value`` becomes the arguments that a tool's schema asks for."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from holdfast.cli.tools import parse_arguments
from holdfast.errors import UsageError

SCHEMA = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "ratio": {"type": "number"},
        "flag": {"type": "boolean"},
        "items": {"type": "array"},
        "options": {"type": "object"},
        "maybe": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "either": {"type": ["integer", "string"]},
        "free": {},
        "odd": {"oneOf": [True, {"type": "number"}]},
    },
}


@pytest.mark.parametrize(
    ("pair", "value"),
    [
        ("text=5", "5"),
        ("text=", ""),
        ("text=a=b", "a=b"),
        ('text={"a": 1}', '{"a": 1}'),
        ("count=5", 5),
        ("ratio=2", 2),
        ("ratio=2.5", 2.5),
        ("flag=true", True),
        ("items=[1, 2]", [1, 2]),
        ('options={"a": 1}', {"a": 1}),
        ("maybe=null", None),
        ("maybe=3", 3),
        ("either=3", 3),
        ("either=three", "three"),
        ("free=3", 3),
        ("free=three", "three"),
        ("odd=1.5", 1.5),
        ("unknown=7", 7),
        ("unknown=seven", "seven"),
    ],
)
def test_a_value_is_read_as_the_type_that_the_schema_names(pair: str, value: object) -> None:
    name = pair.partition("=")[0]
    assert parse_arguments([pair], None, SCHEMA) == {name: value}


@pytest.mark.parametrize("pair", ["count=five", "count=2.5", "flag=1", "items={}", "maybe=x", "count="])
def test_a_value_that_cannot_be_of_that_type_is_wrong_usage(pair: str) -> None:
    with pytest.raises(UsageError, match=f"`{pair.partition('=')[0]}` takes "):
        parse_arguments([pair], None, SCHEMA)


@pytest.mark.parametrize("pair", ["text", "=5", ""])
def test_what_is_no_pair_is_wrong_usage_with_a_hint(pair: str) -> None:
    with pytest.raises(UsageError, match="is not key=value") as wrong:
        parse_arguments([pair], None, SCHEMA)
    assert wrong.value.hint


def test_pairs_stand_above_the_object() -> None:
    given_ = parse_arguments(["count=2"], '{"count": 1, "text": "x"}', SCHEMA)
    assert given_ == {"count": 2, "text": "x"}


@pytest.mark.parametrize("text", ["{", "[1]", '"x"', "", "[" * 100_000])
def test_an_object_that_is_none_is_wrong_usage(text: str) -> None:
    with pytest.raises(UsageError, match="--args is"):
        parse_arguments([], text, SCHEMA)


ODD_SCHEMAS = [
    {},
    {"properties": 5},
    {"properties": {"a": 5, "text": {"type": 5}, "count": {"type": [5]}, "odd": {"anyOf": 7, "oneOf": [7]}}},
]


@given(st.text(), st.sampled_from([SCHEMA, *ODD_SCHEMAS]))
def test_any_value_and_any_schema_give_arguments_or_a_clear_refusal(text: str, schema: dict[str, object]) -> None:
    for name in ("a", "text", "count", "odd"):
        try:
            assert set(parse_arguments([f"{name}={text}"], None, schema)) == {name}
        except UsageError as error:
            assert name in error.message  # noqa: PT017 - either outcome is fine; this is what one must say
