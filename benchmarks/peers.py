"""Other gateways for MCP, each in an environment of its own, started as its documentation says.

An environment is made once, under ``.tools/peers``. Nothing of it is importable here. A gateway that cannot be
installed or started raises ``PeerFailed`` with the reason, which the report shows.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shlex
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from benchmarks.calls import Subject
from benchmarks.processes import ROOT, free_port, node, started, stdio_server, wait_until

__all__ = ["PEERS", "Peer", "PeerFailed"]

HOME = ROOT / ".tools" / "peers"
INSTALL_SECONDS = 600.0
START_SECONDS = 90.0


class PeerFailed(RuntimeError):
    """A gateway could not be installed or started."""


class Start(Protocol):
    """Starts a gateway before a server and gives its subject."""

    def __call__(self, home: Path, url: str) -> AbstractContextManager[Subject]:
        """``url`` is the server behind it; a gateway for stdio starts a server of its own."""


@dataclass(frozen=True)
class Peer:
    """A gateway: where it comes from, and how it is started."""

    name: str
    package: str
    version: str
    stdio: bool
    """Whether it takes servers over stdio only."""
    start: Start
    remark: str = ""

    @contextmanager
    def started(self, url: str) -> Iterator[Subject]:
        """Install it if need be, and start it."""
        home = HOME / f"{self.package}-{self.version}"
        self._install(home)
        with contextlib.ExitStack() as stack:
            try:
                subject = stack.enter_context(self.start(home, url))
            except (RuntimeError, OSError, subprocess.SubprocessError) as exc:
                raise PeerFailed(f"{self.name} {self.version} did not start: {_last_line(exc)}") from exc
            yield subject

    def _install(self, home: Path) -> None:
        ready = home / ".ready"
        if ready.exists():
            return
        home.mkdir(parents=True, exist_ok=True)
        tools = Path(sys.executable).parent
        what = f"{self.package}{'@' if self.start is _supergateway else '=='}{self.version}"
        if self.start is _supergateway:
            commands = [
                [str(tools / "npm"), "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(home), what]
            ]
        else:
            uv = str(tools / "uv")
            commands = [
                [uv, "venv", "--quiet", "--allow-existing", "--python", sys.executable, str(home)],
                [uv, "pip", "install", "--quiet", "--python", str(home / "bin" / "python"), what],
            ]
        for command in commands:
            try:
                subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALL_SECONDS)
            except subprocess.CalledProcessError as exc:
                raise PeerFailed(f"{what} could not be installed: {exc.stderr.strip().splitlines()[-1:]}") from exc
            except (OSError, subprocess.SubprocessError) as exc:
                raise PeerFailed(f"{what} could not be installed: {_last_line(exc)}") from exc
        ready.touch()


def _last_line(exc: BaseException) -> str:
    """The first line of an exception, and the last line that the program said."""
    said = [line for note in getattr(exc, "__notes__", ()) for line in note.splitlines() if line.strip()]
    return "; ".join([str(exc).partition("\n")[0][:200], *(line.strip()[:200] for line in said[-1:])])


@contextmanager
def _listening(
    command: list[str], port: int, path: str = "/mcp", *, env: Mapping[str, str] | None = None, cwd: Path = ROOT
) -> Iterator[int]:
    with started(command, env=env, cwd=cwd) as process:
        wait_until(f"http://127.0.0.1:{port}{path}", process, seconds=START_SECONDS)
        yield process.pid


@contextmanager
def _mcp_proxy(home: Path, url: str) -> Iterator[Subject]:
    del url
    port = free_port()
    options = ["--log-level", "WARNING", "--pass-environment", "--port", str(port), "--", *stdio_server()]
    with _listening([str(home / "bin/mcp-proxy"), *options], port) as pid:
        yield Subject("mcp-proxy", f"http://127.0.0.1:{port}/mcp", pid, era="legacy")


@contextmanager
def _supergateway(home: Path, url: str) -> Iterator[Subject]:
    del url
    port = free_port()
    program = str(home / "node_modules/supergateway/dist/index.js")
    options = ["--stdio", shlex.join(stdio_server()), "--outputTransport", "streamableHttp", "--stateful"]
    with _listening([node(), program, *options, "--logLevel", "none", "--port", str(port)], port) as pid:
        yield Subject("supergateway", f"http://127.0.0.1:{port}/mcp", pid, era="legacy")


@contextmanager
def _fastmcp(home: Path, url: str) -> Iterator[Subject]:
    port = free_port()
    options = ["--transport", "http", "--port", str(port), "--no-banner", "--log-level", "ERROR"]
    with _listening([str(home / "bin/fastmcp"), "run", url, *options], port) as pid:
        yield Subject("FastMCP proxy", f"http://127.0.0.1:{port}/mcp", pid, era="legacy")


@contextmanager
def _mcp_hangar(home: Path, url: str) -> Iterator[Subject]:
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.yaml"
        # By default it answers 10 calls a second, and refuses the others.
        limit = {"rps": 1_000_000, "burst": 1_000_000}
        servers = {"up": {"mode": "remote", "endpoint": url}}
        config.write_text(json.dumps({"mcp_servers": servers, "rate_limit": limit}))
        options = ["--config", str(config), "serve", "--http", "--port", str(port), "--log-level", "ERROR"]
        env = {"HOME": folder}
        with _listening([str(home / "bin/mcp-hangar"), *options], port, env=env, cwd=Path(folder)) as pid:
            yield Subject(
                "mcp-hangar",
                f"http://127.0.0.1:{port}/mcp",
                pid,
                tool="hangar_call",
                wrap=lambda arguments: {"calls": [{"mcp_server": "up", "tool": "echo", "arguments": arguments}]},
                era="legacy",
            )


@contextmanager
def _contextforge(home: Path, url: str) -> Iterator[Subject]:
    port, secret, user = free_port(), secrets.token_urlsafe(48), "admin@example.com"
    with tempfile.TemporaryDirectory() as folder:
        env = {
            "HOME": folder,
            "JWT_SECRET_KEY": secret,
            "AUTH_ENCRYPTION_SECRET": secrets.token_urlsafe(48),
            "PLATFORM_ADMIN_EMAIL": user,
            "PLATFORM_ADMIN_PASSWORD": f"{secrets.token_urlsafe(16)}aA1!",
            "DATABASE_URL": f"sqlite:///{folder}/gateway.db",
            "CACHE_TYPE": "memory",
            "SSRF_ALLOW_LOCALHOST": "true",
            "SSRF_ALLOW_PRIVATE_NETWORKS": "true",
            "RATE_LIMITING_ENABLED": "false",
            "TOOL_RATE_LIMIT": "1000000",
            "PASSWORD_CHANGE_ENFORCEMENT_ENABLED": "false",
            "DEV_MODE": "true",
            "LOG_LEVEL": "ERROR",
        }
        programs = home / "bin"
        token = subprocess.run(
            [programs / "python", "-m", "mcpgateway.utils.create_jwt_token", "--username", user, "--exp", "600",
             "--secret", secret],
            env={**os.environ, **env}, cwd=folder, check=True, capture_output=True, text=True, timeout=START_SECONDS,
        ).stdout.split()[-1]  # fmt: skip
        headers = {"authorization": f"Bearer {token}"}
        command = [str(programs / "mcpgateway"), "mcpgateway.main:app", "--host", "127.0.0.1", "--port", str(port)]
        with _listening([*command, "--log-level", "error"], port, "/health", env=env, cwd=Path(folder)) as pid:
            base = f"http://127.0.0.1:{port}"
            _post(f"{base}/gateways", {"name": "up", "url": url, "transport": "STREAMABLEHTTP"}, headers)
            yield Subject("ContextForge", f"{base}/mcp", pid, tool="up-echo", headers=headers, era="legacy")


def _post(url: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> None:
    data = json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json", **headers})
    try:
        urllib.request.urlopen(request, timeout=START_SECONDS).close()
    except urllib.error.HTTPError as exc:
        raise RuntimeError(f"it refused its server with {exc.code}: {exc.read()[:200]!r}") from exc


PEERS: tuple[Peer, ...] = (
    Peer("mcp-proxy", "mcp-proxy", "0.13.0", stdio=True, start=_mcp_proxy),
    Peer("supergateway", "supergateway", "4.0.0", stdio=True, start=_supergateway, remark="one child for each session"),
    Peer("FastMCP proxy", "fastmcp", "4.1.2", stdio=False, start=_fastmcp),
    Peer(
        "mcp-hangar",
        "mcp-hangar",
        "2.34.4",
        stdio=False,
        start=_mcp_hangar,
        remark="called through `hangar_call`, rate limits off",
    ),
    Peer(
        "ContextForge",
        "mcp-contextforge-gateway",
        "1.0.7.post20260921",
        stdio=False,
        start=_contextforge,
        remark="SQLite, rate limits off",
    ),
)
