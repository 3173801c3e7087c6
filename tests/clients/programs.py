"""The client programs: how each is started, and what comes of it."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import anyio

from tests.conformance.fixture_hub import PYTHON_ENV
from tests.peers.everything import node
from tests.peers.process import foreign_process

__all__ = ["CLIENTS", "ClientEra", "Program", "inspect"]

ClientEra = Literal["legacy", "modern"]

_HERE = Path(__file__).parent
_MODULES = _HERE.parents[1] / ".tools/node/node_modules"
_INSPECTOR = _MODULES / "@modelcontextprotocol/inspector/clients/launcher/build/index.js"
# The scenario takes about two seconds on an idle machine.
_ERRAND = 60.0


@dataclass(frozen=True)
class Program:
    """A client on one library, of one era."""

    name: str
    era: ClientEra
    command: Callable[[], tuple[str | Path, ...]]

    async def run(self, url: str, *, folder: Path) -> Mapping[str, Any]:
        """Run the scenario; return its report."""
        report: Mapping[str, Any] = await _answer((*self.command(), url, self.era), folder=folder)
        return report

    def __str__(self) -> str:
        return f"{self.name}-{self.era}"


def _python(module: str) -> Callable[[], tuple[str | Path, ...]]:
    return lambda: (sys.executable, "-m", f"tests.clients.{module}")


def _node(script: str) -> Callable[[], tuple[str | Path, ...]]:
    return lambda: (node(), _HERE / script)


CLIENTS: tuple[Program, ...] = (
    Program("python-sdk", "legacy", _python("python_sdk")),
    Program("python-sdk", "modern", _python("python_sdk")),
    Program("fastmcp", "legacy", _python("fastmcp_client")),
    Program("fastmcp", "modern", _python("fastmcp_client")),
    # The first TypeScript SDK is of 2025 and knows nothing later.
    Program("typescript-v1", "legacy", _node("typescript_v1.cjs")),
    Program("typescript-v2", "legacy", _node("typescript_v2.cjs")),
    Program("typescript-v2", "modern", _node("typescript_v2.cjs")),
)


async def inspect(url: str, era: ClientEra, method: str, *options: str, folder: Path) -> Any:
    """One request by MCP Inspector's command line; gives what it printed."""
    command = (node(), _INSPECTOR, "--cli", url, "--transport", "http", "--protocol-era", era, "--method", method)
    return await _answer((*command, *options), folder=folder)


async def _answer(command: tuple[str | Path, ...], *, folder: Path) -> Any:
    printed = folder / "client.log"
    env = PYTHON_ENV | {"NODE_PATH": str(_MODULES), "HOME": str(folder)}
    async with foreign_process(command, log=printed, env=env) as process:
        with anyio.fail_after(_ERRAND):
            code = await process.ended()
    text = await anyio.Path(printed).read_text()
    assert code == 0, text
    # A library may log before the report: the Python SDK does where a stream ends in the middle of an event.
    report = re.search(r"^[\[{]", text, re.MULTILINE)
    assert report is not None, text
    return json.loads(text[report.start() :])
