"""What is installed is what was locked: hashes in every lock, and a bill of materials that agrees with the lock."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[2]
LOCKS = [
    "requirements-dev.lock",
    "deploy/docker/requirements.lock",
    "deploy/docker/build.lock",
    "deploy/docker/tools.lock",
]
SBOM = ROOT / "deploy" / "docker" / "sbom.cdx.json"

_PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", re.MULTILINE)


@pytest.mark.requirement("SEC-17")
@pytest.mark.parametrize("name", LOCKS)
def test_every_pin_of_a_lock_has_hashes(name: str) -> None:
    text = (ROOT / name).read_text()
    blocks = re.split(r"^(?=[A-Za-z0-9._-]+==)", text, flags=re.MULTILINE)
    pinned = [block for block in blocks if _PIN.match(block)]
    assert len(pinned) > 2
    assert [block.splitlines()[0] for block in pinned if "--hash=sha256:" not in block] == []
    assert "git+" not in text


@pytest.mark.requirement("SEC-17")
def test_every_install_of_a_lock_requires_its_hashes() -> None:
    users = {name: (ROOT / name).read_text() for name in ("Makefile", "deploy/docker/Dockerfile")}
    installs = [
        line for text in users.values() for line in text.splitlines() if " install " in line and ".lock" in line
    ]
    assert len(installs) == 4
    assert [line for line in installs if "--require-hashes" not in line] == []


@pytest.mark.requirement("SEC-17")
def test_pip_refuses_a_file_with_another_hash(tmp_path: Path) -> None:
    wheel = tmp_path / "tampered-1.0-py3-none-any.whl"
    wheel.write_bytes(b"another content")
    lock = tmp_path / "lock"
    lock.write_text(f"tampered==1.0 \\\n    --hash=sha256:{'0' * 64}\n")
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-index", "--find-links", str(tmp_path)]
    ran = subprocess.run(
        [*command, "--require-hashes", "-r", str(lock)], capture_output=True, text=True, check=False, timeout=60
    )
    assert ran.returncode != 0
    assert "DO NOT MATCH THE HASHES" in ran.stderr


@pytest.mark.requirement("SEC-17")
def test_the_bill_of_materials_lists_what_the_image_installs_and_nothing_else() -> None:
    document = json.loads(SBOM.read_text())
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    lock = (ROOT / "deploy" / "docker" / "requirements.lock").read_text()
    locked = {(name.lower(), version) for name, version in _PIN.findall(lock)}
    (base,) = [one for one in document["components"] if one["type"] == "container"]
    assert f"ARG BASE={base['name']}:{base['version']}\n" in (ROOT / "deploy" / "docker" / "Dockerfile").read_text()
    packages = [one for one in document["components"] if one["type"] == "library"]
    assert {(one["name"], one["version"]) for one in packages} == locked
    for one in packages:
        hashes = [each["value"] for each in one["properties"] if each["name"] == "holdfast:sha256"]
        assert hashes
        assert all(f"sha256:{digest}" in lock for digest in hashes)
    refs = {one["bom-ref"] for one in document["components"]} | {document["metadata"]["component"]["bom-ref"]}
    assert {one["ref"] for one in document["dependencies"]} == refs
    assert {below for one in document["dependencies"] for below in one["dependsOn"]} == refs - {
        document["metadata"]["component"]["bom-ref"]
    }


@pytest.mark.field
@pytest.mark.requirement("SEC-17")
def test_the_bill_of_materials_is_valid_by_its_schema(tmp_path: Path) -> None:
    """By the validator of the format's own library, from PyPI."""
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "env")], check=True)
    python = tmp_path / "env" / "bin" / "python"
    wanted = "cyclonedx-python-lib[json-validation]>=8"
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", wanted], check=True)
    code = (
        "import sys; from cyclonedx.schema import SchemaVersion; from cyclonedx.validation.json import "
        "JsonStrictValidator; print(JsonStrictValidator(SchemaVersion.V1_6).validate_str(open(sys.argv[1]).read()))"
    )
    ran = subprocess.run([str(python), "-c", code, str(SBOM)], check=True, capture_output=True, text=True)
    assert ran.stdout.strip() == "None"


FIRST_SOUND = {
    "aiohttp": "3.14.1",  # CVE-2026-34993, CVE-2026-54273 to 54280
    "anyio": "4.14.2",  # CVE-2026-63374, CVE-2026-64847
    "cryptography": "50.0.0",  # CVE-2026-69247, CVE-2026-69249, CVE-2026-39892
    "google-adk": "2.7.0",  # CVE-2026-79696
    "httpx2": "2.12.0",  # GHSA-8xx6-hgc6-gc2m, GHSA-pf96-p4fj-6566
    "langchain": "1.3.9",  # GHSA-gr75-jv2w-4656
    "langchain-core": "1.4.9",  # CVE-2026-45134, GHSA-pjwx-r37v-7724
    "mcp": "1.28.1",  # CVE-2026-59950
    "pydantic-ai-slim": "1.56.0",  # CVE-2026-25580
    "pyjwt": "2.13.0",  # CVE-2026-48522 to 48526; 2.10.0: CVE-2024-53861
    "pytest": "9.0.3",  # CVE-2025-71176
    "redis": "4.5.5",  # CVE-2023-28859
    "requests": "2.33.0",  # CVE-2026-25645
    "starlette": "1.3.1",  # CVE-2026-54283, CVE-2026-48710
    "uv": "0.9.6",  # GHSA-pqhf-p39g-3x64
}
"""The first version without a hole that was published, and the last advisories before it."""


@pytest.mark.requirement("SEC-17")
def test_no_lower_bound_allows_a_version_with_a_known_hole() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"].values()
    written = [*project["project"]["dependencies"], *chain(*extras), *project["dependency-groups"]["dev"]]
    bounds = {Requirement(one).name: Requirement(one).specifier for one in written}
    assert all(any(one.operator == ">=" for one in bound) for bound in bounds.values()), "each has a lower bound"
    lowest = {name: next(one.version for one in bound if one.operator == ">=") for name, bound in bounds.items()}
    assert {name: lowest[name] for name, sound in FIRST_SOUND.items() if Version(lowest[name]) < Version(sound)} == {}
