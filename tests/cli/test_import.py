"""``holdfast import`` copies servers, points clients at the hub and back, and shows no secret."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import holdfast
from holdfast.files import replace_file
from tests.cli.json_outputs import check_output

SECRET = "s3cr3t-value"

CURSOR = f"""{{
  // my servers
  "mcpServers": {{
    "github": {{
      "url": "https://example.com/mcp?api_key={SECRET}", // work
      "headers": {{"Authorization": "Bearer {SECRET}"}}
    }},
    "files": {{"command": "npx", "args": ["--token", "{SECRET}"], "env": {{"A": "{SECRET}", "B": "${{env:B}}"}}}},
  }},
  "unknown": {{"kept": [1, 2]}} // stays
}}
"""

CODEX = f"""\
model = "best" # mine

[mcp_servers.linear]
url = "https://example.com/mcp"
http_headers = {{ "X-Key" = "{SECRET}" }}

# about profiles
[profiles.fast]
model = "small"
"""

GITHUB = f"""\
  github:
    type: stdio
    cmd: npx
    args:
      - -y
      - server-github
    envs:
      TOKEN: "{SECRET}" # mine
    enabled: true
"""

GOOSE = f"""\
# my model
GOOSE_MODEL: 'best'
extensions:
  developer:
    type: builtin
    enabled: true # of Goose itself
  # for work
{GITHUB}
  # the last one was github
GOOSE_MODE: auto
"""

CONTINUE = f"""\
name: best
mcpServers:
- name: linear
  type: streamable-http
  url: https://example.com/mcp
  requestOptions:
    headers: {{"X-Key": "{SECRET}"}}
