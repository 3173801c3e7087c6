"""Users of a hub log in from the conversation at authorization servers of the field, by clients of both eras."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from mcp import Client

from holdfast.auth.person_login import log_out
from holdfast.auth.token_store import Grant
from holdfast.auth.user_tokens import UserTokens
from holdfast.config.read import config_from_mapping
from tests.auth.real_servers import RealServers, node, python
from tests.auth.test_real_servers import control
from tests.endpoint.test_user_login import Asked, WebBrowser
from tests.harness.served_hub import Person, text_of
from tests.harness.users import client_of, hub_of, tokens

__all__ = ["node", "python", "tokens"]

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("AUTH-7", "AUTH-8", "AUTH-9")]


@pytest.fixture(params=["sdk", "oidc-provider"])
def url(request: pytest.FixtureRequest, python: RealServers, node: RealServers) -> str:
    """The MCP endpoint before the Python SDK's authorization server, or before ``oidc-provider``."""
    return python["sdk"] if request.param == "sdk" else node["all"]


def defined(url: str) -> dict[str, Any]:
    return {"files": {"url": url, "sharing": "per-user"}}


async def hello(client: Client) -> str:
    with anyio.fail_after(60):
        return text_of(await client.call_tool("files__hello", {}))


def grant_of(tokens: UserTokens, name: str) -> Grant:
    (found,) = tokens.of(name).grants()
    return found


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_two_users_log_in_and_each_login_is_renewed_and_revoked_alone(
    era: str, url: str, tokens: UserTokens
) -> None:
    ada, bob = Asked("ada"), Asked("bob")
    async with (
        hub_of(defined(url), tokens, pages=True) as served,
        client_of(ada, served.all, era) as one,
        client_of(bob, served.all, era) as other,
    ):
        for client in (one, other):
            with anyio.fail_after(60):
                await client.list_tools()
                result = await client.call_tool("holdfast_login", {"server": "files"})
            assert text_of(result) == "You are logged in to MCP server 'files'."
            assert await hello(client) == "hello"
        first = {name: grant_of(tokens, name) for name in ("ada", "bob")}
        assert first["ada"].access_token != first["bob"].access_token
        await control(url, end=True)
        assert (await hello(one), await hello(other)) == ("hello", "hello")
        for name, before in first.items():
            renewed = grant_of(tokens, name)
            assert renewed.refresh_token not in (None, before.refresh_token), "it rotates them"
            assert renewed.login == before.login
        spec = config_from_mapping({"mcpServers": defined(url)}).servers["files"]
        gone = await log_out(spec, store=tokens.of("ada"))
        assert gone is not None
        assert gone.revoked
        assert await hello(other) == "hello", "the login of another user stays"
    assert not tokens.of("ada").grants()


async def test_a_client_that_takes_no_urls_gets_the_link(url: str, tokens: UserTokens) -> None:
    ada = Person("ada")
    async with hub_of(defined(url), tokens, pages=True) as served, client_of(ada, served.all, answers=False) as client:
        with anyio.fail_after(60):
            await client.list_tools()
            told = await client.call_tool("holdfast_login", {"server": "files"})
            link = text_of(told).rpartition(" ")[2]
            assert "Logged in to files" in (await WebBrowser("ada").open(link)).text
            again = await client.call_tool("holdfast_login", {"server": "files"})
        assert text_of(again) == "You are logged in to MCP server 'files'."
        assert await hello(client) == "hello"
