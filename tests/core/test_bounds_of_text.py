"""Where a text is too long to be shown or searched: what is at a bound is whole, and what is one beyond it is cut."""

from __future__ import annotations

import pytest

from holdfast.core.evidence import RpcError
from holdfast.core.redact import (
    GAP_CHARACTERS,
    LEARNED,
    LEFT_OUT,
    LONGEST_BLOCK,
    LONGEST_MASKED,
    LONGEST_TEXT,
    MASK,
    SHOWN,
    URL_ELICITATION_REQUIRED,
    Redactor,
    cut,
    fault_line,
    has_secret_shape,
    masked,
    masked_data,
    quote_block,
    quoted,
    quoted_line,
    quoted_name,
    secrets_in_url,
    visible_json,
)

NOTHING = "\x00"
"""A character of which nothing is shown."""


@pytest.mark.requirement("MSG-11")
def test_a_line_is_whole_up_to_its_bound_and_beyond_it_ends_in_an_ellipsis_within_the_bound() -> None:
    assert quoted_line("x" * SHOWN) == "x" * SHOWN
    assert quoted_line("x" * (SHOWN + 1)) == "x" * (SHOWN - 1) + "…"
    assert quoted_line("abc defgh", most=5) == "abc…", "without the blank before the ellipsis"


@pytest.mark.requirement("MSG-11", "SEC-7")
def test_of_a_text_that_shows_nothing_only_a_beginning_is_searched_for_something_to_show() -> None:
    assert quoted(NOTHING * 79 + "x", origin="stderr", most=10) == 'stderr: "x"'
    assert quoted(NOTHING * 80 + "x", origin="stderr", most=10) == ""
    assert quote_block(NOTHING * 19 + "x", most=10) == "> x"
    assert quote_block(NOTHING * 20 + "x", most=10) == ""


@pytest.mark.requirement("MSG-11")
def test_a_name_of_eighty_plain_characters_stands_as_it_is_and_a_longer_or_odd_one_in_quotes() -> None:
    assert quoted_name("x" * 80) == "x" * 80
    assert quoted_name("x" * 81) == f'"{"x" * 79}…"'
    assert quoted_name("a/b@1.0", ticks=True) == "`a/b@1.0`"
    assert quoted_name("a b", ticks=True) == '"a b"'
    assert quoted_name("xyz", most=2) == '"x…"'
    assert quoted_name(NOTHING) == '""'


@pytest.mark.requirement("MSG-11")
def test_a_block_is_whole_up_to_its_bound_and_cut_beyond_it() -> None:
    assert quote_block("x" * LONGEST_BLOCK) == f"> {'x' * LONGEST_BLOCK}"
    assert quote_block("x" * (LONGEST_BLOCK + 1)) == f"> {'x' * (LONGEST_BLOCK - 1)}…"
    assert quote_block("one\n\n two\n", most=20) == "> one\n>\n>  two"


def test_json_for_a_terminal_escapes_what_is_not_seen_and_nothing_else() -> None:
    assert visible_json({"a": "\x7f\x9b\u200bé"}) == '{"a": "\\u007f\\u009b\\u200bé"}'
    assert visible_json(["é"], ascii_only=True, indent=1) == '[\n "\\u00e9"\n]'


def test_of_the_text_of_a_fault_only_a_beginning_is_searched_for_words() -> None:
    assert fault_line(ValueError(" " * (2 * LONGEST_TEXT - 1) + "x")) == "ValueError: x"
    assert fault_line(ValueError(" " * (2 * LONGEST_TEXT) + "x")) == "ValueError"


@pytest.mark.requirement("SEC-7")
def test_a_long_text_is_cut_at_its_last_gap_or_where_none_is_near_well_before_its_bound() -> None:
    most = LONGEST_MASKED
    assert cut("x" * most) == "x" * most
    assert cut("x" * (most + 1)) == "x" * (most - GAP_CHARACTERS) + " … (cut)"
    assert cut("x" * (most - 3) + " yy yy") == "x" * (most - 3) + " … (cut)"
    assert cut("x" * (most - 3) + "\nyy\nyy") == "x" * (most - 3) + " … (cut)"
    assert cut("a b\nc d", most=5) == "a b … (cut)"
    assert cut("x" * 10 + " " + "y" * most) == "x" * 10 + " " + "y" * (most - GAP_CHARACTERS - 11) + " … (cut)"


