"""What a form of the hub's pages holds, where its sender is no browser."""

from __future__ import annotations

import pytest
from starlette.requests import Request
from starlette.types import Message

from holdfast.control.server.browser_identity import read_fields

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("SEC-2")]


@pytest.mark.parametrize(
    ("body", "read"),
    [
        (b'{"token": "t", "to": "/", "more": 1}', {"token": "t", "to": "/"}),
        (b"[" * 32_000, {}),
        (b'{"a":' * 6_000, {}),
        (b'{"token": "\\ud800"}', {}),
        (b"[]", {}),
    ],
    ids=["a form", "deep lists", "deep objects", "half a pair", "no object"],
)
async def test_a_form_that_is_none_has_no_fields(body: bytes, read: dict[str, str]) -> None:
    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    headers = [(b"content-type", b"application/json")]
    assert await read_fields(Request({"type": "http", "method": "POST", "headers": headers}, receive)) == read
