"""``holdfast serve``: every server of an mcp.json behind one MCP endpoint."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.address import DEFAULT_HOST, DEFAULT_PORT, typed_command
from holdfast.cli.callers import Callers, Jwt
from holdfast.cli.listening import bind, refuse_strangers
from holdfast.cli.output import side_console
from holdfast.cli.trace_setup import traced
from holdfast.config.find import find_config
from holdfast.config.load import load_config
from holdfast.config.spec import Config
from holdfast.errors import ConfigNotFound, HoldfastError, UsageError

__all__ = ["app"]

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)

TOKEN_VARIABLE = "HOLDFAST_TOKEN"  # noqa: S105 - the name of a variable
SHORTEST_TOKEN = 16
"""Characters: whoever can reach the port can guess at a shorter one."""


class LogFormat(Enum):
    """How the log is written."""

    CONSOLE = "console"
    JSON = "json"


class LogLevel(Enum):
    """How much is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True)
class Logging:
    """How, and how much."""

    format: LogFormat
    level: LogLevel


@app.command()
def serve(
    config: Annotated[Path | None, typer.Option("--config", metavar="FILE", help="The mcp.json to use")] = None,
    host: Annotated[str, typer.Option("--host", metavar="HOST", help="The address to listen on")] = DEFAULT_HOST,
    port: Annotated[
        int, typer.Option("--port", metavar="PORT", min=0, max=65535, help="The port; 0 for a free one")
    ] = DEFAULT_PORT,
    stdio: Annotated[bool, typer.Option("--stdio", help="Serve the client that started this, on stdin")] = False,
    watch: Annotated[
        bool, typer.Option("--watch/--no-watch", help="Whether to apply changes of the mcp.json as they are made")
    ] = True,
    token: Annotated[
        str | None, typer.Option("--token", metavar="TOKEN", help="Demand this bearer token of every caller")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option("--token-file", metavar="FILE", help="The same, from a file that nobody else sees")
    ] = None,
    jwt_issuer: Annotated[
        str | None, typer.Option("--jwt-issuer", metavar="URL", help="Accept signed tokens of this issuer")
    ] = None,
    jwt_audience: Annotated[
        str | None, typer.Option("--jwt-audience", metavar="NAME", help="For whom such a token must be meant")
    ] = None,
    jwt_keys: Annotated[
        str | None, typer.Option("--jwt-keys", metavar="URL|FILE", help="The issuer's keys: a JWKS, or a PEM file")
    ] = None,
    allow_host: Annotated[
        list[str] | None, typer.Option("--allow-host", metavar="NAME", help="Another name that callers may use for it")
    ] = None,
    drain: Annotated[
        float, typer.Option("--drain", metavar="SECONDS", min=0, help="How long calls may still run at the end")
    ] = 10.0,
    demo: Annotated[bool, typer.Option("--demo", help="Serve the built-in demo fleet")] = False,
    log_format: Annotated[
        LogFormat,
        typer.Option("--log-format", envvar="HOLDFAST_LOG_FORMAT", help="For people, or JSON lines"),
    ] = LogFormat.CONSOLE,
    log_level: Annotated[
        LogLevel, typer.Option("--log-level", envvar="HOLDFAST_LOG_LEVEL", help="The least that is logged")
    ] = LogLevel.INFO,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="The same as --log-level debug")] = False,
) -> None:
    """Serve every server of an mcp.json behind one MCP endpoint, over HTTP or stdio.

    Without a configuration it serves a demo fleet, whose servers fail each in its own way.
    SIGTERM and Ctrl-C end it: calls under way are finished first. SIGHUP reads the mcp.json again,
    but where it runs on a terminal: there it means that the terminal was closed.
    Beyond this machine it listens only with a token (--token-file, --token or $HOLDFAST_TOKEN), or for
    callers with a JWT (--jwt-issuer, --jwt-audience and --jwt-keys together).
    """
    if demo and config is not None:
        raise UsageError("--demo and --config contradict each other", hint="give one of them")
    _refuse_empty({"--token": token, "--host": host}, allow_host or ())
    secret = _token(token, token_file)
    log = Logging(format=log_format, level=LogLevel.DEBUG if verbose else log_level)
    jwt = _jwt(jwt_issuer, jwt_audience, jwt_keys)
    file = None if demo else _find(config)
    loaded = load_config(file) if file is not None else None
    if stdio:
        _serve(loaded, None, log, watch=watch, drain=drain)
        return
    refuse_strangers(host, can_verify=secret is not None or jwt is not None)
    who = Callers(token=secret, jwt=jwt, hosts=tuple(allow_host or ()))
    with closing(bind(host, port)) as listener:
        _serve(loaded, listener, log, watch=watch, drain=drain, host=host, callers=who)


