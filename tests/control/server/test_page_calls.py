"""Calls that wait for a person, on the status page in a real browser."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest

from tests.control.server.accessibility import no_barriers
from tests.control.server.watched_page import watching
from tests.harness.served_hub import Person, text_of
from tests.peers.peer_server import running

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("chromium"), pytest.mark.requirement("SEC-19")]

ASK = {"access": {"rules": [{"effect": "ask", "approver": "operator"}], "default": "allow"}}


async def test_an_operator_sees_a_call_that_waits_and_decides_about_it(tmp_path: Path) -> None:
    words: list[str] = []
    async with running("legacy") as origin:
        file = tmp_path / "mcp.json"
        file.write_text(json.dumps({"mcpServers": {"o": {"url": origin.url}}, "holdfast": ASK}))
        async with (
            watching(tmp_path, "--config", str(file)) as page,
            Person("ada").client(page.hub.url, "legacy") as ada,
        ):
            await page.come_in()

            async def call(text: str) -> None:
                words.append(text_of(await ada.call_tool("o__echo", {"text": text})))

            for text, button in (("one", "Approve"), ("two", "Refuse")):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(call, text)
                    await page.window.until(f"document.getElementById('calls-rows').innerText.includes('{text}')")
                    if text == "one":
                        await page.window.keep_picture("calls")
                        await no_barriers(page.window)
                    await page.window.click(f"#calls button[aria-label^='{button}']")
            await page.window.until("document.getElementById('calls').hidden")
    assert words[0] == "one"
    assert "was refused by" in words[1]
    assert origin.calls == ["echo"]