@pytest.mark.requirement("MSG-6", "SEC-7")
def test_the_texts_of_one_value_are_counted_together() -> None:
    half = "x " * (LONGEST_MASKED // 4)
    assert masked_data([half, half], Redactor()) == [half, half]
    assert masked_data([half, half, "x"], Redactor()) == LEFT_OUT


@pytest.mark.requirement("MSG-6")
def test_below_the_name_of_a_credential_is_masked_what_can_be_one() -> None:
    data = {"token": ["abcd", "abc", "true", {"deep": "qwer1234", "more": [["zxcv5678"]]}], "page": "abcd"}
    shown = {"token": [MASK, "abc", "true", {"deep": MASK, "more": [[MASK]]}], "page": "abcd"}
    assert masked_data(data, Redactor()) == shown
    assert masked_data(data, Redactor(["zxcv5678"]), for_user=True) == {
        "token": ["abcd", "abc", "true", {"deep": "qwer1234", "more": [[MASK]]}],
        "page": "abcd",
    }


@pytest.mark.requirement("MSG-6")
def test_an_address_that_the_user_must_open_keeps_its_parts_and_that_of_another_error_does_not() -> None:
    url = "https://login.example/start/q7Zt4Rk9Lw2Xv8Bn5Mj3Hs6D"

    def shown(code: int) -> object:
        seen = masked(RpcError(method="tools/call", code=code, data={"url": url}), Redactor())
        assert isinstance(seen, RpcError)
        return seen.data

    assert shown(URL_ELICITATION_REQUIRED) == {"url": url}
    assert shown(-32000) == {"url": "https://login.example/start/***"}


@pytest.mark.requirement("MSG-6")
def test_a_token_that_comes_again_pushes_no_other_one_out_and_the_latest_are_kept() -> None:
    redactor = Redactor()
    redactor.learn("secret-first")
    for _ in range(LEARNED):
        redactor.learn("secret-again")
    assert redactor.mask("secret-first secret-again") == f"{MASK} {MASK}"
    redactor.learn(*(f"secret-{number}" for number in range(LEARNED)))
    assert redactor.mask(f"secret-again secret-{LEARNED - 1}") == f"secret-again {MASK}"
    assert repr(redactor) == f"<Redactor of {LEARNED} values>"


@pytest.mark.requirement("SEC-12")
@pytest.mark.parametrize(
    ("word", "secret"),
    [
        ("klmnopqrst1klmnopqr2stuvwxyz3", True),  # three groups of digits
        ("klmnopqrst1klmnopqrs2tuvwxyz", False),  # two, and four changes at 28 places
        ("klmnKLMN1234opqr567s", True),  # two, and five changes at 20 places: a quarter
        ("klmnKLMN1234opqr567st", False),  # five at 21
        ("klMNopQRstUVwxyzabcd", True),  # letters alone: six changes at 20 places, three of ten
        ("klMNopQRstUVwxyzabcde", False),  # six at 21
        ("k1m2n3p4k1m2n3p4k1m2n3p4", True),  # 3 bits of entropy per character
        ("k1m2n3p4k1m2n3p4k1m2n3pk", False),  # a little less
        ("12+34+56+78+90+13+57", False),  # no letter
        ("k9Xw2Lq7Zt4Rb8Yn3V%63%36", True),  # 20 characters, two of them in percent code
        ("k9Xw2Lq7Zt4Rb8Yn3V%63", False),  # 19, and 21 as they are written
        ("k9Xw2Lq7/Zt4Rb8Yn3Vc6=", True),  # base64 with a slash
        ("k9Xw2Lq7/Zt4Rb8Yn3V+c6", True),
        ("k9Xw2Lq7/Zt4Rb8Yn3Vc6d", False),  # a path
        ("klmnopqrstuvwxyzklmn/abc=", False),
        ("k9X-w2L-q7Zt-4Rb-8Yn", True),  # 16 characters without its separators
        ("k9-Xw2-Lq7-Zt-4R-b8Y", False),  # 15
        ("k9xw-2lq-7zt4-rb8y-n3vc-6hm-1jd5", True),  # 32, and 26 without them
        ("k9xw-2lq-7zt-4rb8-y3vc-6hm-1jd-5", False),  # 25
        ("9f86d081884c7d659a2feaa0c55ad015", True),  # 32 hexadecimal digits
        ("k9x-w2l-q7zt-4rb-8yn", False),  # no upper case
    ],
)
def test_each_bound_of_the_rule_of_the_shape_has_a_word_on_both_of_its_sides(word: str, *, secret: bool) -> None:
    assert has_secret_shape(word) == secret


@pytest.mark.requirement("SEC-12")
def test_an_id_is_a_secret_only_where_it_is_said_to_be_one() -> None:
    one = "9b2f4c1e-7a83-4d0f-b6e5-1c2d3e4f5a6b"
    assert not has_secret_shape(one)
    assert has_secret_shape(one, uuid=True)
    assert secrets_in_url(f"{one}/x") == [one], "an address without a scheme is a path from its first character"


@pytest.mark.requirement("MSG-6")
def test_the_shortest_secret_has_four_characters_and_the_shortest_encoded_one_eight() -> None:
    assert Redactor(["abcd"]).mask_known("abcd") == MASK
    assert Redactor(["abc"]).mask_known("abc") == "abc"
    assert Redactor(["abcd"]).mask_known("61626364 YWJj") == f"{MASK} YWJj", "four bytes are eight digits in hex"


@pytest.mark.requirement("MSG-6")
def test_the_code_of_a_login_is_masked_in_the_query_of_an_address_alone() -> None:
    assert Redactor().mask("?code=qwer1234") == f"?code={MASK}"
    assert Redactor().mask("code=qwer1234") == "code=qwer1234"
    assert Redactor().mask("x code=qwer1234?") == "x code=qwer1234?"
