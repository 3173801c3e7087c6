"""``holdfast serve``, ``service`` and ``stop``: run the hub, here or in the background, and end it.

``ServeConfig`` has the options of ``serve``. A ``service`` is a systemd user service or a launchd agent.

systemd holds the listening socket. So a restart or an upgrade of the hub refuses no connection: clients wait until
the new process accepts. The launchd agent is rendered and validated by tests; it was not run on macOS.

``holdfast stop`` ends a hub that clients started in the background. A client that needs it again starts another one.
"""

from __future__ import annotations

import getpass
import os
import plistlib
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

import holdfast.config
import holdfast.control
import holdfast.serve
from holdfast.cli.command_options import AsJson, found_hub, group_of_commands, with_options_of
from holdfast.cli.output import keep_quiet, print_json, print_line, print_note, working
from holdfast.cli.trust import load_trusted, with_trust
from holdfast.config import Config, user_folders
from holdfast.core import command_line
from holdfast.errors import ConfigNotFound, HoldfastError, NoHub, UsageError
from holdfast.files import replace_file
from holdfast.serve import (
    DEFAULT_HOST,
    DEFAULT_PORT,
    JoinOptions,
    ServeConfig,
    WorkerLink,
    endpoint_url,
    join_hub,
    own_command,
    runs_in_background,
)

if TYPE_CHECKING:
    from holdfast.control import RunningHub

__all__ = [
    "app",
    "end_background_hubs",
    "hub_service",
    "install_service",
    "launchd_agent",
    "remove_service",
    "serve",
    "service_is_installed",
    "systemd_units",
]

# Serve


@with_options_of(ServeConfig)
def serve(asked: ServeConfig) -> None:
    """Serve all servers of an mcp.json at one MCP endpoint, over HTTP or stdio.

    With --stdio the client joins the hub that you already run; without one, a hub starts in the background and serves
    all clients that join (`holdfast stop` ends it). With --own the hub is for this client alone.

    Without a configuration it serves demo servers, each with its own kind of failure.

    SIGTERM and Ctrl-C end it after the calls in flight. SIGHUP reads the mcp.json again; on a terminal it
    ends the hub, because the terminal was closed. Under systemd it listens on the socket that systemd passes.

    --workers serves with several processes that act as one hub: SIGHUP replaces them one at a time.

    --takeover replaces a running hub without a refused connection: the new hub gets the socket of the old one,
    connects its servers and accepts; then the old one finishes its calls and ends. SIGUSR2 makes a hub start
    such a successor itself, with the same options.

    Without credentials it serves programs of its own user (and of --allow-uid), which Linux tells. To listen beyond
    this machine it needs a token (--token-file, --token or $HOLDFAST_TOKEN), named tokens (--tokens-file), JWTs
    (--jwt-issuer, --jwt-audience and --jwt-keys together) or a gateway (--gateway-secret-file or --gateway-mtls).
    Files with tokens and certificates are read again when they change, and at SIGHUP.
    """
    worker = WorkerLink.find(os.environ)
    asked.check(os.environ)
    if (joins := JoinOptions.read(sys.argv[2:], os.environ)) is not None and asked.stdio and worker is None:
        raise typer.Exit(join_hub(joins))
    if code := holdfast.serve.start_serving(asked, None if asked.demo else _load(asked.config), worker):
        raise typer.Exit(code)


def _load(config: Path | None) -> Config | None:
    """The configuration to serve; None for the demo servers, if there is no file and none was named."""
    own = [folder / "mcp.json" for folder in user_folders(os.environ)]
    if config is not None and runs_in_background(os.environ) and config.absolute() in own and not config.exists():
        return Config(servers={}, source=config)  # the hub follows the file: it may be written later
    try:
        return load_trusted(config)
    except ConfigNotFound as exc:
        print_note("No mcp.json was found, so this serves demo servers. To serve your own:")
        print_note(f"  {command_line('import')}   copies them from your other MCP clients")
        print_note(f"  or put an mcp.json at one of: {', '.join(map(str, exc.searched))}")
        return None


