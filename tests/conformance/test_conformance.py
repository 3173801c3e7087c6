from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.fixture_hub import fixture_over_http, fixture_over_stdio, hub_over_http
from tests.conformance.runner import REQUIRED, Requirements, run_suite

pytestmark = pytest.mark.anyio

REVISIONS: tuple[Requirements, ...] = ("2025-11-25", "2026-07-28")

MENDED = {
    ("http-header-validation", "sep-2243-server-accepts-whitespace-header-value"),
    # On a busy machine the SDK's server closes a stream before its first event is out.
    ("server-sse-polling", "server-sse-priming-event"),
    ("server-sse-polling", "server-sse-retry-field"),
}
"""What the suite remarks about the server, which is built with the SDK, and not about the hub in front of it."""


@pytest.mark.requirement("HUB-6", "HUB-8")
@pytest.mark.parametrize("requirements", REVISIONS)
async def test_suite_finds_through_the_hub_what_it_finds_directly(requirements: Requirements, tmp_path: Path) -> None:
    """The server itself fulfils all that the revision requires, and so does the hub in front of it."""
    async with fixture_over_http(folder=tmp_path) as url:
        direct = await run_suite(url, requirements, folder=tmp_path / "direct")
        assert len(direct.required) == REQUIRED[requirements]
        assert direct.fulfilled == direct.required, str(direct)
        async with hub_over_http({"fixture": {"type": "http", "url": url}}, folder=tmp_path) as hub:
            through = await run_suite(hub.one("fixture"), requirements, folder=tmp_path / "hub")
    assert through.fulfilled == direct.fulfilled, str(through)
    assert len(through.fulfilled) == REQUIRED[requirements]
    assert through.remarks == direct.remarks - MENDED


@pytest.mark.requirement("HUB-6")
@pytest.mark.parametrize("requirements", REVISIONS)
async def test_suite_is_content_with_a_spawned_server_behind_the_hub(
    requirements: Requirements, tmp_path: Path
) -> None:
    async with hub_over_http({"fixture": fixture_over_stdio()}, folder=tmp_path) as hub:
        score = await run_suite(hub.one("fixture"), requirements, folder=tmp_path)
    assert score.fulfilled == score.required, str(score)
    assert len(score.fulfilled) == REQUIRED[requirements]
