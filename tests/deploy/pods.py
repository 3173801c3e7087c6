"""The containers of rendered pods, run here: what a kubelet would do is done by hand.

Variables are filled in, and volumes become folders. Nothing else of the rendered commands is changed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Container", "container_of", "inside", "write"]

Files = Mapping[str, Mapping[str, str]]
"""The files of config maps or secrets, by name."""


@dataclass(frozen=True)
class Container:
    """What a container would run."""

    arguments: list[str]
    environ: dict[str, str]


def container_of(spec: Mapping[str, Any], root: Path, *, maps: Files, secrets: Files, address: str = "") -> Container:
    """The only container of a pod, with its folders under ``root`` and an address of the pod."""
    (container,) = spec["containers"]
    mounts = {one["name"]: one["mountPath"] for one in container.get("volumeMounts", ())}
    for volume in spec.get("volumes", ()):
        at = root / mounts[volume["name"]].lstrip("/")
        at.mkdir(parents=True)
        if "configMap" in volume:
            for name, text in maps[volume["configMap"]["name"]].items():
                write(at / name, text, 0o644)
        elif (secret := volume.get("secret")) is not None:
            for item in secret["items"]:
                write(at / item["path"], secrets[secret["secretName"]][item["key"]], secret.get("defaultMode", 0o644))
    environ = {}
    for one in container.get("env", ()):
        origin = one.get("valueFrom", {})
        if "secretKeyRef" in origin:
            environ[one["name"]] = secrets[origin["secretKeyRef"]["name"]][origin["secretKeyRef"]["key"]]
        else:
            environ[one["name"]] = address if origin else inside(root, one["value"], list(mounts.values()))
    filled = [re.sub(r"\$\((\w+)\)", lambda found: environ[found[1]], one) for one in container["args"]]
    return Container([inside(root, one, list(mounts.values())) for one in filled], environ)


def write(file: Path, text: str, mode: int = 0o600) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    file.chmod(mode)


def inside(root: Path, text: str, mounts: list[str]) -> str:
    """The same text with the folders of this test in place of those of the container."""
    known = "|".join(map(re.escape, sorted(mounts, key=len, reverse=True)))
    return (
        re.sub(rf"(?<![\w/])(?:{known})(?=/|$)", lambda found: str(root / found[0].lstrip("/")), text)
        if known
        else text
    )
