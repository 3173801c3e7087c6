"""``holdfast status --watch`` on a real terminal, and without one."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.cli.command import HOLDFAST, Cli, Terminal
from tests.cli.fleets import fleet
from tests.cli.hub_peer import NOW, HubPeer, hub_peer, server

pytestmark = pytest.mark.requirement("OBS-1")

HIDDEN, SHOWN = "\x1b[?1049h\x1b[H\x1b[?25l", "\x1b[?25h\x1b[?1049l"
BASH = shutil.which("bash")


@pytest.fixture
def hub() -> Iterator[HubPeer]:
    with hub_peer(*fleet()) as peer:
        yield peer


@contextmanager
def watching(cli: Cli, hub: HubPeer, *arguments: str) -> Iterator[Terminal]:
    """A person who watches; the fleet is on the screen, and every event from now on is seen."""
    cli.size = (80, 30)
    plain = {"TZ": "UTC", "NO_COLOR": "1"}
    with cli.on_terminal("status", "--watch", *arguments, **plain, **hub.environment) as terminal:
        hub.watched()
        terminal.until_on_screen("quit")
        yield terminal


def test_it_shows_the_fleet_worst_first_and_what_happens_to_it(cli: Cli, hub: HubPeer) -> None:
    with watching(cli, hub) as terminal:
        assert terminal.screen[0].startswith("holdfast 1.2.3  http://hub.test/mcp  up 1h")
        assert terminal.screen[1] == "1 of 6 servers available, 1 idle, 1 disabled, 1 coming back, 2 need attention"
        names = [line.split()[0] for line in terminal.screen[4:10]]
        assert names == ["calendar", "vault", "ticker", "scratch", "archive", "notes"]
        assert terminal.screen[4].startswith("calendar  ✗ parked")
        assert any("correct `command` in its definition" in line for line in terminal.screen)
        hub.tell("transition", {"server": "calendar", "at": NOW, "text": "connected"})
        hub.change(server("calendar", tools=3))
        terminal.until_on_screen("22:13:20  calendar: connected")
        terminal.until_on_screen("2 of 6 servers available, 1 idle, 1 disabled, 1 coming back, 1 needs attention")
        terminal.until_on_screen("calendar  ✓ connected")
        terminal.press("q")
        assert terminal.code() == 0


@pytest.mark.parametrize(
    ("keys", "code"), [("q", 0), ("Q", 0), ("\x04", 0), ("\x03", 130)], ids=["q", "Q", "ctrl-d", "ctrl-c"]
)
def test_a_key_ends_it_and_the_terminal_is_as_it_was(keys: str, code: int, cli: Cli, hub: HubPeer) -> None:
    with cli.on_terminal("status", "--watch", **hub.environment) as terminal:
        before = terminal.mode_before
        terminal.until_on_screen("quit")
        assert terminal.mode != before
        terminal.press(keys)
        assert terminal.code() == code
        assert terminal.mode == before
    assert terminal.seen.startswith(HIDDEN)
    assert terminal.seen.endswith(SHOWN)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_it_and_the_terminal_is_as_it_was(number: signal.Signals, cli: Cli, hub: HubPeer) -> None:
    with cli.on_terminal("status", "--watch", **hub.environment) as terminal:
        before = terminal.mode_before
        terminal.until_on_screen("quit")
        terminal.signal(number)
        assert terminal.code() == 128 + number
        assert terminal.mode == before
    assert terminal.seen.endswith(SHOWN)


def test_when_the_hub_ends_it_says_so_on_the_terminal_as_it_was(cli: Cli, hub: HubPeer) -> None:
    with watching(cli, hub) as terminal:
        hub.end()
        assert terminal.code() == 1
    said = terminal.seen.rpartition(SHOWN)[2]
    assert f"the hub at {hub.url} ended" in said
    assert "holdfast serve" in said


def test_it_follows_the_size_of_the_terminal(cli: Cli, hub: HubPeer) -> None:
    with watching(cli, hub) as terminal:
        assert not any("BREAKER" in line for line in terminal.screen)
        terminal.resize(200, 40)
        terminal.until_on_screen("quit", line=39)
        assert any("BREAKER" in line for line in terminal.screen)
        assert any(re.search(r"open \d+s", line) for line in terminal.screen)
        terminal.resize(40, 8)
        terminal.until_on_screen("calendar  ✗ parked", line=4)
        terminal.until_on_screen("space next page  q quit", line=7)
        assert all(len(line) <= 40 for line in terminal.screen)
        terminal.press("q")
        assert terminal.code() == 0


def test_a_server_that_is_named_is_shown_in_full(cli: Cli, hub: HubPeer) -> None:
    with watching(cli, hub, "vault") as terminal:
        terminal.until_on_screen("server     http  https://vault.example.com/mcp")
        assert not any(line.startswith("calendar") for line in terminal.screen)
        terminal.press("q")
        assert terminal.code() == 0


def test_hundreds_of_servers_are_paged_through_and_other_keys_do_nothing(cli: Cli) -> None:
    failed = [
        server(f"server-{n:03}", "permanent", reason=f"cause {chr(97 + n % 26) * (n // 26 + 1)}") for n in range(500)
    ]
    with hub_peer(*failed) as hub, watching(cli, hub) as terminal:
        terminal.until_on_screen("server-000  ✗ parked")
        terminal.press("\x1bOQ")
        terminal.press("x")
        terminal.press(" ")
        terminal.until_on_screen("server-030  ✗ parked")
        assert "quit" in terminal.screen[29]
        terminal.press("q")
        assert terminal.code() == 0


def test_a_server_that_is_no_longer_configured_leaves_the_screen(cli: Cli, hub: HubPeer) -> None:
    with watching(cli, hub) as terminal:
        hub.tell("gone", {"server": "calendar"})
        terminal.until_on_screen("calendar: no longer configured")
        assert not any(line.startswith("calendar") for line in terminal.screen)
        terminal.press("q")
        assert terminal.code() == 0


def test_after_missed_events_everything_is_read_again(cli: Cli, hub: HubPeer) -> None:
    with watching(cli, hub) as terminal:
        hub.servers = {"newcomer": server("newcomer")}
        hub.tell("missed", {"count": 2000})
        terminal.until_on_screen("newcomer  ✓ connected")
        assert terminal.screen[1] == "1 of 1 server available"
        terminal.press("q")
        assert terminal.code() == 0


@pytest.mark.skipif(BASH is None, reason="job control is a shell's, and there is no bash here")
def test_ctrl_z_gives_the_terminal_back_to_the_shell_until_it_goes_on(cli: Cli, hub: HubPeer) -> None:
    cli.size = (80, 30)
    with cli.in_terminal([BASH or "", "--norc", "-i"], {"PS1": "shell> ", **hub.environment}) as terminal:
        terminal.press(f"'{HOLDFAST}' status --watch\r")
        hub.watched()
        terminal.until_on_screen("quit")
        terminal.press("\x1a")
        terminal.until_after(SHOWN, "shell> ", times=1)
        assert "Stopped" in terminal.text
        terminal.press("fg\r")
        hub.tell("gone", {"server": "notes"})
        terminal.until_on_screen("notes: no longer configured")
        assert terminal.seen.count(SHOWN) == 1
        terminal.press("q")
        terminal.until_after(SHOWN, "shell> ", times=2)
        terminal.press("echo code $?\r")
        terminal.until("code 0")
        terminal.press("exit\r")
        assert terminal.code() == 0


# Without a screen


@contextmanager
def piped(cli: Cli, hub: HubPeer, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [HOLDFAST, "status", "--watch", *arguments],
        cwd=cli.folder,
        env={**cli.environment, "TZ": "UTC", **hub.environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            hub.watched()
            yield process
        finally:
            process.kill()


def test_in_a_pipe_each_change_is_a_line_and_the_end_of_the_hub_is_told(cli: Cli, hub: HubPeer) -> None:
    with piped(cli, hub) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        first = iter(process.stdout.readline, "")
        assert next(first).startswith("holdfast 1.2.3")
        assert any("holdfast list" in line for line in first)
        hub.tell("retry", {"server": "ticker", "at": NOW, "text": "reconnect attempt 3 in at most 4.0 s"})
        hub.tell("published", {"server": "ticker", "at": NOW, "text": ""})
        hub.end()
        assert process.stdout.read().splitlines() == ["", "22:13:20  ticker: reconnect attempt 3 in at most 4.0 s"]
        assert f"the hub at {hub.url} ended" in process.stderr.read()
        assert process.wait() == 1


def test_a_dumb_terminal_gets_lines_and_no_sequences(cli: Cli, hub: HubPeer) -> None:
    with cli.on_terminal("status", "--watch", TERM="dumb", **hub.environment) as terminal:
        hub.watched()
        hub.tell("gone", {"server": "notes"})
        terminal.until("notes: no longer configured")
        terminal.press("\x03")
        assert terminal.code() == 130
    assert "\x1b" not in terminal.seen


def test_programs_get_each_event_as_a_line_of_json(cli: Cli, hub: HubPeer) -> None:
    with piped(cli, hub, "--json", "vault") as process:
        assert process.stdout is not None
        hub.tell("gone", {"server": "notes"})
        hub.tell("retry", {"server": "vault", "attempt": 3, "delay": 4.2, "at": NOW})
        hub.change(server("vault"))
        hub.end()
        events = [json.loads(line) for line in process.stdout.read().splitlines()]
        assert [event["event"] for event in events] == ["hello", "retry", "server"]
        assert events[1]["data"] == {"server": "vault", "attempt": 3, "delay": 4.2, "at": NOW}
        assert events[2]["data"] == server("vault").model_dump(mode="json")
        assert process.wait() == 1


def test_a_reader_that_goes_away_ends_it_without_a_word(cli: Cli, hub: HubPeer) -> None:
    for arguments in ((), ("--json",)):
        with piped(cli, hub, *arguments) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline()
            process.stdout.close()
            hub.tell("gone", {"server": "notes"})
            hub.tell("gone", {"server": "vault"})
            assert process.stderr.read() == ""
            assert process.wait() == 1
