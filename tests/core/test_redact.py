"""Secrets stay out of every output, in every spelling; the cost of hostile text is proportional to its length."""

from __future__ import annotations

import base64
import json
import random
import re
import string
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import assume, example, given, strategies as st

from holdfast.core.evidence import HttpStatus, ProcessExit, RpcError
from holdfast.core.redact import (
    LEFT_OUT,
    LONGEST_TEXT,
    MASK,
    MOST_DATA_PARTS,
    SHORTEST_SECRET,
    Redactor,
    fault_line,
    has_secret_shape,
    mask_url,
    masked,
    masked_data,
    plain,
    secrets_in_url,
)

SECRET = 's3cr3t/with "odd" +chars&=ü'

# The mask itself is no secret, and a value that is all spaces and controls is nothing that could be shown.
secrets = st.text(
    st.characters(exclude_categories=["C"], exclude_characters="*"), min_size=SHORTEST_SECRET, max_size=30
).filter(lambda text: text.strip() == text)


@pytest.mark.requirement("MSG-6")
@given(st.text(max_size=30), secrets, st.text(max_size=30))
def test_a_text_that_holds_a_secret_never_holds_it_once_masked(before: str, secret: str, after: str) -> None:
    # Words that are in every text, and those before a credential in a header: none of them is a secret by itself.
    plain_words = {"true", "false", "none", "null", "debug", "info", "warn", "warning", "error"}
    assume(secret.lower() not in plain_words | {"basic", "bearer", "digest", "negotiate", "token", "apikey"})
    assert secret not in Redactor([secret]).mask(before + secret + after)


@pytest.mark.requirement("MSG-6")
@pytest.mark.parametrize(
    "spelled",
    [
        SECRET,
        quote(SECRET),
        quote(SECRET, safe=""),
        quote_plus(SECRET),
        quote_plus(SECRET).lower(),
        json.dumps(SECRET),
        json.dumps(SECRET, ensure_ascii=False),
        SECRET.replace("odd", "o\x1b[31mdd"),
        SECRET.replace("odd", "o\x00dd"),
    ],
)
def test_a_secret_is_masked_in_every_spelling(spelled: str) -> None:
    shown = Redactor([SECRET]).mask(f"before {spelled} after")
    assert shown.startswith("before ")
    assert shown.endswith(" after")
    for part in ("s3cr3t", "odd", "chars"):
        assert part not in shown


@pytest.mark.requirement("MSG-6")
def test_the_parts_of_a_header_are_masked_too() -> None:
    shown = Redactor(["Bearer abcd1234"]).mask("the token abcd1234 was refused")
    assert shown == f"the token {MASK} was refused"


@pytest.mark.requirement("MSG-6")
def test_the_scheme_before_a_credential_is_an_ordinary_word() -> None:
    text = 'Unexpected token; write "Bearer ${env:ACME_TOKEN}"'
    assert Redactor(["Bearer qwer1234", "Token asdf5678"]).mask(text) == text


def test_a_secret_of_many_lines_is_masked_line_by_line() -> None:
    key = "-----BEGIN KEY-----\nQUJDREVGRw\nSElKS0xNTg\n-----END KEY-----"
    shown = Redactor([key]).mask("could not read QUJDREVGRw; and SElKS0xNTg")
    assert shown == f"could not read {MASK}; and {MASK}"


def test_what_is_too_short_or_too_common_to_be_a_secret_is_left_readable() -> None:
    redactor = Redactor(["1", "on", "true", "DEBUG", "", "   "])
    assert redactor.mask("1 on true DEBUG") == "1 on true DEBUG"


def test_the_longer_of_two_secrets_is_masked_whole() -> None:
    assert Redactor(["abcd", "abcdefgh"]).mask("xabcdefghx") == f"x{MASK}x"


def test_a_redactor_learns_more_secrets_and_tells_none() -> None:
    redactor = Redactor(["first-secret"])
    redactor.learn("second-secret")
    assert redactor.mask("first-secret second-secret") == f"{MASK} {MASK}"
    assert "secret" not in repr(redactor)


