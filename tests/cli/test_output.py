"""How the commands print JSON: what a terminal obeys, or a reader does not see, is escaped."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable

import pytest
from hypothesis import given, strategies as st

from holdfast.cli.output import json_text, print_json, print_json_line
from holdfast.core.redact import INVISIBLE
from tests.cli.command import Cli, stdio
from tests.peers.stdio import StdioPeer

HOSTILE = "a\x7f\x85\x9b31m\u202egnp\u2066\u200b\u200e\u2028\ufeff\U000e0041\U000e007f\u00adz"


@pytest.mark.requirement("MSG-6")
@given(st.text())
def test_json_on_a_terminal_shows_no_control_direction_or_tag_character(text: str) -> None:
    shown = json_text({"x": text}, indent=2)
    assert json.loads(shown) == {"x": text}
    unseen = [c for c in shown if c != "\n" and unicodedata.category(c) in ("Cc", "Zl", "Zp")]
    assert unseen == []


@pytest.mark.requirement("MSG-6")
def test_every_hostile_character_is_escaped_on_both_outputs(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"text": HOSTILE})
    print_json_line({"text": HOSTILE})
    shown = capsys.readouterr().out
    assert [c for c in HOSTILE[1:-1] if not c.isascii() and c in shown] == []
    assert "\x7f" not in shown
    assert json.loads(shown.splitlines()[-1])["text"] == HOSTILE
    assert json_text("Grüße, 日本 🚀") == '"Grüße, 日本 🚀"'


@pytest.mark.requirement("MSG-6", "MSG-11")
def test_what_a_message_leaves_out_because_it_is_invisible_is_escaped_in_json_too() -> None:
    invisible = "".join(filter(INVISIBLE.match, map(chr, (*range(0xD800), *range(0xE000, 0x110000)))))
    assert len(invisible) > 4096
    shown = json_text({"x": invisible})
    assert shown.isascii()
    assert json.loads(shown) == {"x": invisible}


@pytest.mark.requirement("MSG-6")
def test_a_real_terminal_gets_the_answer_of_a_server_escaped(cli: Cli, stdio_peer: Callable[..., StdioPeer]) -> None:
    cli.configure({"a": stdio(stdio_peer())})
    with cli.on_terminal("call", "a", "echo", "text=x\u202e\u009b31m\U000e0041", "--json") as terminal:
        assert terminal.code() == 0
        assert not {"\u202e", "\u009b", "\U000e0041"} & set(terminal.seen)
        assert "\\u202e\\u009b31m\\udb40\\udc41" in terminal.seen
