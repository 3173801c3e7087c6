"""Over stdio every valid request is answered among any garbage, and only JSON comes back."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import anyio
import anyio.abc
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream

from tests.clients.raw import MODERN_META, discover, initialize
from tests.conformance.fixture_hub import PYTHON_ENV, fixture_over_stdio, hub_command
from tests.front.malformed import Garbage
from tests.peers.leaks import RUN_MARK

pytestmark = pytest.mark.anyio

LINES = 300
QUESTIONS = 30
_SECONDS = 60.0
_LONGEST = 1 << 24

Era = Literal["legacy", "modern"]


@pytest.mark.requirement("HUB-1", "SEC-4")
@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.long)])
async def test_no_line_keeps_a_proper_question_from_its_answer(era: Era, seed: int, tmp_path: Path) -> None:
    garbage = Garbage(seed)
    async with _pipe(tmp_path) as pipe:
        with anyio.fail_after(_SECONDS):
            await pipe.ask("first", initialize() if era == "legacy" else discover())
            if era == "legacy":
                await pipe.write(b'{"jsonrpc":"2.0","method":"notifications/initialized"}')
            await pipe.ask("second", _tools(era))  # now the era is fixed: discovery alone is a question
            for number in range(QUESTIONS):
                for _ in range(LINES // QUESTIONS):
                    await pipe.write(garbage.next())
                answer = await pipe.ask(f"question {number}", _tools(era))
                assert "tools" in answer.get("result", {}), answer
            words = {"name": "child__test_echo", "arguments": {"words": "hello"}, **_meta(era)}
            answer = await pipe.ask("last", {"jsonrpc": "2.0", "method": "tools/call", "params": words})
            assert answer["result"]["content"][0]["text"] == "hello"
    assert "Traceback" not in await anyio.Path(tmp_path / "hub.log").read_text()


class _Pipe:
    """The hub's stdin and stdout."""

    def __init__(self, process: anyio.abc.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._input = process.stdin
        self._output = BufferedByteReceiveStream(process.stdout)
        self._answers: dict[str, dict[str, Any]] = {}
        self._came = anyio.Event()

    async def write(self, line: bytes) -> None:
        await self._input.send(line.replace(b"\n", b" ") + b"\n")

    async def ask(self, name: str, message: dict[str, Any]) -> dict[str, Any]:
        """Send the message under an id that no garbage has, and wait for its answer."""
        await self.write(json.dumps(message | {"id": name}).encode())
        while name not in self._answers:
            self._came = anyio.Event()
            await self._came.wait()
        return self._answers.pop(name)

    async def read(self) -> None:
        """Take every line; one that is no JSON-RPC fails the test."""
        while True:
            message = json.loads(await self._output.receive_until(b"\n", _LONGEST))
            assert message["jsonrpc"] == "2.0", message
            if isinstance(message.get("id"), str) and "method" not in message:
                self._answers[message["id"]] = message
                self._came.set()


@asynccontextmanager
async def _pipe(folder: Path) -> AsyncIterator[_Pipe]:
    command = (*hub_command({"child": fixture_over_stdio()}, folder=folder), "--stdio", "--own")
    env = PYTHON_ENV | {"HOME": str(folder), "XDG_STATE_HOME": str(folder / "state"), "HOLDFAST_TEST_RUN": RUN_MARK}
    with (folder / "hub.log").open("wb") as log:
        async with (
            await anyio.open_process(command, stderr=log, env=env) as process,
            anyio.create_task_group() as tasks,
        ):
            pipe = _Pipe(process)
            tasks.start_soon(pipe.read)
            yield pipe
            tasks.cancel_scope.cancel()
            with anyio.fail_after(_SECONDS, shield=True):
                await pipe._input.aclose()
                await process.wait()


def _tools(era: Era) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": "tools/list", "params": _meta(era)}


def _meta(era: Era) -> dict[str, Any]:
    return {"_meta": MODERN_META} if era == "modern" else {}