SHAPES = [
    ("https://user:pa55@word@example.com/x", "pa55", "example.com"),
    ("https://user@example.com/", "user", "example.com"),
    ("https://example.com/mcp?api_key=qwer1234&page=2#top", "qwer1234", "page=2"),
    ("GET /cb?code=qwer1234&state=ok", "qwer1234", "state=ok"),
    ("see https://h/?a=1;access_token=qwer1234", "qwer1234", "a=1"),
    ("Authorization: Bearer qwer1234.zxcv", "qwer1234", "Authorization"),
    ("bearer qwer1234 was sent", "qwer1234", "was sent"),
    ("curl -H 'Authorization: Basic dXNlcjpwYXNz'", "dXNlcjpwYXNz", "curl"),
    ("Basic dXNlcjpwYXNz is wrong", "dXNlcjpwYXNz", "is wrong"),
    ("Set-Cookie: sid=qwer1234; Path=/", "qwer1234", "Set-Cookie"),
    ("x-api-key: qwer1234", "qwer1234", "x-api-key"),
    ('{"access_token": "qw\\"er1234", "ok": true}', "er1234", '"ok": true'),
    ("{'client_secret': 'it\"s qwer1234', 'ok': 1}", "qwer1234", "'ok': 1"),
    ('{"body": "{\\"token\\": \\"qwer1234\\"}", "ok": 1}', "qwer1234", '"ok": 1'),
    ("GITHUB_TOKEN=qwer1234 npx server", "qwer1234", "npx server"),
    ("url=https://h/?token=qwer1234", "qwer1234", "url=https://h/"),
    ("password = qwer1234", "qwer1234", "password"),
    ("eyJhbGciOiJI.eyJzdWIiOiIx.c2lnbmF0dXJl is expired", "eyJzdWIi", "is expired"),
    ("key sk-abcdefghijklmnopqrst was revoked", "abcdefghijkl", "was revoked"),
    ("ghp_abcdefghij0123456789 is bad", "abcdefghij", "is bad"),
    ("AKIAABCDEFGHIJKLMNOP is bad", "ABCDEFGH", "is bad"),
]


@pytest.mark.requirement("MSG-6")
@pytest.mark.parametrize(("text", "secret", "kept"), SHAPES)
def test_a_credential_that_is_not_known_is_known_by_its_shape(text: str, secret: str, kept: str) -> None:
    shown = Redactor().mask(text)
    assert secret not in shown
    assert MASK in shown
    assert kept in shown


@pytest.mark.parametrize(
    "text",
    [
        "exit code=1",
        "author=somebody",
        "Basic authentication is not enough",
        "failed to negotiate versions; digest mismatches",
        "if key == value:",
        'token=""',
        "Unexpected token: <",
        "git@github.com and https://example.com/a?page=2&q=a@b",
    ],
)
def test_ordinary_words_stay_readable(text: str) -> None:
    assert Redactor().mask(text) == text


READABLE = [
    '"authorizationUrl": "https://login.example.com/authorize"',
    '"oauth": {"deviceAuthorizationUrl": "https://h.example/device", "tokenUrl": "https://h.example/token"}',
    "authorization_endpoint=https://login.example.com/authorize token_type=bearer",
    'TOKEN = os.environ["ACME_API_KEY"]',
    "    token = os.environ['ACME_API_KEY']",
    "const token = process.env.ACME_TOKEN;",
    "    token = get_token(path)",
    "    client = Client(token=load_secret(name), retries=3)",
    "    self.api_key = self._api_key",
    "    password=settings.get('password')",
    "AUTH_REQUIRED=true token=null secret=undefined session=None",
    "usage: max_tokens=4096, prompt_tokens=12",
    '"Authorization": "Bearer ${env:ACME_TOKEN}", "token": "${ACME_TOKEN}"',
    '"Authorization": "Basic ${env:ACME_CREDENTIALS}"',
    "TOKEN_FILE=/run/secrets/acme",
    "  --clientId=your_client_id --clientSecret=your_client_secret --accessToken=shpat_xxxxx",
    'pass --api-token=<your token>, or write "token": "..."',
    "    at file:///home/ada/.npm/_npx/1f3d5b7a9c2e4f60/node_modules/server/dist/chunk-A1b2C3d4E5f6G7h8I9j0.js:1:1",
    "    at async asyncRunEntryPointWithESMLoader (node:internal/modules/run_main:101:5)",
    "    at Auth.load (node_modules/server/dist/chunk-A1b2C3d4E5f6G7h8I9j0K1.js:10:23)",
    'file:///root/.cache/uv/archive-v0/Xy3kPq8mZt1bLw9vA2sDf/lib/python3.12/x.py", line 3, in get_token',
]
"""Lines of programs that are to be read, and pasted."""


