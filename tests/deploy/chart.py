"""The chart, rendered by a real Helm."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import yaml

__all__ = ["ASKS", "AUTH", "CHART", "ROOT", "Refused", "by_kind", "helm", "manifests", "static_config"]

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "holdfast"
HELM = Path(sys.executable).with_name("helm")

AUTH = "global.agentgateway.extAuth"
ASKS = (f"{AUTH}.enabled=true", f"{AUTH}.serviceName=ext-authz")
"""The settings of a gateway that asks an authorization service; by default it asks none."""


class Refused(Exception):
    """Helm would not render; the message is what it said."""


YAML: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The parser in C, where there is one: the charts are read two hundred times."""


@cache
def helm(*arguments: str | Path) -> str:
    """What Helm prints; it prints the same for the same chart and settings."""
    ran = subprocess.run(
        [str(HELM), *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False, cwd=ROOT
    )
    if ran.returncode:
        raise Refused(ran.stdout + ran.stderr)
    return ran.stdout


def manifests(*settings: str, values: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """Everything that an install would create; ``settings`` as in ``--set``."""
    chosen = [part for setting in settings for part in ("--set", setting)]
    given = [part for key, value in (values or {}).items() for part in ("--set-json", f"{key}={json.dumps(value)}")]
    text = helm("template", "demo", CHART, "--namespace", "agents", *chosen, *given)
    return [document for document in yaml.load_all(text, YAML) if document]


def by_kind(found: list[dict[str, Any]], kind: str, name: str = "") -> dict[str, Any]:
    """The one manifest of a kind."""
    (one,) = [m for m in found if m["kind"] == kind and name in m["metadata"]["name"]]
    return one


def static_config(*settings: str, values: dict[str, Any] | None = None) -> dict[str, Any]:
    """The config that the chart gives the gateway."""
    text = by_kind(manifests(*settings, values=values), "ConfigMap", "agentgateway")["data"]["config.yaml"]
    document: dict[str, Any] = yaml.load(text, YAML)
    return document
