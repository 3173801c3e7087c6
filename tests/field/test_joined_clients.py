"""All stdio clients of one person, real ones, joined to one hub at once: they share it, and outlive it.

Claude Desktop's entry as ``import`` writes it, started as a desktop does (in ``/``, without PATH); the Python and the
TypeScript SDK, both eras of each; MCP Inspector's command line; and two agent programs with a scripted model.
"""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
import anyio.to_thread
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream
from mcp import Client, StdioServerParameters

from tests.clients.test_joined_sdks import HERE, MODULES
from tests.field.agents.model import ScriptedModel, Step
from tests.field.agents.programs import PROGRAMS, Program, Run
from tests.harness.joined import SERVER, JoinedProcess, JoinHome, join_home
from tests.harness.waiting import gone
from tests.peers.everything import node

pytestmark = [pytest.mark.anyio, pytest.mark.field, pytest.mark.timeout(900)]

AGENTS = ("Codex", "llm")
LAUNCHER = "@modelcontextprotocol/inspector/clients/launcher/build/index.js"
COMMAND = str(Path(sys.executable).with_name("holdfast"))
PHASES = ("all is well", "the hub is killed", "the server is killed", "the hub is stopped")


class Meeting:
    """The agent programs wait for each other before each call; meanwhile something happens to the hub."""

    def __init__(self, agents: int) -> None:
        self._agents = agents
        self._arrived = dict.fromkeys(PHASES, 0)
        self._news = anyio.Event()
        self._open = {phase: anyio.Event() for phase in PHASES}

    async def arrive(self, phase: str) -> None:
        self._arrived[phase] += 1
        self._news.set()
        await self._open[phase].wait()

    async def all_arrived(self, phase: str) -> None:
        while self._arrived[phase] < self._agents:
            self._news = anyio.Event()
            await self._news.wait()

    def release(self, phase: str) -> None:
        self._open[phase].set()


async def test_real_clients_share_one_hub_and_one_process_and_outlive_all_that_happens_to_them(tmp_path: Path) -> None:
    agents = [one for one in PROGRAMS if one.name in AGENTS]
    for one in agents:
        await anyio.to_thread.run_sync(one.environment.ready)
    async with join_home(tmp_path) as home:
        entry = await _entry_of_claude_desktop(home)
        projects = [home.folder / name for name in ("webapp", "library")]
        for project in projects:
            project.mkdir()
        bare = {name: value for name, value in home.environ.items() if name != "PATH"}
        async with _desktop(entry, bare) as desktop:
            early = await desktop.ask("tools/call", name="s__pid", arguments={})
            assert "was not found" in str(early), "its hub has no PATH"
            async with _sdks(home, projects) as sdks:
                meeting, told = Meeting(len(agents)), dict[str, dict[str, str]]()
                async with anyio.from_thread.BlockingPortal() as portal, anyio.create_task_group() as running:
                    for one in agents:
                        running.start_soon(_agent, one, home, partial(portal.call, meeting.arrive), told)
                    seen: dict[str, str] = {}
                    for phase in PHASES:
                        await meeting.all_arrived(phase)
                        await _happen(phase, home, seen)
                        # A hub that the desktop program starts has no PATH until another client joins it.
                        pids = [*await sdks(), await desktop.call("s__pid"), await _inspected(home)]
                        assert len(pids) == 6
                        assert len(set(pids)) == 1, f"{phase}: one process of the server, not {pids}: {_log(home)}"
                        assert pids[0] not in seen.values(), f"{phase}: another process than before"
                        seen[phase] = pids[0]
                        shown = await anyio.to_thread.run_sync(home.run, "status")
                        assert all(f"in {project}" in shown.stdout for project in projects), shown.stdout
                        meeting.release(phase)
                assert len(home.hubs) == 1
                assert home.starts == len(PHASES)
        for name, results in told.items():
            for phase, pid in seen.items():
                assert pid in results.get(phase, ""), f"{name}: {phase}: {results}"


def _log(home: JoinHome) -> str:
    """What the hubs said."""
    logs = (home.folder / "state" / "holdfast" / "log").glob("*.log")
    return "\n".join(file.read_text()[-5000:] for file in logs)


