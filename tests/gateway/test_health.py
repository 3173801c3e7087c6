from __future__ import annotations

import pytest

from holdfast.gateway.bridge import BridgeHealth, GatewayState


def health(**changed: object) -> BridgeHealth:
    good: dict[str, object] = {
        "source": "mcp.json",
        "role": "active",
        "source_success": 1.0,
        "config_success": 1.0,
        "take": GatewayState.TAKEN,
        "gateway_success": 1.0,
    }
    return BridgeHealth(**{**good, **changed})  # type: ignore[arg-type]  # the fields, by name


@pytest.mark.requirement("GW-5")
@pytest.mark.parametrize(
    ("changed", "status", "healthy"),
    [
        ({}, "ok", True),
        ({"take": GatewayState.NOT_WATCHED}, "ok", True),
        ({"take": GatewayState.WAITING}, "applying", True),
        ({"take": GatewayState.WAITING, "gateway_success": 0.0}, "starting", False),
        ({"take": GatewayState.REFUSED}, "degraded", False),
        ({"take": GatewayState.DOWN}, "degraded", False),
        ({"source_error": "down"}, "degraded", False),
        ({"config_error": "full"}, "degraded", False),
        ({"source_success": 0.0}, "starting", False),
        ({"config_success": 0.0}, "starting", False),
        ({"role": "standby"}, "standby", True),
        ({"role": "starting"}, "starting", False),
    ],
)
def test_one_word_says_how_it_is(changed: dict[str, object], status: str, healthy: bool) -> None:
    seen = health(**changed)
    assert (seen.status, seen.healthy) == (status, healthy)
    assert f"\nholdfast_gateway_bridge_healthy {int(healthy)}\n" in seen.as_metrics()


def test_nothing_is_healthy_before_it_has_succeeded() -> None:
    seen = BridgeHealth().as_json()
    assert seen["status"] == "starting"
    assert [seen[part]["last_success"] for part in ("source", "config", "gateway")] == [None, None, None]


def test_every_metric_is_typed_and_explained() -> None:
    lines = health().as_metrics().splitlines()
    for help_, kind, value in zip(lines[::3], lines[1::3], lines[2::3], strict=True):
        name = value.split()[0]
        assert help_.startswith(f"# HELP {name} ")
        assert kind in (f"# TYPE {name} gauge", f"# TYPE {name} counter")
        assert name.endswith("_total") == kind.endswith("counter")
