"""Every test of this folder ends with nothing left: no task, process, descriptor or thread, of ours or a peer's."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.peers.leaks import no_leaks


@pytest.fixture(autouse=True)
async def nothing_at_all_left(anyio_backend: str) -> AsyncIterator[None]:
    async with no_leaks():
        yield
