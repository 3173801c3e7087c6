"""Every value that the status page shows, held against the control API's own answer."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from tests.control.server.watched_page import Page

__all__ = ["differences"]

_SHOWN = """[...document.querySelectorAll('[data-field]')].filter((node) => node.checkVisibility()).map((node) => [
  node.closest('.server')?.dataset.id ?? '', node.dataset.field, node.dataset.value])"""

# A figure outside a field cannot be traced.
_STRAY = """(() => {
  const walker = document.createTreeWalker(document.getElementById('board'), NodeFilter.SHOW_TEXT);
  const found = [];
  const named = '[data-field], .log, .offers, .scale, .axis, .hidden, time, code, [data-span], .diff';
  while (walker.nextNode()) {
    const node = walker.currentNode;
    const seen = node.parentElement.checkVisibility() && /\\d/.test(node.data);
    if (seen && !node.parentElement.closest(named)) found.push(node.data);
  }
  return found;
})()"""

_RUNS = ("retry_in", "breaker.retry_in", "started")
"""Counted down, or counted from: equal to the second, not to the bit."""


_A_WHILE = "new Promise((done) => setTimeout(done, 300))"
"""The page is behind the API by a fraction of a second: events of one server are told together."""


async def differences(page: Page) -> list[str]:
    """What the page shows and the API does not say; both are looked at again and again, since both live."""
    wrong: list[str] = []
    for _ in range(40):
        servers = {one["id"]: one for one in (await page.api("servers"))["servers"]}
        hub = await page.api("hub")
        shown = await page.window.run(_SHOWN)
        stray = await page.window.run(_STRAY)
        assert len(shown) > 20
        wrong = [*_wrong(shown, servers, hub), *(f"in no field: {text!r}" for text in stray)]
        if not wrong:
            break
        await page.window.run(_A_WHILE)
    return wrong


def _wrong(shown: list[list[str]], servers: Mapping[str, Any], hub: Mapping[str, Any]) -> Iterator[str]:
    for server, field, value in shown:
        known = _counted(field, servers) if field.startswith("count.") else _value(field, servers.get(server, hub))
        if not _same(field, value, known):
            yield f"{server or 'the hub'}: {field} is {value!r} on the page and {known!r} in the API"


def _value(field: str, thing: Any) -> Any:
    """A value by its path; sums and the like are told by the path's last word."""
    *path, last = field.split(".")
    for step in path:
        thing = thing[int(step)] if isinstance(thing, list) else thing[step]
    if isinstance(thing, dict):
        return thing[last]
    if last == "losses":
        return sum(step["old"] == "connected" for step in thing)
    known = [one for one in thing if one is not None]
    sums = {"sum": sum(known), "last": known[-1] if known else None, "most": max(known, default=None)}
    return sums[last]


def _counted(field: str, servers: Mapping[str, Any]) -> int:
    group = field.removeprefix("count.")
    return sum(_GROUPS[one["status"]] == group for one in servers.values())


_GROUPS = {
    "available": "up",
    "transient": "coming",
    "permanent": "need",
    "denied": "need",
    "idle": "rest",
    "disabled": "rest",
}


def _same(field: str, shown: str, known: Any) -> bool:
    if field in _RUNS and known is not None and shown != "null":
        return math.isclose(float(shown), known, abs_tol=60)
    if isinstance(known, int | float) and not isinstance(known, bool):
        return math.isclose(float(shown), known)
    return shown == {None: "null", True: "true", False: "false"}.get(known, str(known))
