"""A real browser for tests: Debian's Chromium, driven by its own driver, over the driver's plain HTTP.

Nothing here sleeps: every wait runs inside the page, for something visible, within a deadline. The tests of a worker
share one browser: each gets a tab of its own, and each hub has a port, so a storage, of its own.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import anyio
import httpx2
import pytest

from tests.peers import leaks

__all__ = ["Browser", "Sent", "browser", "needs_a_browser", "shared_browser"]

DEADLINE = 30.0
RESULTS = Path(__file__).parents[3] / "test-results" / "status-page"

DOCUMENTED = Path(__file__).parents[3] / "docs" / "images" / "status-page"
"""The pictures of the documentation: `make screenshots` lets the tests write those that are there."""


def _is_documented(name: str) -> bool:
    return os.environ.get("HOLDFAST_SCREENSHOTS") == "write" and (DOCUMENTED / name).exists()


_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--window-size=1280,900",
)

# Looks at once, at every change of the page, and now and then for what changes nothing in it. The deadline is
# kept in the page: the driver does one thing at a time, and would wait with everything else for this.
_UNTIL = """new Promise((resolve) => {
  const look = () => { let found; try { found = (%s); } catch { found = null; } if (found) done(found); };
  const done = (found) => {
    observer.disconnect();
    clearInterval(timer);
    clearTimeout(deadline);
    resolve(found instanceof Node ? true : found);
  };
  const observer = new MutationObserver(look);
  const timer = setInterval(look, 100);
  const deadline = setTimeout(() => done(null), %d);
  observer.observe(document, {subtree: true, childList: true, attributes: true, characterData: true});
  look();
})"""

_HEIGHT = "Math.min(document.documentElement.scrollHeight, 8000)"
_DRAWN = "new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(drawn))))"

KEYS = {"Tab": "\ue004", "Enter": "\ue007", "Escape": "\ue00c", "ArrowDown": "\ue015", "ArrowUp": "\ue013", " ": " "}
_SHIFT = "\ue008"


@dataclass(frozen=True)
class Sent:
    """A request that the browser made."""

    method: str
    url: str
    headers: dict[str, str]


class Browser:
    """One window."""

    def __init__(self, http: httpx2.AsyncClient, session: str) -> None:
        self._http = http
        self._session = session
        self._size: dict[str, object] = {"width": 1280, "height": 900, "deviceScaleFactor": 1, "mobile": False}

    async def go(self, url: str) -> None:
        await self._post("/url", {"url": url})

    async def run(self, script: str) -> Any:
        """What a piece of JavaScript gives; a promise is waited for."""
        answer = await self.cdp("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    async def until(self, condition: str, *, within: float = DEADLINE) -> Any:
        """Wait inside the page until an expression is true of it."""
        found = await self.run(_UNTIL % (condition, within * 1000))
        if not found:
            seen, wrong = await self.run("document.body.innerText"), await self.complaints()
            raise AssertionError(f"never true: {condition}\nthe browser complains: {wrong}\nthe page says:\n{seen}")
        return found

    async def click(self, selector: str) -> None:
        """A click with the mouse, where a person would click."""
        await self.run(f"document.querySelector({json.dumps(selector)})?.scrollIntoView({{block: 'center'}})")
        found = await self._post("/element", {"using": "css selector", "value": selector})
        (element,) = found.values()
        await self._post(f"/element/{element}/click", {})

    async def press(self, *keys: str, shift: bool = False) -> None:
        """Send keys to the element that has the focus."""
        actions = [{"type": kind, "value": KEYS.get(key, key)} for key in keys for kind in ("keyDown", "keyUp")]
        if shift:
            actions = [{"type": "keyDown", "value": _SHIFT}, *actions, {"type": "keyUp", "value": _SHIFT}]
        await self._post("/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    async def wear(self, *, scheme: Literal["light", "dark"], width: int = 1280, height: int = 900) -> None:
        """Another colour scheme, another size of the window."""
        await self.cdp("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self._size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        await self.cdp("Emulation.setDeviceMetricsOverride", **self._size)

    async def keep_picture(self, name: str, *, whole: bool = True) -> Path:
        """A screenshot, kept for people."""
        if whole:
            await self.cdp("Emulation.setDeviceMetricsOverride", **{**self._size, "height": await self.run(_HEIGHT)})
            await self.run(_DRAWN)
        picture = await self.cdp("Page.captureScreenshot", format="png")
        await self.cdp("Emulation.setDeviceMetricsOverride", **self._size)
        file = RESULTS / f"{name}.png"
        for place in (file, *([DOCUMENTED / file.name] if _is_documented(file.name) else [])):
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(base64.b64decode(picture["data"]))
        return file

    async def sent(self) -> list[Sent]:
        """Every request since this was last asked."""
        events = [json.loads(entry["message"])["message"] for entry in await self._log("performance")]
        requests = [one["params"]["request"] for one in events if one["method"] == "Network.requestWillBeSent"]
        # The browser's own start page is made of parts that it has with it.
        asked = [one for one in requests if not one["url"].startswith(("chrome:", "data:"))]
        return [Sent(one["method"], one["url"], one["headers"]) for one in asked]

    async def complaints(self) -> list[str]:
        """What the browser itself found wrong, such as a breach of the page's policy, since this was last asked."""
        return [entry["message"] for entry in await self._log("browser") if entry["level"] == "SEVERE"]

    async def cdp(self, command: str, **params: object) -> dict[str, Any]:
        answer = await self._post("/goog/cdp/execute", {"cmd": command, "params": params})
        return dict(answer)

    async def open_tab(self) -> str:
        """Go on in a new tab, with nothing heard of others; gives the tab that was there before."""
        before = str(await self._get("/window"))
        opened = await self._post("/window/new", {"type": "tab"})
        await self._post("/window", {"handle": opened["handle"]})
        await self.sent()
        await self.complaints()
        return before

    async def close_tab(self, before: str) -> None:
        """Close the tab, and go back to that which was there before."""
        await self._http.delete(f"/session/{self._session}/window")
        await self._post("/window", {"handle": before})

    async def _get(self, path: str) -> Any:
        return (await self._http.get(f"/session/{self._session}{path}")).json()["value"]

    async def _log(self, kind: str) -> list[dict[str, Any]]:
        return list(await self._post("/se/log", {"type": kind}))

    async def _post(self, path: str, body: object) -> Any:
        return await _asked(self._http, f"/session/{self._session}{path}", body)


