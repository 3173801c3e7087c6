"""The folder of a legacy client that named none: its first root (DX-9).

Theory of operation. A desktop program starts its servers in ``/`` or in the home folder, but many of them know the
folder that their person opened: it is the first of their roots. The hub asks for the roots with the first request of
the client, on the way back of that request, so that a client over HTTP needs no open stream. From the answer on the
client is served as if it had named that folder: its exchange moves to the endpoint of the folder. A client whose roots
change is asked again with its next request. Where no folder makes a difference, no client is asked.

What must hold. Only a shell whose clients are the hub's own user passes a ``RootFolder``: a remote caller could start
what is in a folder of this machine. A request waits for the answer no longer than for a server that is not ready
(HUB-13). A client that gives no root, or one that is no project, is served as before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol
from urllib.parse import unquote, urlsplit

from mcp import MCPError

from holdfast.endpoint.clients import Call
from holdfast.endpoint.server import McpServer

__all__ = ["ClientFolders", "RootFolder"]

ROOTS_SECONDS: Final = 2.0
"""How long a request waits for the client's roots."""


class ClientFolders(Protocol):
    """The folders that clients work in."""

    @property
    def matter(self) -> bool:
        """Whether the folder of a client makes a difference: some server runs once for each, or may come from one."""

    def of(self, named: str, working: str) -> str | None:
        """The folder of a client that names one and works in another; None if it works in none."""

    async def enter(self, folder: str, variables: Mapping[str, str]) -> bool:
        """A client works there, until ``leave``; False if there are too many folders."""

    def leave(self, folder: str) -> None:
        """A client left."""

    async def touch(self, folder: str) -> bool:
        """A request names the folder; False if there are too many."""


class RootFolder:
    """Where one client works, by its roots."""

    def __init__(
        self,
        folders: ClientFolders,
        server_of: Callable[[str | None], McpServer],
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """``server_of`` is the endpoint of a folder, and of none; ``variables`` are those of the client."""
        self._folders = folders
        self._server_of = server_of
        self._variables = variables or {}
        self._turn = asyncio.Lock()
        self._is_known = False
        self.folder = ""
        """Empty if it is not known, or no project."""

    def forget(self) -> None:
        """The roots of the client changed."""
        self._is_known = False

    async def server_for(self, call: Call) -> McpServer | None:
        """The endpoint that serves the client from now on; None if that is the same as before."""
        if self._is_known or call.method == "ping" or "roots" not in call.client.capabilities:
            return None
        if not self._folders.matter:
            return None
        async with self._turn:  # the first of several requests asks
            return await self._moved(call)

    async def _moved(self, call: Call) -> McpServer | None:
        if self._is_known:
            return None
        try:
            async with asyncio.timeout(ROOTS_SECONDS):
                root = first_root(await call.ask("roots/list", None))
        except (MCPError, TimeoutError):
            root = ""
        self._is_known = True
        before, folder = self.folder, (self._folders.of("", root) if root else None) or ""
        if folder == before or (folder and not await self._folders.enter(folder, self._variables)):
            return None
        self.folder = folder
        if before:
            self._folders.leave(before)
        return self._server_of(folder or None)

    def leave(self) -> None:
        """The client left."""
        if self.folder:
            self._folders.leave(self.folder)
        self.folder, self._is_known = "", False

    def __repr__(self) -> str:
        return f"<RootFolder {self.folder or ('none' if self._is_known else 'not asked')}>"


def first_root(answer: Mapping[str, Any]) -> str:
    """The path of the first root of an answer; empty if it names no folder of this machine."""
    roots = answer.get("roots")
    first = roots[0] if isinstance(roots, list) and roots else None
    uri = first.get("uri") if isinstance(first, Mapping) else None
    try:
        parts = urlsplit(uri) if isinstance(uri, str) else None
    except ValueError:
        return ""
    if parts is None or parts.scheme != "file" or parts.netloc not in ("", "localhost"):
        return ""
    path = unquote(parts.path)
    return path if path.startswith("/") and "\0" not in path else ""
