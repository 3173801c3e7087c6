"""An edit changes one member and nothing else: comments, order and unknown keys stay."""

from __future__ import annotations

import json
import tomllib

import pytest
from hypothesis import given, strategies as st

from holdfast.config.file_edit import put_table, remove_member, remove_table, set_member
from holdfast.config.jsonc import parse

FILE = """\
// my settings
{
  "theme": "dark", // at night
  "mcpServers": {
    // the good one
    "files": {
      "command": "npx",
      "args": ["-y", "server"] /* quick */
    },
    "web": { "url": "https://example.com" } // last
  },
  "zoom": 1.5
}
"""


def test_a_member_goes_and_the_comments_around_it_stay() -> None:
    assert (
        remove_member(FILE, ("mcpServers",), "files")
        == """\
// my settings
{
  "theme": "dark", // at night
  "mcpServers": {
    // the good one
    "web": { "url": "https://example.com" } // last
  },
  "zoom": 1.5
}
"""
    )


def test_the_last_member_takes_the_comma_before_it_along() -> None:
    assert """\
      "args": ["-y", "server"] /* quick */
    }
    // last
  },
""" in remove_member(FILE, ("mcpServers",), "web")


def test_a_new_member_stands_last_in_the_indentation_of_the_others() -> None:
    edited = set_member(FILE, ("mcpServers",), "holdfast", {"url": "http://127.0.0.1/mcp"})
    assert (
        """\
    "web": { "url": "https://example.com" }, // last
    "holdfast": {
      "url": "http://127.0.0.1/mcp"
    }
  },
"""
        in edited
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{}", '{"a": {"b": 1}}'),
        ("{}\n", '{"a": {"b": 1}}\n'),
        ('{"x": 1}', '{"x": 1, "a": {"b": 1}}'),
        ('{\n\t"x": 1\n}', '{\n\t"x": 1,\n\t"a": {\n\t\t"b": 1\n\t}\n}'),
        ('{\r\n  "x": 1,\r\n}', '{\r\n  "x": 1,\r\n  "a": {\r\n    "b": 1\r\n  }\r\n}'),
        ('{\n  "a": {}\n}', '{\n  "a": {\n    "b": 1\n  }\n}'),
        ('{\n  "a": {\n    // none yet\n  }\n}', '{\n  "a": {\n    // none yet\n    "b": 1\n  }\n}'),
        ('{"a": null}', '{"a": {"b": 1}}'),
    ],
)
def test_objects_on_the_way_are_made_in_the_style_of_the_file(text: str, expected: str) -> None:
    assert set_member(text, ("a",), "b", 1) == expected


def test_a_value_is_replaced_where_it_stands() -> None:
    assert set_member(FILE, (), "zoom", 2) == FILE.replace("1.5", "2")


def test_what_is_not_there_cannot_be_removed() -> None:
    assert remove_member(FILE, ("mcpServers",), "none") == FILE
    assert remove_member(FILE, ("none",), "files") == FILE


def test_a_key_that_stands_twice_goes_twice() -> None:
    assert remove_member('{"a": 1, "b": 2, "a": 3}', (), "a") == '{"b": 2}'


keys = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=6)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | keys,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(keys, values, max_size=4), keys, values, st.sampled_from([None, 2, "\t"]))
def test_after_any_edit_the_text_says_what_it_should(
    whole: dict[str, object], key: str, value: object, indent: int | str | None
) -> None:
    text = json.dumps(whole, indent=indent, ensure_ascii=False)
    edited = set_member(text, (), key, value)
    assert parse(edited).value == {**whole, key: value}
    removed = remove_member(edited, (), key)
    assert parse(removed).value == {name: item for name, item in whole.items() if name != key}
    json.loads(removed)


TOML = '''\
# mine
model = "best"

[mcp_servers.github]  # work
command = "npx"
args = ["-y", """
[mcp_servers.not_a_header]
"""]

[mcp_servers.github.env]
TOKEN = "s3cret"

# about the next one
[mcp_servers."odd name"]
url = "https://example.com"
[profiles.fast]
model = "small"
'''


def test_tables_go_with_those_below_them_and_comments_of_others_stay() -> None:
    edited = remove_table(TOML, ("mcp_servers",), "github")
    assert (
        edited
        == """\
# mine
model = "best"

# about the next one
[mcp_servers."odd name"]
url = "https://example.com"
[profiles.fast]
model = "small"
"""
    )
    edited = remove_table(edited, ("mcp_servers",), "odd name")
    assert tomllib.loads(edited) == {"model": "best", "profiles": {"fast": {"model": "small"}}}


def test_a_table_is_added_at_the_end() -> None:
    edited = put_table(TOML, ("mcp_servers",), "hold fast", {"command": 'a"b', "args": ["x", "\x7f"], "enabled": True})
    assert edited.startswith(TOML)
    added = tomllib.loads(edited)["mcp_servers"]["hold fast"]
    assert added == {"command": 'a"b', "args": ["x", "\x7f"], "enabled": True}


def test_what_was_taken_out_can_be_put_back() -> None:
    github = tomllib.loads(TOML)["mcp_servers"]["github"]
    again = put_table(remove_table(TOML, ("mcp_servers",), "github"), ("mcp_servers",), "github", github)
    assert tomllib.loads(again) == tomllib.loads(TOML)


def test_a_table_is_removed_from_every_part_of_the_file() -> None:
    text = "[mcp_servers.a]\nx = 1\n[profiles]\ny = 2\n[mcp_servers.b]\nz = 3\n[mcp_servers.a.env]\nt = 4\n"
    assert remove_table(text, ("mcp_servers",), "a") == "[profiles]\ny = 2\n[mcp_servers.b]\nz = 3\n"


def test_an_inline_table_can_be_removed_too() -> None:
    text = '[mcp_servers]\na = { command = "x" }\nb = { command = "y" } # stays\n'
    assert remove_table(text, ("mcp_servers",), "a") == '[mcp_servers]\nb = { command = "y" } # stays\n'


def test_a_byte_order_mark_stays_where_it_is() -> None:
    assert set_member('\ufeff{"a": 1}', (), "b", 2) == '\ufeff{"a": 1, "b": 2}'
    assert remove_member('\ufeff{"a": 1, "b": 2}', (), "a") == '\ufeff{"b": 2}'
