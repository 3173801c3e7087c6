"""People who sign in to the status page at the issuer, in a real browser, and see what their roles allow."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.test_sign_in import CI, guarded
from tests.control.server.accessibility import no_barriers
from tests.control.server.browser import Browser, browser

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("chromium"), pytest.mark.requirement("SEC-20", "DX-5")]

SHOWN = "document.querySelector('{}')?.checkVisibility()"


async def sign_in(window: Browser, base: str, name: str) -> None:
    """Sign in at the issuer's pages, as a person does."""
    await window.go(base)
    await window.until("document.body.dataset.view === 'sign-in'")
    await window.click("#sign-in-issuer a")
    for _ in ("her name", "her consent"):
        await window.until("document.querySelector('.login-submit')")
        shown = await window.run("location.href")
        await window.run(f"document.querySelectorAll('input[required]').forEach((one) => (one.value = {name!r}))")
        await window.click(".login-submit")
        await window.until(f"location.href !== {shown!r}")  # the next page: this one has such a button too


async def test_an_operator_signs_in_acts_and_signs_out(tmp_path: Path) -> None:
    async with guarded(tmp_path) as hub, browser(tmp_path) as window:
        await window.go(hub.base)
        await window.until("document.body.dataset.view === 'sign-in'")
        await window.keep_picture("sign-in-at-an-issuer")
        await no_barriers(window)
        await sign_in(window, hub.base, "ada")
        await window.until("document.querySelector('.server')")
        assert await window.run("document.getElementById('who-name').innerText") == "ada"
        # No script of the page can read the session.
        assert "holdfast" not in await window.run("document.cookie")
        assert await window.run("localStorage.length") == 0
        await window.click(".opener")
        await window.until(f"{SHOWN.format('.detail [data-role=operate]')}")
        await window.keep_picture("operator-signed-in")
        await no_barriers(window)
        await window.run(
            "[...document.querySelectorAll('[data-role=operate]')].find((one) => one.innerText === 'Disable').click()"
        )
        await window.until("document.querySelector('.server').innerText.includes('Disabled')")
        await window.click("#sign-out")
        await window.until("document.body.dataset.view === 'sign-in'")
        await window.go(f"{hub.base}/?again")
        await window.until("document.body.dataset.view === 'sign-in'")
        own = [one for one in await window.complaints() if one.startswith(hub.base)]
        assert [one for one in own if "401" not in one] == []


async def test_a_reader_is_offered_no_action_and_a_person_without_a_role_sees_her_own_activity(tmp_path: Path) -> None:
    async with guarded(tmp_path) as hub, browser(tmp_path) as window:
        await sign_in(window, hub.base, "bob")
        await window.until("document.querySelector('.server')")
        await window.click(".opener")
        await window.until("document.querySelector('[data-role=operate]')")
        hidden = "[...document.querySelectorAll('[data-role]')].every((one) => !one.checkVisibility())"
        assert await window.run(hidden)
        await window.click("#sign-out")
        await window.until("document.body.dataset.view === 'sign-in'")
        await window.go(f"{hub.issuer}/session/end")
        await window.until("document.querySelector('button[name=logout]')")
        await window.click("button[name=logout]")
        # Its answer may come after the next address was asked for, and would take its place.
        await window.until("document.body.innerText.includes('Sign-out Success')")
        await sign_in(window, hub.base, "eve")
        await window.until("document.body.dataset.view === 'own'")
        assert await window.run(f"{SHOWN.format('#board')}") is False
        await window.until("document.getElementById('activity-title').innerText.includes('eve')")
        await window.keep_picture("a-person-without-a-role")


async def test_a_callers_token_that_is_typed_in_stays_with_the_browser_and_not_with_the_page(tmp_path: Path) -> None:
    async with guarded(tmp_path) as hub, browser(tmp_path) as window:
        await window.go(hub.base)
        await window.until("document.body.dataset.view === 'sign-in'")
        await window.click("#token")
        await window.press(*CI, "Enter")
        await window.until("document.querySelector('.server')")
        assert await window.run("document.getElementById('who-name').innerText") == "ci"
        assert await window.run("localStorage.length") == 0
        await window.go(f"{hub.base}/?again")
        await window.until("document.querySelector('.server')")
        await window.click("#sign-out")
        await window.until("document.body.dataset.view === 'sign-in'")
