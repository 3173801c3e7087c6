"""``holdfast status``, once: for people at terminals of any width, for programs, and where there is no hub."""

from __future__ import annotations

import http.client
import json
import re
import stat
import subprocess
import sys
import tempfile
import webbrowser
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.access import PeerUids
from holdfast.cli.logins import open_privately
from tests.cli.command import Cli
from tests.cli.fleets import fleet
from tests.cli.hub_peer import TOKEN, HubPeer, hub_peer, server
from tests.cli.in_process import Inside
from tests.cli.snapshots import assert_as_kept

pytestmark = pytest.mark.requirement("HUB-5")


@pytest.fixture
def hub() -> Iterator[HubPeer]:
    with hub_peer(*fleet()) as peer:
        yield peer


@pytest.mark.parametrize("columns", [80, 200])
@pytest.mark.parametrize("colour", [True, False])
def test_on_a_terminal_it_is_laid_out_for_its_width(columns: int, colour: bool, cli: Cli, hub: HubPeer) -> None:
    quiet = {} if colour else {"NO_COLOR": "1"}
    cli.size = (columns, 50)
    with cli.on_terminal("status", TZ="UTC", **quiet, **hub.environment) as terminal:
        assert terminal.code() == 1
    assert_as_kept(f"status-{columns}-{'colour' if colour else 'plain'}", terminal.seen)
    lines = terminal.text.splitlines()
    assert all(len(line) <= columns for line in lines)
    names = [line.split()[0] for line in lines if line[:1].isalpha()][2:8]
    assert names == ["notes", "archive", "scratch", "ticker", "vault", "calendar"]


def test_a_server_that_is_named_is_shown_in_full(cli: Cli, hub: HubPeer) -> None:
    cli.size = (80, 50)
    with cli.on_terminal("status", "ticker", "notes", TZ="UTC", NO_COLOR="1", **hub.environment) as terminal:
        assert terminal.code() == 1
    assert_as_kept("status-in-full", terminal.seen)
    assert all(len(line) <= 80 for line in terminal.text.splitlines())


def test_in_a_pipe_nothing_is_cut_or_coloured_and_the_sum_goes_to_stderr(inside: Inside, hub: HubPeer) -> None:
    ran = inside("status", environment={**hub.environment, "COLUMNS": "60"})
    assert ran.code == 1
    assert "the command `calender-mcp` was not found\n" in ran.out
    assert "\x1b" not in ran.out + ran.err
    assert ran.err == ("\n1 of 6 servers available, 1 idle, 1 disabled, 1 coming back, 2 need attention\n")


def test_where_only_ascii_can_be_shown_there_is_only_ascii(cli: Cli, hub: HubPeer) -> None:
    ran = cli.run("status", "notes", "calendar", PYTHONIOENCODING="ascii", **hub.environment)
    assert ran.stdout.isascii()
    assert "\\u" not in ran.stdout
    assert "x parked" in ran.stdout


def test_programs_get_the_shapes_of_the_control_api(inside: Inside, hub: HubPeer) -> None:
    ran = inside("status", "--json", environment=hub.environment)
    assert (ran.code, ran.err) == (1, "")
    told = json.loads(ran.out)
    assert told["version"] == 1
    assert told["hub"] == hub.hub.model_dump(mode="json")
    assert told["servers"] == [one.model_dump(mode="json") for one in fleet()]


@pytest.mark.parametrize("names", [("notes",), ("notes", "archive", "scratch")])
def test_the_exit_code_is_zero_where_all_are_well_or_at_rest_on_purpose(
    names: tuple[str, ...], inside: Inside, hub: HubPeer
) -> None:
    ran = inside("status", *names, "--json", environment=hub.environment)
    assert ran.code == 0
    assert {one["id"] for one in json.loads(ran.out)["servers"]} == set(names)


@pytest.mark.parametrize("status", ["transient", "denied", "permanent"])
def test_the_exit_code_is_one_where_any_is_not(status: str, inside: Inside, hub: HubPeer) -> None:
    name = next(one.id for one in fleet() if one.status == status)
    assert inside("status", "notes", name, environment=hub.environment).code == 1


def test_a_hub_without_servers_is_well(inside: Inside) -> None:
    with hub_peer() as hub:
        ran = inside("status", environment=hub.environment)
    assert ran.code == 0
    assert ran.err == "\nno servers are configured\n"


def test_what_is_the_matter_with_the_hub_itself_is_told(inside: Inside, hub: HubPeer) -> None:
    hub.hub = hub.hub.model_copy(update={"draining": True, "config_problem": "mcp.json:3:7: a comma is missing"})
    shown = inside("status", environment=hub.environment).out.splitlines()
    assert shown[1] == "it is shutting down: it takes no new calls"
    assert shown[2] == "the last config change was not applied: mcp.json:3:7: a comma is missing"


def test_a_name_that_is_nearly_right_is_suggested(inside: Inside, hub: HubPeer) -> None:
    ran = inside("status", "Calender", environment=hub.environment)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == "error: no server named `Calender` is configured\n\nhint: did you mean `calendar`?\n"


def test_without_a_hub_it_says_how_to_start_one(inside: Inside) -> None:
    ran = inside("status")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith("error: no hub is running here\n\nhint: ")
    assert "`holdfast serve`" in ran.err


def test_wrong_usage_is_exit_code_two(inside: Inside, hub: HubPeer) -> None:
    assert inside("status", "--open", "--json", environment=hub.environment).code == 2
    assert inside("status", "--frobnicate", environment=hub.environment).code == 2


