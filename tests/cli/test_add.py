"""``holdfast add``, ``remove`` and ``list``: edits that keep the file as it is, a try at once, and an undo."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from holdfast.config import TrustStore
from holdfast.testing import StdioServer
from tests.cli.command import Cli
from tests.cli.in_process import Inside, trusted
from tests.peers.http_fault import FaultServer, respond

pytestmark = pytest.mark.requirement("DX-2")

SECRET = "s3cr3t-value-0123456789"

WITH_COMMENTS = """\
{
  // the servers of this team
  "mcpServers": {
    "old": {"command": "x"}, // keep this one
    "last": {
      "url": "https://last.example/mcp"
    }
  },
  "holdfast": {"refresh": "60s"} /* ours */
}
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """The user's own file."""
    return tmp_path / ".config" / "holdfast" / "mcp.json"


def servers(file: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads(file.read_text())["mcpServers"]
    return found


def test_a_command_is_added_to_the_users_own_file_and_tried(inside: Inside, own: Path) -> None:
    with StdioServer({"echo": "says it again"}) as server:
        command, args = str(server.definition["command"]), json.loads(json.dumps(server.definition["args"]))
        ran = inside("add", "notes", "--", command, *args)
    assert ran.code == 0, ran.err
    assert ran.out == f"added notes to {own}\nIt works: 1 tool.\n"
    assert servers(own) == {"notes": {"command": command, "args": args}}
    assert own.stat().st_mode & 0o777 == 0o600
    assert f"add --undo --file {own}" in ran.err


def test_a_server_that_does_not_work_is_added_and_the_reason_is_shown(inside: Inside, own: Path) -> None:
    ran = inside("add", "typo", "--", "no-such-command-here")
    assert ran.code == 1
    assert "MCP server 'typo' is unavailable: " in ran.err
    assert "no-such-command-here" in ran.err
    assert list(servers(own)) == ["typo"]


def test_comments_and_formatting_stay_and_undo_restores_the_file(inside: Inside, tmp_path: Path) -> None:
    file = tmp_path / "team.json"
    file.write_text(WITH_COMMENTS)
    added = inside("add", "new", "https://new.example/mcp", "--no-check", "--file", str(file))
    assert added.code == 0, added.err
    assert file.read_text() == WITH_COMMENTS.replace(
        """/mcp"
    }
  },""",
        """/mcp"
    },
    "new": {
      "type": "http",
      "url": "https://new.example/mcp"
    }
  },""",
    )
    removed = inside("remove", "old", "--file", str(file))
    assert removed.out == f"removed old from {file}\n"
    assert '"old"' not in file.read_text()
    assert "// the servers of this team" in file.read_text()
    for _ in range(2):
        assert inside("remove", "--undo", "--file", str(file)).code == 0
    assert file.read_text() == WITH_COMMENTS
    assert inside("add", "--undo", "--file", str(file)).code == 1


def test_undo_keeps_what_others_changed_since(inside: Inside, tmp_path: Path) -> None:
    file = tmp_path / "team.json"
    file.write_text(WITH_COMMENTS)
    inside("add", "new", "https://new.example/mcp", "--no-check", "--file", str(file))
    file.write_text(file.read_text().replace('"60s"', '"30s"'))
    assert inside("add", "--undo", "--file", str(file)).code == 0
    assert file.read_text() == WITH_COMMENTS.replace('"60s"', '"30s"')


@pytest.mark.requirement("MSG-6")
def test_a_secret_is_written_as_a_reference_with_the_line_to_export(inside: Inside, own: Path) -> None:
    header = f"Authorization: Bearer {SECRET}"
    first = inside("add", "hub-api", "https://api.example/mcp", "--header", header, "--no-check")
    second = inside("add", "files", "--env", f"API_KEY={SECRET}", "--env", "MODE=fast", "--no-check", "--", "x")
    assert (first.code, second.code) == (0, 0), first.err + second.err
    assert servers(own) == {
        "hub-api": {
            "type": "http",
            "url": "https://api.example/mcp",
            "headers": {"Authorization": "Bearer ${env:HUB_API_TOKEN}"},
        },
        "files": {"command": "x", "env": {"API_KEY": "${env:API_KEY}", "MODE": "fast"}},
    }
    assert "export HUB_API_TOKEN='your value'" in first.err
    assert "export API_KEY='your value'" in second.err
    assert SECRET not in first.out + first.err + second.out + second.err + own.read_text()


@pytest.mark.anyio
async def test_the_secret_that_was_given_is_used_for_the_first_try(inside: Inside) -> None:
    async with FaultServer(respond(200, "{}")) as server:
        arguments = ("add", "api", f"{server.origin}/mcp", "--header", f"X-Api-Key: {SECRET}")
        await anyio.to_thread.run_sync(inside, *arguments)
        assert server.requests[0].headers["x-api-key"] == SECRET


def test_a_stored_secret_is_in_a_private_file_that_the_command_reads(inside: Inside, own: Path) -> None:
    ran = inside("add", "files", "--env", f"API_KEY={SECRET}", "--store-secrets", "--no-check", "--", "x")
    assert ran.code == 0, ran.err
    stored = own.parent / "secrets" / "files.env"
    assert (stored.read_text(), stored.stat().st_mode & 0o777) == (f'API_KEY="{SECRET}"\n', 0o600)
    assert servers(own) == {"files": {"command": "x", "envFile": str(stored)}}
    assert "export" not in ran.err
    shown = json.loads(inside("list", "--config", str(own), "--json").out)
    assert shown["servers"][0]["state"] == "enabled"
    assert SECRET not in json.dumps(shown)


def test_on_a_terminal_a_secret_without_a_value_is_asked_for(cli: Cli) -> None:
    with cli.on_terminal("add", "files", "--env", "API_KEY", "--store-secrets", "--no-check", "--", "x") as terminal:
        terminal.until("API_KEY: ")
        terminal.press(f"{SECRET}\n")
        assert terminal.code() == 0
        assert SECRET not in terminal.text
    stored = cli.folder / ".config" / "holdfast" / "secrets" / "files.env"
    assert SECRET in stored.read_text()


@pytest.mark.requirement("DX-13")
def test_ctrl_c_during_the_try_says_what_was_kept(cli: Cli) -> None:
    own = cli.folder / ".config" / "holdfast" / "mcp.json"
    with cli.on_terminal("add", "slow", "--", "sleep", "60") as terminal:
        terminal.until(f"added slow to {own}")
        terminal.until(f"add --undo --file {own}")
        terminal.until("connecting to slow")
        terminal.press("\x03")
        assert terminal.code() == 130
    assert "slow" in servers(own)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "name the server, and its URL or command"),
        (("one",), "name the server, and its URL or command"),
        (("a/b", "--", "x"), "is not a name for a server"),
        (("one", "https://x.example/mcp", "--env", "A=1"), "--env and --cwd are for a command"),
        (("one", "--header", "A: b", "--", "x"), "--header and --type are for a URL"),
        (("one", "https://x.example/mcp", "--type", "smoke"), "`--type`: `smoke` is not one of `http`, `sse`"),
        (("one", "https://x.example/mcp", "--header", "nothing"), "is not a header"),
        (("one", "https://x.example/mcp", "--store-secrets"), "--store-secrets is for a command"),
    ],
)
def test_wrong_usage_changes_nothing(inside: Inside, own: Path, arguments: tuple[str, ...], message: str) -> None:
    ran = inside("add", *arguments)
    assert ran.code == 2
    assert message in ran.err
    assert not own.exists()


