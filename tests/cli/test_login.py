from __future__ import annotations

import json
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio.from_thread
import pytest

from tests.cli.running import Cli
from tests.peers.guarded import PLANTED, Guarded, guarded

_BROWSER = """#!{python}
import sys, urllib.request
urllib.request.build_opener(urllib.request.ProxyHandler({{}})).open(sys.argv[1]).read()
"""


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[Guarded]:
    """A server that asks for a login, beside a command line that does not know of our event loop."""
    with (
        anyio.from_thread.start_blocking_portal() as portal,
        portal.wrap_async_context_manager(guarded(tmp_path)) as it,
    ):
        it.portal = portal  # type: ignore[attr-defined]  # to talk to it from here
        yield it


def behave(peer: Guarded, **how: object) -> None:
    peer.portal.call(lambda: peer.behave(**how))  # type: ignore[attr-defined]  # see the fixture


@pytest.fixture
def browser(cli: Cli) -> str:
    """A browser that the command line finds by $BROWSER."""
    script = cli.folder / "browser"
    script.write_text(_BROWSER.format(python=sys.executable))
    script.chmod(0o700)
    return str(script)


def nothing_planted(folder: Path, *outputs: str) -> None:
    """No token is in any output, nor in any file but the store."""
    for text in outputs:
        assert PLANTED not in text
    for file in folder.rglob("*"):
        if file.is_file() and file.name != "auth.json":
            assert PLANTED.encode() not in file.read_bytes(), file


@pytest.mark.requirement("AUTH-1", "MSG-6")
def test_somebody_logs_in_uses_the_server_looks_and_logs_out(cli: Cli, peer: Guarded, browser: str) -> None:
    cli.configure({"files": {"url": peer.url}, "tool": {"command": "cat"}})
    before = cli.run("tools", "files")
    assert "run `holdfast login files`" in before.stdout
    login = cli.run("login", "files", BROWSER=browser)
    assert login.stderr.startswith(
        f"Logging in to files at {peer.address}, asking for: files:read\nOpening your browser."
    )
    assert login.stdout == (
        "Logged in to files. Granted: files:read. It ends in 60 min, and is renewed by itself."
        " The tokens are in a file that only you can read.\nIt works: 2 tools.\n"
    )
    assert login.returncode == 0
    store = cli.folder / ".local/state/holdfast/auth.json"
    assert stat.S_IMODE(store.stat().st_mode) == 0o600
    status = cli.run("auth", "status")
    assert status.stdout == (
        "files  logged in; its token ends in 60 min and is renewed by itself\n"
        f"  for files:read, by {peer.address}, kept in {store}\n"
        "tool  takes no login (it is a command)\n"
    )
    as_data = json.loads(cli.run("auth", "status", "--json").stdout)
    assert as_data["servers"][0]["usable"] is True
    assert as_data["servers"][1] == {"id": "tool", "credentials": "process"}
    call = cli.run("call", "files", "write")
    assert "run `holdfast login files --scope files:write`" in call.stderr
    logout = cli.run("logout", "files")
    assert logout.stdout == f"Logged out of files: its tokens are removed, and revoked by {peer.address}.\n"
    assert cli.run("logout", "files").stderr == "Nobody was logged in to files.\n"
    outputs = [text for ran in (before, login, status, call, logout) for text in (ran.stdout, ran.stderr)]
    nothing_planted(cli.folder, *outputs)


@pytest.mark.requirement("AUTH-1")
def test_on_a_machine_without_a_browser_the_address_is_pasted(cli: Cli, peer: Guarded) -> None:
    cli.configure({"files": {"url": peer.url}})
    with cli.on_terminal("login", "files", "--paste") as terminal:
        terminal.until("paste its address here")
        (line,) = [line for line in terminal.text.splitlines() if "/authorize?" in line]
        terminal.press(landed(peer, line.strip()) + "\n")
        assert terminal.code() == 0
        assert "Logged in to files." in terminal.text
        assert PLANTED not in terminal.text


@pytest.mark.requirement("AUTH-1")
def test_a_code_is_entered_on_another_machine(cli: Cli, peer: Guarded) -> None:
    behave(peer, device_pending=0)
    cli.configure({"files": {"url": peer.url}})
    with cli.on_terminal("login", "files", "--device") as terminal:
        terminal.until("Waiting …")
        (line,) = [line for line in terminal.text.splitlines() if "/device/enter?" in line]
        assert f"and enter the code {line.partition('code=')[2].strip().upper()}" in terminal.text
        peer.portal.call(lambda: peer.open(line.strip()))  # type: ignore[attr-defined]  # see the fixture
        assert terminal.code() == 0


def landed(peer: Guarded, address: str) -> str:
    """Where a browser on another machine ends up."""
    return str(peer.portal.call(lambda: peer.open(address)))  # type: ignore[attr-defined]  # see the fixture


@pytest.mark.requirement("AUTH-3")
def test_a_login_that_was_revoked_is_told_of_with_the_command(cli: Cli, peer: Guarded, browser: str) -> None:
    cli.configure({"files": {"url": peer.url}})
    cli.run("login", "files", BROWSER=browser)
    behave(peer, revoke=True)
    tools = cli.run("tools", "files")
    assert "the login was revoked, or has ended (HTTP 401): run `holdfast login files`" in tools.stdout
    status = cli.run("auth", "status")
    assert status.stdout.startswith("files  the login was revoked, or has ended: run `holdfast login files`\n")
    assert status.returncode == 1


def test_a_login_that_fails_says_why_without_a_traceback(cli: Cli, peer: Guarded, browser: str) -> None:
    behave(peer, denies=True)
    cli.configure({"files": {"url": peer.url}, "tool": {"command": "cat"}})
    ran = cli.run("login", "files", BROWSER=browser)
    assert "error: access was denied" in ran.stderr
    assert (ran.returncode, ran.stdout) == (1, "")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["login", "nobody"], 1, "no server named `nobody` is configured"),
        (["login", "fils"], 1, "did you mean files?"),
        (["login", "tool"], 1, "`tool` is a command that is started here"),
        (["login", "files", "--device", "--paste"], 2, "contradict each other"),
        (["logout", "tool"], 1, "there is nothing to log out of"),
    ],
)
def test_a_command_that_cannot_be_done_says_what_instead(arguments: list[str], code: int, words: str, cli: Cli) -> None:
    cli.configure({"files": {"url": "https://files.invalid/mcp"}, "tool": {"command": "cat"}})
    ran = cli.run(*arguments)
    assert ran.returncode == code
    assert words in ran.stderr
