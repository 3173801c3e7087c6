"""An MCP server of people before the authorization server of the Python SDK: python people.py

The server has tools for each person alone, and tells the person's name in every result and notification. It prints its
address as JSON. ``POST /control`` with ``{"person": "ada"}`` says who logs in next, and ``{"end": true}`` ends the
access tokens; it answers what was called, by whom, and how often a refresh token came again after it was used.
"""

import asyncio
import json
import secrets
import socket
import sys
import time

import uvicorn
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import AccessToken, AuthorizationCode, RefreshToken, construct_redirect_uri
from mcp.server.auth.settings import AuthSettings, ClientRegistrationOptions, RevocationOptions
from mcp.server.mcpserver import Context, MCPServer
from mcp.shared.auth import OAuthToken
from mcp_types import Tool
from starlette.responses import JSONResponse

READ = "files:read"


class Provider:
    """Keeps everything in memory, and rotates refresh tokens."""

    def __init__(self) -> None:
        self.person = ""
        self.clients, self.codes, self.access, self.refresh = {}, {}, {}, {}
        self.used, self.reuses, self.calls = set(), 0, []

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
            subject=self.person,
        )
        return construct_redirect_uri(str(params.redirect_uri), code=code, state=params.state)

    async def load_authorization_code(self, client, authorization_code):
        return self.codes.get(authorization_code)

    async def exchange_authorization_code(self, client, authorization_code):
        del self.codes[authorization_code.code]
        return self._issue(authorization_code)

    async def load_refresh_token(self, client, refresh_token):
        self.reuses += refresh_token in self.used
        return self.refresh.get(refresh_token)

    async def exchange_refresh_token(self, client, refresh_token, scopes):
        self.used.add(refresh_token.token)
        del self.refresh[refresh_token.token]
        return self._issue(refresh_token)

    async def load_access_token(self, token):
        return self.access.get(token)

    async def revoke_token(self, token):
        self.access.pop(token.token, None)
        self.refresh.pop(token.token, None)

    def _issue(self, of):
        known = {"client_id": of.client_id, "scopes": of.scopes, "subject": of.subject, "resource": of.resource}
        given, again = ("hf-planted-" + secrets.token_hex(16) for _ in range(2))
        self.access[given] = AccessToken(token=given, expires_at=int(time.time()) + 3600, **known)
        self.refresh[again] = RefreshToken(token=again, **known)
        return OAuthToken(access_token=given, refresh_token=again, expires_in=3600, scope=" ".join(of.scopes))


class People(MCPServer):
    """Lists a tool of the person who asks."""

    async def list_tools(self):
        own = Tool(name=f"of_{person()}", input_schema={"type": "object"})
        return [*await super().list_tools(), own]


def person():
    return get_access_token().subject


def serve(base):
    provider = Provider()
    settings = AuthSettings(
        issuer_url=base,
        resource_server_url=f"{base}/mcp",
        required_scopes=[READ],
        client_registration_options=ClientRegistrationOptions(enabled=True, valid_scopes=[READ], default_scopes=[READ]),
        revocation_options=RevocationOptions(enabled=True),
    )
    server = People("people", auth_server_provider=provider, auth=settings)

    async def read(ctx: Context, who: str = "", times: int = 1) -> str:
        """Read something."""
        provider.calls.append({"person": person(), "who": who})
        await ctx.error(f"a log line for {person()}")
        await ctx.report_progress(1, None, f"progress for {person()}")
        return f"read done for {person()}\n" * times

    async def control(request):
        wish = await request.json()
        provider.person = wish.get("person", provider.person)
        if wish.get("end"):
            provider.access.clear()
        return JSONResponse({"calls": provider.calls, "reuses": provider.reuses})

    server.tool(structured_output=False)(read)
    server.custom_route("/control", methods=["POST"])(control)
    return server.streamable_http_app()


async def main() -> None:
    one = socket.create_server(("127.0.0.1", 0))
    base = f"http://127.0.0.1:{one.getsockname()[1]}"
    running = uvicorn.Server(uvicorn.Config(serve(base), log_level="error", lifespan="on"))
    sys.stdout.write(json.dumps({"people": f"{base}/mcp"}) + "\n")
    sys.stdout.flush()
    await running.serve(sockets=[one])


asyncio.run(main())
