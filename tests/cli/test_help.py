"""Help that can be read: nothing is cut at 80 columns, options are in groups, and ``-h`` works everywhere."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.cli.entry import COMMANDS, GROUPS as COMMAND_GROUPS
from holdfast.cli.runner import command_named
from tests.cli.in_process import Inside

pytestmark = pytest.mark.requirement("DX-13")


def every_command() -> dict[tuple[str, ...], Any]:
    """Each command and each of its subcommands."""
    found: dict[tuple[str, ...], Any] = {}
    for name in COMMANDS:
        command = command_named(name)
        found[name,] = command
        found |= {(name, sub): one for sub, one in getattr(command, "commands", {}).items() if not one.hidden}
    return found


def test_the_help_of_every_command_fits_80_columns_and_cuts_nothing(inside: Inside) -> None:
    for path, command in every_command().items():
        shown = inside(*path, "-h")
        assert (shown.code, shown.err) == (0, "")
        assert [line for line in shown.out.splitlines() if len(line) > 80] == []
        words = shown.out.split()
        for option in command.params:
            for name in (*option.opts, *option.secondary_opts) if option.param_type_name == "option" else ():
                if not option.hidden:
                    assert any(name in word.strip(",").split("/") for word in words), f"{path}: {name}"
        assert "<bool>" not in shown.out
        assert inside(*path, "--help").out == inside("help", *path).out == shown.out


def test_the_list_of_commands_fits_80_columns_and_has_all(inside: Inside) -> None:
    shown = inside("help").out
    assert [line for line in shown.splitlines() if len(line) > 80] == []
    assert [name for name in COMMANDS if f"\n  {name} " not in shown] == []
    assert {name for names in COMMAND_GROUPS.values() for name in names} <= {*COMMANDS}
    assert inside().out == inside("-h").out == shown


def test_every_option_of_serve_is_in_a_group() -> None:
    options = command_named("serve").params
    assert options
    assert [one.name for one in options if one.name != "help" and not one.rich_help_panel] == []


def test_the_help_names_the_choices_of_an_option_its_variable_and_what_is_required(inside: Inside) -> None:
    assert "--kind <tool|prompt|instructions>" in inside("approve", "-h").out
    assert "HOLDFAST_FLEET" in inside("serve", "-h").out
    assert "[required]" in inside("gateway", "render", "-h").out


def test_what_follows_two_dashes_is_not_ours(inside: Inside) -> None:
    ran = inside("add", "x", "--json", "--no-check", "--", "some-server", "-h", "-q")
    assert (ran.code, '"-h"' in ran.out, '"-q"' in ran.out) == (0, True, True)


@pytest.mark.parametrize(
    ("typed", "meant"), [("--prot", "--port"), ("--tokenfile", "--token-file"), ("--hots", "--host")]
)
def test_the_nearest_option_is_suggested(inside: Inside, typed: str, meant: str) -> None:
    ran = inside("serve", typed, "1")
    assert (ran.code, ran.err.splitlines()[-1]) == (2, f"hint: did you mean `{meant}`?")


def test_quiet_prints_results_and_errors_alone(inside: Inside) -> None:
    loud, quiet = inside("import"), inside("import", "-q")
    assert loud.err
    assert (quiet.code, quiet.out, quiet.err) == (loud.code, loud.out, "")
    assert inside("login", "-q", "nothing").err.startswith("error: ")


def test_no_color_leaves_no_style_behind(inside: Inside) -> None:
    terminal = {"FORCE_COLOR": "1", "TERM": "xterm"}
    assert "\x1b[" in inside("login", "x", environment={**terminal, "NO_COLOR": ""}).err
    assert "\x1b[" not in inside("login", "x", environment={**terminal, "NO_COLOR": "1"}).err
