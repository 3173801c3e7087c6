"""More real servers from npm and PyPI, as their READMEs define them: each works, or doctor says what it lacks."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest

from tests.cli.serve_process import environment
from tests.field.test_server_starts import PASSED

pytestmark = [pytest.mark.anyio, pytest.mark.field, pytest.mark.timeout(900)]

WORKS: Mapping[str, tuple[str, ...]] = {
    "context7": ("npx", "-y", "@upstash/context7-mcp"),
    "chart": ("npx", "-y", "@antv/mcp-server-chart"),
    "devtools": ("npx", "-y", "chrome-devtools-mcp@latest"),
    "commands": ("npx", "-y", "mcp-server-commands"),
    "wikipedia": ("uvx", "wikipedia-mcp"),
    "excel": ("uvx", "excel-mcp-server", "stdio"),
    "awsdocs": ("uvx", "awslabs.aws-documentation-mcp-server@latest"),
    "yahoo": ("uvx", "mcp-yahoo-finance"),
    "kubernetes": ("npx", "-y", "mcp-server-kubernetes"),
    "mongodb": ("npx", "-y", "mongodb-mcp-server"),
    "shadcn": ("npx", "-y", "shadcn@latest", "mcp"),
    "arxiv": ("uvx", "arxiv-mcp-server"),
    "markitdown": ("uvx", "markitdown-mcp"),
    "azure": ("npx", "-y", "@azure/mcp", "server", "start"),
    "workbook": ("npx", "-y", "@negokaz/excel-mcp-server"),
    "motherduck": ("uvx", "mcp-server-motherduck", "--read-write", "--db-path", ":memory:"),
    "opensearch": ("uvx", "opensearch-mcp-server-py"),
    "old sqlite": ("uvx", "--with", "mcp<2", "mcp-server-sqlite", "--db-path", ":memory:"),
}
LACKS: Mapping[str, tuple[tuple[str, ...], str, str]] = {
    "brave": (
        ("npx", "-y", "@modelcontextprotocol/server-brave-search"),
        "HF-EXIT-VARIABLE",
        "It needs `BRAVE_API_KEY`",
    ),
    "brightdata": (("npx", "-y", "@brightdata/mcp"), "HF-EXIT-VARIABLE", "It needs `API_TOKEN`"),
    "cluster": (("npx", "-y", "kubernetes-mcp-server"), "HF-EXITED", "exited with code 1"),
    "sentry": (("npx", "-y", "@sentry/mcp-server"), "HF-EXIT-VARIABLE", "It needs `SENTRY_ACCESS_TOKEN`"),
    "stripe": (("npx", "-y", "@stripe/mcp"), "HF-EXIT-VARIABLE", "It needs `STRIPE_SECRET_KEY`"),
    "figma": (("npx", "-y", "figma-developer-mcp", "--stdio"), "HF-EXIT-VARIABLE", "It needs `FIGMA_API_KEY`, which"),
    "supabase": (
        ("npx", "-y", "@supabase/mcp-server-supabase"),
        "HF-EXIT-VARIABLE",
        "It needs `SUPABASE_ACCESS_TOKEN`",
    ),
    "elevenlabs": (("uvx", "elevenlabs-mcp"), "HF-EXIT-VARIABLE", "It needs `ELEVENLABS_API_KEY`"),
    "alchemy": (("uvx", "mcp-alchemy"), "HF-EXIT-VARIABLE", "It needs `DB_URL`"),
    "postgres": (("npx", "-y", "@modelcontextprotocol/server-postgres"), "HF-EXITED", "exited with code 1"),
    "folder": (
        ("npx", "-y", "@modelcontextprotocol/server-filesystem", "/nonexistent"),
        "HF-EXITED",
        "exited with code 1",
    ),
    "repository": (("uvx", "mcp-server-git", "--repository", "/nonexistent"), "HF-EXITED", "exited with code 1"),
    "gitlab": (
        ("npx", "-y", "@modelcontextprotocol/server-gitlab"),
        "HF-EXIT-VARIABLE",
        "It needs `GITLAB_PERSONAL_ACCESS_TOKEN`",
    ),
    "slack": (("npx", "-y", "@modelcontextprotocol/server-slack"), "HF-EXIT-VARIABLE", "and `SLACK_TEAM_ID`"),
    "redis": (
        ("npx", "-y", "@modelcontextprotocol/server-redis", "redis://127.0.0.1:1"),
        "HF-EXIT-ADDRESS",
        "could not reach 127.0.0.1:1",
    ),
    "sqlite": (("uvx", "mcp-server-sqlite"), "HF-EXIT-VERSION", "another version of the Python package `mcp`"),
    "npm typo": (("npx", "-y", "@modelcontextprotocol/server-filesytem"), "HF-EXIT-PACKAGE", "npx found no package"),
    "pypi typo": (("uvx", "mcp-server-timee"), "HF-EXIT-PACKAGE", "uvx found no package"),
}


TOGETHER = 6
"""How many packages are installed at the same time: more would be a test of the machine."""


def _config(folder: Path, commands: Mapping[str, tuple[str, ...]]) -> Path:
    passed = {name: os.environ[name] for name in PASSED if name in os.environ}
    env = {**passed, "npm_config_cache": str(folder / "npm"), "UV_CACHE_DIR": str(folder / "uv")}
    programs = {"npx": shutil.which("npx") or "npx", "uvx": str(Path(sys.executable).with_name("uvx"))}
    servers = {
        # The largest takes more than the default of two minutes from an empty cache on a busy machine.
        name: {"command": programs[command[0]], "args": list(command[1:]), "env": env, "startTimeout": "480s"}
        for name, command in commands.items()
    }
    file = folder / "mcp.json"
    file.write_text(json.dumps({"mcpServers": servers}))
    return file


async def _doctor(folder: Path, commands: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    """What doctor says of each server."""
    home = folder / "home"
    home.mkdir()
    program = Path(sys.executable).with_name("holdfast")
    command = [str(program), "doctor", "--config", str(_config(folder, commands)), "--json"]
    ran = await anyio.to_thread.run_sync(
        lambda: subprocess.run(command, env=environment(home), capture_output=True, text=True, timeout=600, check=False)
    )
    assert ran.stdout, ran.stderr
    return {server["id"]: server for server in json.loads(ran.stdout)["servers"]}


def _findings(server: dict[str, Any]) -> list[dict[str, Any]]:
    return [finding for check in server["checks"] for finding in check["findings"]]


@pytest.mark.requirement("LOAD-13", "DOC-1")
async def test_servers_that_need_no_account_come_up(tmp_path: Path) -> None:
    found: dict[str, Any] = {}
    for at in range(0, len(WORKS), TOGETHER):
        folder = tmp_path / str(at)
        folder.mkdir()
        found |= await _doctor(folder, dict(list(WORKS.items())[at : at + TOGETHER]))
    assert {name: one["health"] for name, one in found.items()} == dict.fromkeys(WORKS, "healthy"), found


@pytest.mark.requirement("DOC-4", "DOC-8", "DOC-9")
async def test_a_server_that_lacks_something_is_told_what(tmp_path: Path) -> None:
    found = await _doctor(tmp_path, {name: command for name, (command, _, _) in LACKS.items()})
    said = {name: [(one["code"], one["words"]) for one in _findings(server)] for name, server in found.items()}
    for name, (_, code, words) in LACKS.items():
        assert any(seen == code and words in text for seen, text in said[name]), f"{name}: {said[name]}"
    printed = json.dumps(list(found.values()))
    assert "read -rs ***" not in printed, "a variable's name is no secret"
