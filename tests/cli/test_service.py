"""``holdfast service``: the files are valid, the service manager is asked for the right things, and no call is lost."""

from __future__ import annotations

import json
import os
import plistlib
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest

from holdfast.cli.service import HubService, launchd_agent, systemd_units
from holdfast.config import TrustStore
from holdfast.control import RunningHub, registered
from holdfast.testing import StdioServer
from tests.cli.in_process import Inside
from tests.cli.serve_process import COMMAND, config, environment, served, spawned

pytestmark = pytest.mark.requirement("DX-3")

ANALYZE, ACTIVATE = shutil.which("systemd-analyze"), shutil.which("systemd-socket-activate")
ODD = 'a "b" $HOME 100% c\\d'

RECORDER = """#!/bin/sh
echo "$(basename "$0") $*" >> "$RECORD"
case "$*" in
  *Linger*) echo "${LINGER:-no}" ;;
  *ActiveState*) echo active ;;
  *UnitFileState*) echo enabled ;;
  *"$FAILS"*) test -z "$FAILS" || { echo "Failed to connect to bus: No medium found" >&2; exit 1; } ;;
esac
"""


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Programs in the place of systemctl and loginctl that write down what they are asked for."""
    folder = tmp_path / "programs"
    folder.mkdir()
    for name in ("systemctl", "loginctl", "journalctl"):
        (folder / name).write_text(RECORDER)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("RECORD", str(tmp_path / "record"))
    monkeypatch.setenv("FAILS", "")
    return tmp_path / "record"


def trusted(file: Path, **servers: object) -> None:
    """A project's file that its user trusts; the fixture ``inside`` has set HOME."""
    config(file, **servers)
    TrustStore(os.environ).trust(file, file.read_bytes())


def units(home: Path) -> Path:
    return home / ".config" / "systemd" / "user"


@pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not installed")
def test_systemd_accepts_the_units_also_with_odd_paths(tmp_path: Path) -> None:
    folder = tmp_path / ODD
    folder.mkdir()
    program = folder / "holdfast"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    service = HubService(
        command=(str(program),),
        config=folder / "mcp.json",
        options=("--log-format", "json"),
        path=f"/usr/bin:{folder}",
        environment=tmp_path / "service.env",
    )
    for name, text in systemd_units(service).items():
        (tmp_path / name).write_text(text)
    assert ANALYZE is not None
    ran = subprocess.run(
        [ANALYZE, "--user", "verify", tmp_path / "holdfast.socket", tmp_path / "holdfast.service"],
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")


def test_the_agent_of_launchd_is_a_valid_property_list(tmp_path: Path) -> None:
    service = HubService(
        command=("/opt/holdfast",),
        config=tmp_path / ODD,
        port=4999,
        path="/usr/bin",
        environment=tmp_path / "service.env",
    )
    agent = plistlib.loads(launchd_agent(service, tmp_path / "log"))
    assert agent["ProgramArguments"][4:] == [
        "/opt/holdfast", "serve", "--config", str(tmp_path / ODD), "--host", "127.0.0.1", "--port", "4999",
    ]  # fmt: skip
    types = {
        "Label": str, "ProgramArguments": list, "EnvironmentVariables": dict, "RunAtLoad": bool, "KeepAlive": dict,
        "ExitTimeOut": int, "ProcessType": str, "StandardOutPath": str, "StandardErrorPath": str,
    }  # fmt: skip
    assert {key: type(value) for key, value in agent.items()} == types, "the keys of launchd.plist(5), with their types"
    assert agent["KeepAlive"] == {"SuccessfulExit": False}


def test_the_agent_of_launchd_gives_the_hub_the_variables_of_its_file(tmp_path: Path) -> None:
    """As `service install` says: they are written into the file, and the service sees them."""
    folder = tmp_path / ODD
    folder.mkdir()
    program = folder / "holdfast"
    program.write_text('#!/bin/sh\nprintf "%s|" "$A_TOKEN" "$PATH" "$@"\n')
    program.chmod(0o755)
    service = HubService(
        command=(str(program),), config=folder / "mcp.json", path="/usr/bin:/bin", environment=folder / "service.env"
    )
    agent = plistlib.loads(launchd_agent(service, tmp_path / "log"))

    def started() -> list[str]:
        ran = subprocess.run(
            agent["ProgramArguments"], env=agent["EnvironmentVariables"], capture_output=True, text=True, check=True
        )
        return ran.stdout.split("|")[:-1]

    arguments = ["serve", "--config", str(folder / "mcp.json"), "--host", "127.0.0.1", "--port", "4653"]
    assert started() == ["", "/usr/bin:/bin", *arguments], "there may be no such file"
    service.environment.write_text("A_TOKEN=a-value\n")
    assert started() == ["a-value", "/usr/bin:/bin", *arguments]


def test_installing_writes_the_units_and_starts_the_socket_before_the_hub(
    inside: Inside, tmp_path: Path, recorded: Path
) -> None:
    trusted(tmp_path / "mcp.json", one={"command": "x", "env": {"K": "${env:A_TOKEN}", "L": "${A_SECRET}"}})
    ran = inside("service", "install", "--port", "4999")
    assert ran.code == 0, ran.err
    assert "The hub runs at http://127.0.0.1:4999/mcp" in ran.out
    assert "loginctl enable-linger" in ran.err
    assert "service.env (mode 600)" in ran.err
    assert "A_SECRET, A_TOKEN" in ran.err
    asked = [line for line in recorded.read_text().splitlines() if line.startswith("systemctl")]
    assert asked == [
        "systemctl --user daemon-reload",
        "systemctl --user enable holdfast.socket holdfast.service",
        "systemctl --user start holdfast.socket",
        "systemctl --user restart holdfast.service",
    ]
    assert "ListenStream=127.0.0.1:4999" in (units(tmp_path) / "holdfast.socket").read_text()
    assert f"serve --config {tmp_path / 'mcp.json'}" in (units(tmp_path) / "holdfast.service").read_text()


def test_an_upgrade_keeps_the_socket_open_and_another_address_does_not(
    inside: Inside, tmp_path: Path, recorded: Path
) -> None:
    trusted(tmp_path / "mcp.json", one={"command": "x"})
    for arguments, is_closed in (((), False), (("--", "--log-format", "json"), False), (("--port", "4999"), True)):
        recorded.write_text("")
        assert inside("service", "install", *arguments).code == 0
        assert ("--user stop holdfast.service holdfast.socket" in recorded.read_text()) is is_closed


def test_status_and_uninstall_tell_what_there_is(inside: Inside, tmp_path: Path, recorded: Path) -> None:
    trusted(tmp_path / "mcp.json", one={"command": "x"})
    assert inside("service", "status").code == 1
    inside("service", "install")
    shown = inside("service", "status", "--json")
    state = json.loads(shown.out)
    assert (shown.code, state["version"], state["manager"], state["running"]) == (0, 1, "systemd", True)
    assert (state["service"], state["enabled"], state["lingering"]) == ("active", "enabled", "no")
    ran = inside("service", "uninstall")
    assert (ran.code, list(units(tmp_path).iterdir())) == (0, [])
    assert "systemctl --user disable --now holdfast.socket holdfast.service" in recorded.read_text()
    assert inside("service", "uninstall").err == "no service is installed\n"


def test_an_upgrade_lets_the_hub_start_its_successor(inside: Inside, tmp_path: Path, recorded: Path) -> None:
    missing = inside("service", "upgrade")
    assert (missing.code, "no service is installed" in missing.err) == (1, True)
    trusted(tmp_path / "mcp.json")
    assert inside("service", "install").code == 0
    recorded.write_text("")
    assert inside("service", "upgrade").code == 0
    assert recorded.read_text() == "systemctl --user kill --kill-who=main --signal=USR2 holdfast.service\n"


def test_logs_are_those_of_the_unit(inside: Inside, recorded: Path) -> None:
    assert inside("service", "logs", "-n", "5").code == 0
    assert recorded.read_text() == "journalctl --user --unit holdfast.service --lines 5 --no-pager\n"


def test_a_service_that_cannot_be_started_leaves_no_files(
    inside: Inside, tmp_path: Path, recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trusted(tmp_path / "mcp.json", one={"command": "x"})
    monkeypatch.setenv("FAILS", "daemon-reload")
    ran = inside("service", "install")
    assert ran.code == 1
    assert ran.err.startswith("error: `systemctl --user daemon-reload` failed: Failed to connect to bus")
    assert "hint: systemd runs no services for this user" in ran.err
    assert list(units(tmp_path).iterdir()) == []


def test_a_dry_run_prints_the_units_and_changes_nothing(inside: Inside, tmp_path: Path) -> None:
    trusted(tmp_path / "mcp.json", one={"command": "x"})
    ran = inside("service", "install", "--dry-run")
    assert ran.code == 0
    assert "[Socket]\nListenStream=127.0.0.1:4653\n" in ran.out
    assert not units(tmp_path).exists()


@pytest.mark.requirement("SEC-10")
@pytest.mark.parametrize("given", [("--token", "s3cret-0123456789"), ("--token=s3cret-0123456789",)])
def test_a_token_gets_into_no_unit_file_and_no_list_of_processes(
    inside: Inside, tmp_path: Path, given: tuple[str, ...]
) -> None:
    (tmp_path / "mcp.json").write_text('{"mcpServers": {}}')
    config = str(tmp_path / "mcp.json")
    ran = inside("service", "install", "--config", config, "--dry-run", "--", *given)
    assert ran.code == 2
    assert "--token-file" in ran.err
    assert "s3cret" not in ran.out + ran.err


def test_beyond_this_machine_the_service_needs_a_token(inside: Inside, tmp_path: Path) -> None:
    trusted(tmp_path / "mcp.json", one={"command": "x"})
    assert inside("service", "install", "--host", "0.0.0.0", "--dry-run").code == 2
    assert inside("service", "install", "--host", "0.0.0.0", "--dry-run", "--", "--token-file", "x").code == 0


def test_without_a_configuration_there_is_nothing_to_run(inside: Inside) -> None:
    ran = inside("service", "install")
    assert ran.code == 1
    assert "there is no mcp.json to serve" in ran.err


# The hub under a service manager


@contextmanager
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


def activated(listener: socket.socket, file: Path, home: Path) -> subprocess.Popen[bytes]:
    """A hub that gets its socket as systemd passes it: as descriptor 3, and with the id of its own process."""
    takes = "import os, sys; os.dup2(int(sys.argv[1]), 3); os.environ['LISTEN_PID'] = str(os.getpid())\n"
    hub = f"[sys.executable, *{list(COMMAND[1:])!r}, *sys.argv[2:]]"
    runs = f"os.environ['LISTEN_FDS'] = '1'; os.execv(sys.executable, {hub})"
    command = [sys.executable, "-c", takes + runs, str(listener.fileno()), "serve", "--config", str(file)]
    return subprocess.Popen(command, pass_fds=[listener.fileno()], env=environment(home), stdout=subprocess.PIPE)


def health(address: tuple[str, int], timeout: float = 30) -> bytes:
    with socket.create_connection(address, timeout=timeout) as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        return client.makefile("rb").readline()


def test_a_restart_under_one_socket_refuses_no_connection(tmp_path: Path) -> None:
    file, home = config(tmp_path / "mcp.json"), tmp_path / "home"
    home.mkdir()
    with listening() as listener:
        address = listener.getsockname()
        answers: list[bytes] = []
        for _ in range(2):
            waiting = threading.Thread(target=lambda: answers.append(health(address)))
            waiting.start()  # before the hub runs: the connection waits in the socket
            with activated(listener, file, home) as hub:
                try:
                    waiting.join(30)
                    answers.append(health(address))
                finally:
                    hub.send_signal(signal.SIGTERM)
                    assert hub.wait(30) == 0
    assert answers == [b"HTTP/1.1 200 OK\r\n"] * 4


@pytest.mark.anyio
async def test_the_hub_tells_systemd_when_it_listens(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.bind(str(tmp_path / "notify"))
        notify.settimeout(30)
        file = config(tmp_path / "mcp.json")
        async with served(tmp_path / "home", "--config", str(file), NOTIFY_SOCKET=str(tmp_path / "notify")):
            assert await anyio.to_thread.run_sync(notify.recv, 100) == b"READY=1"


@pytest.mark.anyio
@pytest.mark.skipif(ACTIVATE is None, reason="systemd-socket-activate is not installed")
async def test_systemd_socket_activate_starts_the_hub_at_the_first_connection(tmp_path: Path) -> None:
    with listening() as free:
        port = free.getsockname()[1]
    home = tmp_path / "home"
    home.mkdir()
    assert ACTIVATE is not None
    passed = [part for name in environment(home) for part in ("-E", name)]
    with StdioServer({"a": "one"}) as one:
        file = config(tmp_path / "mcp.json", one=one.definition)
        command = [ACTIVATE, "-l", f"127.0.0.1:{port}", *passed, *COMMAND, "serve", "--config", str(file)]
        async with spawned(command, tmp_path, home, stdin=subprocess.DEVNULL) as hub:
            await hub.said("Listening on")
            first = await anyio.to_thread.run_sync(health, ("127.0.0.1", port))
            assert first == b"HTTP/1.1 200 OK\r\n"
            assert hub.url == f"http://127.0.0.1:{port}/mcp"
            hub.send(signal.SIGTERM)
            assert await hub.ended() == 0


def test_a_hub_that_its_parent_has_not_looked_after_has_ended(inside: Inside, tmp_path: Path) -> None:
    """A client that started the hub may never ask for its exit code."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as hub:
        with registered(RunningHub(url="http://127.0.0.1:1", token="t", pid=hub.pid, background=True)):
            ended = inside("stop")
        hub.communicate()
    assert (ended.code, ended.out) == (0, f"the hub with process id {hub.pid} has ended\n")
