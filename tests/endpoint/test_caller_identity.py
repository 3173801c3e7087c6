"""Servers that are told who calls: by each request's own caller, over a connection that principals share."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import anyio
import httpx2
import jwt
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from holdfast.access.jwt import KEY_SET_PATH, IdentityAssertions
from holdfast.access.principals import TokenPolicy, TrustedGateway
from holdfast.config import config_from_mapping
from holdfast.front.app import create_app
from holdfast.hub.hub import Hub
from holdfast.keys import KeyRing
from tests.harness.served_hub import Era, text_of
from tests.harness.web import serving
from tests.peers.mcp_http import McpPeer

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("SEC-20")]

TOKENS = {"ada": "token-of-ada-0123456789", "bob": "token-of-bob-0123456789"}
ISSUER = "https://hub.example"
SECRET = b"s" * 32


class World:
    """A hub in front of a server that records what it got."""

    def __init__(self, peer: McpPeer, base: str) -> None:
        self.peer = peer
        self.base = base

    async def call(self, headers: Mapping[str, str]) -> str:
        written = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        async with (
            httpx2.AsyncClient(headers=written, trust_env=False) as http,
            Client(streamable_http_client(f"{self.base}/mcp", http_client=http), cache=None) as client,
        ):
            return text_of(await client.call_tool("up__echo", {"text": "hi"}))

    def told(self, header: str) -> list[str | None]:
        """What the calls that came said in a header, in order."""
        calls = [one for one in self.peer.requests if b'"tools/call"' in one.body]
        return [one.headers.get(header) for one in calls]


async def run(
    identity: str,
    test: Any,
    *,
    era: Era = "modern",
    gateway: TrustedGateway | None = None,
    assertions: IdentityAssertions | None = None,
    **definition: object,
) -> None:
    async with McpPeer(era=era) as peer:
        server = {"type": "http", "url": f"{peer.url}?key=secret-of-the-url", "identity": identity, **definition}
        hub = Hub(config_from_mapping({"mcpServers": {"up": server}}), sign=assertions)
        app = create_app(hub, tokens=TokenPolicy(tokens=TOKENS, gateway=gateway), assertions=assertions)
        async with hub, serving(app) as base:
            assert await hub.ready(20)
            with anyio.fail_after(60):
                await test(World(peer, base))


def bearer(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {TOKENS[name]}"}


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_each_request_names_its_own_caller_on_one_shared_connection(era: Era) -> None:
    async def test(world: World) -> None:
        forged = {"holdfast-user": "root", "Holdfast-Identity": "forged", "holdfast-principal": '"root"'}
        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                for name in TOKENS:
                    tasks.start_soon(world.call, {**bearer(name), **forged})
        told = world.told("holdfast-user")
        assert sorted(map(str, told)) == ["ada"] * 5 + ["bob"] * 5
        # What the hub asks in its own name has no caller, and nothing of the clients' headers passes.
        others = [one for one in world.peer.requests if b'"tools/call"' not in one.body]
        assert all("holdfast-user" not in one.headers for one in others)
        seen = json.dumps([dict(one.headers) for one in world.peer.requests])
        assert not [text for text in ("root", "forged", *TOKENS.values()) if text in seen]

    await run("header", test, era=era)


async def test_a_name_that_is_no_ascii_is_coded_and_breaks_no_header() -> None:
    async def test(world: World) -> None:
        await world.call({"holdfast-gateway-secret": "s3cret-of-the-gateway", "x-forwarded-user": "zo\xeb 100%"})
        assert world.told("holdfast-user") == ["gateway#zo%C3%AB%20100%25"]

    await run("header", test, gateway=TrustedGateway(secret="s3cret-of-the-gateway"))


async def test_without_the_setting_a_server_is_told_nothing() -> None:
    async def test(world: World) -> None:
        await world.call({**bearer("ada"), "holdfast-user": "root"})
        assert world.told("holdfast-user") == [None]
        assert world.told("holdfast-identity") == [None]

    await run("none", test)


async def test_a_server_verifies_the_assertion_by_the_key_set_of_any_replica() -> None:
    ring = KeyRing([SECRET, b"o" * 32])
    here, there = (IdentityAssertions(ISSUER, lambda: ring) for _ in range(2))

    async def test(world: World) -> None:
        await world.call(bearer("ada"))
        await world.call(bearer("bob"))
        first, second = world.told("holdfast-identity")
        assert first is not None
        assert second is not None
        async with httpx2.AsyncClient(base_url=world.base, trust_env=False) as http:
            published = (await http.get(KEY_SET_PATH)).json()
        assert published == there.key_set()
        assert len(published["keys"]) == 2
        assert not [key for key in published["keys"] if "d" in key]
        keys = {one.key_id: one for one in jwt.PyJWKSet.from_dict(published).keys}

        def verified(token: str, audience: str) -> dict[str, Any]:
            key = keys[jwt.get_unverified_header(token)["kid"]]
            return dict(jwt.decode(token, key, algorithms=["ES256"], audience=audience, issuer=ISSUER))

        claims = verified(first, world.peer.url)
        assert (claims["sub"], claims["exp"] - claims["iat"]) == ("ada", 60)
        assert verified(second, world.peer.url)["sub"] == "bob"
        with pytest.raises(jwt.InvalidAudienceError):
            verified(first, "https://another.example/mcp")
        assert "secret-of-the-url" not in json.dumps(claims)

    await run("signed", test, assertions=here)


async def test_a_hub_that_publishes_no_keys_does_not_dial_a_server_that_needs_them() -> None:
    async with McpPeer() as peer:
        server = {"type": "http", "url": peer.url, "identity": "signed"}
        async with Hub(config_from_mapping({"mcpServers": {"up": server}})) as hub:
            assert await hub.ready(20)
            assert "needs a hub over HTTP" in hub.server_health("up").reason
        assert peer.requests == []


@pytest.mark.parametrize(
    ("definition", "said"),
    [
        ({"command": "x", "identity": "header"}, "`identity` needs a server with a `url`"),
        ({"hub": "h:1", "identity": "signed"}, "`identity` has no effect beside `hub`"),
        (
            {"url": "http://h/mcp", "identity": "header", "headers": {"holdfast-user": "x"}},
            "`identity` writes the header `holdfast-user`",
        ),
        ({"url": "http://h/mcp", "identity": "token"}, "signed"),
    ],
)
def test_a_definition_that_would_tell_nothing_is_an_error(definition: dict[str, object], said: str) -> None:
    spec = config_from_mapping({"mcpServers": {"up": definition}}).servers["up"]
    assert said in " ".join(str(one) for one in spec.problems)