# In the background

app = group_of_commands()

UNIT = "holdfast"
LABEL = "holdfast.hub"

COMMAND_SECONDS = 60.0
"""How long systemctl or launchctl may take: a restart waits for calls in flight."""

STOP_SECONDS = 30
"""Longer than the hub's own limit for calls in flight (10 s) and for closing its servers."""

_AUTH_OPTIONS = ("--token", "--token-file", "--tokens-file", "--jwt-issuer", "--gateway-secret-file", "--gateway-mtls")


@dataclass(frozen=True, kw_only=True)
class HubService:
    """What the service runs."""

    command: tuple[str, ...]
    config: Path
    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    options: tuple[str, ...] = ()
    """More options of ``holdfast serve``."""
    path: str = ""
    """The PATH of the service, so that it finds the same commands as the user."""
    environment: Path
    """A file with variables for the service. It need not exist."""

    @property
    def arguments(self) -> tuple[str, ...]:
        """The command line of the hub, without its address."""
        return (*self.command, "serve", "--config", str(self.config), *self.options)

    @property
    def address(self) -> str:
        """``host:port``."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@app.callback()
def service() -> None:
    """Run the hub in the background: it starts with your session, and restarts after a crash."""


@app.command()
def install(
    options: Annotated[
        list[str] | None, typer.Argument(metavar="[-- SERVE OPTIONS]", help="More options of `holdfast serve`")
    ] = None,
    config: Annotated[Path | None, typer.Option("--config", metavar="FILE", help="The mcp.json to serve")] = None,
    host: Annotated[str, typer.Option("--host", metavar="HOST", help="The address to listen on")] = DEFAULT_HOST,
    port: Annotated[
        int, typer.Option("--port", metavar="PORT", min=1, max=65535, help="The port to listen on")
    ] = DEFAULT_PORT,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the files, and change nothing")] = False,
    as_json: AsJson = False,
) -> None:
    """Install the service and start it. Run it again to change it, or after an upgrade of Holdfast.

    Exit code 0: the hub runs. 1: it does not.
    """
    wanted = hub_service(config, host=host, port=port, options=tuple(options or ()))
    manager = _manager()
    files = manager.files(wanted)
    if dry_run and as_json:
        print_json({"files": {str(file): text for file, text in files.items()}})
    elif dry_run:
        sys.stdout.writelines(f"# {file}\n{text}\n" for file, text in files.items())
    if dry_run:
        return
    with keep_quiet(silent=True) if as_json else nullcontext():
        install_service(wanted)
    if as_json:
        print_json({"files": list(map(str, files)), **_state(manager)})


@app.command()
def upgrade() -> None:
    """Replace the running hub by a new process, for example after an upgrade of Holdfast. No connection is refused.

    The new hub connects its servers before the old one ends. If it does not start, the old one goes on.
    Exit code 0: a new hub was asked for; `service logs` shows how it went. 1: no service is installed.
    """
    manager = _manager()
    if not manager.installed():
        raise HoldfastError("no service is installed", hint=f"to install it: {command_line('service', 'install')}")
    manager.upgrade()
    print_note(f"a new hub takes over; {command_line('service', 'logs')} shows how it goes")


@app.command()
def uninstall(as_json: AsJson = False) -> None:
    """Stop the service and remove its files. The configuration and the state of the hub stay.

    Exit code 0: there is no service any more.
    """
    files = remove_service()
    if as_json:
        print_json({"removed": list(map(str, files))})
        return
    for file in files:
        print_line(f"removed {file}")
    if not files:
        print_note("no service is installed")


@app.command()
def status(as_json: AsJson = False) -> None:
    """Show whether the service is installed and runs. `holdfast status` shows its servers.

    Exit code 0: the hub runs, or starts at the first connection. 1: it does not.
    """
    manager = _manager()
    state = _state(manager)
    if as_json:
        print_json({**state})
    elif not state["installed"]:
        print_note(f"no service is installed; to install it: {command_line('service', 'install')}")
    else:
        for name, value in state.items():
            if value not in (None, [], ""):
                shown = ", ".join(value) if isinstance(value, list) else value
                print_line(f"{name:<10} {shown}")
    raise typer.Exit(0 if state["running"] else 1)


@app.command()
def logs(
    lines: Annotated[int, typer.Option("--lines", "-n", metavar="N", min=1, help="How many lines")] = 200,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for new lines, and show them")] = False,
) -> None:
    """Show the log of the service. `holdfast logs SERVER` shows that of one server."""
    command = _manager().logs(lines, follow=follow)
    try:
        raise typer.Exit(subprocess.run(command, check=False).returncode)  # noqa: S603 - a fixed command
    except FileNotFoundError as exc:
        raise HoldfastError(f"the command `{command[0]}` was not found") from exc


def remove_service() -> list[Path]:
    """Stop the service and remove its files; returns them. Nothing to do where there is none."""
    manager = _manager()
    files = manager.installed()
    if files:
        manager.stop()
    for file in files:
        file.unlink(missing_ok=True)
    return files


def install_service(wanted: HubService) -> None:
    """Write the files and start the hub. A running one is replaced without a refused connection."""
    manager = _manager()
    files = manager.files(wanted)
    before = {file: file.read_text() for file in files if file.exists()}
    for file, text in files.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, text, mode=0o644)
    sockets = [file for file in files if file.suffix == ".socket"]
    try:
        manager.start(address_changed=any(before.get(file, files[file]) != files[file] for file in sockets))
    except HoldfastError:
        for file in files:
            if file in before:
                replace_file(file, before[file], mode=0o644)
            else:
                file.unlink()
        raise
    for file in files:
        print_line(f"wrote {file}")
    print_line(f"The hub runs at {endpoint_url(wanted.host, wanted.port)}, with {wanted.config}")
    for hint in (*_variable_hints(wanted), *manager.hints()):
        print_note(hint)


def service_is_installed() -> bool:
    """Whether this user has a service."""
    return bool(_manager().installed())


def hub_service(
    config: Path | None, *, host: str = DEFAULT_HOST, port: int = DEFAULT_PORT, options: tuple[str, ...] = ()
) -> HubService:
    """The service for a configuration, in the environment of this process."""
    try:
        file = holdfast.config.find_config(config, environ=os.environ, cwd=Path.cwd()).absolute()
    except ConfigNotFound as exc:
        hint = f"{command_line('import')} copies the servers of your MCP clients; {command_line('add')} adds one"
        raise HoldfastError("there is no mcp.json to serve", hint=hint) from exc
    # The service names the file with `--config`, which is trust: a found project file needs it before that.
    found = not holdfast.config.is_named(config, os.environ)
    with_trust(lambda: holdfast.config.read_file(file, environ=os.environ, found=found))
    names = {option.partition("=")[0] for option in options}
    if "--token" in names:
        message = "--token would be in the unit file and in the list of processes, where other users can read it"
        raise UsageError(message, hint="write the token into a file that only you can read, and use --token-file FILE")
    given = not names.isdisjoint(_AUTH_OPTIONS)
    holdfast.serve.require_credentials_beyond_loopback(host, can_verify=given)
    return HubService(
        command=own_command(),
        config=file,
        host=host,
        port=port,
        options=options,
        path=os.environ.get("PATH", ""),
        environment=next(user_folders(os.environ)) / "service.env",
    )


def _variable_hints(wanted: HubService) -> list[str]:
    """The service does not see the variables of a shell: name those that the config needs."""
    servers = holdfast.config.servers_in(holdfast.config.read_config(wanted.config))
    names = sorted({name for _, definition in servers for name in holdfast.config.variables_in(definition)})
    written = wanted.environment.read_text() if wanted.environment.exists() else ""
    known = {line.partition("=")[0].strip() for line in written.splitlines() if "=" in line}
    missing = [name for name in names if name not in known]
    if not missing:
        return []
    where = f"Write these into {wanted.environment} (mode 600), one NAME=value a line"
    again = f"then run `{command_line('service', 'install')}` again"
    return [f"The service does not see the variables of your shell. {where}, {again}: {', '.join(missing)}"]


def _state(manager: Manager) -> dict[str, Any]:
    installed = [str(file) for file in manager.installed()]
    state = manager.state() if installed else {"running": False}
    return {"manager": manager.name, "installed": installed, **state}


def _manager() -> Manager:
    return Launchd() if sys.platform == "darwin" else Systemd()


# systemd


def systemd_units(service: HubService) -> dict[str, str]:
    """The unit files, by name."""
    socket_unit = f"""\
