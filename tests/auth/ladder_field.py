"""A hub whose users have a ladder of credentials, before the real providers of ``servers/ladder.cjs``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client

from holdfast.access.jwt import JwtVerifier
from holdfast.access.principals import TokenPolicy, TrustedGateway
from holdfast.auth.credentials import Logins
from holdfast.auth.sign_in import IdTokens, SignInClient
from holdfast.auth.token_store import TokenStore
from holdfast.auth.user_credentials import SubjectTokens
from holdfast.auth.user_tokens import UserTokens
from holdfast.config.read import config_from_mapping
from holdfast.control.server.browser_identity import BrowserIdentity
from holdfast.control.server.server_logins import ConnectPage
from holdfast.endpoint.user_login import LoginLinks
from holdfast.front.app import create_app
from holdfast.front.session_id import SessionIds
from holdfast.hub.hub import Hub
from holdfast.keys import KeyRing
from tests.auth.real_servers import SECRET, running_ladder
from tests.harness.served_hub import Person, Served
from tests.harness.web import serving
from tests.peers.ports import free_port

__all__ = ["GATEWAY_SECRET", "KEYS", "STATIC", "Field", "LadderHub", "client_with", "running_field"]

KEYS = KeyRing([b"the key of the users' tokens, 32 bytes"])
STATIC = "a-static-token-of-carol"
GATEWAY_SECRET = "the-secret-of-the-gateway"


@dataclass(frozen=True)
class Field:
    """The providers and the MCP server, and the address of the hub that they know."""

    issuer: str
    authority: str
    mcp: str
    port: int

    @property
    def hub(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def control(self, **wish: Any) -> Any:
        """Change what happens, or ask what happened."""
        async with httpx2.AsyncClient(trust_env=False) as http:
            answer = await http.post(self.mcp.replace("/mcp", "/control"), json=wish)
        return answer.raise_for_status().json()

    async def begin(self) -> None:
        """As if it had just begun."""
        await self.control(seconds={}, refuse={}, say={}, redirect="", seen=True)

    async def hub_token(self, person: str, **more: Any) -> str:
        """A token of the issuer for the hub."""
        return str((await self.control(hubToken={"person": person, **more}))["token"])

    async def seen(self, *grants: str) -> list[dict[str, Any]]:
        """The requests of these kinds since the last look."""
        return [one for one in await self.control(seen=True) if not grants or one["grant"] in grants]

    def name(self, person: str) -> str:
        """The principal of a person."""
        return f"{self.issuer}#{person}"

    def exchange(self, **more: Any) -> dict[str, Any]:
        return {"tokenUrl": f"{self.issuer}/token", "clientId": "holdfast", "clientSecret": SECRET, **more}

    def assertion(self, **more: Any) -> dict[str, Any]:
        return {
            "issuer": self.authority,
            "tokenUrl": f"{self.authority}/token",
            "clientId": "hub-at-authority",
            "clientSecret": SECRET,
            **more,
        }

    def defined(self, **credentials: Any) -> dict[str, Any]:
        """The definition of the MCP server, with this ladder."""
        return {"url": self.mcp, "sharing": "per-user", "credentials": credentials}


@contextmanager
def running_field() -> Iterator[Field]:
    """The processes, for a hub at a port of their own."""
    port = free_port()
    with running_ladder(f"http://127.0.0.1:{port}") as servers:
        yield Field(**servers.endpoints, port=port)


class LadderHub(Served):
    """A hub with its pages, and what it knows of its users."""

    tokens: UserTokens
    links: LoginLinks
    subjects: SubjectTokens
    id_tokens: IdTokens

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        field: Field,
        folder: Path,
        definition: Mapping[str, Any],
        *,
        gateway: bool = False,
        now: Callable[[], float] | None = None,
        own: TokenStore | None = None,
    ) -> AsyncIterator[LadderHub]:
        """Serve it; ``own`` are the logins of the hub itself."""
        clock = {} if now is None else {"now": now}
        config = config_from_mapping({"mcpServers": {"tracker": definition}})
        assert not config.servers["tracker"].problems, config.servers["tracker"].problems
        ladder = config.servers["tracker"].credentials
        tokens = UserTokens(folder, keys=KEYS, keeps=True)
        verifier = JwtVerifier(issuer=field.issuer, keys=f"{field.issuer}/jwks", audience=f"{field.hub}/mcp")
        sign_in = SignInClient(
            field.issuer,
            "holdfast",
            redirect_uri=f"{field.hub}/signin/callback",
            scope=("openid",),
            verify=verifier.claims,
            secret=lambda: SECRET,
        )

        def name_of(claims: Mapping[str, Any]) -> str | None:
            found = verifier.principal(claims)
            return found.name if found is not None else None

        subjects = SubjectTokens(needed=lambda: ladder.exchange is not None, **clock)
        id_tokens = IdTokens(sign_in, tokens, needed=lambda: ladder.assertion is not None, name_of=name_of, **clock)
        policy = TokenPolicy(
            tokens={"carol": STATIC},
            verify=verifier,
            gateway=TrustedGateway(secret=GATEWAY_SECRET) if gateway else None,
            subjects=subjects,
        )
        hub = Hub(
            config,
            logins=Logins(own or TokenStore(folder / "own", vault=lambda: None)),
            has_local=False,
            user_tokens=tokens,
            subjects=subjects,
            id_tokens=id_tokens,
            chance=lambda: 0.0,
        )
        ids = SessionIds()
        browsers = BrowserIdentity(
            field.hub,
            ring=lambda: ids.keys.ring,
            ended=ids,
            tokens=policy,
            issuer=sign_in,
            id_tokens=id_tokens,
            people=verifier,
        )
        links = LoginLinks(field.hub, lambda: ids.keys.ring, by_issuer=True)
        beside = [*browsers.routes(), *ConnectPage(hub, links, browsers).routes()]
        app = create_app(hub, tokens=policy, beside=beside, ids=ids, links=links)
        async with hub, serving(app, port=field.port) as base:
            served = cls(hub, app, base)
            served.tokens, served.links = tokens, links
            served.subjects, served.id_tokens = subjects, id_tokens
            yield served


@asynccontextmanager
async def client_with(token: str, url: str, person: Person, era: Any = "legacy", **more: Any) -> AsyncIterator[Client]:
    """A client that sends this token, and these headers."""
    headers = {"authorization": f"Bearer {token}", **more.pop("headers", {})}
    async with (
        create_mcp_http_client(headers=headers) as http,
        person.client(streamable_http_client(url, http_client=http), era, **more) as client,
    ):
        yield client
