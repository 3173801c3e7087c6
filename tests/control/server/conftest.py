"""One browser for all tests of a worker that look at the status page."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.control.server.browser import needs_a_browser, shared_browser


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The browser runs; each test opens a tab in it."""
    needs_a_browser()
    with shared_browser(tmp_path_factory.mktemp("browser")):
        yield
