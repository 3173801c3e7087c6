"""``holdfast gateway render`` and ``bridge`` as people call them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from holdfast.gateway.model import family_of
from holdfast.gateway.render import blocks, check_config
from tests.gateway.bridge_process import ROOT, mcp_json
from tests.gateway.schemas import VERSIONS, folder, schema_of


@pytest.fixture
def mcp(tmp_path: Path) -> Path:
    file = tmp_path / "mcp.json"
    file.write_text(mcp_json("a", "b"))
    return file


def gateway(*arguments: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
    surroundings = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "COLUMNS": "200", **env}
    command = [sys.executable, "-m", "holdfast", "gateway", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=surroundings, timeout=60, check=False)


def render(mcp: Path, *options: str | Path, version: str = "1.4.1") -> subprocess.CompletedProcess[str]:
    return gateway("render", "--config", mcp, "--gateway-version", version, *options)


@pytest.mark.requirement("GW-1")
@pytest.mark.parametrize("version", VERSIONS)
def test_a_fresh_render_is_accepted_by_its_gateway_with_the_timeout_in_force(mcp: Path, version: str) -> None:
    ran = render(mcp, "--ext-auth-host", "authz:9100", "--schema", folder(), version=version)
    assert (ran.returncode, ran.stderr) == (0, "")
    document = yaml.safe_load(ran.stdout)
    check_config(document, family_of(version), schema_of(version))
    assert [place.rpartition(".routes")[2] for place, _ in blocks(document)] == [
        "[0].policies.extAuthz",
        "[1].policies.extAuthz",
        "[2].policies.extAuthz",
    ]
    literal = 'timeout: "10s"' if version.startswith("0.") else 'requestTimeout: "10s"'
    assert ran.stdout.count(literal) == 3


def test_the_timeout_and_the_outage_status_can_be_chosen(mcp: Path) -> None:
    ran = render(mcp, "--ext-auth-host", "a:1", "--ext-auth-timeout", "30s", "--outage-status", "403")
    assert ran.stdout.count('requestTimeout: "30s"') == 3
    assert ran.stdout.count('failureMode: "deny"') == 3


@pytest.mark.requirement("GW-4")
@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--outage-status", "200"), "the outage status cannot be 200"),
        (("--ext-auth-timeout", "0s"), "`0s` is not a timeout"),
        (("--ext-auth-timeout", "10"), "`10` is not a timeout"),
        (("--ext-auth-protocol", "allow"), "`--ext-auth-protocol`: `allow` is not one of `grpc`, `http`"),
        (("--ext-auth-host", "authz"), "not host:port"),
        (("--failure-mode", "allow"), "no such option"),
        (("--jwt-issuer", "https://i"), "--jwt-issuer and --jwt-jwks belong together"),
        (("--admin-address", "15000"), "--admin-address is `15000`"),
    ],
)
def test_what_cannot_be_is_wrong_usage(mcp: Path, options: tuple[str, ...], complaint: str) -> None:
    ran = render(mcp, "--ext-auth-host", "a:1", *options)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert complaint in ran.stderr


def test_an_old_gateway_is_refused_and_a_new_one_warned_of(mcp: Path) -> None:
    old, new = render(mcp, version="0.11.0"), render(mcp, version="2.0.0")
    assert (old.returncode, old.stdout) == (2, "")
    assert "AgentGateway 0.11.0 is not supported" in old.stderr
    assert new.returncode == 0
    assert "newer than all known versions" in new.stderr


def test_a_render_without_authorization_says_what_that_means(mcp: Path) -> None:
    ran = render(mcp)
    assert "extAuthz" not in ran.stdout
    assert "everyone who can reach the gateway can reach the servers" in ran.stderr


@pytest.mark.requirement("GW-5")
@pytest.mark.parametrize(("timeout", "is_short"), [("200ms", True), ("999ms", True), ("1000ms", False), ("1s", False)])
def test_a_timeout_under_a_second_is_warned_about(mcp: Path, timeout: str, is_short: bool) -> None:
    ran = render(mcp, "--ext-auth-host", "a:1", "--ext-auth-timeout", timeout)
    assert ran.returncode == 0
    assert ("is under 1 s" in ran.stderr) is is_short


def test_a_version_has_to_be_named() -> None:
    ran = gateway("render")
    assert ran.returncode == 2
    assert "--gateway-version" in ran.stderr


def test_once_writes_and_tells_by_its_exit_code_whether_all_is_well(mcp: Path, tmp_path: Path) -> None:
    output = tmp_path / "config.yaml"
    options = ("bridge", "--gateway-version", "1.4.1", "--output", output, "--ext-auth-host", "a:1", "--once")
    good = gateway(*options, "--targets", mcp, "--no-watch")
    assert (good.returncode, output.exists()) == (0, True)
    stale = gateway(*options, "--targets", tmp_path / "none.json", "--no-watch")
    assert stale.returncode == 1
    assert "the file does not exist" in stale.stderr


def test_the_seed_is_written_once_and_never_over_what_is_there(mcp: Path, tmp_path: Path) -> None:
    output = tmp_path / "config.yaml"
    options = ("bridge", "--gateway-version", "1.4.1", "--output", output, "--ext-auth-host", "a:1")
    assert gateway(*options, "--seed").returncode == 0
    assert [route["name"] for route in yaml.safe_load(output.read_text())["binds"][0]["listeners"][0]["routes"]] == [
        "holdfast-check"
    ]
    assert gateway(*options, "--targets", mcp, "--once", "--no-watch").returncode == 0
    with_targets = output.read_text()
    assert gateway(*options, "--seed").returncode == 0
    assert output.read_text() == with_targets


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ((), "name exactly one source of targets"),
        (("--targets", "m.json", "--targets-url", "http://h"), "name exactly one source of targets"),
        (("--targets", "m.json", "--poll", "0s"), "--poll must be more than 0"),
        (("--targets", "m.json", "--poll", "5"), "--poll needs a unit"),
        (("--targets", "m.json", "--listen", "here"), "--listen is `here`"),
    ],
)
def test_a_bridge_that_is_called_wrongly_says_what_is_wrong(options: tuple[str, ...], complaint: str) -> None:
    ran = gateway("bridge", "--gateway-version", "1.4.1", "--output", "c.yaml", "--ext-auth-host", "a:1", *options)
    assert ran.returncode == 2
    assert complaint in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_folder_that_is_not_there_is_an_error_with_a_hint(tmp_path: Path) -> None:
    output = tmp_path / "none" / "config.yaml"
    ran = gateway("bridge", "--gateway-version", "1.4.1", "--output", output, "--ext-auth-host", "a:1", "--seed")
    assert ran.returncode == 1
    assert "No such file or directory" in ran.stderr
    assert "hint: check that the folder exists" in ran.stderr


def test_without_its_extra_the_command_says_what_to_install(tmp_path: Path) -> None:
    program = "import sys; sys.modules['yaml'] = None; from holdfast.cli.entry import run; sys.exit(run(sys.argv[1:]))"
    command = [sys.executable, "-c", program, "gateway", "render", "--gateway-version", "1.4.1"]
    surroundings = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    ran = subprocess.run(command, capture_output=True, text=True, env=surroundings, timeout=60, check=False)
    assert ran.returncode == 1
    assert "needs missing packages: yaml" in ran.stderr
    assert "pipx install --force '.[gateway]'" in ran.stderr
