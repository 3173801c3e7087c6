"""What changed in a text that a model reads: what is told of it, under which key, and how a person sees it."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core.changes import (
    LONGEST_LINE,
    LONGEST_PART,
    MOST_LINES,
    ApprovalKind,
    ChangedTool,
    key_of,
    kind_of,
    said,
)


def change(was: dict[str, Any], now: dict[str, Any]) -> ChangedTool:
    return ChangedTool(server="files", tool="read", held=True, was=was, now=now)


def diff(was: object, now: object) -> list[str]:
    """The lines of a changed description, without its heading."""
    heading, more, *rest = change({"description": was}, {"description": now}).diff.split("\n")
    assert (heading, more) == ("--- description (first seen)", "+++ description (now)")
    return rest


@pytest.mark.parametrize("name", ["read", "", "\0prompt\0read", "\0"])
def test_a_key_names_one_text_of_one_kind(name: str) -> None:
    kinds: tuple[ApprovalKind, ...] = ("tool", "prompt", "instructions")
    assert [kind_of(key_of(kind, name)) for kind in kinds] == [(kind, name) for kind in kinds]
    assert len({key_of(kind, name) for kind in kinds}) == 3
    assert key_of("tool", "read") == "read"


def test_what_a_model_reads_is_watched_and_nothing_else() -> None:
    raw = {"name": "read", "description": "Reads.", "title": None, "_meta": {"x": 1}, "annotations": {}}
    assert said(raw) == {"description": "Reads.", "annotations": {}}
    found = change({"title": "A", "description": "same"}, {"title": "B", "description": "same", "arguments": []})
    assert found.parts == ("title", "arguments")


def test_a_mark_follows_from_the_current_content_alone() -> None:
    mark = change({"title": "A"}, {"title": "B", "description": "x"}).mark
    assert mark == change({}, {"description": "x", "title": "B"}).mark
    assert mark != change({"title": "A"}, {"title": "B", "description": "y"}).mark
    assert len(bytes.fromhex(mark)) == 8


def test_a_change_is_shown_with_three_lines_before_it() -> None:
    was, now = (f"1\n2\n3\n4\n5\n{one}" for one in ("old", "new"))
    assert diff(was, now) == ["@@ -1,4 +1,4 @@", " 3", " 4", " 5", "-old", "+new"]
    assert diff("old\n2", "new\n2") == ["@@ -1,2 +1,2 @@", "-old", "+new", " 2"]


def test_a_part_that_was_not_there_has_no_lines_and_an_object_is_written_with_sorted_keys() -> None:
    assert diff(None, "new") == ["@@ -0,0 +1 @@", "+new"]
    assert diff({"b": "é", "a": 1}, {"b": "é", "a": 2})[1:] == [" {", '-  "a": 1,', '+  "a": 2,', '   "b": "é"', " }"]


def test_of_a_long_part_the_lines_from_the_change_on_are_compared_and_the_cut_is_said() -> None:
    lines = [str(number) for number in range(MOST_LINES)]
    assert diff("\n".join([*lines, *lines, "old"]), "\n".join([*lines, *lines, "new"]))[-2:] == ["-old", "+new"]
    whole = ["old", *lines[1:]]
    assert diff("\n".join(whole), "\n".join(["new", *lines[1:]]))[-1] == f" {lines[3]}"
    assert diff("\n".join(whole), "\n".join(["new", *lines]))[-1] == (
        f"… (cut: description has {MOST_LINES + 1} lines now and had {MOST_LINES})"
    )


def test_a_line_and_a_part_are_shown_up_to_a_bound_and_nothing_in_them_is_invisible() -> None:
    long = "x" * (LONGEST_LINE + 1)
    assert diff("", long) == ["@@ -1 +1 @@", "-", f"+{long[:-1]}"]
    assert diff("", "x\n" * LONGEST_PART)[-1].startswith("… (cut: description has 32769 lines now")
    assert diff("", "a\tb\x1b\u202e")[-1] == "+a\tb\\u001b\\u202e"
