"""The SDK's own example server, from its source package: the suites find through the hub what they find directly."""

from __future__ import annotations

import socket
import sys
import tarfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from tests.conformance.fixture_hub import hub_over_http
from tests.conformance.runner import Requirements, run_suite
from tests.field.environments import Environment
from tests.peers.process import foreign_process

pytestmark = [pytest.mark.anyio, pytest.mark.field, pytest.mark.timeout(900)]

SDK = f"mcp=={version('mcp')}"


class SourceEnvironment(Environment):
    """A source package from PyPI, unpacked."""

    def _install(self) -> None:
        (package,) = self.packages
        self._run(sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", "mcp", package)
        (archive,) = self.folder.glob("*.tar.gz")
        with tarfile.open(archive) as packed:
            packed.extractall(self.folder, filter="data")

    @property
    def example(self) -> Path:
        (found,) = self.folder.glob("*/examples/servers/everything-server")
        return found


OWN_WAY = {
    ("server-stateless", "sep-2575-server-sends-tools-list-changed-on-subscription"),
    ("server-stateless", "sep-2575-server-sends-prompts-list-changed-on-subscription"),
}
"""The example adds a tool, removes it and announces a change. The hub lists, sees no change, and announces none."""

EXAMPLE = SourceEnvironment("python-sdk-source", (SDK,))


@asynccontextmanager
async def example_server(folder: Path) -> AsyncIterator[str]:
    """Run it with this SDK; gives its URL."""
    await anyio.to_thread.run_sync(EXAMPLE.ready)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = (sys.executable, "-m", "mcp_everything_server", "--port", str(port))
    env = {"PYTHONPATH": str(EXAMPLE.example)}
    async with foreign_process(command, log=folder / "example.log", env=env) as process:
        await process.appears(process.log, containing="Uvicorn running")
        yield f"http://127.0.0.1:{port}/mcp"


@pytest.mark.requirement("HUB-6", "HUB-18")
@pytest.mark.parametrize("requirements", ["2025-11-25", "2026-07-28"])
async def test_the_suites_find_through_the_hub_what_they_find_directly(
    requirements: Requirements, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with example_server(tmp_path) as url:
        direct = await run_suite(url, requirements, folder=tmp_path / "direct")
        async with hub_over_http({"example": {"type": "http", "url": url}}, folder=tmp_path) as hub:
            through = await run_suite(hub.one("example"), requirements, folder=tmp_path / "hub")
    with capsys.disabled():
        for name, score in (("directly", direct), ("through the hub", through)):
            checks = sum(score.passed.values())
            print(f"\n{requirements} {name}: {checks} checks passed, {len(score.failed)} scenarios failed")  # noqa: T201
    assert through.failed == direct.failed, str(through)
    assert through.fulfilled == direct.fulfilled == direct.required
    assert through.remarks - direct.remarks <= OWN_WAY
    # The rest passed too, or is no more than informational: the hub answers in JSON, and keeps a stream open.
    assert sum(direct.passed.values()) - sum(through.passed.values()) <= 2
