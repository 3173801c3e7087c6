"""Logins to the authorization servers of other releases; `tests/auth/test_real_servers.py` has the current ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.auth.token_store import TokenStore
from tests.auth.conftest import nothing_planted_is_shown, store
from tests.auth.logins import logged_in
from tests.auth.real_servers import METHODS, node_program, node_servers, python_servers
from tests.auth.test_real_servers import by_hand, ended, spec, used
from tests.field.environments import NodeEnvironment, PythonEnvironment

__all__ = ["nothing_planted_is_shown", "store"]

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.field,
    pytest.mark.timeout(900),
    pytest.mark.requirement("AUTH-9"),
]

PYTHON = {
    "sdk-1": (PythonEnvironment("login-sdk-1", ("mcp<2", "uvicorn")), ("sdk",)),
    "sdk-1.10": (PythonEnvironment("login-sdk-1.10", ("mcp==1.10.1", "pydantic<2.12", "uvicorn")), ("sdk",)),
    "fastmcp": (PythonEnvironment("login-fastmcp", ("fastmcp",)), ("sdk", "fastmcp", "proxy")),
    "fastmcp-3": (PythonEnvironment("login-fastmcp-3", ("fastmcp<4",)), ("sdk", "fastmcp", "proxy")),
    "fastmcp-2": (PythonEnvironment("login-fastmcp-2", ("fastmcp<3",)), ("sdk", "fastmcp", "proxy")),
}

_SDK = ("@modelcontextprotocol/sdk@1", "express@5")
OIDC_8 = NodeEnvironment("login-oidc-provider-8", (*_SDK, "oidc-provider@8"))
TYPESCRIPT_2 = NodeEnvironment(
    "login-typescript-2",
    ("@modelcontextprotocol/server", "@modelcontextprotocol/node", "@modelcontextprotocol/server-legacy", "express@5"),
)


@pytest.mark.parametrize("release", PYTHON)
async def test_a_login_to_a_server_on_an_older_python_release(release: str, store: TokenStore) -> None:
    environment, names = PYTHON[release]
    environment.ready()
    with python_servers(environment.python, *names) as servers:
        for name in names:
            await whole_login(servers[name], store, ends=name == "sdk")
            if name != "proxy":
                await more_scope(servers[name], store)


async def test_a_login_to_a_server_on_the_typescript_sdk_2(store: TokenStore) -> None:
    TYPESCRIPT_2.ready()
    with node_program("typescript_v2.cjs", TYPESCRIPT_2.modules) as servers:
        await whole_login(servers["typescript-v2"], store, ends=True)


async def test_a_login_to_oidc_provider_8_by_each_method(store: TokenStore, tmp_path: Path) -> None:
    OIDC_8.ready()
    with node_servers(tmp_path / "tls", OIDC_8.modules) as servers:
        for method in METHODS:
            await whole_login(servers[method], store, ends=True)
            await whole_login(servers["all"], store, ends=True, **by_hand(method, servers["all"]))


async def whole_login(url: str, store: TokenStore, *, ends: bool, **oauth: str) -> None:
    kept, _ = await logged_in(spec(url, **oauth), store)
    await used(url, store, kept, ends=ends)
    await ended(spec(url, **oauth), store)


async def more_scope(url: str, store: TokenStore) -> None:
    await logged_in(spec(url), store)
    kept, _ = await logged_in(spec(url), store, scope=("files:write",))
    assert kept.scope == "files:read files:write"