@pytest.mark.requirement("SEC-12", "DOC-8")
@pytest.mark.parametrize("text", READABLE)
def test_what_cannot_be_a_credential_stays_readable_after_the_name_of_one(text: str) -> None:
    assert Redactor().mask(text) == text


@pytest.mark.requirement("SEC-12")
@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ('"tokenUrl": "https://h.example/token?access_token=qwer1234"', "qwer1234"),
        ('"authorizationUrl": "https://user:qwer1234@h.example/"', "qwer1234"),
        ('"token": "${env:ACME}qwer1234"', "qwer1234"),
        ('"token": "qwer1234${env:ACME}"', "qwer1234"),
        ('"secretprofile": "qwer1234"', "qwer1234"),
        ("password=trueqwer1234", "qwer1234"),
        ("password=qwer.1234", "qwer"),
        ("access_tokens=qwer1234", "qwer1234"),
        ("password=1234567", "1234567"),
        ("token=abc(qwer1234", "qwer1234"),
    ],
)
def test_what_only_begins_as_something_harmless_is_masked(text: str, secret: str) -> None:
    assert secret not in Redactor().mask(text)


@given(st.text(max_size=60) | st.sampled_from([text for text, _, _ in SHAPES]))
@example("token=token=x")
@example("Authorization: Bearer abcdefg")
def test_masking_what_is_masked_changes_nothing(text: str) -> None:
    once = Redactor().mask(text)
    assert Redactor().mask(once) == once


@pytest.mark.requirement("MSG-6")
@given(st.text())
@example("\x1b[31mred\x1b[0m \x1b]0;title\x07 \x9b31m \x00\x07\r\n\u202egnp")
@example("\x1b]8;;https://evil.example\x1b\\click\x1b]8;;\x1b\\")
def test_no_control_character_reaches_a_terminal(text: str) -> None:
    shown = Redactor().mask(text)
    bad = [c for c in shown if (ord(c) < 32 and c not in "\n\t") or 127 <= ord(c) < 160 or c in "\u202e\u2066"]
    assert bad == []


def test_terminal_sequences_vanish_whole_and_line_ends_become_plain() -> None:
    assert plain("\x1b[1;31mred\x1b[0m\r\nnext\rlast\ttab") == "red\nnext\nlast\ttab"
    assert plain("\x1b]0;own the title\x07text") == "text"


@pytest.mark.requirement("MSG-6")
def test_a_url_is_shown_without_user_info_and_secret_query_values() -> None:
    shown = mask_url("https://me:pw@example.com:8443/mcp?token=abc&x=1&sig=zzz")
    assert shown == f"https://{MASK}@example.com:8443/mcp?token={MASK}&x=1&sig={MASK}"


PIECES = [
    *(".token", "-eyJaaaaaaaa", "sk-", "?token", "_token_", "a", " ", "a ", "://", "://a@", "\x1b]", "\x1b[0", "eyJ"),
    *('"token": "', "'", '"', "\\", '\\"', "bearer ", "basic ", "authorization:", "key=", "token.=", "&token"),
    *("token=", "password: ", "a.", "a-", "token=a.", "token=a(", "///", "token=${"),
]


