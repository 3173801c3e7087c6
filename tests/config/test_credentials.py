"""The ladder of credentials in a definition: what it means, and what is wrong with it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast.config.read import config_from_mapping
from holdfast.config.spec import CredentialLadder, ServerSpec
from tests.cli.command import Cli, cli

__all__ = ["cli"]

pytestmark = pytest.mark.requirement("AUTH-6")

SERVICE = {"tokenUrl": "https://login.example/token", "clientId": "hub"}


def defined(credentials: object, **more: Any) -> ServerSpec:
    server = {"url": "https://files.example/mcp", "sharing": "per-user", "credentials": credentials, **more}
    return config_from_mapping({"mcpServers": {"files": server}}).servers["files"]


def ladder(credentials: object) -> CredentialLadder:
    server = defined(credentials)
    assert not server.problems, server
    return server.credentials


def test_a_server_without_them_has_logins_alone() -> None:
    assert ladder({}) == CredentialLadder()


@pytest.mark.parametrize(
    ("more", "resource"),
    [
        ({}, None),
        ({"resource": False}, ""),
        ({"resource": "urn:files"}, "urn:files"),
        ({"audience": "files"}, ""),
        ({"audience": "files", "resource": "urn:files"}, "urn:files"),
        ({"form": "on-behalf-of", "scope": "api://files/.default"}, ""),
    ],
)
def test_an_exchange_asks_for_the_server_s_address_unless_another_name_is_written(
    more: dict[str, Any], resource: str | None
) -> None:
    service = ladder({"exchange": {**SERVICE, **more}}).exchange
    assert service is not None
    assert service.resource == resource


def test_an_assertion_names_the_authorization_server_of_the_server() -> None:
    service = ladder({"assertion": {**SERVICE, "issuer": "https://auth.example"}, "shared": True}).assertion
    assert service is not None
    assert (service.issuer, service.token_url) == ("https://auth.example", "https://login.example/token")


@pytest.mark.parametrize(
    ("credentials", "more", "message", "path"),
    [
        ({"exchange": {"clientId": "hub"}}, {}, "`credentials.exchange` has no `tokenUrl`", "credentials.exchange"),
        ({"assertion": SERVICE}, {}, "`credentials.assertion` has no `issuer`", "credentials.assertion"),
        (
            {"exchange": {**SERVICE, "tokenUrl": "http://login.example/token"}},
            {},
            "`credentials.exchange.tokenUrl` is an unencrypted address: users' tokens would be sent there",
            "credentials.exchange.tokenUrl",
        ),
        (
            {"exchange": {**SERVICE, "form": "on-behalf-of"}},
            {},
            "`credentials.exchange` lacks `scope`, which the form `on-behalf-of` needs",
            "credentials.exchange",
        ),
        ({"shared": True}, {"sharing": "shared"}, "`credentials` are for a server that is `per-user`", "credentials"),
        ({"exchange": {**SERVICE, "tokenURL": "x"}}, {}, "unknown key `tokenURL`", "credentials.exchange.tokenURL"),
    ],
)
def test_what_is_wrong_is_named_by_its_key(credentials: object, more: dict[str, Any], message: str, path: str) -> None:
    (problem,) = defined(credentials, **more).problems
    assert (problem.message, problem.path) == (message, f"mcpServers.files.{path}")


def test_the_secret_is_shown_nowhere_and_the_ladder_is(cli: Cli) -> None:
    """``list`` shows the server and no secret; ``auth status`` says what a user can have."""
    service = {**SERVICE, "clientSecret": "hf-planted-of-the-hub"}
    server = {"url": "https://files.example/mcp", "sharing": "per-user"}
    cli.configure({"files": {**server, "credentials": {"exchange": service, "shared": True}}})
    shown = cli.run("list").stdout
    assert "https://files.example/mcp" in shown
    assert "hf-planted-of-the-hub" not in shown
    status = cli.run("auth", "status", "--user", "carol").stdout
    assert "a token exchange needs a JWT, and the user sends a static token" in status
    rows = json.loads(cli.run("auth", "status", "--user", "https://issuer.example#ada", "--json").stdout)
    assert [(one["rung"], one["open"]) for one in rows["servers"][0]["ladder"]] == [
        ("exchange", True),
        ("login", False),
        ("shared", False),
    ]
