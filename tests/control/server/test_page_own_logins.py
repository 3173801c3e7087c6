"""A person who signed in to the status page logs in to her own servers from there, in a real browser.

The authorization servers are ``oidc-provider`` and the Python SDK's, the hub is a process.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from tests.auth.issuer import Person
from tests.auth.real_servers import RealServers, node, python
from tests.cli.test_sign_in import CI, Storage, guarded, logging_in, records
from tests.control.server.accessibility import no_barriers
from tests.control.server.browser import Browser, browser
from tests.control.server.test_page_sign_in import sign_in
from tests.harness.served_hub import text_of

__all__ = ["node", "python"]

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.usefixtures("chromium"),
    pytest.mark.requirement("SEC-13", "AUTH-7", "DX-5"),
]


def per_user(url: str) -> dict[str, Any]:
    return {"type": "http", "url": url, "sharing": "per-user"}


def row(server: str) -> str:
    return f".own-login[data-server={json.dumps(server)}]"


async def in_state(window: Browser, server: str, state: str) -> None:
    await window.until(f"document.querySelector('{row(server)}')?.dataset.state === '{state}'")


async def sign_in_by_token(window: Browser, base: str) -> None:
    """Sign in with the token of the client `ci`, typed in."""
    await window.go(base)
    await window.until("document.body.dataset.view === 'sign-in'")
    await window.click("#token")
    await window.press(*CI, "Enter")
    await window.until("document.getElementById('who-name').innerText === 'ci'")


async def sign_out(window: Browser) -> None:
    await window.click("#sign-out")
    await window.until("document.body.dataset.view === 'sign-in'")


async def log_in(window: Browser, base: str, server: str, *steps: str) -> None:
    """Log in to a server from the page: the page of the hub first, then each of these buttons at its provider."""
    await window.click(f"{row(server)} button.primary")
    await window.until("location.pathname === '/connect' && document.querySelector('button.primary')")
    said = await window.run("document.body.innerText")
    assert all(words in said for words in (f"Log in to {server}", "the status page of this hub"))
    await window.click("button.primary")
    for selector in steps:
        await window.until(f"!location.href.startsWith('{base}') && document.querySelector('{selector}')")
        shown = await window.run("location.href")
        await window.run("document.querySelectorAll('input[required]').forEach((one) => (one.value = 'someone'))")
        await window.click(selector)
        await window.until(f"location.href !== {shown!r}")
    await window.until(f"document.body.innerText.includes('Logged in to {server}')")
    await window.click("main a")
    await in_state(window, server, "valid")


async def test_a_person_logs_in_from_the_page_and_the_server_works_for_her_alone(
    tmp_path: Path, node: RealServers
) -> None:
    ada, kept = Person("ada"), Storage()
    async with (
        guarded(tmp_path, servers={"files": per_user(node["all"])}) as hub,
        browser(tmp_path) as window,
        httpx2.AsyncClient(auth=logging_in(f"{hub.base}/mcp", ada, kept), trust_env=False) as hers,
        httpx2.AsyncClient(headers={"authorization": f"Bearer {CI}"}, trust_env=False) as of_ci,
    ):
        await sign_in(window, hub.base, "ada")
        await in_state(window, "files", "missing")
        await no_barriers(window)
        await log_in(window, hub.base, "files", ".login-submit", ".login-submit")
        await no_barriers(window)
        with anyio.fail_after(60):
            async with Client(streamable_http_client(f"{hub.base}/mcp", http_client=hers), cache=None) as client:
                assert "files__hello" in {one.name for one in (await client.list_tools()).tools}
                assert text_of(await client.call_tool("files__hello", {})) == "hello"
            async with Client(streamable_http_client(f"{hub.base}/mcp", http_client=of_ci), cache=None) as client:
                theirs = {one.name for one in (await client.list_tools()).tools}
                assert "holdfast_login" in theirs
                assert "files__hello" not in theirs
        await sign_out(window)
        assert await window.run("document.querySelectorAll('.own-login').length") == 0
        await sign_in_by_token(window, hub.base)
        await in_state(window, "files", "missing")
        assert node["all"].rpartition("/")[0] not in await window.run("document.getElementById('logins').innerText")
        await sign_out(window)
        await sign_in(window, hub.base, "ada")
        await in_state(window, "files", "valid")
        await window.click(f"{row('files')} button")
        await window.until("document.getElementById('logins-note').innerText.includes('The tokens are revoked')")
        await in_state(window, "files", "missing")
    done = [(one.event, one.outcome) for event in ("login", "logout") for one in records(tmp_path, event)]
    assert done == [("login", "done"), ("logout", "done")]


async def test_a_holder_of_a_token_sees_which_of_her_servers_lack_a_login_in_light_and_dark(
    tmp_path: Path, python: RealServers
) -> None:
    servers = {name: per_user(python["sdk"]) for name in ("mail", "secret")} | {"tracker": per_user(python["fastmcp"])}
    rules = [{"effect": "deny", "servers": ["secret"]}]
    async with (
        guarded(tmp_path, servers=servers, access={"rules": rules, "default": "allow"}) as hub,
        browser(tmp_path) as window,
    ):
        await sign_in_by_token(window, hub.base)
        await in_state(window, "tracker", "missing")
        await log_in(window, hub.base, "mail")
        assert "secret" not in await window.run("document.getElementById('logins').innerText")
        for scheme in ("light", "dark"):
            await window.wear(scheme=scheme)
            await window.keep_picture(f"own-logins-{scheme}")
            await no_barriers(window)
        await window.wear(scheme="light", width=390, height=800)
        await window.keep_picture("own-logins-phone")
        assert await window.run("document.documentElement.scrollWidth <= innerWidth")
        own = [one for one in await window.complaints() if one.startswith(hub.base)]
        assert [one for one in own if "401" not in one] == []
