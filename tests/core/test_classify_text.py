"""The fallback for those who have nothing but a text: its contract, and what it must never read."""

from __future__ import annotations

import pytest
from hypothesis import assume, example, given, strategies as st

from holdfast import classify_load_error
from holdfast.core.classify import status_class
from holdfast.core.forbidden import Statement, stated_in

TRANSIENT = [
    "",
    "  \n",
    "Timed out while waiting for response to ClientRequest. Waited 5.0 seconds.",
    "the request timed out",
    "ReadTimeout",
    "ConnectTimeout('')",
    "TimeoutError()",
    "deadline exceeded",
    "[Errno 104] Connection reset by peer",
    "ConnectionResetError(104, 'x')",
    "Connection closed",
    "Server disconnected without sending a response.",
    "peer closed connection without sending complete message body (incomplete chunked read)",
    "BrokenPipeError",
    "ConnectionAbortedError",
    "RemoteDisconnected('Remote end closed connection without response')",
    "anyio.EndOfStream",
    "EOFError",
    "unexpected EOF",
    "the stream was closed",
    "read ECONNRESET",
    "write EPIPE",
    "connect ETIMEDOUT 10.0.0.1:443",
    "socket hang up",
    "Internal Server Error",
    "501 Not Implemented",
    "511 Network Authentication Required: {}",
    "Connection refused after the connection stood",
    "HTTP 503",
    "HTTP/1.1 502 Bad Gateway",
    "status code: 429",
    "returned 500",
    "Server error '503 Service Unavailable' for url 'https://example.com/mcp'",
    "503 Server Error: Service Unavailable for url: https://example.com/mcp",
    "504, message='Gateway Timeout', url='https://example.com/mcp'",
    "HTTP 403 error connecting to https://example.com/mcp: Authorization service unavailable",
    "Can't reach it: the connection timed out, and we won't wait.",
    "timed out after 403 ms",
    "connection refused after connect",
    "got 403 bytes, then the connection was reset",
    "TransportError",
    "ReadError",
]
PERMANENT = [
    "something never seen before",
    "[Errno -2] Name or service not known",
    "[Errno -3] Temporary failure in name resolution",
    "[Errno 111] Connection refused",
    "Session terminated",
    "HTTP 404",
    "404 Client Error: Not Found for url: https://example.com/",
    "HTTP 418",
    "[Errno 2] No such file or directory: 'npx'",
    "[Errno 13] Permission denied: './server.sh'",
    "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: unable to get local issuer certificate",
    "unhandled errors in a TaskGroup (1 sub-exception)",
    "error 127.0.0.1:503 was unkind",
    "error from 'abc' 503 times",
    "443: connection refused",
    "gave up after connection refused",
    "connect ECONNREFUSED 127.0.0.1:503",
    "405 Method Not Allowed: timeout",
    "410 Gone (https://example.com/mcp): timed out",
]
DENIED = [
    "HTTP 401",
    "401 Unauthorized",
    "HTTP 403",
    "403 Forbidden",
    "Unauthorized",
    "access denied by policy",
    "Client error '403 Forbidden' for url 'https://example.com/timeout'",
    "HTTP 403 error connecting to https://example.com/mcp",
    "HTTP 403: external authorization failed",
    "403",
    "got 403",
    "HTTPStatusError: 403",
    "403: timeout",
    "HTTP 403: the upstream answered HTTP 503",
]


@pytest.mark.requirement("LOAD-1", "LOAD-2")
@pytest.mark.parametrize("text", TRANSIENT)
def test_a_text_about_what_can_heal_is_transient(text: str) -> None:
    assert classify_load_error(text) == "transient"


@pytest.mark.requirement("LOAD-1", "LOAD-3")
@pytest.mark.parametrize("text", PERMANENT)
def test_a_text_about_what_cannot_heal_or_says_nothing_known_is_permanent(text: str) -> None:
    assert classify_load_error(text) == "permanent"


@pytest.mark.requirement("LOAD-1", "LOAD-4")
@pytest.mark.parametrize("text", DENIED)
def test_a_text_about_a_refused_caller_is_denied(text: str) -> None:
    assert classify_load_error(text) == "denied"


@pytest.mark.requirement("LOAD-1")
@given(st.text(), st.integers(min_value=400, max_value=599))
@example("connection refused", 503)
@example("timeout", 404)
@example("503", 401)
def test_a_status_decides_alone(text: str, status: int) -> None:
    assume(stated_in(text) is not Statement.OUTAGE)
    assert classify_load_error(text, status) == status_class(status)


TELLING_WORDS = ["timeout", "503", "refused", "403", "connection-reset", "unauthorized", "not-found", "401"]


def names() -> st.SearchStrategy[str]:
    """Ids and addresses that hold the words of errors."""
    words = st.lists(st.sampled_from(TELLING_WORDS), min_size=1, max_size=3).map("-".join)
    return words.map(lambda word: f"srv-{word}")


def addresses() -> st.SearchStrategy[str]:
    word = st.sampled_from(TELLING_WORDS)
    forms = [
        "https://{0}.example/{1}",
        "http://u:{0}@h:503/{1}?x={0}",
        "sse+http://{0}/{1}",
        "{0}.example:503",
        "/opt/{0}/{1}",
    ]
    return st.builds(lambda form, a, b: form.format(a, b), st.sampled_from(forms), word, word)


@pytest.mark.requirement("LOAD-5")
@given(
    st.sampled_from([*TRANSIENT[2:], *PERMANENT, *DENIED]),
    names() | addresses() | st.sampled_from(TELLING_WORDS).map("'{}'".format),
    st.sampled_from(["{1}: {0}", "loading {1}: {0}", "{0} (server `{1}`)", 'server "{1}": {0}']),
)
def test_what_a_server_or_its_address_is_called_changes_nothing(text: str, name: str, form: str) -> None:
    if text.startswith(("504, message=", "403", "443")):
        return  # the beginning decides
    assert classify_load_error(form.format(text, name)) == classify_load_error(form.format(text, "srv"))


@pytest.mark.requirement("LOAD-5")
def test_a_server_called_timeout_503_refused_that_denies_is_denied() -> None:
    text = "HTTP 403 error connecting to https://timeout-503-refused.example/mcp (timeout-503-refused)"
    assert classify_load_error(text) == "denied"


@given(st.text(), st.none() | st.integers(min_value=-1, max_value=1000))
def test_any_text_gets_one_of_the_three(text: str, status: int | None) -> None:
    assert classify_load_error(text, status) in {"transient", "permanent", "denied"}


@pytest.mark.parametrize("piece", ["«", "a", "'", '"', "a.", "@", "a@", "http://", "HTTP ", "error:", "_"])
def test_a_text_without_end_is_judged_all_the_same(piece: str) -> None:
    assert classify_load_error(piece * 1_000_000) == "permanent"