@pytest.mark.requirement("MSG-6")
@pytest.mark.parametrize("piece", PIECES)
@pytest.mark.timeout(20)
def test_hostile_text_is_masked_in_time_that_grows_with_its_length_alone(piece: str) -> None:
    # Where a pattern tries again from each place, a tenth of this takes minutes.
    hostile = (piece * (200_000 // len(piece) + 1))[:200_000]
    assert isinstance(Redactor(["a secret of ours"]).mask(hostile), str)


@pytest.mark.requirement("MSG-6")
def test_the_texts_of_evidence_are_masked_and_what_is_judged_by_is_not() -> None:
    redactor = Redactor(["unavailable", "hunter22"])
    shown = masked(ProcessExit(code=1, stderr="bad hunter22", noise="hunter22"), redactor)
    assert shown == ProcessExit(code=1, stderr=f"bad {MASK}", noise=MASK)
    assert masked(RpcError(method="m", code=1, message="hunter22"), redactor) == RpcError(
        method="m", code=1, message=MASK
    )
    outage = HttpStatus(status=403, body="Authorization service unavailable")
    assert masked(outage, redactor) == outage


@pytest.mark.requirement("MSG-6")
@pytest.mark.parametrize("secret", ['"quoted"', '"über"12', "tab\there", "übung12", 'ends with "'])
def test_a_secret_is_masked_to_its_last_character_where_json_escapes_it(secret: str) -> None:
    for ascii_only in (True, False):
        told = json.dumps({"why": secret}, ensure_ascii=ascii_only)
        assert Redactor([secret]).mask_known(told) == json.dumps({"why": MASK})


@pytest.mark.requirement("MSG-6", "SEC-7")
def test_every_text_in_the_data_of_an_error_is_masked_up_to_a_bound() -> None:
    redactor = Redactor(["hunter22"])
    data = {
        "tried": ["a hunter22", ["hunter22"], ("hunter22", 1, None)],
        "token": ["abc-12345", {"it": "xyz-98765"}],
        "hunter22": 2,
    }
    shown = {"tried": [f"a {MASK}", [MASK], [MASK, 1, None]], "token": [MASK, {"it": MASK}], MASK: 2}
    assert masked_data(data, redactor) == shown
    assert masked_data(["x"] * (MOST_DATA_PARTS - 1), redactor) == ["x"] * (MOST_DATA_PARTS - 1)
    assert masked_data(["x"] * MOST_DATA_PARTS, redactor) == LEFT_OUT


RANDOM = "q7Zt4Rk9Lw2Xv8Bn5Mj3Hs6D"
HEXADECIMAL = "3f9a1c7be04d52688b1e6a0f97cd2435"
UUID = "9b2f4c1e-7a83-4d0f-b6e5-1c2d3e4f5a6b"


@pytest.mark.requirement("SEC-12")
@pytest.mark.parametrize(
    ("text", "secret", "kept"),
    [
        (
            f"POST https://mcp.example.com/s/{RANDOM}/mcp failed",
            RANDOM,
            "POST https://mcp.example.com/s/***/mcp failed",
        ),
        (f"https://mcp.example.com/{UUID}/sse", UUID, "https://mcp.example.com/***/sse"),
        (f"GET /mcp?k={RANDOM}&page=2", RANDOM, "GET /mcp?k=***&page=2"),
        (f"https://h/mcp?k={UUID}&page=2#top", UUID, "https://h/mcp?k=***&page=2#top"),
        (f"https://h?{RANDOM}", RANDOM, "https://h?***"),
        (f"npx server -k {RANDOM} --verbose", RANDOM, "npx server -k *** --verbose"),
        (f"npx server {HEXADECIMAL}", HEXADECIMAL, "npx server ***"),
        ("unknown key Zm9v/YmFyK3Bhc3N3b3JkMTIzNDU2Nzg5MA== sent", "YmFyK3Bhc3N3", "unknown key *** sent"),
        ("token_urlsafe: p0-Xz_3Qa-9Lk_7Yt-2Wv", "Xz_3Qa-9Lk", "token_urlsafe: ***"),
    ],
)
def test_an_unnamed_secret_is_known_by_its_shape(text: str, secret: str, kept: str) -> None:
    shown = Redactor().mask(text)
    assert secret not in shown
    assert shown == kept


@pytest.mark.requirement("SEC-12")
@pytest.mark.parametrize(
    "text",
    [
        "the request 550e8400-e29b-41d4-a716-446655440000 failed",
        "file:///usr/share/doc and /usr/lib/python3.12/site-packages/mcp_server_fetch/__init__.py",
        "/root/.cache/uv/archive-v0/Xy3kPq8mZt1bLw9vA2sDf/lib",
        "~/.npm/_npx/9833c18b2d85bc59/node_modules/.bin/mcp-server-filesystem",
        "./node_modules/@modelcontextprotocol/server-everything-2025-11-25",
        "my-service-7d9f8b6c5d-x2k4j is not ready",
        "claude-sonnet-4-5-20250929 and gpt-4o-mini-2024-07-18",
        "DropsTheEnableThatCameTooSoon getElementsByClassNameAndSelector",
        "holdfast_calls_in_flight_total_by_server_and_outcome",
        "2026-11-16T12:16:03.123456+00:00 20261116T121603Z",
        "python3.12-slim-bookworm@sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "integrity sha512-9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "io.modelcontextprotocol/related-task resources/templates/list",
        "https://example.com/docs/2025/11/getting-started-with-servers?lang=en-GB&page=12",
        "https://registry.npmjs.org/@modelcontextprotocol/server-filesystem/-/server-filesystem-2025.8.21.tgz",
        "00000000000000000000000000000000 0123456789012345678901234567890123456789",
    ],
)
def test_ordinary_words_versions_paths_and_ids_have_no_secret_shape(text: str) -> None:
    assert Redactor().mask(text) == text


@pytest.mark.requirement("SEC-12")
@given(
    st.binary(max_size=7), st.text(st.characters(codec="ascii", categories=["L", "N", "P"]), min_size=12, max_size=40)
)
def test_a_known_secret_is_found_inside_base64_at_every_place(before: bytes, secret: str) -> None:
    assume("*" not in secret and "\\" not in secret)
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        text = encode(before + secret.encode() + b"tail").decode()
        shown = Redactor([secret]).mask(f"x {text} y")
        middle = encode(secret.encode()[3:-3]).decode().rstrip("=")[1:-1]
        assert middle not in shown
        assert MASK in shown


@pytest.mark.requirement("SEC-12")
@pytest.mark.parametrize("size", [20, 21, 22])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_no_character_of_base64_stays_that_holds_bits_of_a_secret_alone(size: int, place: int) -> None:
    secret = "hunter22-hunter22-hunter22"[:size]
    text = base64.b64encode(b"x" * place + secret.encode() + b"\xff" * 3).decode()
    begins, ends = -(-place * 8 // 6), (place + size) * 8 // 6
    assert Redactor([secret]).mask_known(text) == f"{text[:begins]}{MASK}{text[ends:]}"


@pytest.mark.requirement("SEC-12")
@pytest.mark.parametrize(
    "form",
    [
        b"hunter22-hunter22".hex(),
        b"hunter22-hunter22".hex().upper(),
        "".join(f"%{byte:02X}" for byte in b"hunter22-hunter22"),
        "".join(f"%{byte:02x}" for byte in b"hunter22-hunter22"),
    ],
)
def test_a_known_secret_is_found_in_hex_and_in_percent_codes(form: str) -> None:
    assert Redactor(["hunter22-hunter22"]).mask(f"x{form}y") == f"x{MASK}y"


@pytest.mark.requirement("SEC-12")
def test_secrets_of_usual_forms_are_recognised() -> None:
    chance = random.Random(20261116)
    alphabets = {
        "base62": (string.ascii_letters + string.digits, 24),
        "base64url": (string.ascii_letters + string.digits + "-_", 43),
        "hexadecimal": ("0123456789abcdef", 32),
        "base36": (string.ascii_lowercase + string.digits, 32),
        "base32": (string.ascii_uppercase + "234567", 52),
    }
    for name, (alphabet, size) in alphabets.items():
        words = ["".join(chance.choices(alphabet, k=size)) for _ in range(500)]
        missed = [word for word in words if not has_secret_shape(word)]
        assert len(missed) <= 10, f"{name}: {missed}"


@pytest.mark.requirement("SEC-12")
@pytest.mark.parametrize(
    ("word", "secret"),
    [
        ("k9Xw2Lq7Zt4Rb8Yn3Vc6", True),
        ("k9Xw2Lq7Zt4Rb8Yn3Vc", False),  # 19 characters
        ("9f86d081884c7d659a2feaa0c55ad015", True),
        ("9f86d081884c7d659a2feaa0c55ad01", False),  # 31 hexadecimal digits
        ("k9X-w2L-q7Zt-4Rb-8Yn", True),  # 20 characters, 16 without its separators
        ("k9-Xw2-Lq7-Zt-4R-b8Y", False),  # 15 without them
        ("k9X-w2L-q7Z-t4R-b8Y", False),  # 19 characters
        ("k9x-w2l-q7zt-4rb-8yn", False),  # no upper case
        ("k9xw-2lq-7zt4-rb8y-n3vc-6hm-1jd5", True),  # 32 characters, 26 without them
        ("k9xw-2lq-7zt-4rb8-y3vc-6hm-1jd-5", False),  # 25 without them
        ("kqxwzlqtztmrbgyncvcs", False),  # no digit, no change of kind
        ("kqXwzLQtzTMrbGYncVCs", True),
        ("ab1ab1ab1ab1ab1ab1ab", False),  # 1.6 bits of entropy per character
    ],
)
def test_the_least_that_has_the_shape_of_a_secret_has_it_and_one_less_does_not(word: str, *, secret: bool) -> None:
    assert has_secret_shape(word) == secret


@pytest.mark.requirement("MSG-6", "DOC-8")
def test_the_name_of_a_variable_is_no_token() -> None:
    for name in ("npm_config_cache", "npm_config_registry", "hf_home_directory"):
        command = f'read -rs {name} && export {name} && env {name}="${name}"'
        assert Redactor().mask(command) == command
    assert "npm_" not in Redactor().mask("the token npm_" + "a1B2c3D4e5" * 4)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('env -i API_TOKEN="$API_TOKEN" server', 'env -i API_TOKEN="$API_TOKEN" server'),
        ('API_TOKEN="$ECRET"', 'API_TOKEN="***"'),
        ('API_TOKEN="$API_TOKENS3CRET"', 'API_TOKEN="***"'),
        ("API_TOKEN=$API_TOKEN", "API_TOKEN=***"),
    ],
)
def test_a_variable_that_gets_its_own_value_is_no_secret(text: str, shown: str) -> None:
    assert Redactor().mask(text) == shown


def test_data_that_was_not_read_is_left_out_because_no_secret_in_it_can_be_seen() -> None:
    seen = RpcError(method="tools/call", code=-32000, data={"raw": b'{"token": "hunter2-hunter2"}'})
    shown = masked(seen, Redactor())
    assert isinstance(shown, RpcError)
    assert shown.data == LEFT_OUT


class _Silent(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def test_a_fault_of_ours_is_one_line_of_bounded_length_with_its_place() -> None:
    def deeper() -> None:
        raise ValueError("it  went\nwrong " + "x" * 1_000)

    with pytest.raises(ValueError, match="wrong") as raised:
        deeper()
    text, _, place = fault_line(raised.value).partition(", in ")
    assert text == "ValueError: it went wrong " + "x" * (LONGEST_TEXT - len("it went wrong "))
    assert re.fullmatch(r"test_a_fault\S+deeper \(test_redact\.py:\d+\)", place)
    assert fault_line(KeyError()) == "KeyError"
    assert fault_line(_Silent()) == "_Silent"


@pytest.mark.requirement("MSG-6")
def test_the_secrets_of_an_address_are_in_its_path_and_query_and_known_by_their_shape() -> None:
    secret = "sk-a1B2c3D4e5F6g7H8i9J0k1L2"
    assert secrets_in_url(f"https://{secret}.example/mcp/{secret}?key={secret}%3D&page=2") == [
        secret,
        f"{secret}%3D",
        f"{secret}=",
    ]
    assert secrets_in_url(f"no/{secret}") == [secret]
    named = "backup.abcdefab-cdef-abcd-efab-cdefabcdefab.json"
    assert secrets_in_url(f"https://a.example/{named}") == [named], "an id between dots is one"


@pytest.mark.requirement("MSG-6", "SEC-7")
def test_a_long_text_in_the_data_of_an_error_is_left_out() -> None:
    assert masked_data({"a": "x" * 10_000_000}, Redactor()) == LEFT_OUT
