"""The parser reads what people write, agrees with JSON, and points at every fault."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
from hypothesis import example, given, settings, strategies as st

from holdfast.config.jsonc import DEEPEST, parse
from holdfast.errors import ConfigError, Problem

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=20,
)


@given(json_values, st.booleans(), st.sampled_from([None, 1, "\t"]))
def test_it_agrees_with_json_on_everything_that_is_json(
    value: object, ascii_only: bool, indent: int | str | None
) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    assert parse(text).value == json.loads(text)
    assert parse(b"\xef\xbb\xbf" + text.encode()).value == json.loads(text)


@given(st.binary(max_size=200))
@example(b"\xff\xfe{\x00}\x00")
@example(b"[" * 100_000)
@example(b'{"a":' * 100_000)
@example(b"1" * 10_000)
@example(b"-")
@example(b"1e999")
@example(b'"\\')
@example(b'"\\u12')
def test_no_bytes_raise_anything_but_a_config_error(data: bytes) -> None:
    try:
        parse(data)
    except ConfigError as error:
        (problem,) = error.problems
        assert problem.line >= 1
        assert problem.column >= 1


@given(st.text("{}[]\",:/*\\ \n'#tfn01e-.u", max_size=60))
@settings(max_examples=500)
def test_no_text_of_json_marks_raises_anything_but_a_config_error(text: str) -> None:
    with contextlib.suppress(ConfigError):
        parse(text)


def test_comments_trailing_commas_and_a_byte_order_mark_are_read() -> None:
    text = '\ufeff// first\n{"a": [1, /* two */ 2,], // three\n "url": "http://x//y", /**/ }\n// last'
    assert parse(text).value == {"a": [1, 2], "url": "http://x//y"}


def test_every_key_and_every_value_has_its_place() -> None:
    document = parse('{\n  "a": [1,\r\n    {"ü": "x", "b": 2}],\r  "c": 3}')
    keys = [document.problem(path, "", at_key=True) for path in (("a",), ("a", 1, "ü"), ("a", 1, "b"))]
    assert [(one.line, one.column) for one in keys] == [(2, 3), (3, 6), (3, 16)]
    values = [document.label(path) for path in (("a",), ("a", 0), ("a", 1), ("c",))]
    assert values == ["line:2:8", "line:2:9", "line:3:5", "line:4:8"]


def test_duplicate_keys_are_all_reported_and_the_last_one_counts() -> None:
    document = parse('{"a": 1, "b": {"x": 1, "x": 2},\n "a": 3}')
    assert document.value == {"a": 3, "b": {"x": 2}}
    assert [(one.keys, (one.line, one.column), one.message.rpartition(" at ")[2]) for one in document.duplicates] == [
        (("b", "x"), (1, 24), "line 1, column 16"),
        (("a",), (2, 2), "line 1, column 2"),
    ]


def test_keys_under_a_repeated_key_are_not_themselves_called_repeated() -> None:
    assert len(parse('{"a": {"x": 1}, "a": {"x": 1}}').duplicates) == 1


@pytest.mark.parametrize(
    ("text", "line", "column", "message", "hint"),
    [
        ("", 1, 1, "the file is empty", "mcpServers"),
        ("// only this\n", 2, 1, "the file is empty", "mcpServers"),
        ('{"a": 1\n "b": 2}', 2, 2, "a comma is missing before this", "comma after"),
        ("[1 2]", 1, 4, "a comma is missing before this", "comma"),
        ('{"a": abc}', 1, 7, "not a JSON value", "did you mean to quote this?"),
        ("{a: 1}", 1, 2, "a key was expected", "did you mean to quote this?"),
        ("{'a': 1}", 1, 2, "straight double quotes", 'use "'),
        ("{\"a\": 'x'}", 1, 7, "straight double quotes", 'use "'),
        ('{"a": “x”}', 1, 7, "straight double quotes", 'use "'),
        ('{"a" 1}', 1, 6, "a colon is missing", '"key": value'),
        ('{"a": True}', 1, 7, "`True` is not JSON", "write true"),
        ('{"a": None}', 1, 7, "`None` is not JSON", "write null"),
        ('{"a": NaN}', 1, 7, "not a JSON value", "quote"),
        ('{"a": 01}', 1, 7, "not a JSON value", "quote"),
        ('{"a": 1e999}', 1, 7, "too large", "quote"),
        ('{"a": }', 1, 7, "a value is missing", "write the value"),
        ('{"a":', 1, 6, "file ends where a value", "complete"),
        ("{, }", 1, 2, "missing before this comma", "remove the comma"),
        ("[1,,2]", 1, 4, "missing before this comma", "remove the comma"),
        ('{"a": 1', 1, 8, "`{` of line 1, column 1 is not closed", "write }"),
        ("[[1]", 1, 5, "`[` of line 1, column 1 is not closed", "write ]"),
        ("[1}", 1, 3, "does not close the `[` of line 1, column 1", "write ]"),
        ('{"a": 1}}', 1, 9, "one `}` too many", "remove it"),
        ("{} {}", 1, 4, "text after the end", "one {"),
        ('{"a": "x\ny"}', 1, 7, "not closed before the end of the line", 'end it with "'),
        ('"x', 1, 1, "not closed", 'end it with "'),
        ('{"a": "b\\x"}', 1, 9, "this escape does not exist", r"\\"),
        (r'"\u12g4"', 1, 2, "four hexadecimal digits", r"\u00e9"),
        (r'"\ud800"', 1, 2, "half of a surrogate pair", "the character itself"),
        (r'"a\ud800\u0041"', 1, 3, "half of a surrogate pair", "the character itself"),
        (r'"\udc00\ud800"', 1, 2, "half of a surrogate pair", "the character itself"),
        ('"a\tb"', 1, 3, "control character", r"\u0009"),
        ("{ /* open", 1, 3, "comment is never closed", "*/"),
        ('{"a": 1 # note\n}', 1, 9, "comma is missing", "comma"),
        ('{ # note\n"a": 1}', 1, 3, "`#` does not start a comment", "//"),
        ('{"a": /1}', 1, 7, "`/` does not belong", "//"),
        ('{\u00a0"a": 1}', 1, 2, "no-break space", "ordinary space"),
        ('{"a": "b": 1}', 1, 10, "`:` does not belong", "quote"),
    ],
)  # fmt: skip
def test_a_fault_is_placed_and_explained(text: str, line: int, column: int, message: str, hint: str) -> None:
    problem = fault(text)
    assert (problem.line, problem.column) == (line, column)
    assert message in problem.message
    assert hint in problem.hint


def test_bytes_that_are_not_utf8_are_placed() -> None:
    problem = fault(b'\xef\xbb\xbf{"a": "\xc3\xa4",\n "b": "\xff"}')
    assert (problem.line, problem.column) == (2, 8)
    assert "UTF-8" in problem.message


def test_a_text_with_half_a_character_is_placed() -> None:
    problem = fault('{\n"a": "\ud800"}')
    assert (problem.line, problem.column) == (2, 7)


def test_utf16_is_named() -> None:
    assert "UTF-16" in fault("{}".encode("utf-16")).hint


def test_nesting_is_bounded_at_the_promised_depth() -> None:
    assert parse("[" * DEEPEST + "]" * DEEPEST).value
    assert f"{DEEPEST} levels" in fault("[" * (DEEPEST + 1)).message


@pytest.mark.requirement("MSG-6")
@pytest.mark.parametrize(
    "text",
    [
        "s3cr3t",
        "{s3cr3t: 1}",
        '{"a": s3cr3t}',
        '{"a": "s3cr3t',
        "{\"a\": 's3cr3t'}",
        '{"a": 1 s3cr3t}',
        '{"a": "s3cr3t\\q"}',
    ],
)
def test_no_fault_quotes_what_stands_in_the_file(text: str) -> None:
    problem = fault(text)
    assert "s3cr3t" not in problem.message + problem.hint


def fault(text: str | bytes) -> Problem:
    with pytest.raises(ConfigError) as caught:
        parse(text, file=Path("mcp.json"))
    (problem,) = caught.value.problems
    assert problem.file == Path("mcp.json")
    return problem