# the end
"""

Ran = subprocess.CompletedProcess[str]
Import = Callable[..., Ran]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home" / ".cursor").mkdir(parents=True)
    (tmp_path / "home" / ".codex").mkdir()
    (tmp_path / "project").mkdir()
    return tmp_path / "home"


@pytest.fixture
def cursor(home: Path) -> Path:
    file = home / ".cursor" / "mcp.json"
    file.write_text(CURSOR)
    file.chmod(0o640)
    return file


@pytest.fixture
def codex(home: Path) -> Path:
    file = home / ".codex" / "config.toml"
    file.write_text(CODEX)
    return file


@pytest.fixture
def ours(home: Path) -> Path:
    return home / ".config" / "holdfast" / "mcp.json"


@pytest.fixture
def run(home: Path) -> Import:
    def run(*arguments: str, code: int = 0, **environ: str) -> Ran:
        command = [sys.executable, "-c", "from holdfast.cli.entry import main; main()", "import", *arguments]
        package = str(Path(holdfast.__file__).parents[1])
        clean = {"PATH": os.environ["PATH"], "PYTHONPATH": package, "HOME": str(home), "TERM": "dumb", "COLUMNS": "80"}
        ran = subprocess.run(
            command,
            cwd=home.parent / "project",
            env={**clean, **environ},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            stdin=subprocess.DEVNULL,
        )
        assert SECRET not in ran.stdout + ran.stderr
        assert "Traceback" not in ran.stderr
        assert ran.returncode == code, ran.stdout + ran.stderr
        check_output(["import", *arguments], ran.stdout)
        return ran

    return run


def servers(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.read_text())["mcpServers"]
    return found


@pytest.mark.requirement("SEC-10")
def test_the_token_of_local_callers_is_written_for_clients_and_never_shown(
    run: Import, home: Path, cursor: Path, codex: Path
) -> None:
    state = home / ".local" / "state" / "holdfast"
    state.mkdir(parents=True)
    token = "token-of-local-callers-0123"
    replace_file(state / "caller.token", token)
    ran = run("all", "--apply", "--yes")
    assert token not in ran.stdout + ran.stderr
    assert f"Bearer {token}" in cursor.read_text()
    written = tomllib.loads(codex.read_text())["mcp_servers"]["holdfast"]
    assert written["http_headers"] == {"Authorization": f"Bearer {token}"}


def test_without_a_client_it_shows_what_there_is_and_changes_nothing(run: Import, cursor: Path, ours: Path) -> None:
    ran = run()
    assert "cursor" in ran.stdout
    assert "github, files" in ran.stdout
    assert not ours.exists()
    assert cursor.read_text() == CURSOR


def test_without_any_client_it_says_where_it_looked(run: Import) -> None:
    assert ".cursor/mcp.json" in run().stderr


def test_servers_are_copied_into_a_file_that_only_the_user_can_read(run: Import, cursor: Path, ours: Path) -> None:
    ran = run("cursor")
    assert servers(ours)["github"]["headers"] == {"Authorization": f"Bearer {SECRET}"}
    assert list(servers(ours)) == ["github", "files"]
    assert ours.stat().st_mode & 0o777 == 0o600
    assert cursor.read_text() == CURSOR
    assert "set these variables where the hub runs: B" in ran.stdout


def test_our_own_file_keeps_its_comments_and_servers(run: Import, cursor: Path, ours: Path) -> None:
    ours.parent.mkdir(parents=True)
    ours.write_text('{\n  // hand-made\n  "mcpServers": {\n    "mine": {"command": "x"}\n  }\n}\n')
    run("cursor")
    text = ours.read_text()
    assert text.startswith('{\n  // hand-made\n  "mcpServers": {\n    "mine": {"command": "x"},\n    "github": {\n')


def test_importing_twice_changes_nothing_more(run: Import, cursor: Path, ours: Path) -> None:
    run("cursor")
    before = ours.read_text()
    assert "already there" in run("cursor").stdout
    assert ours.read_text() == before


def test_another_server_of_the_same_name_is_not_overwritten(run: Import, cursor: Path, ours: Path) -> None:
    ours.parent.mkdir(parents=True)
    ours.write_text('{"mcpServers": {"files": {"command": "mine"}}}')
    ran = run("cursor", "--apply", code=1)
    assert "another server named `files`" in ran.stdout
    assert servers(ours)["files"] == {"command": "mine"}
    assert '"files"' in cursor.read_text(), "what could not be taken stays with its client"
    assert '"github"' not in cursor.read_text()


@pytest.mark.requirement("DX-3")
def test_a_name_that_is_taken_is_resolved_by_rename_once(run: Import, cursor: Path, ours: Path) -> None:
    ours.parent.mkdir(parents=True)
    ours.write_text('{"mcpServers": {"files": {"command": "mine"}, "files-cursor": {"command": "other"}}}')
    assert "--rename copies this one as `files-cursor`" in run("cursor", code=1).stdout
    ran = run("cursor", "--rename", "--apply")
    assert "files  copied as files-cursor-2  from Cursor" in ran.stdout
    assert "github  already there  from Cursor" in ran.stdout
    assert servers(ours)["files"] == {"command": "mine"}
    assert servers(ours)["files-cursor-2"]["command"] == "npx"
    assert '"files"' not in cursor.read_text(), "it is served by the hub now"
    run("cursor", "--undo")
    assert cursor.read_text() == CURSOR


@pytest.mark.requirement("DX-3")
def test_a_renamed_server_is_known_again(run: Import, cursor: Path, ours: Path) -> None:
    ours.parent.mkdir(parents=True)
    ours.write_text('{"mcpServers": {"files": {"command": "mine"}}}')
    run("cursor", "--rename", "--json")
    before = ours.read_text()
    rows = json.loads(run("cursor", "--json").stdout)["servers"]
    assert [(row["name"], row["outcome"], row["renamed"]) for row in rows] == [
        ("github", "there", None),
        ("files", "there", "files-cursor"),
    ]
    assert ours.read_text() == before


@pytest.mark.requirement("DX-3")
def test_the_open_folder_of_an_editor_becomes_the_folder_of_the_project_or_is_refused(
    run: Import, home: Path, cursor: Path, ours: Path
) -> None:
    where = {"command": "srv", "args": ["--name", "${workspaceFolderBasename}"], "cwd": "${workspaceFolder}/tools"}
    cursor.write_text(json.dumps({"mcpServers": {"own": where}}))
    ran = run("cursor", code=1)
    assert "own  stays with the client  in Cursor" in ran.stdout
    assert "it uses `${workspaceFolder}`, the folder that is open in the editor" in ran.stdout
    assert "import with --project" in ran.stdout
    assert not ours.exists()

    project = home.parent / "project"
    (project / ".cursor").mkdir()
    (project / ".cursor" / "mcp.json").write_text(json.dumps({"mcpServers": {"there": where}}))
    cursor.write_text('{"mcpServers": {}}')
    run("cursor", "--project")
    assert servers(ours)["there"] == {
        "command": "srv",
        "args": ["--name", "project"],
        "cwd": f"{project}/tools",
    }


def test_apply_points_the_client_at_the_hub_and_keeps_everything_else(run: Import, cursor: Path) -> None:
    ran = run("cursor", "--apply")
    assert (
        cursor.read_text()
        == """{
  // my servers
  "mcpServers": {
    "holdfast": {
      "url": "http://127.0.0.1:4653/mcp"
    }
  },
  "unknown": {"kept": [1, 2]} // stays
}
"""
    )
    assert cursor.stat().st_mode & 0o777 == 0o640
    assert '-    "github": {' in ran.stderr, "the diff is shown"
    assert "***" in ran.stderr


@pytest.fixture
def copilot(home: Path) -> Path:
    file = home / ".copilot" / "mcp-config.json"
    file.parent.mkdir()
    file.write_text('{"mcpServers": {"one": {"type": "local", "command": "true", "tools": ["*"]}}}')
    return file


@pytest.mark.requirement("FIND-8")
@pytest.mark.parametrize("by", ["address", "file"])
def test_a_client_with_its_own_search_is_kept_from_hiding_the_tools_of_find_mode(
    run: Import, copilot: Path, ours: Path, by: str
) -> None:
    url = "http://127.0.0.1:4653/mcp"
    if by == "file":
        ours.parent.mkdir(parents=True)
        ours.write_text('{"mcpServers": {}, "holdfast": {"tools": "find"}}')
    ran = run("copilot", "--apply", *(("--url", f"{url}?tools=find") if by == "address" else ()))
    entry = servers(copilot)["holdfast"]
    assert entry["deferTools"] == "never"
    assert entry["url"].startswith(url)
    assert "it has a search of its own over the tools of servers" in ran.stdout


@pytest.mark.requirement("FIND-8")
def test_a_client_with_its_own_search_may_use_it_on_the_full_list(run: Import, copilot: Path) -> None:
    ran = run("copilot", "--apply")
    assert "deferTools" not in servers(copilot)["holdfast"]
    assert "it has a search of its own over the tools of servers" in ran.stdout


@pytest.mark.requirement("DX-13")
@pytest.mark.parametrize(
    ("options", "then"),
    [
        ((), "Start the hub: {own} serve --config {file}\n"),
        (("--url", "http://127.0.0.1:9123/mcp"), "Start the hub: {own} serve --config {file} --port 9123\n"),
        (("--url", "http://[::1]:9123/mcp"), "Start the hub: {own} serve --config {file} --host ::1 --port 9123\n"),
        (("--url", "https://hub.example/mcp"), "The client needs the hub at https://hub.example/mcp"),
        (("--stdio",), "The client starts the hub itself."),
    ],
)
def test_apply_prints_the_command_that_serves_the_url_of_the_client(
    run: Import, cursor: Path, ours: Path, options: tuple[str, ...], then: str
) -> None:
    own = Path(sys.executable).with_name("holdfast")
    said = run("cursor", "--apply", *options).stderr
    assert then.format(own=own, file=ours) in said
    assert ("Start the hub" in said) == then.startswith("Start")


@pytest.mark.requirement("DX-3")
def test_apply_offers_the_service_until_there_is_one(run: Import, cursor: Path, ours: Path, home: Path) -> None:
    own = Path(sys.executable).with_name("holdfast")
    offered = f"To keep it running in the background: {own} service install --config {ours}"
    assert offered in run("cursor", "--apply").stderr
    run("cursor", "--undo")
    unit = home / ".config" / "systemd" / "user" / "holdfast.service"
    unit.parent.mkdir(parents=True)
    unit.write_text("")
    assert "background" not in run("cursor", "--apply").stderr


def test_undo_restores_the_file_to_the_byte(run: Import, cursor: Path) -> None:
    run("cursor", "--apply")
    assert "restored" in run("cursor", "--undo").stdout
    assert cursor.read_text() == CURSOR
    run("cursor", "--undo", code=1)


def test_undo_keeps_what_the_client_changed_meanwhile(run: Import, cursor: Path) -> None:
    run("cursor", "--apply")
    cursor.write_text(cursor.read_text().replace('"unknown"', '"newer": true,\n  "unknown"'))
    run("cursor", "--undo")
    text = cursor.read_text()
    assert '"newer": true' in text
    assert '"holdfast"' not in text
    assert list(servers_of(text)) == ["github", "files"]


def servers_of(text: str) -> dict[str, Any]:
    lines = (line.partition(" //")[0] for line in text.splitlines() if not line.strip().startswith("//"))
    found: dict[str, Any] = json.loads("\n".join(lines))["mcpServers"]
    return found


def test_a_backup_is_for_the_user_alone(run: Import, cursor: Path, home: Path) -> None:
    run("cursor", "--apply")
    (backup,) = (home / ".local" / "state" / "holdfast" / "backups").iterdir()
    assert backup.stat().st_mode & 0o077 == 0
    assert json.loads(backup.read_text())["before"] == CURSOR


def test_toml_is_edited_as_carefully_as_json(run: Import, codex: Path) -> None:
    run("codex", "--apply")
    text = codex.read_text()
    assert tomllib.loads(text)["mcp_servers"] == {"holdfast": {"url": "http://127.0.0.1:4653/mcp"}}
    assert 'model = "best" # mine' in text
    assert "# about profiles\n[profiles.fast]" in text
    codex.write_text(text.replace("best", "other"))
    run("codex", "--undo")
    again = tomllib.loads(codex.read_text())
    assert again == {**tomllib.loads(CODEX), "model": "other"}


def test_toml_that_cannot_be_edited_safely_is_left_alone(run: Import, codex: Path) -> None:
    inline = f'mcp_servers = {{ linear = {{ url = "https://example.com/{SECRET}" }} }}\n'
    codex.write_text(inline)
    assert "cannot be edited safely" in run("codex", "--apply", code=1).stderr
    assert codex.read_text() == inline


@pytest.mark.requirement("DX-13")
def test_yaml_is_edited_line_by_line_and_put_back(run: Import, home: Path, ours: Path) -> None:
    goose, continued = home / ".config" / "goose" / "config.yaml", home / ".continue" / "config.yaml"
    for file, text in ((goose, GOOSE), (continued, CONTINUE)):
        file.parent.mkdir(parents=True)
        file.write_text(text)
    run("goose", "--apply")
    run("continue", "--apply", "--stdio")
    assert list(servers(ours)) == ["github", "linear"]
    text = goose.read_text()
    assert all(line in text.splitlines() for line in GOOSE.replace(GITHUB, "").splitlines())
    assert "server-github" not in text
    assert list(yaml.safe_load(text)["extensions"]) == ["developer", "holdfast"]
    assert yaml.safe_load(text)["extensions"]["holdfast"]["uri"] == "http://127.0.0.1:4653/mcp"
    (hub,) = yaml.safe_load(continued.read_text())["mcpServers"]
    assert (hub["name"], hub["args"][-4:-2]) == ("holdfast", ["serve", "--stdio"])
    assert "# the end" in continued.read_text()
    continued.write_text(continued.read_text().replace("best", "other"))
    run("all", "--undo")
    assert goose.read_text() == GOOSE
    assert yaml.safe_load(continued.read_text()) == {**yaml.safe_load(CONTINUE), "name": "other"}


@pytest.mark.parametrize(
    "text", ["extensions: {a: {type: stdio, cmd: x}}\n", "extensions:\n  a: &a\n    cmd: x\nb: *a\n"]
)
def test_yaml_that_cannot_be_edited_safely_is_left_alone(run: Import, home: Path, text: str) -> None:
    file = home / ".config" / "goose" / "config.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    assert "cannot be edited safely" in run("goose", "--apply", code=1).stderr
    assert file.read_text() == text


@pytest.mark.requirement("DX-9")
def test_the_file_of_a_project_names_the_folder_that_is_open_and_that_of_the_user_does_not(
    run: Import, home: Path, cursor: Path
) -> None:
    project = home.parent / "project" / ".cursor" / "mcp.json"
    project.parent.mkdir()
    project.write_text('{"mcpServers": {"here": {"command": "npx"}}}')
    run("cursor", "--project", "--apply", "--stdio")
    assert servers(project)["holdfast"]["args"][-2:] == ["--folder", "${workspaceFolder}"]
    assert "--folder" not in cursor.read_text()


def test_a_link_stays_a_link(run: Import, cursor: Path, tmp_path: Path) -> None:
    dotfiles = tmp_path / "dotfiles.json"
    cursor.rename(dotfiles)
    cursor.symlink_to(dotfiles)
    run("cursor", "--apply")
    assert cursor.is_symlink()
    assert "holdfast" in dotfiles.read_text()


def test_a_client_that_can_only_start_programs_starts_the_hub(run: Import, home: Path, ours: Path) -> None:
    file = home / ".config" / "Claude" / "claude_desktop_config.json"
    file.parent.mkdir(parents=True)
    file.write_text('{"mcpServers": {"files": {"command": "npx"}}}')
    run("claude", "--apply", XDG_CONFIG_HOME=str(home / ".config"))
    entry = servers(file)["holdfast"]
    assert entry["args"][-4:] == ["serve", "--stdio", "--config", str(ours)]
    assert Path(entry["command"]).is_absolute()


def test_two_places_in_one_file_are_both_pointed_and_put_back(run: Import, home: Path) -> None:
    file = home / ".claude.json"
    project = str(home.parent / "project")
    before = json.dumps(
        {
            "oauthAccount": {"token": SECRET},
            "mcpServers": {"a": {"command": "a"}},
            "projects": {project: {"history": [1], "mcpServers": {"b": {"command": "./b"}}}},
        },
        indent=2,
    )
    file.write_text(before)
    run("claude-code", "--apply", "--project")
    after = json.loads(file.read_text())
    hub = {"holdfast": {"type": "http", "url": "http://127.0.0.1:4653/mcp"}}
    assert after["mcpServers"] == hub
    assert after["projects"][project] == {"history": [1], "mcpServers": hub}
    assert servers(home / ".config/holdfast/mcp.json")["b"] == {"command": "./b", "cwd": project}
    run("claude-code", "--undo")
    assert file.read_text() == before


def test_a_dry_run_shows_and_does_nothing(run: Import, cursor: Path, ours: Path) -> None:
    ran = run("cursor", "--apply", "--dry-run")
    assert "would be copied" in ran.stdout
    assert "+++" in ran.stderr
    assert cursor.read_text() == CURSOR
    assert not ours.exists()


def test_programs_get_json(run: Import, cursor: Path, ours: Path) -> None:
    told = json.loads(run("cursor", "--apply", "--json").stdout)
    assert (told["version"], told["config"], told["written"]) == (1, str(ours), True)
    assert [(row["name"], row["outcome"], row["needs"]) for row in told["servers"]] == [
        ("github", "new", []),
        ("files", "new", ["B"]),
    ]
    (pointed,) = told["pointed"]
    assert pointed["moved"] == ["github", "files"]
    assert Path(pointed["backup"]).exists()
    undone = json.loads(run("--undo", "--json").stdout)
    assert undone["undone"][0]["restored"] == ["github", "files"]


def test_a_broken_file_is_an_error_with_its_place(run: Import, cursor: Path) -> None:
    cursor.write_text(f'{{"mcpServers": {{"a": "{SECRET}" "b"}}}}')
    assert f"{cursor}:1:" in run("cursor", code=1).stderr


def test_a_file_that_is_no_object_is_an_error(run: Import, cursor: Path) -> None:
    cursor.write_text("[]")
    assert "must hold an object" in run("cursor", "--apply", code=1).stderr


def test_a_place_that_cannot_be_written_is_told(run: Import, cursor: Path, home: Path) -> None:
    (home / "a-file").touch()
    ran = run("cursor", "--apply", "--config", str(home / "a-file" / "mcp.json"), code=1)
    assert "cannot be written" in ran.stderr
    assert cursor.read_text() == CURSOR


def test_a_client_without_servers_can_be_pointed_at_the_hub(run: Import, cursor: Path) -> None:
    cursor.write_text("")
    run("cursor", "--apply")
    assert servers(cursor) == {"holdfast": {"url": "http://127.0.0.1:4653/mcp"}}


def test_a_byte_order_mark_stays(run: Import, cursor: Path) -> None:
    cursor.write_text('\ufeff{"mcpServers": {}}\r\n', newline="")
    run("cursor", "--apply")
    assert cursor.read_bytes().decode() == (
        '\ufeff{"mcpServers": {"holdfast": {"url": "http://127.0.0.1:4653/mcp"}}}\r\n'
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["curser"], "there is no client `curser`"),
        (["cursor", "--apply", "--undo"], "exclude each other"),
        (["--apply"], "needs a client"),
    ],
)
def test_wrong_usage_is_told(run: Import, cursor: Path, arguments: list[str], said: str) -> None:
    assert said in run(*arguments, code=2).stderr


def test_a_clients_file_is_never_ours_too(run: Import, cursor: Path) -> None:
    assert "at the same time" in run("cursor", "--config", str(cursor), code=2).stderr
    assert cursor.read_text() == CURSOR
