"""The roles of principals, and what each operation of the control API needs."""

from __future__ import annotations

import pytest

from holdfast.access.policy import roles_of
from holdfast.access.principals import Principal, TokenPolicy
from holdfast.config import config_from_mapping
from holdfast.control.server.operations import OPERATIONS
from holdfast.errors import ConfigError
from tests.control.server.controlled_hub import TOKEN, steered

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("SEC-20")]

ROLES = {
    "read": {"principals": ["rita"], "scopes": ["hub:see"]},
    "operate": {"principals": ["otto"], "groups": ["sre"]},
    "approve": {"principals": ["anna", "https://idp.example#eve"]},
}
TOKENS = {name: f"token-of-{name}-0123456789" for name in ("rita", "otto", "anna", "carl")}
HELD = {"rita": {"read"}, "otto": {"read", "operate"}, "anna": {"read", "approve"}, "carl": set()}


@pytest.mark.parametrize(
    ("principal", "roles"),
    [
        (Principal(name="rita"), {"read"}),
        (Principal(name="x", scopes=frozenset({"hub:see"})), {"read"}),
        (Principal(name="x", groups=frozenset({"sre"})), {"read", "operate"}),
        (Principal(name="https://idp.example#eve", groups=frozenset({"sre"})), {"read", "operate", "approve"}),
        (Principal(name="sre"), set()),
        (Principal(name="https://evil.example#https://idp.example#eve"), set()),
    ],
)
def test_roles_come_from_names_groups_and_scopes_and_never_from_one_as_another(
    principal: Principal, roles: set[str]
) -> None:
    settings = config_from_mapping({"mcpServers": {}, "holdfast": {"access": {"roles": ROLES}}}).settings
    assert roles_of(principal, settings.access.roles) == roles


async def test_every_operation_serves_those_who_have_its_role_and_names_it_to_the_others() -> None:
    policy = TokenPolicy(tokens=TOKENS)
    async with steered({"x": {"command": "no-such-command"}}, tokens=policy, access={"roles": ROLES}) as hub:
        for operation in OPERATIONS:
            if operation.needs == "nothing" or operation.media_type == "text/event-stream":
                continue
            path = operation.path.replace("{server}", "x")
            for name, token in TOKENS.items():
                body: object = {} if operation.body is not None else None
                answer = await hub.ask(path, method=operation.method, token=token, body=body)
                said = answer.json().get("error", "")
                if operation.needs == "caller" or operation.needs in HELD[name]:
                    assert answer.status_code not in (401, 403), (operation.name, name, said)
                elif operation.needs == "control":
                    assert (answer.status_code, "control token" in said) == (403, True), operation.name
                else:
                    assert answer.status_code == 403, (operation.name, name)
                    assert f"the role `{operation.needs}`, which {name}" in said
        me = (await hub.ask("/api/me", token=TOKENS["anna"])).json()
        assert (me["principal"], me["roles"]) == ("anna", ["approve", "read"])
        assert (await hub.ask("/api/me", token=TOKEN)).json()["roles"] == ["approve", "operate", "read"]


async def test_a_stream_ends_when_its_reader_loses_the_role(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.control.server.operations.RECHECK_SECONDS", 0.05)
    tokens = dict(TOKENS)
    policy = TokenPolicy(tokens=tokens)
    async with steered({}, tokens=policy, access={"roles": ROLES}) as hub:
        headers = {"authorization": f"Bearer {TOKENS['rita']}"}
        async with hub.http.stream("GET", f"{hub.base}/api/events", headers=headers) as stream:
            pieces = stream.aiter_text()
            assert "hello" in await anext(pieces)
            tokens["rita"] = "another-token-0123456789"
            assert [piece async for piece in pieces if "event: hello" in piece] == []


def test_a_list_of_names_that_is_none_is_reported() -> None:
    wrong = {"access": {"roles": {"read": {"groups": "sre"}}}}
    with pytest.raises(ConfigError, match="must be a list of texts"):
        config_from_mapping({"mcpServers": {}, "holdfast": wrong})
