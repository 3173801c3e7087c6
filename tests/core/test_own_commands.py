"""The commands in hints, as a person types them."""

from __future__ import annotations

import shlex

import pytest

from holdfast.cli.entry import COMMANDS
from holdfast.core.own_commands import Invocation, command_line, invocation, typed_as

pytestmark = pytest.mark.requirement("DOC-8", "HUB-5")

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


def test_each_command_with_that_option_gets_it() -> None:
    from holdfast.core import own_commands  # noqa: PLC0415 - the set is not exported

    assert set(COMMANDS) >= own_commands._TAKES_CONFIG
