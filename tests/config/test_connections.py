"""Connections that a program passes in, as LangChain's MCP adapters take them."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from holdfast.config.read import spec_from_connection
from holdfast.config.spec import ServerSpec

pytestmark = pytest.mark.requirement("LOAD-7")

URL = "https://example.com/mcp"


def connect(connection: dict[str, object]) -> ServerSpec:
    found = spec_from_connection("s", connection)
    assert not found.problems, found
    return found


@pytest.mark.parametrize(
    ("connection", "transport"),
    [
        ({"transport": "stdio", "command": "x"}, "stdio"),
        ({"transport": "sse", "url": URL}, "sse"),
        ({"transport": "streamable_http", "url": URL}, "http"),
        ({"transport": "http", "url": URL}, "http"),
        ({"url": URL}, "http"),
        ({"command": "x"}, "stdio"),
    ],
)
def test_every_transport_is_understood(connection: dict[str, object], transport: str) -> None:
    assert connect(connection).transport == transport


def test_everything_about_a_process_is_taken_as_it_is() -> None:
    found = connect(
        {"transport": "stdio", "command": "./x", "args": ["${A}", "~"], "env": {"K": "${B}"}, "cwd": Path("~/d")}
    )
    assert (found.command, found.args, dict(found.env), found.cwd) == ("./x", ("${A}", "~"), {"K": "${B}"}, Path("~/d"))
    assert "${B}" in found.secrets


def test_a_connection_may_be_lazy() -> None:
    assert connect({"transport": "stdio", "command": "x", "lazy": True}).lazy
    assert not connect({"transport": "sse", "url": URL}).lazy
    assert spec_from_connection("s", {"command": "x", "lazy": "sometimes"}).problems


def test_headers_may_be_a_mapping_or_a_callable_of_either_kind() -> None:
    async def fresh() -> dict[str, str]:
        return {}

    mapping = connect({"transport": "sse", "url": URL, "headers": {"X": "value"}})
    assert mapping.headers == {"X": "value"}
    assert mapping.secrets == {"value"}
    assert connect({"transport": "sse", "url": URL, "headers": dict}).headers is dict
    assert connect({"transport": "sse", "url": URL, "headers": fresh}).headers is fresh


def test_what_the_adapters_accept_is_tolerated() -> None:
    connect(
        {
            "transport": "stdio",
            "command": "x",
            "args": [],
            "env": None,
            "cwd": None,
            "encoding": "utf-8",
            "encoding_error_handler": "strict",
            "session_kwargs": {"read_timeout_seconds": timedelta(seconds=1)},
        }
    )
    connect(
        {
            "transport": "streamable_http",
            "url": URL,
            "headers": None,
            "timeout": timedelta(seconds=30),
            "sse_read_timeout": 300,
            "terminate_on_close": True,
            "session_kwargs": None,
            "httpx_client_factory": print,
            "auth": None,
        }
    )


@pytest.mark.parametrize(
    ("connection", "message"),
    [
        ({"transport": "websocket", "url": "ws://x"}, "`websocket`, which is not a transport"),
        ({"transport": "sse"}, "neither `command` nor `url`"),
        ({"transport": "stdio", "url": URL}, "transport is stdio"),
        ({"url": "example.com"}, "no scheme"),
        ({"url": URL, "auth": object()}, "`auth` objects are not supported"),
        ({"url": URL, "header": {}}, "unknown key `header`"),
        ({"url": URL, "headers": 3}, "`headers` must be an object"),
        ({1: 2}, "a key must be a text"),
    ],
)
def test_a_malformed_connection_is_a_bad_server(connection: dict[str, object], message: str) -> None:
    found = spec_from_connection("s", connection)
    assert found.problems
    assert found.id == "s"
    assert any(message in problem.message for problem in found.problems)
    assert all(problem.path.startswith("s") and problem.hint is not None for problem in found.problems)
