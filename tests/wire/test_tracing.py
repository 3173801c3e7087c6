"""Trace context in ``_meta`` and in headers: as the W3C writes it, or not at all."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.wire.tracing import in_headers, in_meta

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.requirement("OBS-2")
@pytest.mark.parametrize("parent", [PARENT, f"cc{PARENT[2:]}-what-a-later-version-adds"])
def test_what_is_in_meta_stands_in_the_headers(parent: str) -> None:
    meta = {"traceparent": parent, "tracestate": "a=1,b=2", "baggage": "user=ada", "other": "x"}
    assert in_headers({"_meta": meta}) == {"traceparent": parent, "tracestate": "a=1,b=2", "baggage": "user=ada"}


@pytest.mark.requirement("OBS-2", "SEC-3")
@pytest.mark.parametrize(
    "made_up",
    [
        "x\r\nauthorization: Bearer stolen",
        PARENT.upper(),
        "é" * 55,
        "",
        7,
        None,
        ["a"],
        f"{PARENT}\n",
        f"{PARENT}-\r\n",
    ],
)
def test_nothing_that_a_caller_makes_up_becomes_a_header(made_up: Any) -> None:
    assert in_headers({"_meta": {"traceparent": made_up, "tracestate": "a=1"}}) == {}
    assert in_headers({"_meta": {"traceparent": PARENT, "tracestate": made_up}}).keys() <= {"traceparent", "tracestate"}
    assert "\n" not in str(in_headers({"_meta": {"traceparent": PARENT, "baggage": made_up}}).values())
    assert in_meta({"a": 1}, {"traceparent": made_up}) == {"a": 1, "_meta": {}}


@pytest.mark.requirement("OBS-2")
@pytest.mark.parametrize("params", [None, {}, {"_meta": None}, {"_meta": []}, {"_meta": {"tracestate": "a=1"}}])
def test_a_request_without_a_trace_has_no_such_header(params: Any) -> None:
    assert in_headers(params) == {}


@pytest.mark.requirement("OBS-2")
def test_what_a_request_says_itself_stands_and_what_is_not_there_comes_from_its_headers() -> None:
    headers = {"traceparent": PARENT, "tracestate": "a=1", "cookie": "secret"}
    assert in_meta({"_meta": {"x": 1}}, headers) == {"_meta": {"x": 1, "traceparent": PARENT, "tracestate": "a=1"}}
    own = {"_meta": {"traceparent": "its own"}}
    assert in_meta(own, headers) is own
    plain = {"name": "echo"}
    assert in_meta(plain, {"accept": "*/*"}) is plain
