"""One agent program at one hub: ``python -m tests.field.agents.visit NAME WAY FOLDER``.

The scripted model lets the program call a tool when all is well, while the server behind the hub is down, after the
server's restart, and after the hub's. What the model was told is printed as one JSON object. The caller starts this in
a network namespace of its own.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
import anyio.to_thread

from holdfast.testing import HttpServer
from tests.cli.serve_process import config, environment
from tests.field.agents.model import ScriptedModel, Step
from tests.field.agents.programs import PROGRAMS, Program, Run
from tests.field.test_client_restarts import Hub
from tests.harness.waiting import asked

TOOL = "one__echo"
# A cold start of a large program and its retries. A program that waits for ever is ended.
LONGEST = 75


async def visit(program: Program, way: str, folder: Path) -> dict[str, Any]:
    """Run it once, with everything that happens meanwhile."""
    home = folder / "program"
    home.mkdir(parents=True, exist_ok=True)
    async with (
        HttpServer({"echo": lambda arguments: str(arguments["text"])}) as server,
        anyio.create_task_group() as tasks,
        anyio.from_thread.BlockingPortal() as portal,
    ):

        def act(what: Callable[[], Awaitable[object]]) -> Callable[[], None]:
            return lambda: portal.call(_awaited, what)

        file = config(folder / "mcp.json", one={"type": "http", "url": server.url})
        hub = Hub(folder, file, tasks)
        steps = [
            Step("call", {"text": "hello"}),
            Step("outage", {"text": "anyone?"}, act(server.stop)),
            Step("server restart", {"text": "back"}, act(lambda: _restarted(server))),
        ]
        url = await hub.start()
        if way == "find":
            target: dict[str, Any] = {"url": f"{url}?tools=find"}
            steps = _finding_steps(act(server.stop), act(lambda: _restarted(server)))
        elif way == "http":
            target = {"url": url}

            async def again() -> None:
                await hub.end(signal.SIGTERM)
                await hub.start()

            steps += [
                Step("hub restart", {"text": "again"}, act(again)),
                Step("hub away", {"text": "away"}, act(lambda: hub.end(signal.SIGTERM))),
                Step("hub back", {"text": "last"}, act(hub.start)),
            ]
        else:
            await hub.end(signal.SIGTERM)  # it has served once: the next one knows its tools
            env = {**environment(folder / "home"), "HOLDFAST_CONFIG": str(file)}
            command = str(Path(sys.executable).with_name("holdfast"))
            target = {"command": command, "args": ["serve", "--stdio", "--own"], "env": env}
        with ScriptedModel(TOOL, steps) as model:
            run = Run(home, model.url, target)
            ran = await anyio.to_thread.run_sync(lambda: _run(program, run))
            (folder / "requests.json").write_text(json.dumps(model.requests, indent=1))
        tasks.cancel_scope.cancel()
    return {
        "listed": {
            step: [name for name in names if TOOL in name or way == "find"] for step, names in model.listed.items()
        },
        "longest": max((len(name) for names in model.listed.values() for name in names), default=0),
        "results": model.results,
        "exit": ran.returncode,
        "output": (ran.stdout + ran.stderr)[-3000:],
        "calls": server.asked.count("tools/call"),
    }


def _finding_steps(stop: Callable[[], None], restart: Callable[[], None]) -> list[Step]:
    """Find, describe and call; an outage, told in the hit and by the call; and its end."""
    find = {"query": "echo a text"}

    def call(text: str) -> dict[str, Any]:
        return {"name": TOOL, "arguments": {"text": text}}

    return [
        Step("find", find, tool="find_tools"),
        Step("describe", {"names": [TOOL]}, tool="describe_tools"),
        Step("call", call("hello"), tool="call_tool"),
        Step("outage in the call", call("anyone?"), stop, tool="call_tool"),
        Step("outage in the hit", find, tool="find_tools"),
        Step("recovery in the call", call("back"), restart, tool="call_tool"),
        Step("recovery in the hit", find, tool="find_tools"),
    ]


async def _awaited(what: Callable[[], Awaitable[object]]) -> None:
    await what()


async def _restarted(server: HttpServer) -> None:
    """Start the server again, and wait until the hub has found it; some programs run a hub only for each call."""
    before = len(server.asked)
    await server.start()

    async def found() -> bool:
        return len(server.asked) > before

    with suppress(TimeoutError):
        await asked(found, within=10)


def _run(program: Program, run: Run) -> subprocess.CompletedProcess[str]:
    arguments = program.begin(run)
    if program.setup is not None:
        _run_once(program, run, program.setup(run))
    return _run_once(program, run, arguments)


def _run_once(program: Program, run: Run, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            [program.path, *arguments],
            cwd=run.home,
            env=program.environ(run),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LONGEST,
            check=False,
        )
    except subprocess.TimeoutExpired as exc:
        said = b"".join(part for part in (exc.stdout, exc.stderr) if isinstance(part, bytes)).decode(errors="replace")
        return subprocess.CompletedProcess(exc.cmd, -1, said, f"(not done after {LONGEST} s)")


if __name__ == "__main__":
    chosen = next(each for each in PROGRAMS if each.name == sys.argv[1])
    print(json.dumps(anyio.run(visit, chosen, sys.argv[2], Path(sys.argv[3]))))  # noqa: T201 - read by the caller