@pytest.mark.requirement("MSG-6")
def test_what_a_server_says_cannot_steer_the_terminal(cli: Cli) -> None:
    evil = "\x1b]0;owned\x07\x1b[2Jgone\r\nand [bold]more[/bold]"
    with hub_peer(server("a", "permanent", reason=evil, summary=evil, action=evil, command=evil, target=evil)) as hub:
        for arguments in (("status",), ("status", "a")):
            with cli.on_terminal(*arguments, NO_COLOR="1", TERM="dumb", **hub.environment) as terminal:
                assert terminal.code() == 1
            assert "\x1b" not in terminal.seen
            assert "owned" not in terminal.seen
            assert "gone and [bold]more[/bold]" in terminal.seen


# The page


_BROWSER = """#!{python}
import http.client, json, os, subprocess, sys
address = sys.argv[1]
commands = [open(f"/proc/{{pid}}/cmdline", "rb").read() for pid in (os.getpid(), os.getppid())]
host, path = address.removeprefix("http://").split("/", 1)
client = f"import http.client as h; c = h.HTTPConnection('{{host}}'); c.request('GET', '/{{path}}'); c.getresponse()"
become = "import os; os.setgroups([]); os.setgid(65534); os.setuid(65534);" if os.geteuid() == 0 else None
# Another user has the address from the list of processes, and is faster than the browser.
stranger = subprocess.run([sys.executable, "-c", become + client], stderr=subprocess.DEVNULL) if become else None
connection = http.client.HTTPConnection(host, timeout=20)
connection.request("GET", "/favicon.ico")
wrong = connection.getresponse().status
connection = http.client.HTTPConnection(host, timeout=20)
connection.request("GET", "/" + path)
answer = connection.getresponse()
json.dump({{
    "commands": b"".join(commands).decode("utf-8", "replace"),
    "refused": stranger is None or stranger.returncode != 0,
    "wrong": wrong,
    "status": answer.status,
    "location": answer.headers["location"],
}}, open("{report}", "w"))
"""


@pytest.mark.requirement("SEC-10")
@pytest.mark.skipif(sys.platform != "linux", reason="the list of processes is read from /proc")
def test_open_gives_the_code_to_this_users_browser_alone_and_shows_it_to_no_one(
    cli: Cli, hub: HubPeer, tmp_path: Path
) -> None:
    report, browser = tmp_path / "report", tmp_path / "browser"
    browser.write_text(_BROWSER.format(python=sys.executable, report=report))
    browser.chmod(browser.stat().st_mode | stat.S_IXUSR)
    hub.answers["POST /api/codes"] = (200, {"code": "once-only", "expires_in": 60})
    ran = cli.run("status", "--open", BROWSER=f"{browser} %s", **hub.environment)
    assert ran.returncode == 0
    found = json.loads(report.read_text())
    assert found["location"] == f"{hub.url}/#code=once-only"
    assert (found["status"], found["wrong"], found["refused"]) == (302, 404, True)
    for text in (found["commands"], ran.stdout, ran.stderr):
        assert "once-only" not in text
        assert TOKEN not in text


def test_where_the_system_names_no_user_a_private_file_leads_the_browser(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[str] = []

    def opened(place: str) -> bool:
        seen.append(place)
        file = Path(place.removeprefix("file://"))
        seen.append(oct(file.stat().st_mode & 0o777) + oct(file.parent.stat().st_mode & 0o777))
        leads = re.search(r'href="http://([^/"]+)(/[^"]+)"', file.read_text())
        assert leads is not None
        connection = http.client.HTTPConnection(leads[1], timeout=20)
        connection.request("GET", leads[2])
        seen.append(connection.getresponse().headers["location"])
        return True

    monkeypatch.setattr(PeerUids, "open", classmethod(lambda cls: None))
    monkeypatch.setattr(webbrowser, "open", opened)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert open_privately("https://hub.example/#code=once\r\nonly")
    place, modes, location = seen
    assert place.startswith(tmp_path.as_uri())
    assert modes == "0o6000o700"
    assert location == "https://hub.example/#code=once%0D%0Aonly"
    assert not list(tmp_path.iterdir()), "the file is gone with its use"


def test_a_browser_that_never_comes_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(PeerUids, "open", classmethod(lambda cls: None))
    monkeypatch.setattr(webbrowser, "open", lambda _: True)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert not open_privately("https://hub.example/#code=once", within=0.2)
    assert not list(tmp_path.iterdir())


def test_where_no_browser_is_the_address_is_shown_to_a_person_and_not_written_to_a_file(cli: Cli, hub: HubPeer) -> None:
    hub.answers["POST /api/codes"] = (200, {"code": "once-only", "expires_in": 60})
    nowhere = {"BROWSER": "/no/such/browser", "PATH": "/nowhere"}
    ran = cli.run("status", "--open", **nowhere, **hub.environment)
    assert ran.returncode == 1
    assert "once-only" not in ran.stdout + ran.stderr
    with cli.on_terminal("status", "--open", **nowhere, **hub.environment) as terminal:
        assert terminal.code() == 0
    assert f"{hub.url}/#code=once-only" in terminal.text


def test_the_commands_for_a_running_hub_are_read_without_the_libraries_that_they_use_later(cli: Cli) -> None:
    rooms = ", ".join(f"holdfast.cli.{name}" for name in ("servers", "approve"))
    program = f"import sys, {rooms}; print(*sorted({{'mcp', 'starlette', 'httpx2', 'pydantic'}} & set(sys.modules)))"
    ran = subprocess.run(
        [sys.executable, "-c", program], env=cli.environment, capture_output=True, text=True, check=True
    )
    assert ran.stdout == "\n"
