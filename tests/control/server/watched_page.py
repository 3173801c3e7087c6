"""A hub that runs, a browser that looks at its status page, and what is true of every visit to it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2

from holdfast.demo_servers import DemoControl
from tests.cli.serve_process import Served, served
from tests.control.server.browser import Browser, Sent, browser

__all__ = ["TOKEN", "Page", "watching", "write_config"]

TOKEN = "the-control-token-of-this-test"


class Page:
    """The status page of one hub, in one window."""

    def __init__(self, hub: Served, window: Browser, http: httpx2.AsyncClient) -> None:
        self.hub = hub
        self.window = window
        self._http = http

    @property
    def url(self) -> str:
        return self.hub.url.removesuffix("mcp")

    @property
    def demo(self) -> DemoControl:
        """The controls of the demo fleet, as `holdfast demo` finds them."""
        (record,) = (self.hub.home / "state" / "holdfast" / "hubs").glob("*.json")
        return DemoControl(Path(json.loads(record.read_text())["config"]).parent)

    async def api(self, path: str, *, method: str = "GET") -> Any:
        """What the hub itself says."""
        headers = {"authorization": f"Bearer {TOKEN}"}
        answer = await self._http.request(method, f"{self.url}api/{path}", headers=headers)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def tools(self) -> list[str]:
        """What a client is offered."""
        return [one["name"] for one in (await self.api("catalog"))["tools"]]

    async def code(self) -> str:
        """A code that signs in once."""
        return str((await self.api("codes", method="POST"))["code"])

    async def come_in(self) -> None:
        """Sign in as `holdfast status --open` does it, and wait for the servers."""
        await self.window.go(f"{self.url}#code={await self.code()}")
        await self.window.until("document.querySelector('.server')")

    async def come_in_by_token(self) -> None:
        """Sign in by hand, with the control token that the operator chose."""
        await self.window.go(self.url)
        await self.window.until("document.body.dataset.view === 'sign-in'")
        await self.window.click("#token")
        await self.window.press(*TOKEN, "Enter")
        await self.window.until("document.querySelector('.server')")

    async def in_group(self, group: str, *servers: str) -> None:
        """Wait until these servers stand there."""
        for server in servers:
            await self.window.until(f"document.querySelector('{_row(server)}')?.dataset.group === '{group}'")

    async def says(self, server: str, *words: str) -> None:
        """Wait until a server's row has these words."""
        for word in words:
            text = json.dumps(word)
            await self.window.until(f"document.querySelector('{_row(server)}').innerText.includes({text})")

    async def open(self, server: str) -> None:
        await self.window.click(f"{_row(server)} .opener")
        await self.window.until(f"document.querySelector('{_row(server)} .detail .facts dd')")

    async def press(self, server: str, button: str) -> None:
        """Click a button of a server's row by its words."""
        text = json.dumps(button)
        found = f"[...document.querySelectorAll('{_row(server)} button')].find((b) => b.textContent === {text})"
        await self.window.until(f"{found}?.checkVisibility()")
        await self.window.run(f"void ({found}.dataset.press = '')")
        await self.window.click("[data-press]")
        await self.window.run("document.querySelectorAll('[data-press]').forEach((b) => delete b.dataset.press)")


def _row(server: str) -> str:
    return f'.server[data-id="{server}"]'


@asynccontextmanager
async def watching(folder: Path, *arguments: str, **environ: str) -> AsyncIterator[Page]:
    """Serve, and open a browser; what was asked of whom is looked at in the end."""
    async with (
        served(folder / "home", *arguments, HOLDFAST_CONTROL_TOKEN=TOKEN, **environ) as hub,
        browser(folder) as window,
        httpx2.AsyncClient(trust_env=False) as http,
    ):
        page = Page(hub, window, http)
        yield page
        _no_other_host(await window.sent(), page.url)


def _no_other_host(sent: list[Sent], url: str) -> None:
    """The page asked no other host, and no URL contained a secret."""
    assert sent
    assert {urlsplit(one.url).netloc for one in sent} == {urlsplit(url).netloc}
    assert not [one.url for one in sent if "code=" in one.url or TOKEN in one.url]


def write_config(file: Path, servers: dict[str, Any], **settings: Any) -> Path:
    """An mcp.json."""
    file.write_text(json.dumps({"mcpServers": servers, "holdfast": settings}))
    return file