@dataclass(frozen=True)
class _Running:
    """A browser that runs: where its driver listens, and the driver's session."""

    driver: str
    session: str


_shared: list[_Running] = []
"""The browser that the tests of this process share, if there is one."""


@asynccontextmanager
async def browser(folder: Path) -> AsyncIterator[Browser]:
    """A new tab of the shared browser, or a browser with an empty profile, until the end of the block."""
    if not _shared:
        with _running(folder) as (running, _):
            async with httpx2.AsyncClient(base_url=running.driver, timeout=90) as http:
                yield Browser(http, running.session)
        return
    (running,) = _shared
    async with httpx2.AsyncClient(base_url=running.driver, timeout=90) as http:
        window = Browser(http, running.session)
        first = await window.open_tab()
        try:
            yield window
        finally:
            with anyio.CancelScope(shield=True):
                await window.close_tab(first)


@contextmanager
def shared_browser(folder: Path) -> Iterator[None]:
    """Share one browser between all tests in the block. Its processes come and go: they are no test's leak."""
    with _running(folder) as (running, pid):
        leaks.lasting.add(pid)
        _shared.append(running)
        try:
            yield
        finally:
            _shared.clear()
            leaks.lasting.discard(pid)


@contextmanager
def _running(folder: Path) -> Iterator[tuple[_Running, int]]:
    options = {"binary": _found("chromium"), "args": [*_FLAGS, f"--user-data-dir={folder / 'chromium'}"]}
    wanted = {
        "goog:chromeOptions": options,
        "goog:loggingPrefs": {"performance": "ALL", "browser": "ALL"},
        "timeouts": {"script": int(DEADLINE * 1000)},
    }
    process, port = _driver(folder)
    with process:
        try:
            with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=90) as http:
                answer = http.post("/session", json={"capabilities": {"alwaysMatch": wanted}}).json()["value"]
                assert "sessionId" in answer, answer
                running = _Running(str(http.base_url), answer["sessionId"])
                yield running, process.pid
                http.delete(f"/session/{running.session}")
        finally:
            process.terminate()


def _driver(folder: Path) -> tuple[subprocess.Popen[str], int]:
    """The driver, and its port. It takes a port that is free on IPv6 and gives up if IPv4 has it in use: again."""
    command = [_found("chromedriver"), "--port=0"]
    # Chromium keeps what it likes in the home folder: it gets one that is thrown away.
    env = {**os.environ, "HOME": str(folder)}
    said = ""
    for _ in range(10):
        process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert process.stdout is not None
        for line in process.stdout:  # they end with the process, if it cannot start
            said += line
            if found := re.search(r"started successfully on port (\d+)", line):
                return process, int(found.group(1))
        process.stdout.close()
        process.wait()
    raise AssertionError(f"chromedriver did not start: {said}")


async def _asked(http: httpx2.AsyncClient, path: str, body: object) -> Any:
    answer = (await http.post(path, json=body)).json()["value"]
    assert not (isinstance(answer, dict) and "error" in answer), f"{path}: {answer}"
    return answer


def _found(program: str) -> str:
    path = shutil.which(program)
    assert path is not None, f"{program} is missing: needs_a_browser() should have said so"
    return path


def needs_a_browser() -> None:
    """Skips where there is no Chromium, and says how to get it.

    In CI, and wherever ``make browser`` could have installed it, one that is missing is a failure.
    """
    missing = [program for program in ("chromium", "chromedriver") if shutil.which(program) is None]
    if not missing:
        return
    words = f"no {' and no '.join(missing)}: on Debian, apt-get install chromium chromium-driver"
    if os.environ.get("CI") or (os.geteuid() == 0 and shutil.which("apt-get")):
        pytest.fail(f"{words}, or make browser")
    pytest.skip(words)
