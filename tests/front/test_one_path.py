"""The server side of MCP is our own: there is one path, and no library's server beside it."""

from __future__ import annotations

import ast
from pathlib import Path

import holdfast

SOURCES = Path(holdfast.__file__).parent


def _imported(file: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def test_neither_the_sdks_server_nor_sse_starlette_is_imported() -> None:
    used = {
        str(file.relative_to(SOURCES)): name
        for file in SOURCES.rglob("*.py")
        for name in _imported(file)
        if name in {"sse_starlette", "mcp.server"} or name.startswith(("sse_starlette.", "mcp.server."))
    }
    assert used == {}