async def _entry_of_claude_desktop(home: JoinHome) -> dict[str, Any]:
    """What ``import`` writes. The program of its server is on the PATH of terminals alone."""
    program = home.folder / "bin" / "counted-server"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\n{SERVER}")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    home.environ["PATH"] = f"{program.parent}{os.pathsep}{home.environ['PATH']}"
    of_projects = {**home.server(scope="project"), "args": [str(home.folder / "server.py"), str(home.folder / "other")]}
    home.write(p=of_projects)
    file = home.folder / ".config" / "Claude" / "claude_desktop_config.json"
    file.parent.mkdir(parents=True)
    server = {"command": "counted-server", "args": [str(home.notes)]}
    file.write_text(json.dumps({"mcpServers": {"s": server}}))
    ran = await anyio.to_thread.run_sync(lambda: home.run("import", "claude", "--apply", "--yes"))
    assert ran.returncode == 0, ran.stderr
    written: dict[str, Any] = json.loads(file.read_text())["mcpServers"]["holdfast"]
    return written


@asynccontextmanager
async def _desktop(entry: dict[str, Any], environ: dict[str, str]) -> AsyncIterator[JoinedProcess]:
    command = [entry["command"], *entry["args"]]
    async with (
        await anyio.open_process(command, cwd="/", env=environ, stderr=subprocess.DEVNULL) as process,
        anyio.create_task_group() as tasks,
    ):
        client = JoinedProcess(process, modern=False)
        tasks.start_soon(client.read)
        await client.begin("Claude")
        yield client
        process.kill()
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def _sdks(home: JoinHome, projects: list[Path]) -> AsyncIterator[Callable[[], Any]]:
    """Four clients of SDKs; those of Python work in two projects. Gives the process that each of them reaches."""
    args = ["serve", "--stdio"]
    one, two = (StdioServerParameters(command=COMMAND, args=args, env=home.environ, cwd=cwd) for cwd in projects)
    script = [str(node()), str(HERE / "typescript_joined.cjs"), COMMAND, *args]
    environ = {**home.environ, "NODE_PATH": str(MODULES)}
    async with (
        Client(one, mode="legacy", cache=None) as legacy,
        Client(two, mode="2026-07-28", cache=None) as modern,
        await anyio.open_process(script, cwd=projects[0], env=environ) as typescript,
    ):
        assert typescript.stdin is not None
        assert typescript.stdout is not None
        lines, asks = BufferedByteReceiveStream(typescript.stdout), typescript.stdin

        async def pids() -> list[str]:
            await asks.send(b"\n")
            of_typescript: list[Any] = json.loads(await lines.receive_until(b"\n", 1 << 16))
            for client, project in ((legacy, projects[0]), (modern, projects[1])):
                assert await _called(client, "p__where") == str(project), "each sees its own project"
            return [await _called(one, "s__pid") for one in (legacy, modern)] + [str(pid) for pid, _ in of_typescript]

        yield pids
        await asks.aclose()
        await typescript.wait()


async def _called(client: Client, tool: str) -> str:
    result: Any = await client.call_tool(tool, {})
    return str(result.content[0].text)


async def _inspected(home: JoinHome) -> str:
    """The process that MCP Inspector reaches. It starts a client for each request."""
    given = [part for name, value in home.environ.items() for part in ("-e", f"{name}={value}")]
    call = ("--method", "tools/call", "--tool-name", "s__pid")
    command = [str(node()), str(MODULES / LAUNCHER), "--cli", *given, COMMAND, "serve", "--stdio", *call]
    ran = await anyio.run_process(command, env=home.environ, check=False, stderr=subprocess.PIPE)
    assert ran.stdout, ran.stderr.decode()
    return str(json.loads(ran.stdout)["content"][0]["text"])


async def _happen(phase: str, home: JoinHome, seen: dict[str, str]) -> None:
    """What the phase says."""
    if phase == "the hub is killed":
        await home.kill_hub()
    elif phase == "the server is killed":
        pid = int(seen["the hub is killed"])
        os.kill(pid, signal.SIGKILL)
        await gone(pid)
    elif phase == "the hub is stopped":
        stopped = await anyio.to_thread.run_sync(home.run, "stop")
        assert stopped.returncode == 0, stopped.stderr


async def _agent(
    program: Program, home: JoinHome, arrive: Callable[[str], None], told: dict[str, dict[str, str]]
) -> None:
    """One run of an agent program, whose model calls the tool once in each phase."""
    place = home.folder / "agents" / program.name
    place.mkdir(parents=True)
    steps = [Step(phase, {}, partial(arrive, phase)) for phase in PHASES]
    with ScriptedModel("s__pid", steps) as model:
        run = Run(place, model.url, {"command": COMMAND, "args": ["serve", "--stdio"], "env": home.environ})
        command = [str(program.path), *program.begin(run)]
        with anyio.fail_after(600):
            ran = await anyio.run_process(
                command, cwd=place, env=program.environ(run), stdin=subprocess.DEVNULL, check=False
            )
    assert set(model.results) == set(PHASES), (ran.stdout + ran.stderr).decode(errors="replace")[-3000:]
    told[program.name] = model.results
