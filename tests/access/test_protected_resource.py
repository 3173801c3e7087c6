"""What a client without a token is told, and which audience counts at which endpoint."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from holdfast.access.guard import AccessRules, Refused
from holdfast.access.jwt import JwtVerifier, ProtectedResource
from holdfast.access.policy import Policy
from holdfast.access.principals import Principal, TokenPolicy
from holdfast.config import config_from_mapping
from holdfast.errors import UsageError

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("SEC-20")]

RULES: list[dict[str, object]] = [
    {"effect": "allow", "groups": ["dev"], "scopes": ["tools:read"], "servers": ["docs"]},
    {"effect": "allow", "groups": ["dev"], "scopes": ["tools:write"]},
    {"effect": "allow", "principals": ["https://idp.example#root"]},
    {"effect": "deny", "scopes": ["guest"]},
]


def policy_of(rules: list[dict[str, object]], **more: object) -> Policy:
    config = config_from_mapping({"mcpServers": {}, "holdfast": {"access": {"rules": rules, **more}}})
    return Policy(config.settings.access)


def needing(rules: list[dict[str, object]], base: str = "https://hub.example") -> ProtectedResource:
    policy = policy_of(rules)
    return ProtectedResource(base, "https://idp.example", policy=lambda: policy)


RESOURCE = ProtectedResource("https://hub.example/", "https://idp.example")


@pytest.mark.parametrize(
    ("audience", "path"),
    [
        ("https://hub.example/mcp", "/mcp"),
        ("https://hub.example/mcp/", "/mcp"),
        ("https://hub.example/mcp?tools=find", "/mcp"),
        ("HTTPS://HUB.example:443/mcp", "/mcp"),
        ("https://hub.example", "/mcp"),
        ("https://hub.example/", "/servers/github/mcp"),
        ("https://hub.example/servers/github/mcp?profile=x", "/servers/github/mcp"),
        ("https://hub.example/mcp", ""),
    ],
)
def test_an_audience_is_compared_without_its_query(audience: str, path: str) -> None:
    assert RESOURCE.is_named(audience, path)


@pytest.mark.parametrize(
    ("audience", "path"),
    [
        ("https://hub.example/servers/github/mcp", "/mcp"),
        ("https://hub.example/servers/github/mcp", "/servers/jira/mcp"),
        ("https://hub.example/mcp", "/servers/github/mcp"),
        ("https://hub.example/servers/github/mcp", ""),
        ("http://hub.example/mcp", "/mcp"),
        ("https://hub.example:8443/mcp", "/mcp"),
        ("https://hub.example.evil/mcp", "/mcp"),
        ("https://evil@hub.example/mcp", "/mcp"),
        ("https://hub.example/mcpx", "/mcp"),
        ("https://hub.example:nonsense/mcp", "/mcp"),
        ("hub.example/mcp", "/mcp"),
        ("", "/mcp"),
    ],
)
def test_the_audience_of_another_endpoint_or_host_does_not_count(audience: str, path: str) -> None:
    assert not RESOURCE.is_named(audience, path)


def test_the_challenge_names_the_document_of_the_path_and_nothing_breaks_out_of_its_quotes() -> None:
    where = "https://hub.example/.well-known/oauth-protected-resource"
    assert RESOURCE.challenge("/servers/a%2Fb/mcp") == f'Bearer resource_metadata="{where}/servers/a%2Fb/mcp"'
    assert RESOURCE.challenge('/servers/a"b/mcp') == f'Bearer resource_metadata="{where}/servers/a%22b/mcp"'
    assert RESOURCE.challenge("/metrics") == f'Bearer resource_metadata="{where}"'
    assert RESOURCE.challenge(f"/servers/{'x' * 2000}/mcp") == f'Bearer resource_metadata="{where}"'
    more = needing(RULES, "https://gw.example/hub")
    assert more.challenge("/mcp", error="invalid_token") == (
        'Bearer error="invalid_token", scope="tools:read tools:write", '
        'resource_metadata="https://gw.example/hub/.well-known/oauth-protected-resource/mcp"'
    )
    assert 'scope="tools:read",' in more.challenge("/mcp", scopes=["tools:read"])
    assert more.metadata("/mcp") == {
        "resource": "https://gw.example/hub/mcp",
        "authorization_servers": ["https://idp.example"],
        "scopes_supported": ["tools:read", "tools:write"],
        "bearer_methods_supported": ["header"],
        "resource_name": "Holdfast",
    }


async def test_a_jwt_counts_at_the_endpoint_that_it_was_issued_for(tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    pem = tmp_path / "key.pem"
    pem.write_bytes(
        key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )

    def token(**claims: object) -> str:
        whole = {"iss": "https://idp.example", "sub": "ada", "exp": time.time() + 60, **claims}
        return jwt.encode(whole, key, algorithm="ES256")

    verify = JwtVerifier(issuer="https://idp.example", keys=str(pem), resource=RESOURCE)
    narrow = token(aud=["https://else.example", "https://hub.example/servers/github/mcp?tools=find"])
    found = await verify(narrow, "/servers/github/mcp")
    assert found is not None
    assert found.name == "https://idp.example#ada"
    assert await verify(narrow, "/mcp") is None
    assert await verify(narrow) is None
    named = JwtVerifier(issuer="https://idp.example", keys=str(pem), audience="hub")
    assert await named(token(aud="hub"), "/servers/github/mcp") is not None
    assert await named(token(aud="https://hub.example/mcp"), "/mcp") is None
    # An ID token is for one client: more audiences count only if it says who it was issued to.
    assert await verify.claims(token(aud="page"), "page") is not None
    assert await verify.claims(token(aud="other"), "page") is None
    assert await verify.claims(token(aud=["page", "other"]), "page") is None
    assert await verify.claims(token(aud=["page", "other"], azp="page"), "page") is not None
    assert await verify.claims(token(aud="page", azp="other"), "page") is None
    with pytest.raises(UsageError):
        JwtVerifier(issuer="https://idp.example", keys=str(pem))


def person(
    name: str = "https://idp.example#ada", *, source: Any = "jwt", scopes: str = "", groups: str = "dev"
) -> Principal:
    return Principal(name=name, groups=frozenset(groups.split()), scopes=frozenset(scopes.split()), source=source)


@pytest.mark.parametrize(
    ("principal", "missing"),
    [
        (person(), "tools:read tools:write"),
        (person(scopes="openid guest"), "tools:read tools:write"),
        (person(scopes="tools:read"), ""),
        (person("https://idp.example#root"), ""),
        (person(groups="ops"), ""),  # no scope would help her
    ],
)
def test_the_scopes_are_named_without_which_no_rule_allows_anything(principal: Principal, missing: str) -> None:
    assert policy_of(RULES).missing_scopes(principal) == set(missing.split())
    assert policy_of(RULES[:3], default="allow").missing_scopes(principal) == set()
    assert policy_of([]).missing_scopes(principal) == set()


async def test_a_token_without_a_needed_scope_is_refused_with_the_scopes_and_a_wider_one_is_let_in() -> None:
    resource = needing(RULES)

    async def verify(token: str, path: str = "") -> Principal | None:
        return person(scopes=token.replace("+", " ")) if token != "wrong" else None

    rules = AccessRules(TokenPolicy(tokens={"ci": "token-of-ci"}, verify=verify), None, resource=resource)

    async def asked(token: str, path: str = "/mcp") -> Principal | Refused:
        return await rules.check({"authorization": f"Bearer {token}"}, path=path)

    refused = await asked("openid")
    assert isinstance(refused, Refused)
    assert refused.status == 403
    where = 'resource_metadata="https://hub.example/.well-known/oauth-protected-resource/mcp"'
    assert refused.challenge == f'Bearer error="insufficient_scope", scope="tools:read tools:write", {where}'
    assert isinstance(await asked("tools:write"), Principal)
    # A static token has no scopes to ask for, and the control API has roles instead.
    assert isinstance(await asked("token-of-ci"), Principal)
    assert isinstance(await asked("openid", path=""), Principal)
    unknown = await rules.check({}, path="/mcp")
    assert isinstance(unknown, Refused)
    assert unknown.challenge == f'Bearer scope="tools:read tools:write", {where}'
