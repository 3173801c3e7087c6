"""``holdfast config show`` tells what was found and where it came from, and shows no secret."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast

SECRET = "s3cr3t-value"

GOOD = f"""{{
  "mcpServers": {{
    "github": {{
      "url": "https://me:{SECRET}@example.com/mcp?api_key={SECRET}&page=2&q=${{QUERY}}",
      "headers": {{"Authorization": "Bearer {SECRET}", "X-Key": "${{env:GH_KEY}}"}},
      "autoApprove": ["a"]
    }},
    "files": {{
      "command": "npx",
      "args": ["-y", "my server", "--token", "{SECRET}", "${{GH_KEY}}", "${{DEPTH:-deep}}"],
      "env": {{"A": "{SECRET}", "SHORT": "1"}},
      "envFile": "vars.env",
      "tools": {{"include": ["read_*"]}},
      "disabled": true, "lazy": true
    }}
  }},
  "inputs": [],
  "holdfast": {{"load": {{"attempts": 5, "backoff": "${{PAUSE}}"}}, "refresh": "off",
    "breaker": {{"growth": 1.5}}, "reconnect": {{"backoff": ["500ms", "${{PAUSE}}"]}}}}
}}"""

Show = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def show(tmp_path: Path) -> Show:
    """Run ``config show`` as a process of its own, in an environment of its own."""

    def run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", "from holdfast.cli.entry import main; main()", "config", "show", *arguments]
        # The process must run the package that is under test, also where another copy of it is installed.
        package = str(Path(holdfast.__file__).parents[1])
        clean = {"PATH": os.environ["PATH"], "PYTHONPATH": package, "HOME": str(tmp_path / "home"), "TERM": "dumb"}
        return subprocess.run(
            command, cwd=tmp_path, env={**clean, **environ}, capture_output=True, text=True, check=False, timeout=60
        )

    return run


@pytest.fixture
def good(tmp_path: Path) -> Path:
    (tmp_path / "vars.env").write_text(f"# two\nB={SECRET}\n")
    file = tmp_path / "mcp.json"
    file.write_text(GOOD)
    return file


ENVIRON = {"GH_KEY": SECRET + "2", "QUERY": SECRET + "3", "PAUSE": "2s"}


def row(text: str, key: str) -> str:
    """The line of ``key``, its columns set apart by bars."""
    line = next(line for line in text.splitlines() if line.split()[:1] == [key])
    return " | ".join(part.strip() for part in line.split("  ") if part.strip())


def test_it_says_how_a_limit_without_a_unit_was_read(show: Show, tmp_path: Path) -> None:
    servers = {
        "a": {"command": "x", "timeout": 300, "startTimeout": "30s"},
        "b": {"url": "https://e.example/mcp", "timeout": 300000},
        "c": {"command": "x", "timeout": "5m"},
        "d": {"command": "x"},
    }
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
    out = " ".join(show().stdout.split())
    assert "timeout 5m (300 read as seconds)" in out
    assert "timeout 5m (300000 read as milliseconds)" in out
    assert "timeout 5m mcp.json" in out
    assert "timeout as holdfast.call.timeout default" in out
    assert "startTimeout 30s mcp.json" in out
    values = json.loads(show("--json").stdout)["servers"][0]["values"]
    (limit,) = (one for one in values if one["key"] == "timeout")
    assert (limit["value"], limit["note"]) == ("5m", "300 read as seconds")


def test_every_value_is_shown_with_where_it_came_from(show: Show, good: Path) -> None:
    done = show(**ENVIRON)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    out = done.stdout
    assert f"Configuration: {good}" in out
    assert "files  disabled" in out
    assert row(out, "headers.X-Key") == "headers.X-Key | *** | env GH_KEY (mcp.json:5:68)"
    assert row(out, "allowPlainHttp") == "allowPlainHttp | false | default"
    assert row(out, "command") == "command | npx | mcp.json:9:18"
    assert row(out, "env.SHORT") == "env.SHORT | *** | mcp.json:11:45"
    assert row(out, "env.B") == "env.B | *** | vars.env:2"
    assert row(out, "load.attempts") == "load.attempts | 5 | mcp.json:18:37"
    assert row(out, "load.backoff") == "load.backoff | 2s | env PAUSE (mcp.json:18:51)"
    assert row(out, "call.timeout") == "call.timeout | 1m | default"
    assert row(out, "call.queue") == "call.queue | 256 | default"
    assert row(out, "breaker.growth") == "breaker.growth | 1.5 | mcp.json:19:27"
    assert row(out, "reconnect.backoff") == "reconnect.backoff | 500ms 2s | env PAUSE (mcp.json:19:58)"
    assert row(out, "reconnect.selfProbe") == "reconnect.selfProbe | 5m | default"
    assert row(out, "refresh") == "refresh | off | mcp.json:18:75"
    assert row(out, "idle") == "idle | 5m | default"
    assert "inferred from url" in out
    assert "inferred from command" in out
    assert "ignored: autoApprove (Cline, Kiro), mcp.json:6:22" in out
    assert "ignored: inputs (VS Code), mcp.json:17:13" in out


@pytest.mark.requirement("MSG-6")
@pytest.mark.parametrize("arguments", [(), ("--json",)])
def test_no_secret_is_shown(show: Show, good: Path, arguments: tuple[str, ...]) -> None:
    done = show(*arguments, **ENVIRON, COLUMNS="200")
    assert done.returncode == 0
    assert SECRET not in done.stdout + done.stderr
    assert "https://***@example.com/mcp?api_key=***" in done.stdout
    assert "--token" in done.stdout
    assert "deep" in done.stdout, "what stands in the file as a default is no secret"


def test_json_says_the_same_for_programs(show: Show, good: Path) -> None:
    report = json.loads(show("--json", **ENVIRON).stdout)
    assert (report["version"], report["file"], report["problems"]) == (1, str(good), [])
    github, files = report["servers"]
    assert (github["id"], github["status"], files["status"]) == ("github", "usable", "disabled")
    values = {value["key"]: value for value in files["values"]}
    assert values["tools.include"]["value"] == ["read_*"]
    assert values["tools.include"]["from"] == {"kind": "file", "place": "mcp.json:13:28", "variables": []}
    assert values["args"]["value"] == ["-y", "my server", "--token", "***", "***", "deep"]
    assert values["args"]["from"]["variables"] == ["GH_KEY"]
    assert values["enabled"] == {
        "key": "enabled",
        "value": False,
        "from": {"kind": "file", "place": "mcp.json:14:19", "variables": []},
        "note": "",
    }
    assert (values["lazy"]["value"], values["lazy"]["from"]["place"]) == (True, "mcp.json:14:33")
    settings = {value["key"]: value["value"] for value in report["settings"]}
    assert (settings["reconnect.backoff"], settings["breaker.growth"]) == (["500ms", "2s"], "1.5")
    assert github["ignored"] == [{"key": "autoApprove", "why": "Cline, Kiro", "place": "mcp.json:6:22"}]


def test_nothing_found_says_where_it_looked(show: Show, tmp_path: Path) -> None:
    done = show()
    assert done.returncode == 1
    assert str(tmp_path / ".vscode" / "mcp.json") in done.stdout
    assert "error: no configuration file was found" in done.stderr
    report = json.loads(show("--json").stdout)
    assert report["file"] is None
    assert str(tmp_path / "home" / ".config" / "holdfast" / "mcp.json") in report["searched"]


def test_a_broken_file_gives_its_place_and_cause_and_no_traceback(show: Show, tmp_path: Path) -> None:
    file = tmp_path / "other.json"
    file.write_text('{\n  "mcpServers": {"a": {"command" "x"}}\n}')
    done = show("--config", "other.json")
    assert done.returncode == 1
    assert f"error: {file}:2:34: a colon is missing before this" in done.stderr
    assert "hint: " in done.stderr
    assert "Traceback" not in done.stderr
    assert json.loads(show("--config", "other.json", "--json").stdout)["problems"][0]["line"] == 2


def test_a_bad_server_is_shown_with_all_its_problems_beside_the_good_ones(show: Show, tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    file.write_text('{"mcpServers": {"bad": {"command": "x", "argz": [], "cwd": "${NOPE}"}, "good": {"command": "x"}}}')
    done = show()
    assert done.returncode == 1
    assert "bad  not usable" in done.stdout
    assert f"{file}:1:41: unknown key `argz`" in done.stdout
    assert "did you mean `args`?" in done.stdout
    assert f"{file}:1:60: `cwd` needs the environment variable `NOPE`" in done.stdout
    assert "error: not usable: bad" in done.stderr
    report = json.loads(show("--json").stdout)
    assert [(server["id"], server["status"]) for server in report["servers"]] == [("bad", "bad"), ("good", "usable")]


def test_it_fits_80_columns_and_has_no_colour_where_none_is_asked_for(show: Show, good: Path) -> None:
    out = show(**ENVIRON).stdout
    tables = [line for line in out.splitlines() if line.startswith("  ") and not line.startswith("  ignored")]
    assert max(map(len, tables)) <= 80
    assert "\x1b" not in out


def test_wrong_usage_is_told_apart(show: Show) -> None:
    assert show("--jsn").returncode == 2


def test_names_that_would_upset_a_terminal_are_shown_safely(show: Show, tmp_path: Path) -> None:
    (tmp_path / "mcp.json").write_text(
        '{"mcpServers": {"a\\u001b[31m": {"x\\u0007y[bold]": 1}, "[red]b": {"command": "[b]"}}}'
    )
    done = show()
    assert "\x1b" not in done.stdout + done.stderr
    assert "\x07" not in done.stdout + done.stderr
    assert "[red]b" in done.stdout
    assert "[b]" in done.stdout
