"""The bill of materials of the image, as CycloneDX 1.6 JSON: what its lock pins, with the hashes of the files.

It is made from the lock alone, so it is the same on every machine. The base image's own packages are not in it: they
are known only where the image is built.
"""

from __future__ import annotations

import re
import tomllib
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["LockedPackage", "base_image", "read_lock", "sbom"]

_PIN = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^\s;\\]+)(?:\s*;\s*(?P<marker>[^\\]+?))?\s*\\?$")
_HASH = re.compile(r"--hash=sha256:(?P<digest>[0-9a-f]{64})")
_VIA = re.compile(r"^\s+#\s+(?:via\s+)?(?P<name>[A-Za-z0-9._-]+)(?:\s+\(.*\))?$")


@dataclass(frozen=True)
class LockedPackage:
    """One pinned package."""

    name: str
    version: str
    marker: str
    hashes: tuple[str, ...]
    via: tuple[str, ...]
    """The packages that need it."""

    @property
    def purl(self) -> str:
        """Its package URL."""
        return f"pkg:pypi/{self.name}@{self.version}"


def read_lock(file: Path) -> list[LockedPackage]:
    """Return the packages of a lock that ``uv pip compile --generate-hashes`` wrote."""
    found: list[LockedPackage] = []
    block: list[str] = []
    for line in [*file.read_text(encoding="utf-8").splitlines(), "end==0"]:
        if _PIN.match(line):
            if block:
                found.append(_package(block))
            block = [line]
        elif block:
            block.append(line)
    return found


def _package(block: list[str]) -> LockedPackage:
    pin = _PIN.match(block[0])
    assert pin is not None  # noqa: S101 - the caller matched it
    hashes = tuple(found["digest"] for line in block if (found := _HASH.search(line)))
    via = tuple(found["name"] for line in block[1:] if (found := _VIA.match(line)) and found["name"] != "via")
    return LockedPackage(pin["name"].lower(), pin["version"], (pin["marker"] or "").strip(), hashes, via)


def sbom(project: Path, lock: Path) -> dict[str, Any]:
    """Return the document."""
    about = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    packages = read_lock(lock)
    version = re.search(r'__version__ = "([^"]+)"', (project / "src/holdfast/_version.py").read_text(encoding="utf-8"))
    assert version is not None  # noqa: S101 - a file of this project
    root = f"pkg:pypi/{about['name']}@{version[1]}"
    base = base_image(project / "deploy/docker/Dockerfile")
    names = {about["name"]: root} | {one.name: one.purl for one in packages}
    needs: dict[str, list[str]] = {ref: [] for ref in (root, base["purl"], *(one.purl for one in packages))}
    needs[root].append(base["purl"])
    for one in packages:
        for parent in one.via:
            needs[names[parent]].append(one.purl)
    content = "\n".join(f"{one.purl} {' '.join(one.hashes)}" for one in packages)
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'{root} {content}')}",
        "version": 1,
        "metadata": {
            "component": {"type": "application", "bom-ref": root, "name": about["name"], "version": version[1]}
            | {"purl": root, "licenses": [{"license": {"id": about["license"]}}]}
        },
        "components": [base, *(_component(one) for one in packages)],
        "dependencies": [{"ref": ref, "dependsOn": sorted(below)} for ref, below in needs.items()],
    }


def base_image(dockerfile: Path) -> dict[str, Any]:
    """The image that ours is built on, as one component; its own packages are in its own bill."""
    found = re.search(r"(?m)^ARG BASE=(?P<name>[^:@\s]+)[:@](?P<version>\S+)$", dockerfile.read_text(encoding="utf-8"))
    assert found is not None  # noqa: S101 - a file of this project
    name, version = found["name"], found["version"]
    purl = f"pkg:docker/{name}@{version}"
    return {"type": "container", "bom-ref": purl, "name": name, "version": version, "purl": purl}


def _component(one: LockedPackage) -> dict[str, Any]:
    component: dict[str, Any] = {
        "type": "library",
        "bom-ref": one.purl,
        "name": one.name,
        "version": one.version,
        "purl": one.purl,
        # A release has a file for each platform: the hash of any of them is a hash of this component.
        "properties": [{"name": "holdfast:sha256", "value": digest} for digest in one.hashes],
    }
    if one.marker:
        component["scope"] = "optional"
        component["properties"].append({"name": "holdfast:marker", "value": one.marker})
    return component
