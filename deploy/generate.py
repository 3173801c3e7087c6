"""Write what is deployed and made from the program: ``python deploy/generate.py [--check]``.

The compose files' bootstrap config is rendered here, so that its timeout is the program's own; the chart's alert
rules are those of ``prometheus/alerts.yaml``, and the dashboard is that of ``dashboard.py``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import yaml
from dashboard import dashboard

from holdfast.gateway.defaults import EXT_AUTH_PORT, GATEWAY_VERSION
from holdfast.gateway.model import ExtAuth, Gateway
from holdfast.gateway.render import render, to_yaml
from holdfast.gateway.versions import family_of

HERE = Path(__file__).parent
BOOTSTRAP = HERE / "compose" / "agentgateway.yaml"
ALERTS = HERE / "prometheus" / "alerts.yaml"
RULES = HERE / "helm" / "holdfast" / "rules"
DASHBOARD = HERE / "grafana" / "holdfast.json"

HEAD = f"""\
# The config that the bridge adds the targets' routes to, for AgentGateway {GATEWAY_VERSION}. Routes of your own belong
# here, and win. The rest is made by `python deploy/generate.py`; a test fails if it is out of date.
"""

RULES_HEAD = """\
# Made of deploy/prometheus/alerts.yaml by `python deploy/generate.py`; a test fails if it is out of date.
"""


def bootstrap() -> str:
    """The config without any target."""
    wanted = Gateway(ext_auth=ExtAuth(host=f"ext-authz:{EXT_AUTH_PORT}"))
    return HEAD + to_yaml(render(wanted, family_of(GATEWAY_VERSION).family))


def rules() -> Iterator[tuple[Path, str]]:
    """Each group of alerts as a file of the chart's, which puts its own namespace and its own patience in."""
    for group in yaml.safe_load(ALERTS.read_text())["groups"]:
        text = yaml.safe_dump(group["rules"], sort_keys=False, width=10_000, allow_unicode=True)
        yield RULES / f"{group['name']}.yaml", RULES_HEAD + text


def wanted() -> dict[Path, str]:
    """Every file that is made, as it must be."""
    return {BOOTSTRAP: bootstrap(), DASHBOARD: json.dumps(dashboard(), indent=1) + "\n", **dict(rules())}


def main() -> int:
    """Write the files, or with ``--check`` say whether they are fresh."""
    if "--check" in sys.argv:
        return 0 if all(file.exists() and file.read_text() == text for file, text in wanted().items()) else 1
    for file, text in wanted().items():
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
