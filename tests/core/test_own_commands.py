"""The commands in hints, as a person types them."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import pytest

import holdfast
from holdfast.cli.entry import COMMANDS
from holdfast.core.messages import Invocation, command_line, invocation, typed_as

pytestmark = pytest.mark.requirement("DOC-8", "HUB-5")

SOURCES = Path(holdfast.__file__).parent

THERE = Invocation("/opt/h/bin/holdfast", "/my files/mcp.json")


@pytest.mark.parametrize(
    ("words", "server", "options", "expected"),
    [
        (("doctor",), "x", (), "/opt/h/bin/holdfast doctor x --config '/my files/mcp.json'"),
        (
            ("login",),
            "x",
            ("--scope", "a b"),
            "/opt/h/bin/holdfast login x --scope 'a b' --config '/my files/mcp.json'",
        ),
        (("reconnect",), "a b", (), "/opt/h/bin/holdfast reconnect 'a b' --config '/my files/mcp.json'"),
        (("doctor",), "-x", ("--fix",), "/opt/h/bin/holdfast doctor --fix --config '/my files/mcp.json' -- -x"),
        (("doctor", "explain", "HF-PATH"), "", (), "/opt/h/bin/holdfast doctor explain HF-PATH"),
        (("doctor", "--config", "/a"), "", (), "/opt/h/bin/holdfast doctor --config /a"),
        (("import",), "", (), "/opt/h/bin/holdfast import"),
        (("--version",), "", (), "/opt/h/bin/holdfast --version"),
    ],
)
def test_a_command_names_the_program_and_the_file_that_is_meant(
    words: tuple[str, ...], server: str, options: tuple[str, ...], expected: str
) -> None:
    with typed_as(THERE):
        assert command_line(*words, server=server, options=options) == expected
        assert shlex.split(expected)[0] == "/opt/h/bin/holdfast"
    assert "--config" not in command_line(*words[:1], server=server)


def test_a_program_that_uses_the_library_reads_the_plain_name() -> None:
    assert invocation() == Invocation("holdfast", "")
    assert command_line("login", server="x") == "holdfast login x"


def test_no_hint_writes_a_command_by_itself() -> None:
    """A hint with a literal `holdfast …` would not name the program and the file as they are here."""
    literal = re.compile(rf"\bholdfast (?:{'|'.join(COMMANDS)})\b")
    found = [
        f"{file.relative_to(SOURCES)}:{text.lineno}: {text.value}"
        for file in SOURCES.rglob("*.py")
        for keyword in ast.walk(ast.parse(file.read_text()))
        if isinstance(keyword, ast.keyword) and keyword.arg == "hint"
        for text in ast.walk(keyword.value)
        if isinstance(text, ast.Constant) and isinstance(text.value, str) and literal.search(text.value)
    ]
    assert found == []


def test_each_command_with_that_option_gets_it() -> None:
    from holdfast.core import messages  # noqa: PLC0415 - the set is not exported

    assert set(COMMANDS) >= messages._TAKES_CONFIG
