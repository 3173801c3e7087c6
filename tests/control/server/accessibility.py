"""Accessibility of the page: axe checks it in a browser."""

from __future__ import annotations

from pathlib import Path

import anyio

from tests.control.server.browser import Browser

__all__ = ["no_barriers"]

AXE = Path(__file__).parents[3] / ".tools/node/node_modules/axe-core/axe.min.js"

_FOUND = """axe.run(document, {resultTypes: ['violations']}).then((all) => all.violations.map(
  (one) => `${one.id}: ${one.nodes.map((node) => node.html + node.failureSummary).join('; ')}`))"""


async def no_barriers(window: Browser) -> None:
    """Every rule that axe has, for WCAG and for good practice, finds nothing."""
    assert AXE.exists(), "axe-core is missing: run `make .tools/node/.ready`"
    await window.run(f"{await anyio.Path(AXE).read_text()};0")
    found = await window.run(_FOUND)
    assert not found, "\n".join(found)
