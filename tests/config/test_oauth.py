from __future__ import annotations

from typing import Any

import pytest

from holdfast.config.read import config_from_mapping
from holdfast.config.spec import OAuthSettings, ServerSpec


def defined(oauth: object, **more: Any) -> ServerSpec:
    server = {"url": "https://files.example/mcp", "oauth": oauth, **more}
    return config_from_mapping({"mcpServers": {"files": server}}).servers["files"]


def settings(oauth: object) -> OAuthSettings:
    server = defined(oauth)
    assert not server.problems, server
    return server.oauth


@pytest.mark.requirement("AUTH-4")
@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ({}, OAuthSettings()),
        (True, OAuthSettings()),
        (False, OAuthSettings(enabled=False)),
        ({"clientId": "me", "clientSecret": "s"}, OAuthSettings(client_id="me", client_secret="s")),
        ({"scope": "read write"}, OAuthSettings(scope=("read", "write"))),
        ({"scopes": ["read", "write"]}, OAuthSettings(scope=("read", "write"))),
        (
            {"clientId": "me", "callbackPort": 8765, "authServerMetadataUrl": "https://a.example/"},
            OAuthSettings(client_id="me", redirect_uri="http://localhost:8765/callback"),
        ),
        (
            {
                "enabled": True,
                "authorizationUrl": "https://a.example/authorize",
                "tokenUrl": "https://a.example/token",
                "redirectUri": "http://localhost:7777/cb",
                "audiences": ["x"],
                "tokenParamName": "t",
            },
            OAuthSettings(
                issuer="https://a.example",
                authorization_url="https://a.example/authorize",
                token_url="https://a.example/token",
                redirect_uri="http://localhost:7777/cb",
            ),
        ),
        (
            {"client_id": "me", "client_secret": "s", "token_exchange_method": "basic_auth"},
            OAuthSettings(client_id="me", client_secret="s"),
        ),
    ],
    ids=["nothing", "true", "false", "client", "scope", "scopes", "Claude Code", "Gemini CLI", "LibreChat"],
)
def test_what_clients_write_for_logins_means_the_same_here(written: object, meant: OAuthSettings) -> None:
    assert settings(written) == meant


@pytest.mark.parametrize("written", [{"clientID": "me"}, {"callbackPort": 70000}, {"scope": 1}, "yes", {"issuer": "a"}])
def test_what_cannot_be_meant_is_a_problem_of_that_server(written: object) -> None:
    assert defined(written).problems


@pytest.mark.requirement("MSG-6")
def test_a_client_s_secret_is_one_to_whoever_masks() -> None:
    server = defined({"clientId": "me", "clientSecret": "planted-secret"})
    assert not server.problems
    assert "planted-secret" in server.secrets
    assert "planted-secret" not in repr(server)


@pytest.mark.requirement("MSG-6", "AUTH-9")
def test_a_client_s_key_is_a_secret_unless_it_is_the_name_of_a_file() -> None:
    for written, is_secret in [('{"kty": "EC", "d": "planted"}', True), ("keys/planted.pem", False)]:
        server = defined({"clientId": "me", "privateKey": written})
        assert not server.problems
        assert "planted" not in repr(server)
        assert (written in server.secrets) == is_secret


def test_a_resource_is_a_text_or_switched_off() -> None:
    assert settings({"resource": False}).resource == ""
    assert settings({"resource": "api://files"}).resource == "api://files"
    assert settings({}).resource is None
    for written in (True, "", 1):
        assert defined({"resource": written}).problems
