"""What the gateway's pages say is what the program does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from holdfast.gateway.bridge import BridgeHealth
from holdfast.gateway.model import CHECK_PATH, EXT_AUTH_PORT, EXT_AUTH_TIMEOUT, FAMILIES, HEALTH_ADDRESS, OUTAGE_STATUS

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "gateway"


def page(name: str) -> str:
    return (PAGES / f"{name}.md").read_text()


@pytest.mark.requirement("GW-6")
def test_the_rbac_reference_documents_the_knob_with_its_default() -> None:
    row = next(line for line in page("rbac").splitlines() if "`extAuth.timeout`" in line)
    assert f"`{EXT_AUTH_TIMEOUT}`" in row
    assert "--ext-auth-timeout" in row
    values = yaml.safe_load((ROOT / "deploy/helm/holdfast/values.yaml").read_text())["global"]["agentgateway"]
    for name in (*(f"extAuth.{key}" for key in values["extAuth"]), *(f"jwt.{key}" for key in values["jwt"])):
        key = name.partition(".")[2]
        assert f"`{name}`" in page("rbac") or f"`.{key}`" in page("rbac"), name
    assert f"`{OUTAGE_STATUS}`" in page("rbac")
    assert f"`{EXT_AUTH_PORT}`" in page("rbac")
    assert CHECK_PATH in page("rbac")


@pytest.mark.requirement("GW-6")
def test_the_gateway_api_path_is_documented() -> None:
    text = " ".join(page("gateway-api").split())
    assert "`AgentgatewayPolicy` has no field for it" in text
    assert f'requestTimeout: "{EXT_AUTH_TIMEOUT}"' in text
    assert "`timeouts.request`" in text
    for block in re.findall(r"```yaml\n(.*?)```", page("gateway-api"), flags=re.DOTALL):
        assert all(document["apiVersion"] for document in yaml.safe_load_all(block))


def test_every_form_of_the_timeout_is_documented() -> None:
    for family in FAMILIES:
        assert f"| {family} | `extAuthz.{'.'.join(family.timeout)}` |" in page("README")


def test_every_metric_is_documented() -> None:
    names = re.findall(r"^holdfast_gateway_bridge_(\w+) ", BridgeHealth().as_metrics(), flags=re.MULTILINE)
    assert [name for name in names if f"`{name}`" not in page("bridge")] == []
    assert HEALTH_ADDRESS in page("bridge")


def test_every_default_of_the_timeout_page_is_the_programs() -> None:
    assert f"**`{EXT_AUTH_TIMEOUT}`**" in page("timeout")
