"""Any answer of a server reaches its callers in time, and other servers' callers notice nothing."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import mcp_types as types
import pytest
from mcp.shared.exceptions import MCPError

from tests.clients.recording_client import Companion, companion
from tests.conformance.fixture_hub import PYTHON_ENV, ServedHub, fixture_over_stdio, hub_over_http
from tests.peers.hostile_server import WAYS

pytestmark = [
    pytest.mark.anyio,
    # Sampling and logging as 2025 knew them are discouraged by now, and still about.
    pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning"),
]

# The hub's own patience with a call is two seconds here; a server that exits is started again.
_PATIENCE = 30.0
# Ways in which the answer itself is correct.
ANSWERED = frozenset(
    {
        "properly",
        "after-a-broken-line",
        "after-a-deep-line",
        "twice",
        "for-another-call",
        "asking-for-the-unknown",
        "asking-without-leave",
        "asking-wrongly",
    }
)


@asynccontextmanager
async def _hub(folder: Path) -> AsyncIterator[ServedHub]:
    hostile = {"command": sys.executable, "args": ["-m", "tests.peers.hostile_server"], "env": PYTHON_ENV}
    servers = {"hostile": hostile, "child": fixture_over_stdio()}
    # A breaker that does not trip: each way is tried on a server that is there.
    settings = {"call": {"timeout": "2s"}, "breaker": {"threshold": 1000}}
    async with hub_over_http(servers, folder=folder, **settings) as served:
        yield served


@pytest.mark.requirement("SEC-4", "LIFE-14")
async def test_callers_get_an_answer_in_time_for_any_answer_of_a_server_and_other_servers_go_on(tmp_path: Path) -> None:
    heard: dict[str, str] = {}
    async with (
        _hub(tmp_path) as hub,
        companion(hub.one("hostile"), "modern") as client,
        companion(hub.one("child"), "modern") as other,
        companion(hub.all, "modern") as watcher,
    ):
        await watcher.watch("holdfast://status")
        for way in WAYS:
            with anyio.fail_after(_PATIENCE):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(_goes_on, other)
                    heard[way] = await _poke(client, way)
                assert await _poked_again(client, watcher) == "poked"
    assert [way for way in ANSWERED if heard[way] != "poked"] == [], heard
    assert [way for way in heard if not heard[way]] == [], heard
    assert "Traceback" not in await anyio.Path(hub.process.log).read_text()


async def _poke(client: Companion, way: str) -> str:
    """What the caller hears: the answer, or an error."""
    try:
        return _words(await client.client.call_tool("poke", {"way": way}))
    except MCPError as error:
        return error.message


async def _poked_again(client: Companion, watcher: Companion) -> str:
    """The answer of a server that may have to come back first: each time that its state changes it is tried again."""
    while True:
        watcher.told.clear()
        if (heard := await _poke(client, "properly")) == "poked":
            return heard
        await watcher.hears("ResourceUpdated")


def _words(result: types.CallToolResult) -> str:
    return " ".join(block.text for block in result.content if isinstance(block, types.TextContent)) or "nothing"


async def _goes_on(other: Companion) -> None:
    for _ in range(3):
        with anyio.fail_after(10):
            assert await other.call("test_echo", words="hello") == "hello"
