"""Users of a hub with workers: one process of each user's server, whichever worker her client comes in at."""

from __future__ import annotations

import json
import sys
from functools import partial
from hashlib import sha256
from pathlib import Path

import anyio
import httpx2
import pytest

from tests.cli.serve_process import PACKAGE, config, served
from tests.cli.test_serve import ready
from tests.fleet.test_homes import modern
from tests.harness.waiting import asked

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("SEC-13", "FLEET-8")]

TOKENS = {"ada": "the token of ada is long", "bob": "the token of bob is long"}
ROOT = str(Path(__file__).parents[2])


async def test_workers_give_each_user_one_process_and_her_own_list(tmp_path: Path) -> None:
    named = tmp_path / "tokens"
    hashed = [{"name": name, "sha256": sha256(token.encode()).hexdigest()} for name, token in TOKENS.items()]
    named.write_text(json.dumps({"tokens": hashed}))
    named.chmod(0o600)
    own = {
        "command": sys.executable,
        "args": ["-m", "tests.peers.peer_server", "legacy"],
        "env": {"PYTHONPATH": f"{ROOT}:{PACKAGE}"},
        "sharing": "per-user",
    }
    file = config(tmp_path / "mcp.json", mine=own)
    async with served(tmp_path / "home", "--config", str(file), "--workers", "2", "--tokens-file", str(named)) as hub:
        await ready(hub)
        with anyio.fail_after(60):
            for user in TOKENS:
                await asked(partial(_lists, hub.url, user))
            for count in range(1, 7):  # each request has a connection of its own, so both workers get some
                for user in TOKENS:
                    assert await _call(hub.url, user, "mine__bump") == str(count)
            pids = {user: {await _call(hub.url, user, "mine__pid") for _ in range(4)} for user in TOKENS}
            assert all(len(found) == 1 for found in pids.values())
            assert pids["ada"] != pids["bob"]


async def _ask(url: str, user: str, method: str, tool: str = "") -> dict[str, object]:
    body, headers = modern(tool or "none")
    if not tool:
        body = {**body, "method": method, "params": {"_meta": body["params"]["_meta"]}}
        headers = {**headers, "mcp-method": method}
        headers.pop("mcp-name", None)
    async with httpx2.AsyncClient(trust_env=False, timeout=30) as http:
        answer = await http.post(url, json=body, headers={**headers, "authorization": f"Bearer {TOKENS[user]}"})
        assert answer.status_code == 200, answer.text
        found: dict[str, object] = answer.json()["result"]
        return found


async def _lists(url: str, user: str) -> bool:
    found = await _ask(url, user, "tools/list")
    tools = found["tools"]
    assert isinstance(tools, list)
    return "mine__bump" in {tool["name"] for tool in tools}


async def _call(url: str, user: str, tool: str) -> str:
    found = await _ask(url, user, "tools/call", tool)
    content = found["content"]
    assert isinstance(content, list)
    return str(content[0]["text"])