def test_a_name_that_exists_is_replaced_only_if_asked_for(inside: Inside, own: Path) -> None:
    inside("add", "one", "--no-check", "--", "first")
    again = inside("add", "one", "--no-check", "--", "second")
    assert (again.code, "use another name, or --replace" in again.err) == (2, True)
    assert inside("add", "one", "--no-check", "--replace", "--", "second").code == 0
    assert servers(own) == {"one": {"command": "second"}}


def test_removing_what_is_not_there_names_what_is(inside: Inside, tmp_path: Path) -> None:
    file = tmp_path / "team.json"
    file.write_text(WITH_COMMENTS)
    ran = inside("remove", "nothing", "--file", str(file))
    assert ran.code == 1
    assert "hint: known: last, old" in ran.err
    assert file.read_text() == WITH_COMMENTS


def test_list_shows_every_server_of_a_file_without_a_contact_and_without_secrets(
    inside: Inside, tmp_path: Path
) -> None:
    file = tmp_path / "mcp.json"
    definitions = {
        "api": {"url": f"https://api.example/mcp?token={SECRET}"},
        "files": {"command": "npx", "args": ["-y", "files", "--api-key", SECRET], "enabled": False},
        "bad": {"url": "not a url"},
    }
    file.write_text(json.dumps({"mcpServers": definitions}))
    trusted(file)
    ran, data = inside("list"), json.loads(inside("list", "--json").out)
    assert ran.code == 1
    assert [line.split()[0] for line in ran.out.splitlines()] == ["api", "files", "bad"]
    assert ran.err == f"3 servers in {file}\n"
    assert [(one["id"], one["state"]) for one in data["servers"]] == [
        ("api", "enabled"),
        ("files", "disabled"),
        ("bad", "not usable"),
    ]
    assert data["version"] == 1
    assert SECRET not in ran.out + json.dumps(data)


def test_add_and_remove_answer_in_json(inside: Inside, own: Path) -> None:
    added = json.loads(inside("add", "one", "--no-check", "--json", "--", "x").out)
    assert (added["version"], added["file"], added["server"], added["written"]) == (1, str(own), "one", True)
    removed = json.loads(inside("remove", "one", "--json").out)
    assert (removed["version"], removed["removed"]) == (1, ["one"])
    assert json.loads(inside("remove", "--undo", "--json").out)["undone"] == ["one"]


def own_edits(inside: Inside, file: Path) -> Iterator[str]:
    """Every edit that Holdfast makes in a file of a project, one after the other."""
    at = ("--file", str(file))
    for arguments in (
        ("add", "two", *at, "--no-check", "--", "x"),
        ("remove", "one", *at),
        ("remove", "--undo", *at),
        ("doctor", "--fix", "--config", str(file), "--timeout", "10"),
        ("doctor", "--undo", "--config", str(file)),
    ):
        before = file.read_text()
        inside(*arguments)
        assert file.read_text() != before, arguments
        yield arguments[0]


@pytest.mark.requirement("DX-2", "SEC-8")
def test_a_trusted_file_stays_trusted_after_our_own_edits(inside: Inside, tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    file.write_text('{"mcpServers": {"one": {"command": "no-such-command", "env": {"API_KEY": "<YOUR_API_KEY>"}}}}')
    trusted(file)
    for command in own_edits(inside, file):
        assert TrustStore(os.environ).is_trusted(file, file.read_bytes()), command
    file.write_text(file.read_text() + " ")  # another program
    assert not TrustStore(os.environ).is_trusted(file, file.read_bytes())


@pytest.mark.requirement("DX-2", "SEC-8")
def test_a_file_that_is_not_trusted_does_not_become_so_by_our_own_edits(inside: Inside, tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    file.write_text('{"mcpServers": {"one": {"command": "no-such-command", "env": {"API_KEY": "<YOUR_API_KEY>"}}}}')
    for command in own_edits(inside, file):
        assert TrustStore(os.environ).files() == {}, command
        assert "trust" in inside("list").err
