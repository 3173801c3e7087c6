"""Servers that ask for a login, on Python: python python.py NAME …

- ``sdk``: the authorization server of the Python SDK, 2.x or 1.x, with a provider that agrees to everything.
- ``fastmcp``: FastMCP with its in-memory provider, under the path ``/team``.
- ``proxy``: FastMCP's OAuth proxy, which shows a page to agree on, before the authorization server of ``sdk``.

It prints the address of each MCP endpoint, as one line of JSON. ``POST /control`` at ``sdk`` changes what that one
knows: ``{"end": true}`` ends its access tokens, ``{"forget": true}`` its clients, ``{"client": {…}}`` adds one;
``{"needs": […]}`` is the scope that it demands from then on, until it is told something else.
It runs in environments that have the libraries and nothing of ours.
"""

import asyncio
import json
import secrets
import socket
import sys
import time

import uvicorn
from mcp.server.auth.provider import AccessToken, AuthorizationCode, RefreshToken, construct_redirect_uri
from mcp.server.auth.settings import AuthSettings, ClientRegistrationOptions, RevocationOptions
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Mount

try:
    from mcp.server.mcpserver import MCPServer
except ImportError:
    from mcp.server.fastmcp import FastMCP as MCPServer  # its name in 1.x

if {"fastmcp", "proxy"} & {*sys.argv}:
    from fastmcp import FastMCP
    from fastmcp.server.auth import AccessToken as Held, OAuthProxy, TokenVerifier
    from fastmcp.server.auth.providers.in_memory import InMemoryOAuthProvider

READ, WRITE = "files:read", "files:write"


class Provider:
    """Keeps everything in memory, agrees to everything, and rotates refresh tokens."""

    def __init__(self) -> None:
        self.clients, self.codes, self.access, self.refresh = {}, {}, {}, {}

    async def get_client(self, client_id):
        return self.clients.get(client_id)

    async def register_client(self, client_info):
        self.clients[client_info.client_id] = client_info

    async def authorize(self, client, params):
        code = "hf-planted-" + secrets.token_hex(16)
        self.codes[code] = AuthorizationCode(
            code=code,
            client_id=client.client_id,
            redirect_uri=params.redirect_uri,
            redirect_uri_provided_explicitly=params.redirect_uri_provided_explicitly,
            scopes=params.scopes or [],
            expires_at=time.time() + 60,
            code_challenge=params.code_challenge,
            resource=params.resource,
        )
        return construct_redirect_uri(str(params.redirect_uri), code=code, state=params.state)

    async def load_authorization_code(self, client, authorization_code):
        return self.codes.get(authorization_code)

    async def exchange_authorization_code(self, client, authorization_code):
        del self.codes[authorization_code.code]
        return self._issue(client, authorization_code.scopes, authorization_code.resource)

    async def load_refresh_token(self, client, refresh_token):
        return self.refresh.get(refresh_token)

    async def exchange_refresh_token(self, client, refresh_token, scopes):
        resource = self.refresh.pop(refresh_token.token).resource
        return self._issue(client, scopes, resource)

    async def load_access_token(self, token):
        return self.access.get(token)

    async def revoke_token(self, token):
        self.access.pop(token.token, None)
        self.refresh.pop(token.token, None)

    def _issue(self, client, scopes, resource):
        token = {"client_id": client.client_id, "scopes": scopes}
        given, again = ("hf-planted-" + secrets.token_hex(16) for _ in range(2))
        self.access[given] = AccessToken(token=given, expires_at=int(time.time()) + 3600, resource=resource, **token)
        self.refresh[again] = Renewable(token=again, resource=resource, **token)
        return OAuthToken(access_token=given, refresh_token=again, expires_in=3600, scope=" ".join(scopes))


class Renewable(RefreshToken):
    """A refresh token that knows what it is for."""

    resource: str | None = None


def sdk(base, provider):
    # The newer SDK can check whom a token is for.
    strict = {"validate_token_resource": True} if "validate_token_resource" in AuthSettings.model_fields else {}
    settings = AuthSettings(
        issuer_url=base,
        resource_server_url=f"{base}/mcp",
        required_scopes=[READ],
        client_registration_options=ClientRegistrationOptions(
            enabled=True, valid_scopes=[READ, WRITE], default_scopes=[READ]
        ),
        revocation_options=RevocationOptions(enabled=True),
        **strict,
    )
    server = MCPServer("sdk", auth_server_provider=provider, auth=settings)
    server.custom_route("/control", methods=["POST"])(controlled(provider, server.settings.auth.required_scopes))
    server.tool()(hello)
    return server.streamable_http_app(), f"{base}/mcp"


def fastmcp(base):
    options = {"client_registration_options": ClientRegistrationOptions(enabled=True, valid_scopes=[READ, WRITE])}
    provider = InMemoryOAuthProvider(
        base_url=f"{base}/team", required_scopes=[READ], revocation_options=RevocationOptions(enabled=True), **options
    )
    server = FastMCP("fastmcp", auth=provider)
    server.tool()(hello)
    app = server.http_app(path="/mcp")
    routes = [*provider.get_well_known_routes(mcp_path="/mcp"), Mount("/team", app=app)]
    return Starlette(routes=routes, lifespan=app.lifespan), f"{base}/team/mcp"


def proxy(base, upstream, provider):
    """The upstream knows the proxy under one client id, whichever client it asks for."""

    class Upstream(TokenVerifier):
        async def verify_token(self, token):
            held = await provider.load_access_token(token)
            return held and Held(**held.model_dump(exclude_none=True))

    known = {"client_id": "the-proxy", "client_secret": "hf-planted-upstream", "scope": f"{READ} {WRITE}"}
    provider.clients["the-proxy"] = OAuthClientInformationFull(
        **known, redirect_uris=[f"{base}/auth/callback"], token_endpoint_auth_method="client_secret_post"
    )
    server = FastMCP(
        "proxy",
        auth=OAuthProxy(
            upstream_authorization_endpoint=f"{upstream}/authorize",
            upstream_token_endpoint=f"{upstream}/token",
            upstream_client_id=known["client_id"],
            upstream_client_secret=known["client_secret"],
            token_endpoint_auth_method="client_secret_post",
            token_verifier=Upstream(required_scopes=[READ]),
            base_url=base,
            jwt_signing_key="hf-planted-key-of-the-proxy-000",
        ),
    )
    server.tool()(hello)
    return server.http_app(), f"{base}/mcp"


def hello() -> str:
    """Say hello."""
    return "hello"


def controlled(provider, required):
    async def control(request):
        wish = await request.json()
        required[:] = wish.get("needs", [READ])
        if wish.get("end"):
            provider.access.clear()
        if wish.get("forget"):
            provider.clients.clear()
        if "client" in wish:
            await provider.register_client(OAuthClientInformationFull(**wish["client"]))
        return JSONResponse({})

    return control


async def main(names) -> None:
    provider, running, bases, endpoints = Provider(), [], {}, {}
    for name in names:
        one = socket.create_server(("127.0.0.1", 0))
        base = bases[name] = f"http://127.0.0.1:{one.getsockname()[1]}"
        if name == "sdk":
            app, endpoints[name] = sdk(base, provider)
        elif name == "fastmcp":
            app, endpoints[name] = fastmcp(base)
        else:
            app, endpoints[name] = proxy(base, bases["sdk"], provider)
        running.append(uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="on")).serve(sockets=[one]))
    sys.stdout.write(json.dumps(endpoints) + "\n")
    sys.stdout.flush()
    await asyncio.gather(*running)


asyncio.run(main(sys.argv[1:]))
