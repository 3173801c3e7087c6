"""Through a served hub: a server of both eras whose tool asks its client the old way, and clients of the SDK."""

from __future__ import annotations

from pathlib import Path

import anyio
import mcp_types as types
import pytest
from mcp import Client

from tests.conformance.fixture_hub import hub_over_http
from tests.hub.test_both_eras import http_server

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("HUB-18", "HUB-7")]


async def answer(context: object, params: types.ElicitRequestParams) -> types.ElicitResult:
    return types.ElicitResult(action="accept", content={"name": "Ada"})


async def test_a_legacy_client_is_asked_as_it_is_without_the_hub(tmp_path: Path) -> None:
    with http_server() as server:
        async with hub_over_http({"dual": server}, folder=tmp_path) as hub:
            for url in (str(server["url"]), f"{hub.base}/servers/dual/mcp"):
                with anyio.fail_after(60):
                    async with Client(url, mode="legacy", elicitation_callback=answer) as client:
                        said = await client.call_tool("ask", {})
                assert not said.is_error, url
                assert [block.text for block in said.content if isinstance(block, types.TextContent)] == ["hello Ada"]
            with anyio.fail_after(60):
                async with Client(f"{hub.base}/servers/dual/mcp", mode="2026-07-28") as client:
                    plain = await client.call_tool("hello", {})
            assert [block.text for block in plain.content if isinstance(block, types.TextContent)] == ["hello"]
