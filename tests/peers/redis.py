"""A real Redis for tests: it can be killed, stopped, emptied and replaced by an older copy."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import anyio
import redis.asyncio

from tests.peers.ports import free_port

__all__ = ["RedisPeer", "Sentinel", "has_redis", "sentinel"]

START_SECONDS = 20.0


def has_redis() -> bool:
    return shutil.which("redis-server") is not None


class RedisPeer:
    """One ``redis-server``, on a port of its own; with ``tls`` (certificate, key, authority) it speaks TLS alone."""

    def __init__(
        self,
        folder: Path,
        *,
        password: str = "",
        tls: tuple[Path, Path, Path] | None = None,
        replica_of: RedisPeer | None = None,
    ) -> None:
        self._folder = folder
        self._replica_of = replica_of
        self._password = password
        self._tls = tls
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        login = f":{self._password}@" if self._password else ""
        if self._tls is not None:
            return f"rediss://{login}localhost:{self.port}?ca={self._tls[2]}"
        return f"redis://{login}127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Start it with what is in its folder."""
        self._folder.mkdir(exist_ok=True)
        options = ["--bind", "127.0.0.1", "--dir", str(self._folder), "--save", "", "--appendonly", "no"]
        if self._replica_of is not None:
            options += ["--replicaof", "127.0.0.1", str(self._replica_of.port), "--repl-diskless-sync-delay", "0"]
        if self._password:
            options += ["--requirepass", self._password]
        if self._tls is not None:
            certificate, key, authority = map(str, self._tls)
            options += ["--port", "0", "--tls-port", str(self.port), "--tls-cert-file", certificate]
            options += ["--tls-key-file", key, "--tls-ca-cert-file", authority, "--tls-auth-clients", "no"]
        else:
            options += ["--port", str(self.port)]
        self._process = await asyncio.to_thread(
            subprocess.Popen, ["redis-server", *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        with anyio.fail_after(START_SECONDS):
            while not await self._answers():  # noqa: ASYNC110 - it is another process
                await anyio.sleep(0.02)

    async def _answers(self) -> bool:
        try:
            return bool(await self.command("PING"))
        except (OSError, redis.RedisError):
            return False

    async def command(self, *words: str) -> Any:
        """Run a command as an operator."""
        tls: dict[str, Any] = {"ssl": True, "ssl_ca_certs": str(self._tls[2])} if self._tls is not None else {}
        host = "localhost" if self._tls is not None else "127.0.0.1"
        client: Any = redis.asyncio.Redis(host=host, port=self.port, password=self._password or None, **tls)
        try:
            return await client.execute_command(*words)
        finally:
            await client.aclose()

    async def save(self) -> Path:
        """Make a copy of what it has now."""
        await self.command("SAVE")
        kept = self._folder / "older.rdb"
        shutil.copy(self._folder / "dump.rdb", kept)
        return kept

    async def replace_by(self, copy: Path | None) -> None:
        """Kill it, and start it with an older copy, or empty."""
        await self.kill()
        dump = self._folder / "dump.rdb"
        if copy is not None:
            shutil.copy(copy, dump)
        else:
            dump.unlink(missing_ok=True)
        await self.start()

    def stop(self) -> None:
        """Stop it: connections stay, and nothing answers."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)

    async def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            await asyncio.to_thread(process.wait)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True):
            await self.kill()


class Sentinel:
    """A real Sentinel that watches a master named ``main``, and replaces it by its replica."""

    def __init__(self, folder: Path, master: RedisPeer) -> None:
        folder.mkdir()
        self.port = free_port()
        self.file = folder / "sentinel.conf"
        self.file.write_text(
            f"port {self.port}\nbind 127.0.0.1\ndir {folder}\n"
            f"sentinel monitor main 127.0.0.1 {master.port} 1\n"
            "sentinel down-after-milliseconds main 500\nsentinel failover-timeout main 3000\n"
        )

    async def ask(self, *words: str) -> Any:
        """Run a command; None if it does not answer."""
        client: Any = redis.asyncio.Redis(port=self.port)
        try:
            return await client.execute_command("SENTINEL", *words)
        except (OSError, redis.RedisError):
            return None
        finally:
            await client.aclose()

    async def until_master(self, peer: RedisPeer) -> None:
        """Wait until another one is the master."""
        with anyio.fail_after(START_SECONDS):
            while str(peer.port) not in repr(await self.ask("GET-MASTER-ADDR-BY-NAME", "main")):  # noqa: ASYNC110 - as above
                await anyio.sleep(0.05)


@asynccontextmanager
async def sentinel(folder: Path, master: RedisPeer) -> AsyncIterator[Sentinel]:
    """Run a Sentinel; it knows the replica of the master when this begins."""
    made = Sentinel(folder, master)
    process = await asyncio.to_thread(
        subprocess.Popen,
        ["redis-server", str(made.file), "--sentinel"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        with anyio.fail_after(START_SECONDS):
            while not (known := await made.ask("REPLICAS", "main")) or "disconnected" in repr(known):  # noqa: ASYNC110 - as above
                await anyio.sleep(0.1)
        yield made
    finally:
        with anyio.CancelScope(shield=True):
            process.kill()
            await asyncio.to_thread(process.wait)