[Unit]
Description=Holdfast MCP hub (socket)

[Socket]
ListenStream={_escaped(service.address)}
NoDelay=true

[Install]
WantedBy=sockets.target
"""
    path = f"Environment={_quoted(f'PATH={service.path}', command=False)}\n" if service.path else ""
    service_unit = f"""\
[Unit]
Description=Holdfast MCP hub
Requires={UNIT}.socket
After={UNIT}.socket

[Service]
Type=notify
ExecStart={_command_line(service.arguments)}
ExecReload=/bin/kill -HUP $MAINPID
{path}EnvironmentFile=-{_escaped(str(service.environment))}
Restart=on-failure
RestartSec=1
KillMode=mixed
TimeoutStopSec={STOP_SECONDS}

[Install]
WantedBy=default.target
"""
    return {f"{UNIT}.socket": socket_unit, f"{UNIT}.service": service_unit}


def _escaped(text: str) -> str:
    return text.replace("%", "%%")


def _command_line(arguments: Sequence[str]) -> str:
    """The command of a unit. systemd refuses a program with odd characters in its path, so ``env`` starts that one."""
    safe = re.fullmatch(r"[\w@:./=+ -]+", arguments[0], re.ASCII)
    return " ".join(_quoted(argument) for argument in (*(() if safe else ("/usr/bin/env",)), *arguments))


def _quoted(text: str, *, command: bool = True) -> str:
    """A word of a unit file. ``$`` is special in a command line only."""
    escaped = _escaped(text).replace("\\", "\\\\").replace('"', '\\"')
    if command:
        escaped = escaped.replace("$", "$$")
    return escaped if re.fullmatch(r"[\w@:./=+-]+", escaped, re.ASCII) else f'"{escaped}"'


class Systemd:
    """The systemd of this user."""

    name = "systemd"

    def files(self, service: HubService) -> dict[Path, str]:
        """The files of the service, and their content."""
        return {self._folder / name: text for name, text in systemd_units(service).items()}

    def installed(self) -> list[Path]:
        """The files that exist."""
        return [file for name in (f"{UNIT}.socket", f"{UNIT}.service") if (file := self._folder / name).exists()]

    def start(self, *, address_changed: bool) -> None:
        """Load the files, and start or restart the hub. The socket stays open unless its address changed."""
        self._ask("daemon-reload")
        self._ask("enable", f"{UNIT}.socket", f"{UNIT}.service")
        if address_changed:
            self._ask("stop", f"{UNIT}.service", f"{UNIT}.socket")
        self._ask("start", f"{UNIT}.socket")
        self._ask("restart", f"{UNIT}.service")

    def upgrade(self) -> None:
        """Let the hub start its successor. The old hub names it to systemd, and the socket stays open."""
        self._ask("kill", "--kill-who=main", "--signal=USR2", f"{UNIT}.service")

    def stop(self) -> None:
        """Stop the hub, and do not start it again."""
        self._ask("disable", "--now", f"{UNIT}.socket", f"{UNIT}.service")

    def state(self) -> dict[str, Any]:
        """What systemd reports."""
        socket_state, service_state = (
            self._property(f"{UNIT}.{kind}", "ActiveState") for kind in ("socket", "service")
        )
        return {
            "running": "active" in (socket_state, service_state),
            "socket": socket_state,
            "service": service_state,
            "enabled": self._property(f"{UNIT}.socket", "UnitFileState"),
            "lingering": _lingers(),
        }

    def logs(self, lines: int, *, follow: bool) -> list[str]:
        """The command that shows the log."""
        unit = ["journalctl", "--user", "--unit", f"{UNIT}.service", "--lines", str(lines)]
        return [*unit, "--follow"] if follow else [*unit, "--no-pager"]

    def hints(self) -> list[str]:
        """Without lingering, systemd ends the services of a user with the last session."""
        if _lingers() != "no":
            return []
        user = shlex.quote(getpass.getuser())
        return [f"The service ends when you log out. To keep it running: loginctl enable-linger {user}"]

    @property
    def _folder(self) -> Path:
        base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
        return Path(base) / "systemd" / "user"

    def _ask(self, *arguments: str) -> None:
        _run("systemctl", "--user", *arguments)

    def _property(self, unit: str, name: str) -> str:
        return _run("systemctl", "--user", "show", unit, f"--property={name}", "--value").strip()


def _lingers() -> str | None:
    """``yes`` or ``no``; None where systemd does not say."""
    try:
        return _run("loginctl", "show-user", getpass.getuser(), "--property=Linger", "--value").strip() or None
    except HoldfastError:
        return None


# launchd


_WITH_VARIABLES = 'set -a; [ ! -r "$0" ] || . "$0"; exec "$@"'
"""launchd reads no file of variables, and its property list is no place for secrets. So a shell reads the file, and
becomes the hub."""


def launchd_agent(service: HubService, logs: Path) -> bytes:
    """The property list of the agent."""
    shell = ("/bin/sh", "-c", _WITH_VARIABLES, str(service.environment))
    address = ("--host", service.host, "--port", str(service.port))
    return plistlib.dumps(
        {
            "Label": LABEL,
            "ProgramArguments": [*shell, *service.arguments, *address],
            "EnvironmentVariables": {"PATH": service.path},
            "RunAtLoad": True,
            "KeepAlive": {"SuccessfulExit": False},
            "ExitTimeOut": STOP_SECONDS,
            "ProcessType": "Background",
            "StandardOutPath": str(logs),
            "StandardErrorPath": str(logs),
        },
        sort_keys=False,
    )


class Launchd:
    """The launchd of this user."""

    name = "launchd"

    def files(self, service: HubService) -> dict[Path, str]:
        """The property list, and its content."""
        return {self._file: launchd_agent(service, self._log).decode()}

    def installed(self) -> list[Path]:
        """The property list, if it exists."""
        return [self._file] if self._file.exists() else []

    def start(self, *, address_changed: bool) -> None:
        """Load the agent again, which starts the hub."""
        self._log.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(self._bootout, check=False, capture_output=True, timeout=COMMAND_SECONDS)  # noqa: S603 - fixed
        _run("launchctl", "bootstrap", self._domain, str(self._file))

    def upgrade(self) -> None:
        """Restart the agent: launchd follows one process, so that a successor would not belong to it."""
        _run("launchctl", "kickstart", "-k", f"{self._domain}/{LABEL}")

    def stop(self) -> None:
        """Unload the agent."""
        _run(*self._bootout)

    def state(self) -> dict[str, Any]:
        """What launchd reports."""
        shown = _run("launchctl", "print", f"{self._domain}/{LABEL}")
        state = re.search(r"^\s*state = (.+)$", shown, re.MULTILINE)
        return {"running": bool(state and state.group(1) == "running"), "service": state.group(1) if state else ""}

    def logs(self, lines: int, *, follow: bool) -> list[str]:
        """The command that shows the log."""
        return ["tail", "-n", str(lines), *(["-F"] if follow else []), str(self._log)]

    def hints(self) -> list[str]:
        """Nothing: an agent runs as long as its user is logged in."""
        return []

    @property
    def _domain(self) -> str:
        return f"gui/{os.getuid()}"

    @property
    def _bootout(self) -> tuple[str, ...]:
        return ("launchctl", "bootout", f"{self._domain}/{LABEL}")

    @property
    def _file(self) -> Path:
        return Path.home() / "Library" / "LaunchAgents" / f"{LABEL}.plist"

    @property
    def _log(self) -> Path:
        return Path.home() / "Library" / "Logs" / "holdfast.log"


Manager: TypeAlias = Systemd | Launchd


def _run(*command: str) -> str:
    """Run a command of the service manager; returns its output."""
    try:
        ran = subprocess.run(  # noqa: S603 - a fixed command
            command, check=False, capture_output=True, text=True, timeout=COMMAND_SECONDS
        )
    except FileNotFoundError as exc:
        hint = f"run `{command_line('serve')}` under the supervisor of your system"
        raise HoldfastError(
            f"the command `{command[0]}` was not found: there is no service manager", hint=hint
        ) from exc
    except subprocess.TimeoutExpired as exc:
        raise HoldfastError(f"`{shlex.join(command)}` did not end within {COMMAND_SECONDS:g} s") from exc
    if ran.returncode:
        reason = ran.stderr.strip().rpartition("\n")[2].strip() or "it printed no reason"
        raise HoldfastError(f"`{shlex.join(command)}` failed: {reason}", hint=_hint(ran.stderr))
    return ran.stdout


def _hint(text: str) -> str:
    if "bus" in text.lower():
        return "systemd runs no services for this user: log in to a session of your own, without su or sudo"
    return f"`{command_line('service', 'logs')}` shows the log of the hub"


# The hubs that clients started in the background

END_SECONDS = 40.0
"""Longer than the hub's own limits for calls in flight and for closing its servers."""

