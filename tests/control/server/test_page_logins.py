"""Logins from the status page, in a real browser, at the authorization servers of the field."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.auth.real_servers import RealServers, node, python
from tests.control.server.watched_page import Page, watching, write_config

__all__ = ["node", "python"]

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("chromium"), pytest.mark.requirement("AUTH-9", "DX-5")]

ARRIVED = "document.body.innerText.includes('Holdfast has the answer')"


async def logs_in(page: Page, server: str, *steps: str) -> None:
    """Log in from the page; in the tab of the authorization server, press each of these."""
    await page.in_group("need", server)
    await page.press(server, "Log in")
    await page.window.click(f'.server[data-id="{server}"] .login button')
    link = f"document.querySelector('.server[data-id=\"{server}\"] .login a.button')"
    await page.window.until(link)
    address = await page.window.run(f"{link}.href")
    before = await page.window.open_tab()
    await page.window.go(address)
    for selector in steps:
        await page.window.until(f"document.querySelector('{selector}')")
        await page.window.run("document.querySelectorAll('input[required]').forEach((one) => (one.value = 'someone'))")
        await page.window.click(selector)
    await page.window.until(ARRIVED)
    await page.window.close_tab(before)
    await page.in_group("up", server)
    await page.says(server, "Logged in, and connected.")


async def test_a_person_logs_in_from_the_page_to_real_servers(
    tmp_path: Path, python: RealServers, node: RealServers
) -> None:
    names = {name: python[name] for name in ("sdk", "fastmcp", "proxy")} | {"oidc": node["client_secret_basic"]}
    servers = {name: {"type": "http", "url": url} for name, url in names.items()}
    config = write_config(tmp_path / "mcp.json", servers)
    async with watching(tmp_path, "--config", str(config)) as page:
        await page.come_in()
        await logs_in(page, "sdk")
        await logs_in(page, "fastmcp")
        await logs_in(page, "proxy", ".btn-approve")
        await logs_in(page, "oidc", ".login-submit", ".login-submit")
        assert {*await page.tools()} == {f"{name}__hello" for name in names}
        await page.window.sent()  # the pages of the authorization servers
        await page.come_in()
