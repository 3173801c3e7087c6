"""The clients of the matrix: how each is installed and started."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
from anyio.streams.buffered import BufferedByteReceiveStream

from tests.field.environments import Environment, NodeEnvironment, PythonEnvironment
from tests.harness.waiting import asked
from tests.peers.everything import node
from tests.peers.leaks import RUN_MARK

__all__ = ["CLIENTS", "Client", "Driven", "Saw"]

HERE = Path(__file__).parent / "clients"
# A framework imports for seconds on a busy machine.
_STARTING = 60.0
# The longest that a hub or a client waits by default.
_ANSWERING = 90.0
_LONGEST_LINE = 1 << 20
_TROUBLE = re.compile(r"(?i)(?<!is)error|exception|traceback|failed|exceeded|warn")


@dataclass(frozen=True)
class Saw:
    """What the client's own program saw of one call."""

    text: str
    error: bool
    raised: str


class Driven:
    """A client that runs, and does what the test asks for."""

    def __init__(self, process: anyio.abc.Process, log: Path, noise: str) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._noise = re.compile(noise)
        self._input = process.stdin
        self._output = BufferedByteReceiveStream(process.stdout)
        self.log = log

    @property
    def complaints(self) -> list[str]:
        """The lines of its stderr that report trouble."""
        lines = self.log.read_text(errors="replace").splitlines()
        return [line for line in lines if _TROUBLE.search(line) and not self._noise.search(line)]

    async def tools(self) -> list[str]:
        return list((await self._asked({"do": "list"}))["tools"])

    async def call(self, tool: str, **arguments: object) -> Saw:
        return Saw(**await self._asked({"do": "call", "tool": tool, "arguments": arguments}))

    async def up(self) -> None:
        await self._line(_STARTING)

    async def _asked(self, message: Mapping[str, object]) -> dict[str, Any]:
        await self._input.send(json.dumps(message).encode() + b"\n")
        return await self._line(_ANSWERING)

    async def _line(self, limit: float) -> dict[str, Any]:
        try:
            with anyio.fail_after(limit):
                line = await self._output.receive_until(b"\n", _LONGEST_LINE)
        except (anyio.EndOfStream, anyio.IncompleteRead, TimeoutError) as exc:
            raise AssertionError(f"the client said nothing; its stderr:\n{self.log.read_text()[-3000:]}") from exc
        return dict(json.loads(line))


@dataclass(frozen=True)
class Client:
    """One row of the matrix."""

    name: str
    environment: Environment
    program: str
    libraries: tuple[str, ...]
    bridge: str = ""
    """A program that stands between the client and the hub."""
    mode: str = ""
    noise: str = r"$^"
    """What it writes to stderr although all is well, for reasons of its own."""
    hangs_at_changes: bool = False
    """Whether it hangs at ``tools/list_changed``, which a hub that was restarted sends; it does so at any server."""

    def __str__(self) -> str:
        return self.name

    @property
    def versions(self) -> str:
        assert isinstance(self.environment, PythonEnvironment | NodeEnvironment)
        return self.environment.versions(*self.libraries)

    def ready(self) -> None:
        self.environment.ready()
        if self.bridge:
            DRIVER.ready()

    @asynccontextmanager
    async def driven(self, hub: Mapping[str, Any], folder: Path) -> AsyncIterator[Driven]:
        """Run it against a hub: ``{"url": …}``, or the command that serves over stdio."""
        async with self._target(hub, folder) as target:
            log = folder / "client.log"
            env = {"PATH": _path(), "HOME": str(folder), "HOLDFAST_TEST_RUN": RUN_MARK, "NODE_PATH": self._modules}
            # mcp-use says at its import, on stdout, that it reports home.
            env["MCP_USE_ANONYMIZED_TELEMETRY"] = "false"
            with log.open("wb") as errors:
                process = await anyio.open_process([*self._command, json.dumps(target)], env=env, stderr=errors)
            async with process:
                driven = Driven(process, log, self.noise)
                await driven.up()
                try:
                    yield driven
                finally:
                    with anyio.CancelScope(shield=True):
                        await _end(process)

    @property
    def _command(self) -> list[str]:
        if self.program.endswith(".cjs"):
            return [str(node()), str(HERE / self.program)]
        environment = DRIVER if self.bridge else self.environment
        assert isinstance(environment, PythonEnvironment)
        return [str(environment.python), "-u", str(HERE / self.program)]

    @property
    def _modules(self) -> str:
        return str(self.environment.modules) if isinstance(self.environment, NodeEnvironment) else ""

    @asynccontextmanager
    async def _target(self, hub: Mapping[str, Any], folder: Path) -> AsyncIterator[dict[str, Any]]:
        target = {**hub, **({"mode": self.mode} if self.mode else {})}
        if not self.bridge:
            yield target
        elif "url" in hub:
            # As each one's README says: a stdio server for clients that know nothing else.
            options = {"mcp-remote": [hub["url"], "--allow-http"], "supergateway": ["--streamableHttp", hub["url"]]}
            yield {"command": str(node()), "args": [str(self._bridge), *options[self.bridge]], "env": _env(folder)}
        else:
            async with _served_by(self._bridge, hub, folder) as url:
                yield {"url": url}

    @property
    def _bridge(self) -> Path:
        assert isinstance(self.environment, NodeEnvironment)
        return self.environment.modules / {"mcp-remote": "mcp-remote/dist/proxy.js"}.get(
            self.bridge, "supergateway/dist/index.js"
        )


