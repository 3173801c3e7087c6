from __future__ import annotations

import json
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio.from_thread
import pytest

from holdfast.auth.token_store import TokenStore
from tests.auth.grants import grant
from tests.auth.real_servers import RealServers, python
from tests.cli.command import Cli
from tests.peers.guarded import PLANTED, Guarded, guarded_at, guarded_pair

__all__ = ["python"]

_BROWSER = """#!{python}
import sys, urllib.request
urllib.request.build_opener(urllib.request.ProxyHandler({{}})).open(sys.argv[1]).read()
"""


@pytest.fixture(scope="module")
def pair() -> Iterator[str]:
    with guarded_pair() as address:
        yield address


@pytest.fixture
def peer(pair: str) -> Iterator[Guarded]:
    """A server that asks for a login, beside a command line that does not know of our event loop."""
    with (
        anyio.from_thread.start_blocking_portal() as portal,
        portal.wrap_async_context_manager(guarded_at(pair)) as it,
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
def test_a_user_logs_in_checks_the_status_and_logs_out(cli: Cli, peer: Guarded, browser: str) -> None:
    cli.configure({"files": {"url": peer.url}, "tool": {"command": "cat"}})
    behave(peer, expires_in=10_000)
    login = cli.run("login", "files", BROWSER=browser)
    assert login.stderr.startswith(f"Logging in to files at {peer.address}, requested scopes: files:read\nOpening your")
    assert login.stdout == (
        "Logged in to files. Granted: files:read. It expires in 3 h and is renewed automatically."
        " The tokens are in a file that only you can read.\nIt works: 2 tools.\n"
    )
    assert login.returncode == 0
    store = cli.folder / ".local/state/holdfast/auth.json"
    assert stat.S_IMODE(store.stat().st_mode) == 0o600
    status = cli.run("auth", "status")
    assert status.stdout == (
        "files  logged in; its token ends in 3 h and is renewed automatically\n"
        f"  for files:read, by {peer.address}, kept in {store}\n"
        "tool  needs no login (it is a local command)\n"
    )
    assert status.returncode == 0
    logout = cli.run("logout", "files")
    assert logout.stdout == f"Logged out of files: its tokens are removed, and revoked by {peer.address}.\n"
    nothing_planted(cli.folder, *(text for ran in (login, status, logout) for text in (ran.stdout, ran.stderr)))


@pytest.mark.requirement("AUTH-9")
@pytest.mark.parametrize("name", ["sdk", "fastmcp"])
def test_a_user_at_a_terminal_logs_in_to_a_server_on_python(
    name: str, cli: Cli, python: RealServers, browser: str
) -> None:
    cli.configure({"files": {"url": python[name]}})
    with cli.on_terminal("login", "files", BROWSER=browser) as terminal:
        terminal.until("requested scopes: files:read")
        terminal.until("Logged in to files. Granted: files:read. It expires in 60 min and is renewed automatically.")
        terminal.until("It works: 1 tool.")
        assert terminal.code() == 0
        assert "hf-planted" not in terminal.text
    logout = cli.run("logout", "files")
    assert "its tokens are removed, and revoked by" in logout.stdout


@pytest.mark.requirement("DX-10")
def test_setup_walks_through_the_logins_that_servers_ask_for(cli: Cli, python: RealServers, browser: str) -> None:
    client = cli.folder / ".cursor" / "mcp.json"
    client.parent.mkdir()
    client.write_text(
        json.dumps({"mcpServers": {"files": {"url": python["sdk"]}, "notes": {"url": python["fastmcp"]}}})
    )
    with cli.on_terminal("setup", "--no-service", BROWSER=browser) as terminal:
        terminal.until("Do this? [Y/n]")
        terminal.press("y\n")
        terminal.until("6. Logins")
        terminal.until("Log in to files now? [Y/n]")
        terminal.press("y\n")
        terminal.until("Logged in to files. Granted: files:read.")
        terminal.until("Log in to notes now? [Y/n]")
        terminal.press("n\n")
        terminal.until("1 of 2 servers work.")
        assert terminal.code() == 1
        end = terminal.text.partition("1 of 2 servers work.")[2]
        assert "holdfast login notes" in end
        assert "login files" not in end
    with cli.on_terminal("setup", "--no-service", BROWSER=browser) as again:
        again.until("Do this? [Y/n]")
        again.press("y\n")
        again.until("Log in to notes now? [Y/n]")
        assert "Log in to files now?" not in again.text, "it is logged in"
        again.press("y\n")
        again.until("2 of 2 servers work.")
        assert again.code() == 0
    assert "hf-planted" not in terminal.text + again.text


@pytest.mark.requirement("AUTH-1")
def test_on_a_machine_without_a_browser_the_address_is_pasted(cli: Cli, peer: Guarded) -> None:
    cli.configure({"files": {"url": peer.url}})
    with cli.on_terminal("login", "files", "--paste") as terminal:
        terminal.until("paste the address of that page here")
        (line,) = [line for line in terminal.text.splitlines() if "/authorize?" in line]
        terminal.press(landed(peer, line.strip()) + "\n")
        assert terminal.code() == 0
        assert "Logged in to files." in terminal.text
        assert PLANTED not in terminal.text


@pytest.mark.requirement("DX-13")
@pytest.mark.parametrize(
    ("option", "waits"), [("--no-browser", "Waiting 1 s for that browser"), ("--paste", "The input")]
)
def test_without_a_terminal_it_says_what_it_waits_for(cli: Cli, peer: Guarded, option: str, waits: str) -> None:
    cli.configure({"files": {"url": peer.url}})
    login = cli.run("login", "files", option, "--timeout", "1")
    assert login.returncode == 1
    assert waits in login.stderr
    assert "to come back to this machine" in login.stderr


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


@pytest.mark.requirement("AUTH-1", "MSG-6")
def test_the_status_of_logins_that_ended_names_the_command_for_each(cli: Cli) -> None:
    store = TokenStore(cli.folder / ".local/state/holdfast", vault=lambda: None)
    store.put(grant(1, refused="invalid_grant"))
    store.put(grant(2, refresh_token=None, expires_at=1.0))
    servers = {f"s{number}": {"url": f"https://files{number}.example/mcp"} for number in (1, 2, 3)}
    cli.configure({**servers, "keyed": {"url": "https://x.example/", "headers": {"Authorization": "planted-header"}}})
    status = cli.run("auth", "status")
    lines = status.stdout.splitlines()
    assert lines[0] == "s1  the login was revoked or has expired: run `holdfast login s1`"
    assert lines[2].startswith("s2  the login expired ")
    assert lines[2].endswith("ago and cannot be renewed: run `holdfast login s2`")
    assert lines[4:] == ["s3  not logged in", "keyed  uses the Authorization header of its definition"]
    assert status.returncode == 1
    data = cli.run("auth", "status", "--json")
    assert [one["credentials"] for one in json.loads(data.stdout)["servers"]] == ["login", "login", "none", "header"]
    assert "planted" not in status.stdout + status.stderr + data.stdout + data.stderr


def test_a_login_that_fails_says_why_without_a_traceback(cli: Cli, peer: Guarded, browser: str) -> None:
    behave(peer, denies=True)
    cli.configure({"files": {"url": peer.url}, "tool": {"command": "cat"}})
    ran = cli.run("login", "files", BROWSER=browser)
    assert "error: access was denied" in ran.stderr
    assert (ran.returncode, ran.stdout) == (1, "")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["login", "fils"], 1, "did you mean `files`?"),
        (["login", "tool"], 1, "`tool` is a local command"),
        (["login", "keyed"], 1, "a login has no effect"),
        (["login", "files", "--device", "--paste"], 2, "exclude each other"),
    ],
)
def test_a_command_that_cannot_be_done_says_what_instead(arguments: list[str], code: int, words: str, cli: Cli) -> None:
    url = "https://files.invalid/mcp"
    keyed = {"url": url, "headers": {"Authorization": "Bearer planted-header"}}
    cli.configure({"files": {"url": url}, "tool": {"command": "cat"}, "keyed": keyed})
    ran = cli.run(*arguments)
    assert ran.returncode == code
    assert words in ran.stderr
