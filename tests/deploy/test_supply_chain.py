"""What is installed is what was locked: hashes in every lock, and a bill of materials that agrees with the lock."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOCKS = ["requirements-dev.lock", "deploy/docker/requirements.lock", "deploy/docker/build.lock"]
SBOM = ROOT / "deploy" / "docker" / "sbom.cdx.json"

_PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", re.MULTILINE)


@pytest.mark.requirement("SEC-17")
@pytest.mark.parametrize("name", LOCKS)
def test_every_pin_of_a_lock_has_hashes(name: str) -> None:
    text = (ROOT / name).read_text()
    blocks = re.split(r"^(?=[A-Za-z0-9._-]+==)", text, flags=re.MULTILINE)
    pinned = [block for block in blocks if _PIN.match(block)]
    assert len(pinned) > 3
    assert [block.splitlines()[0] for block in pinned if "--hash=sha256:" not in block] == []
    assert "git+" not in text


@pytest.mark.requirement("SEC-17")
def test_every_install_of_a_lock_requires_its_hashes() -> None:
    users = {name: (ROOT / name).read_text() for name in ("Makefile", "deploy/docker/Dockerfile")}
    installs = [
        line for text in users.values() for line in text.splitlines() if " install " in line and ".lock" in line
    ]
    assert len(installs) == 3
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