LOOK_SECONDS = 0.05


def stop(
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="Only the hub that serves this mcp.json")
    ] = None,
    hub: Annotated[
        str | None, typer.Option("--hub", metavar="HUB", help="The hub with this process id, port, file or folder")
    ] = None,
) -> None:
    """End the hub that your clients share, after its calls in flight.

    It means the hubs that clients started in the background; --hub also ends one that you started yourself. Clients
    that are open stay as they are: the next request of one of them starts a hub again.
    Exit code 0: it ended. 1: no hub runs, or it did not end in time.
    """
    found = _hubs_meant(config, hub)
    if not found:
        hint = f"`{command_line('status')}` shows the hubs that run here"
        raise NoHub("no hub runs in the background", hint=hint)
    for one in found:
        with working(f"waiting until the hub with process id {one.pid} has ended"):
            _end_hub(one)
        print_line(f"the hub with process id {one.pid} has ended")


def end_background_hubs() -> list[int]:
    """End every hub that clients started in the background; returns their process ids."""
    found = _hubs_meant(None, None)
    for one in found:
        _end_hub(one)
    return [one.pid for one in found]


def _hubs_meant(config: Path | None, name: str | None) -> list[RunningHub]:
    if name is not None:
        return [found_hub(None, config, name)]
    hubs = holdfast.control.running_hubs()
    return [one for one in hubs if one.background and (config is None or one.config == str(config.absolute()))]


def _end_hub(hub: RunningHub) -> None:
    until = time.monotonic() + END_SECONDS
    with suppress(ProcessLookupError):
        os.kill(hub.pid, signal.SIGTERM)
    while holdfast.control.is_running(hub.pid):
        if time.monotonic() > until:
            hint = f"end it by force: kill -9 {hub.pid}"
            raise HoldfastError(f"the hub with process id {hub.pid} has not ended", hint=hint)
        time.sleep(LOOK_SECONDS)
