"""The status page with five, a hundred and five hundred servers: what needs a person is on the first screen."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.cli.hub_peer import TOKEN, HubPeer, hub_peer, server
from tests.control.server.accessibility import no_barriers
from tests.control.server.browser import Browser, browser
from tests.control.server.staged_fleets import all_down, staged
from tests.control.server.watched_page import watching, write_config
from tests.peers.guarded import guarded

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("chromium"), pytest.mark.requirement("DX-5")]


@asynccontextmanager
async def shown(folder: Path) -> AsyncIterator[Browser]:
    async with browser(folder) as window:
        yield window


async def visit(window: Browser, peer: HubPeer, query: str = "") -> None:
    """Open the page of a hub, signed in."""
    await window.go(peer.url)
    await window.run(f"localStorage.setItem('holdfast.token', {json.dumps(TOKEN)})")
    await window.go(f"{peer.url}/{query}")
    await window.until("document.querySelector('.server, .cause')")
    await window.until("document.getElementById('touch').dataset.touch === 'live'")


def text_of(selector: str) -> str:
    return f"document.querySelector({json.dumps(selector)})?.textContent"


async def test_what_needs_a_person_is_on_the_first_screen_at_every_size(tmp_path: Path) -> None:
    async with shown(tmp_path) as window:
        for number in (5, 100, 500):
            with hub_peer(*staged(number)) as peer:
                for scheme, width, height in (("light", 1280, 900), ("dark", 1280, 900), ("light", 390, 844)):
                    await window.wear(scheme=scheme, width=width, height=height)  # type: ignore[arg-type]
                    await visit(window, peer)
                    await window.keep_picture(f"fleet-{number}-{scheme}-{width}", whole=False)
                    top = await window.run(
                        "document.querySelector('[data-group=need] .head').getBoundingClientRect().y"
                    )
                    assert top < height / 2
                    assert await window.run("document.documentElement.scrollWidth") == width
                    if number == 100:
                        await no_barriers(window)
                assert await window.run("document.querySelectorAll('.server').length") < 70
                assert await window.complaints() == []
                await window.go("about:blank")  # a page whose hub is gone goes on asking for it


async def test_equal_causes_are_one_entry_that_opens_and_is_tried_as_one(tmp_path: Path) -> None:
    async with shown(tmp_path) as window:
        with hub_peer(*staged(100)) as peer:
            await visit(window, peer)
            cause = ".cause[data-group=need]"
            title = "18 servers: connection refused at gateway.internal"
            assert await window.run(text_of(f"{cause} .opener")) == title
            assert await window.run(text_of("#headline")) == "24 servers need you, 7 are coming back"
            assert await window.run(f"document.querySelectorAll('{cause} .server').length") == 0
            await window.click(f"{cause} .opener")
            await window.until(f"document.querySelectorAll('{cause} .server').length === 18")
            await window.keep_picture("cause-open-light", whole=False)
            await no_barriers(window)
            await window.click(f"{cause} .act")
            await window.until(f"{text_of(f'{cause} .note')} === '18 of 18 connected again.'")
            tried = [path for path, _ in peer.asked if path.endswith("/reconnect")]
            assert len(set(tried)) == len(tried) == 18

            # One of them comes back: it leaves the cause, and its row keeps the focus.
            name = await window.run(f"document.querySelector('{cause} .server').dataset.id")
            row = f"document.querySelector('.server[data-id={name}]')"
            await window.run(f"{row}.querySelector('.opener').focus()")
            peer.change(server(name, "available", target="back", tools=3))
            await window.until(f"{row}.dataset.group === 'up'")
            assert await window.run("document.activeElement.closest('.server').dataset.id") == name
            assert await window.run(text_of(f"{cause} .opener")) == title.replace("18", "17")


async def test_a_filter_and_the_open_server_stay_in_the_address(tmp_path: Path) -> None:
    async with shown(tmp_path) as window:
        with hub_peer(*staged(100)) as peer:
            await visit(window, peer)
            await window.click(".chip[data-group=up]")
            await window.click("#filter")
            await window.press(*"files-eu")
            wanted = "1 of 100 servers shown"
            await window.until(f"{text_of('#shown')} === '{wanted}'")
            await window.click(".server .opener")
            await window.until("location.search === '?find=files-eu&show=up&server=files-eu'")
            await window.run("location.reload()")
            await window.until(f"{text_of('#shown')} === '{wanted}'")
            await window.until("document.querySelector('.server[data-open]')?.dataset.id === 'files-eu'")
            assert await window.run("document.getElementById('filter').value") == "files-eu"
            assert await window.run("document.querySelector('.chip[data-group=up]').ariaPressed") == "true"
            await visit(window, peer, "?show=need")
            assert await window.run("document.querySelectorAll('.group:not([hidden])').length") == 1


async def test_a_row_names_the_command_and_gives_numbers_with_units(tmp_path: Path) -> None:
    async with shown(tmp_path) as window:
        with hub_peer(*staged(100)) as peer:
            await visit(window, peer, "?find=confluence-billing")
            row = ".server[data-id=confluence-billing]"
            await window.until(f"{text_of(f'{row} .numbers')} === '44 ms · 160 calls'")
            assert await window.run(text_of(f"{row} .target")) == "docker run -i --rm ghcr.io/acme/ledger-mcp:2.4"
            assert await window.run(text_of(f"{row} .tools-count")) == "4 tools"
            await window.click(f"{row} .opener")
            await window.until(f"document.querySelector('{row} .facts').innerText.includes('docker run -i --rm')")


async def test_a_name_is_in_one_line_above_a_long_command(tmp_path: Path) -> None:
    command = "/home/me/projects/tools/.venv/bin/python -m inventory.mcp --folder /srv/inventory --port 0"
    async with shown(tmp_path) as window:
        with hub_peer(*(server(name, "permanent", target=command) for name in ("calendar", "ticker"))) as peer:
            for width in (1280, 390):
                await window.wear(scheme="light", width=width)
                await visit(window, peer)
                heights = "[...document.querySelectorAll('.server .opener')].map((one) => one.offsetHeight)"
                assert max(await window.run(heights)) < 30
                place = "document.querySelector('.server {}').getBoundingClientRect().{}"
                assert await window.run(f"{place.format('.target', 'top')} >= {place.format('.opener', 'bottom')}")


async def test_the_headline_is_true_when_all_is_down_and_when_the_hub_is_gone(tmp_path: Path) -> None:
    async with shown(tmp_path) as window:
        with hub_peer(*all_down(100)) as peer:
            await visit(window, peer)
            assert await window.run(text_of("#headline")) == "No server is available: 100 servers need you"
            await window.keep_picture("all-down-light")
            await no_barriers(window)
        await window.until(f"{text_of('#headline')} === 'The hub does not answer'")
        await window.until("document.title.startsWith('The hub does not answer')")
        await window.keep_picture("hub-gone-light")
        assert await window.run("[...document.querySelectorAll('.retry')].every((one) => !one.checkVisibility())")
        await no_barriers(window)


async def test_more_pages_than_a_browser_has_connections_for_are_opened_in_one_tab(tmp_path: Path) -> None:
    async with shown(tmp_path) as window:
        with hub_peer(*staged(5)) as peer:
            for number in range(8):
                await visit(window, peer, "?find=g" if number % 2 else "")


@pytest.mark.requirement("AUTH-3")
async def test_a_person_logs_in_from_the_page(tmp_path: Path) -> None:
    async with guarded() as peer:
        config = write_config(tmp_path / "mcp.json", {"files": peer.defined()})
        async with watching(tmp_path, "--config", str(config)) as page:
            await page.come_in()
            await page.in_group("need", "files")
            await page.press("files", "Log in")
            await page.window.click(".login button")
            await page.window.until("document.querySelector('.login a.button')")
            await page.window.keep_picture("login-light")
            await no_barriers(page.window)
            assert await page.window.run("document.querySelector('.login a.button').rel") == "noopener noreferrer"
            # A browser on another machine follows the link, and ends at an address that it cannot open.
            ended = await peer.open(await page.window.run("document.querySelector('.login a.button').href"))
            await page.window.click(".login summary")
            await page.window.click("#login-answer")
            await page.window.press(*ended, "Enter")
            await page.in_group("up", "files")
            await page.says("files", "Logged in, and connected.")