def _serve(
    config: Config | None,
    listener: socket.socket | None,
    log: Logging,
    *,
    watch: bool,
    drain: float,
    host: str = "",
    callers: Callers | None = None,
) -> None:
    from holdfast.cli.log_setup import log_to_stderr  # noqa: PLC0415 - as below
    from holdfast.cli.serving import Serving, run  # noqa: PLC0415 - costs a second, which a bad config need not wait for
    from holdfast.cli.steering import control_token  # noqa: PLC0415 - the same

    who = callers or Callers()
    token = control_token(os.environ, callers=who.token)
    log_to_stderr(log.format.value, log.level.value, secrets=[secret for secret in (who.token, token) if secret])
    serving = Serving(
        config=config, listener=listener, host=host, watch=watch, callers=who, drain=drain, control_token=token
    )
    with traced(os.environ):
        run(serving)


def _jwt(issuer: str | None, audience: str | None, keys: str | None) -> Jwt | None:
    if issuer is None and audience is None and keys is None:
        return None
    if not issuer or not audience or not keys:
        raise UsageError(
            "--jwt-issuer, --jwt-audience and --jwt-keys belong together",
            hint="a signed token is believed only from a named issuer, for a named audience, by the issuer's own keys",
        )
    return Jwt(issuer=issuer, audience=audience, keys=keys)


def _find(config: Path | None) -> Path | None:
    """The file to serve; None for the demo fleet, if there is no file and none was named."""
    try:
        return find_config(config, environ=os.environ, cwd=Path.cwd())
    except ConfigNotFound as exc:
        side = side_console()
        side.print("No mcp.json was found: this is the demo fleet. For your own servers:", soft_wrap=True)
        side.print(f"  {typed_command()} import   copies them from your other MCP clients", soft_wrap=True)
        side.print(f"  or put an mcp.json at one of: {', '.join(map(str, exc.searched))}", soft_wrap=True)
        return None


def _refuse_empty(given: Mapping[str, str | None], allowed_hosts: Sequence[str]) -> None:
    """A variable that is not set must not open what it was meant to close."""
    empty = [name for name, value in given.items() if value is not None and not value.strip()]
    if not all(host.strip() for host in allowed_hosts):
        empty.append("--allow-host")
    if empty:
        raise UsageError(f"{empty[0]} is empty", hint="is the variable set that it comes from? Else leave it out")


def _token(given: str | None, file: Path | None) -> str | None:
    if given is not None and file is not None:
        raise UsageError("--token and --token-file contradict each other", hint="give one of them")
    token = _read_token(file) if file is not None else given or os.environ.get(TOKEN_VARIABLE) or None
    if token is not None and len(token) < SHORTEST_TOKEN:
        raise UsageError(
            f"the token has fewer than {SHORTEST_TOKEN} characters",
            hint="make one: python3 -c 'import secrets; print(secrets.token_urlsafe(32))'",
        )
    return token


def _read_token(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as exc:
        why = getattr(exc, "strerror", None) or type(exc).__name__
        raise HoldfastError(f"the token file {file} cannot be read: {why}", hint="is the path right?") from exc