@asynccontextmanager
async def _served_by(gateway: Path, hub: Mapping[str, Any], folder: Path) -> AsyncIterator[str]:
    """A stdio hub behind supergateway, which serves it over streamable HTTP."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(node()), str(gateway), "--stdio", " ".join([hub["command"], *hub["args"]])]
    command += ["--outputTransport", "streamableHttp", "--stateful", "--port", str(port)]
    with (folder / "gateway.log").open("wb") as log:
        env = {**_env(folder), **hub["env"]}
        process = await anyio.open_process(command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    async with process:
        try:
            await asked(lambda: _listens(port), within=_STARTING)
            yield f"http://127.0.0.1:{port}/mcp"
        finally:
            with anyio.CancelScope(shield=True):
                process.terminate()
                await process.wait()


async def _listens(port: int) -> bool:
    try:
        stream = await anyio.connect_tcp("127.0.0.1", port)
    except OSError:
        return False
    await stream.aclose()
    return True


async def _end(process: anyio.abc.Process) -> None:
    assert process.stdin is not None
    await process.stdin.aclose()
    with anyio.move_on_after(10):
        await process.wait()
        return
    process.kill()
    await process.wait()


def _path() -> str:
    return f"{node().parent}:{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"


def _env(folder: Path) -> dict[str, str]:
    return {"PATH": _path(), "HOME": str(folder)}


DRIVER = PythonEnvironment("python-sdk-2", ("mcp>=2,<3",))
"""Drives the bridges: each of them is a server to the client and a client to the hub."""

_BRIDGES = NodeEnvironment("bridges", ("mcp-remote", "supergateway"))
_TYPESCRIPT_2 = NodeEnvironment("typescript-v2", ("@modelcontextprotocol/client@2",))

CLIENTS: tuple[Client, ...] = (
    Client("Python SDK 1.x", PythonEnvironment("python-sdk-1", ("mcp<2",)), "python_sdk_1.py", ("mcp",)),
    Client("Python SDK 2.x", DRIVER, "python_sdk_2.py", ("mcp",)),
    Client("Python SDK 2.x, legacy", DRIVER, "python_sdk_2.py", ("mcp",), mode="legacy"),
    Client(
        "TypeScript SDK v1",
        NodeEnvironment("typescript-v1", ("@modelcontextprotocol/sdk@1",)),
        "typescript_v1.cjs",
        ("@modelcontextprotocol/sdk",),
    ),
    Client("TypeScript SDK v2", _TYPESCRIPT_2, "typescript_v2.cjs", ("@modelcontextprotocol/client",)),
    Client(
        "TypeScript SDK v2, legacy",
        _TYPESCRIPT_2,
        "typescript_v2.cjs",
        ("@modelcontextprotocol/client",),
        mode="legacy",
    ),
    Client("FastMCP", PythonEnvironment("fastmcp", ("fastmcp",)), "fastmcp_client.py", ("fastmcp", "mcp")),
    Client(
        "LangChain adapters",
        PythonEnvironment("langchain", ("langchain-mcp-adapters",)),
        "langchain_adapters.py",
        ("langchain-mcp-adapters", "mcp"),
    ),
    Client(
        "OpenAI Agents",
        PythonEnvironment("openai-agents", ("openai-agents",)),
        "openai_agents.py",
        ("openai-agents", "mcp"),
    ),
    Client(
        "Pydantic AI",
        PythonEnvironment("pydantic-ai", ("pydantic-ai-slim[mcp]",)),
        "pydantic_ai_client.py",
        ("pydantic-ai-slim", "mcp"),
    ),
    Client(
        "Google ADK",
        PythonEnvironment("google-adk", ("google-adk[mcp]",)),
        "google_adk.py",
        ("google-adk", "mcp"),
        noise="Failed to configure mTLS",
    ),
    Client("mcp-remote", _BRIDGES, "python_sdk_2.py", ("mcp-remote",), bridge="mcp-remote"),
    Client(
        "supergateway",
        _BRIDGES,
        "python_sdk_2.py",
        ("supergateway",),
        bridge="supergateway",
        # It logs each JSON-RPC error that it passes on, the answer to the driver's `server/discover` among them.
        noise=r"Request error: McpError: MCP error -3260[12]|McpError\.fromError",
    ),
    Client(
        "Python SDK 1.8",
        PythonEnvironment("python-sdk-1-8", ("mcp==1.8.1", "pydantic<2.11")),
        "python_sdk_1.py",
        ("mcp",),
    ),
    Client(
        "TypeScript SDK 1.10",
        NodeEnvironment("typescript-v1-10", ("@modelcontextprotocol/sdk@1.10.2",)),
        "typescript_v1.cjs",
        ("@modelcontextprotocol/sdk",),
    ),
    Client(
        "LlamaIndex",
        PythonEnvironment("llama-index", ("llama-index-tools-mcp",)),
        "llama_index_client.py",
        ("llama-index-tools-mcp", "mcp"),
    ),
    Client(
        "smolagents",
        PythonEnvironment("smolagents", ("smolagents[mcp]", "mcp<2")),
        "smolagents_client.py",
        ("smolagents", "mcp"),
    ),
    Client(
        "mcp-use",
        PythonEnvironment("mcp-use", ("mcp-use",)),
        "mcp_use_client.py",
        ("mcp-use", "mcp"),
        # It says so of each server that needs no login.
        noise="Failed to discover OAuth/OIDC metadata",
    ),
    Client(
        "AutoGen",
        PythonEnvironment("autogen", ("autogen-ext[mcp]", "autogen-agentchat", "mcp<2")),
        "autogen_client.py",
        ("autogen-ext", "mcp"),
    ),
    Client(
        "Semantic Kernel",
        PythonEnvironment("semantic-kernel", ("semantic-kernel[mcp]",)),
        "semantic_kernel_client.py",
        ("semantic-kernel", "mcp"),
        hangs_at_changes=True,
    ),
    Client(
        "Strands Agents",
        PythonEnvironment("strands", ("strands-agents",)),
        "strands_client.py",
        ("strands-agents", "mcp"),
        # It logs each JSON-RPC error with its traceback.
        noise=r"tool execution failed|Traceback|^\s+raise |mcp\.shared\.exceptions\.MCPError",
    ),
    Client("Agno", PythonEnvironment("agno", ("agno", "mcp", "fastmcp")), "agno_client.py", ("agno", "mcp")),
    Client("Haystack", PythonEnvironment("haystack", ("mcp-haystack",)), "haystack_client.py", ("mcp-haystack", "mcp")),
    Client(
        "Vercel AI SDK",
        NodeEnvironment("vercel-ai", ("ai", "@ai-sdk/mcp")),
        "vercel_ai.cjs",
        ("ai", "@ai-sdk/mcp"),
    ),
    Client("Mastra", NodeEnvironment("mastra", ("@mastra/mcp",)), "mastra.cjs", ("@mastra/mcp",)),
    Client(
        "LangChain.js",
        NodeEnvironment("langchain-js", ("@langchain/mcp-adapters", "@langchain/core")),
        "langchain_js.cjs",
        ("@langchain/mcp-adapters",),
    ),
    Client(
        "OpenAI Agents JS",
        NodeEnvironment("openai-agents-js", ("@openai/agents", "zod")),
        "openai_agents_js.cjs",
        ("@openai/agents",),
    ),
    Client("mcporter", NodeEnvironment("mcporter", ("mcporter",)), "mcporter.cjs", ("mcporter",)),
    Client("Genkit", NodeEnvironment("genkit", ("genkit", "@genkit-ai/mcp")), "genkit.cjs", ("@genkit-ai/mcp",)),
    Client(
        "mcp-use JS",
        NodeEnvironment("mcp-use-js", ("mcp-use@1", "@langchain/core", "langchain", "zod")),
        "mcp_use_js.cjs",
        ("mcp-use",),
    ),
    Client("DSPy", PythonEnvironment("dspy", ("dspy", "mcp")), "dspy_client.py", ("dspy", "mcp")),
    Client("CAMEL", PythonEnvironment("camel", ("camel-ai", "mcp<2")), "camel_client.py", ("camel-ai", "mcp")),
    Client(
        "CrewAI",
        PythonEnvironment("crewai", ("crewai", "crewai-tools[mcp]")),
        "crewai_client.py",
        ("crewai-tools", "mcp"),
    ),
    Client(
        "PraisonAI",
        PythonEnvironment("praisonai", ("praisonaiagents[mcp]",)),
        "praisonai_client.py",
        ("praisonaiagents", "mcp"),
        # It logs each failed call.
        noise="ERROR Error (?:in _async_call for|calling tool)|MCP tool .* failed",
    ),
    Client(
        "LiteLLM",
        PythonEnvironment("litellm", ("litellm", "mcp", "expression")),
        "litellm_client.py",
        ("litellm", "mcp"),
        # It fetches a list of prices at its import, and logs each JSON-RPC error.
        noise="model cost map|run_with_session failed|call_tool failed - Error Type: MCPError",
    ),
    Client(
        "mcp-agent",
        PythonEnvironment("mcp-agent", ("mcp-agent", "mcp<2")),
        "mcp_agent_client.py",
        ("mcp-agent", "mcp"),
        # It logs each JSON-RPC error.
        noise="send_request failed: Unknown tool",
    ),
    Client(
        "chuk-mcp",
        PythonEnvironment("chuk-mcp", ("chuk-mcp", "pydantic", "httpx")),
        "chuk_client.py",
        ("chuk-mcp",),
    ),
)
