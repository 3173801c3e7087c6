"""The status of a server, and what is wrong with it, tell a caller of nothing that her rules hide (SEC-14, HUB-11)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast.access import LOCAL, Principal
from holdfast.core import Facts, Health, Item, key_of, text_for
from holdfast.core.remedies import ServerText
from holdfast.endpoint import Broker, Client, McpServer, View
from holdfast.hub import Hub
from tests.endpoint.test_clients import Line, call
from tests.endpoint.test_view import ANN, opened, publish

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("SEC-14", "HUB-11")]

RULES: dict[str, Any] = {"rules": [{"effect": "allow", "principals": ["ann"], "tools": ["re*", "prompt*"]}]}


async def told(hub: Hub, tool: str, who: Principal) -> dict[str, Any]:
    """What the hub says of the server ``a`` to a principal, as a program reads it."""
    client = Client(View(hub), Line(), {}, modern=False, owner="o", identity=who)
    asked = await call(client, Line(), name=tool, arguments={"server": "a"})
    result = (await McpServer(Broker(hub), View(hub)).answer(asked)).value()
    of_one: dict[str, Any] = result["structuredContent"]["servers"]["a"]
    return {**of_one, "text": result["content"][0]["text"]}


async def test_what_changed_is_told_and_counted_by_the_rules_for_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened("a", access=RULES, doctorTool="on", approvals="hold") as hub:
        keys = (key_of("tool", "read"), key_of("tool", "write"), key_of("prompt", "greet"), key_of("instructions", ""))
        hub.approvals.pins.changed["a"] = {key: {} for key in keys}
        assert (await told(hub, "holdfast_status", LOCAL))["changedTools"] == [
            "instructions",
            "prompt greet",
            "read",
            "write",
        ]
        assert (await told(hub, "holdfast_status", ANN))["changedTools"] == ["instructions", "read"]
        counted: list[int] = []

        def noted(health: Health, facts: Facts) -> ServerText:
            counted.append(facts.held)
            return text_for(health, facts)

        monkeypatch.setattr("holdfast.endpoint.own_answers.text_for", noted)
        for who in (LOCAL, ANN):
            await told(hub, "holdfast_doctor", who)
        assert counted == [4, 2]


async def test_a_finding_names_nothing_that_the_rules_hide() -> None:
    async with opened("a", access=RULES) as hub:
        publish(hub, "a", resources=(Item("holdfast://vault"),))
        assert "holdfast://vault" in json.dumps(await told(hub, "holdfast_status", LOCAL))
        assert "vault" not in json.dumps(await told(hub, "holdfast_status", ANN))
