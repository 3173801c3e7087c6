"""Trace context in ``_meta`` and in headers: as the W3C writes it, or not at all."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.wire.raw_json import RawObject, dumps
from holdfast.wire.request_form import trace_headers, traced


def in_headers(params: dict[str, Any]) -> dict[str, str]:
    """The headers of a request with these parameters."""
    return trace_headers(RawObject.of(params).members)


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
    assert traced({}, {"traceparent": made_up}) == {}


@pytest.mark.requirement("OBS-2")
@pytest.mark.parametrize("params", [{}, {"_meta": None}, {"_meta": []}, {"_meta": {"tracestate": "a=1"}}])
def test_a_request_without_a_trace_has_no_such_header(params: Any) -> None:
    assert in_headers(params) == {}


@pytest.mark.requirement("OBS-2")
def test_what_a_request_says_itself_stands_and_what_is_not_there_comes_from_its_headers() -> None:
    headers = {"traceparent": PARENT, "tracestate": "a=1", "cookie": "secret"}
    expected = {"x": b"1", "traceparent": dumps(PARENT), "tracestate": b'"a=1"'}
    assert traced({"x": b"1"}, headers) == expected
    own = {"traceparent": b'"its own"'}
    assert traced(own, headers) is own
    assert traced({}, {"accept": "*/*"}) == {}
