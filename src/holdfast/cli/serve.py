"""``holdfast serve``: serve all servers of an mcp.json at one MCP endpoint."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import unquote, urlsplit

import typer

from holdfast.cli.output import side_console
from holdfast.cli.trust import load_trusted
from holdfast.config import Config, load_config
from holdfast.control import TOKEN_VARIABLE as CONTROL_TOKEN_VARIABLE
from holdfast.core import command_line, is_loopback
from holdfast.errors import ConfigNotFound, UsageError
from holdfast.serve import (
    DEFAULT_HOST,
    DEFAULT_PORT,
    AcceptedJwt,
    CallerAuth,
    GatewayAuth,
    TlsOptions,
    WorkerLink,
    bind,
    check_token_length,
    endpoint,
    inherited_socket,
    local_token as make_local_token,
    needs_name,
    open_to,
    read_token,
    require_auth_beyond_loopback,
    uid_of,
)

if TYPE_CHECKING:
    from holdfast.serve import Predecessor

__all__ = ["app", "control_token"]

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)

LAME_DUCK_SECONDS = 5.0
"""How long a hub that others reach through a balancer still serves after its end was announced."""

TOKEN_VARIABLE = "HOLDFAST_TOKEN"  # noqa: S105 - the name of a variable


class LogFormat(Enum):
    """The format of the log."""

    CONSOLE = "console"
    JSON = "json"


class LogLevel(Enum):
    """The lowest level that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True)
class Logging:
    """The log options."""

    format: LogFormat
    level: LogLevel


@app.command()
def serve(
    config: Annotated[Path | None, typer.Option("--config", metavar="FILE", help="The mcp.json to use")] = None,
    host: Annotated[str, typer.Option("--host", metavar="HOST", help="The address to listen on")] = DEFAULT_HOST,
    port: Annotated[
        int, typer.Option("--port", metavar="PORT", min=0, max=65535, help="The port to listen on; 0 for a free one")
    ] = DEFAULT_PORT,
    stdio: Annotated[bool, typer.Option("--stdio", help="Serve one client over stdin and stdout")] = False,
    watch: Annotated[bool, typer.Option("--watch/--no-watch", help="Apply changes of the mcp.json at once")] = True,
    token: Annotated[
        str | None,
        typer.Option(
            "--token",
            metavar="TOKEN",
            help="Require this bearer token from every caller; other users of the machine can see it here",
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option("--token-file", metavar="FILE", help="Read that token from a file, and again when it changes"),
    ] = None,
    tokens_file: Annotated[
        Path | None,
        typer.Option("--tokens-file", metavar="FILE", help="Named tokens: JSON with name, sha256, groups and expires"),
    ] = None,
    jwt_issuer: Annotated[
        str | None, typer.Option("--jwt-issuer", metavar="URL", help="Accept JWTs of this issuer")
    ] = None,
    jwt_audience: Annotated[
        str | None, typer.Option("--jwt-audience", metavar="NAME", help="The audience that a JWT must have")
    ] = None,
    jwt_keys: Annotated[
        str | None,
        typer.Option("--jwt-keys", metavar="URL|FILE", help="Its keys: a JWKS URL, or a PEM file"),
    ] = None,
    jwt_groups_claim: Annotated[
        str, typer.Option("--jwt-groups-claim", metavar="NAME", help="The claim with the groups of a user")
    ] = "groups",
    jwt_scopes_claim: Annotated[
        str, typer.Option("--jwt-scopes-claim", metavar="NAME", help="The claim with the scopes of a user")
    ] = "scope",
    gateway_secret_file: Annotated[
        Path | None,
        typer.Option(
            "--gateway-secret-file",
            metavar="FILE",
            help="Trust the user headers of a gateway that sends this secret as Holdfast-Gateway-Secret",
        ),
    ] = None,
    gateway_user_header: Annotated[
        str, typer.Option("--gateway-user-header", metavar="NAME", help="The gateway's header with the user")
    ] = "X-Forwarded-User",
    gateway_groups_header: Annotated[
        str, typer.Option("--gateway-groups-header", metavar="NAME", help="The gateway's header with the groups")
    ] = "X-Forwarded-Groups",
    gateway_mtls: Annotated[
        bool,
        typer.Option("--gateway-mtls", help="Trust the user headers of a client with a certificate of --tls-client-ca"),
    ] = False,
    gateway_cert_name: Annotated[
        list[str] | None,
        typer.Option(
            "--gateway-cert-name",
            metavar="NAME",
            help="A name in the gateway's certificate, for --gateway-mtls; may be repeated",
        ),
    ] = None,
    allow_uid: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-uid",
            metavar="USER",
            help="Another user of this machine that may call a hub without credentials; may be repeated",
        ),
    ] = None,
    local_token: Annotated[
        bool,
        typer.Option("--local-token", help="Require a token from local programs too; `import` gives it to clients"),
    ] = False,
    control_token_file: Annotated[
        Path | None,
        typer.Option(
            "--control-token-file",
            metavar="FILE",
            help=f"The token of the control API, read again when it changes; or set ${CONTROL_TOKEN_VARIABLE}",
        ),
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option("--tls-cert", metavar="FILE", help="Serve TLS with this certificate, in PEM form")
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option("--tls-key", metavar="FILE", help="The key of that certificate, in PEM form")
    ] = None,
    tls_client_ca: Annotated[
        Path | None,
        typer.Option("--tls-client-ca", metavar="FILE", help="Require client certificates of this authority (mTLS)"),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option("--allow-host", metavar="NAME", help="Another host name for requests; may be repeated"),
    ] = None,
    session_key_file: Annotated[
        Path | None,
        typer.Option(
            "--session-key-file",
            metavar="FILE",
            help="Keys for session ids, one a line, the newest first; the same file for all replicas",
        ),
    ] = None,
    fleet: Annotated[
        str | None,
        typer.Option(
            "--fleet",
            metavar="URL",
            envvar="HOLDFAST_FLEET",
            help="Share switches, approvals and evidence with other hubs: redis://, rediss:// or redis+sentinel://",
        ),
    ] = None,
    workers: Annotated[
        str,
        typer.Option(
            "--workers",
            metavar="N",
            envvar="HOLDFAST_WORKERS",
            help="How many processes serve together; `auto` for one a core",
        ),
    ] = "1",
    advertise: Annotated[
        str | None,
        typer.Option(
            "--advertise",
            metavar="URL",
            envvar="HOLDFAST_ADVERTISE",
            help="Where the other replicas of --fleet reach this one: tcp://HOST:PORT, with a port of its own",
        ),
    ] = None,
    approvals_lock: Annotated[
        Path | None,
        typer.Option(
            "--approvals-lock",
            metavar="FILE",
            envvar="HOLDFAST_APPROVALS_LOCK",
            help="Use only what this lock has; `holdfast approve --export` writes one",
        ),
    ] = None,
    takeover: Annotated[
        bool,
        typer.Option("--takeover", help="Take over from the running hub of this mcp.json, on its address"),
    ] = False,
    lame_duck: Annotated[
        float | None,
        typer.Option(
            "--lame-duck",
            metavar="SECONDS",
            min=0,
            help="How long all is still served after SIGTERM while /readyz answers 503; 5 beyond loopback, else 0",
        ),
    ] = None,
    drain: Annotated[
        float, typer.Option("--drain", metavar="SECONDS", min=0, help="How long calls in flight may run after that")
    ] = 10.0,
    demo: Annotated[bool, typer.Option("--demo", help="Serve the built-in demo servers")] = False,
    log_format: Annotated[
        LogFormat,
        typer.Option("--log-format", envvar="HOLDFAST_LOG_FORMAT", help="The format of the log: text, or JSON lines"),
    ] = LogFormat.CONSOLE,
    log_level: Annotated[
        LogLevel, typer.Option("--log-level", envvar="HOLDFAST_LOG_LEVEL", help="The lowest level that is logged")
    ] = LogLevel.INFO,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="The same as --log-level debug")] = False,
) -> None:
    """Serve all servers of an mcp.json at one MCP endpoint, over HTTP or stdio.

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
    count = worker_count(workers)
    if demo and config is not None:
        raise UsageError("--demo and --config exclude each other", hint="use one of them")
    _refuse_empty({"--token": token, "--host": host}, allow_host or ())
    secret = _token(token, token_file)
    log = Logging(format=log_format, level=LogLevel.DEBUG if verbose else log_level)
    jwt = _jwt(jwt_issuer, jwt_audience, jwt_keys, groups_claim=jwt_groups_claim, scopes_claim=jwt_scopes_claim)
    tls = _tls(tls_cert, tls_key, tls_client_ca)
    gateway = _gateway(
        gateway_secret_file,
        mtls=gateway_mtls,
        certificate_names=tuple(gateway_cert_name or ()),
        user_header=gateway_user_header,
        groups_header=gateway_groups_header,
    )
    if gateway_mtls and tls_client_ca is None:
        raise UsageError("--gateway-mtls needs --tls-client-ca", hint="it says whose certificates are valid")
    loaded = _demo_of(worker) if worker is not None and worker.task.demo else None if demo else _load(config)
    if count > 1 and stdio:
        raise UsageError("--workers does not go with --stdio", hint="several workers serve over HTTP")
    if stdio:
        _serve(loaded, None, log, watch=watch, drain=drain, approvals_lock=approvals_lock)
        return
    who = CallerAuth(
        token=secret,
        token_file=token_file,
        tokens_file=tokens_file,
        jwt=jwt,
        gateway=gateway,
        hosts=tuple(allow_host or ()),
        uids=tuple(map(uid_of, allow_uid or ())),
    )
    if who.uids and (who.can_verify or local_token):
        raise UsageError(
            "--allow-uid is for a hub without credentials", hint="with a token, any user that sends it may call"
        )
    if control_token_file is not None and os.environ.get(CONTROL_TOKEN_VARIABLE):
        raise UsageError(
            f"--control-token-file and {CONTROL_TOKEN_VARIABLE} exclude each other", hint="use one of them"
        )
    predecessor = _predecessor(loaded, host, port, tls=tls is not None) if takeover and worker is None else None
    given = _given_socket(predecessor, worker)
    address = given.getsockname()[0] if given is not None else host
    require_auth_beyond_loopback(address, can_verify=who.can_verify)
    if not who.can_verify:
        who = _local_callers(who, local_token=local_token, told=worker is not None)
    spare = _lame_duck(lame_duck, address)
    with closing(given or bind(host, port)) as listener:
        if count > 1 and worker is None:
            _supervise(
                loaded,
                listener,
                log,
                host=address,
                callers=who,
                count=count,
                drain=drain,
                tls=tls,
                control_token_file=control_token_file,
                predecessor=predecessor,
                lame_duck=spare,
                fleet=fleet,
            )
            return
        _serve(
            loaded,
            listener,
            log,
            watch=watch,
            drain=drain,
            host=address,
            callers=who,
            tls=tls,
            control_token_file=control_token_file,
            session_key_file=session_key_file,
            predecessor=predecessor,
            lame_duck=spare,
            fleet=fleet,
            worker=worker,
            advertise=advertise,
            approvals_lock=approvals_lock,
        )


MOST_WORKERS = 64


def worker_count(text: str) -> int:
    """The number of workers: a number, or one for each core that this process may use."""
    if text == "auto":
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return min(cores, MOST_WORKERS)
    if not (text.isascii() and text.isdigit() and len(text) < 9 and 1 <= int(text) <= MOST_WORKERS):
        raise UsageError(
            f"--workers is `{text[:20]}`",
            hint=f"give a number from 1 to {MOST_WORKERS}, or `auto`; more than there are cores brings nothing",
        )
    return int(text)


def _given_socket(predecessor: Predecessor | None, worker: WorkerLink | None) -> socket.socket | None:
    if worker is not None:
        return worker.listener
    return predecessor.listener if predecessor is not None else inherited_socket(os.environ)


def _lame_duck(given: float | None, host: str) -> float:
    return (0.0 if is_loopback(host) else LAME_DUCK_SECONDS) if given is None else given


def _supervise(
    config: Config | None,
    listener: socket.socket,
    log: Logging,
    *,
    host: str,
    callers: CallerAuth,
    count: int,
    drain: float,
    tls: TlsOptions | None,
    control_token_file: Path | None,
    predecessor: Predecessor | None,
    lame_duck: float,
    fleet: str | None,
) -> None:
    from holdfast.serve import (  # noqa: PLC0415 - the same
        Supervised,
        Supervisor,
        log_to_stderr,
    )

    token = control_token(os.environ, callers=callers.token, file=control_token_file)
    log_to_stderr(log.format.value, log.level.value, secrets=[*_secrets(callers, token), *_passwords(fleet)])
    supervisor = Supervisor(
        Supervised(
            config=config,
            listener=listener,
            host=host,
            count=count,
            token=token,
            token_file=control_token_file,
            certificate=tls.certificate if tls is not None else None,
            drain=drain,
            lame_duck=lame_duck,
            predecessor=predecessor,
            open_to=open_to(callers, tls),
            needs_name=needs_name(host, callers.hosts),
        )
    )
    supervisor.run()
    if supervisor.code:
        raise typer.Exit(supervisor.code)


def _local_callers(who: CallerAuth, *, local_token: bool, told: bool) -> CallerAuth:
    """How a hub without credentials knows its user: by the uid of a connection, or by a token of its own."""
    from holdfast.access import PeerUids  # noqa: PLC0415 - not needed for a config error

    uids = None if local_token else PeerUids.open()
    if uids is not None:
        uids.close()
        return who
    if not local_token and who.uids:
        raise UsageError(
            "this system does not tell which user calls, so --allow-uid has no effect", hint="use --token-file FILE"
        )
    file = make_local_token(os.environ)
    why = "" if local_token else "This system does not tell which user calls. "
    if not told:
        side_console().print(
            f"{why}Callers need the token in {file}; `{command_line('import')}` gives it to your clients",
            soft_wrap=True,
        )
    return replace(who, token=read_token(file), token_file=file)


def _tls(certificate: Path | None, key: Path | None, client_ca: Path | None) -> TlsOptions | None:
    if certificate is None and key is None and client_ca is None:
        return None
    if certificate is None or key is None:
        raise UsageError("--tls-cert and --tls-key belong together", hint="give both; --tls-client-ca is optional")
    return TlsOptions(certificate=certificate, key=key, client_ca=client_ca)


def _predecessor(config: Config | None, host: str, port: int, *, tls: bool) -> Predecessor | None:
    if config is None or config.source is None:
        raise UsageError("--takeover needs an mcp.json: the demo servers end with their hub", hint="use --config FILE")
    from holdfast.serve import find_predecessor  # noqa: PLC0415 - it imports what only a successor needs

    found = find_predecessor(config.source, endpoint(host, port, "", tls=tls))
    if found is None:
        side_console().print(f"no hub serves {config.source} here: this one starts without a takeover", soft_wrap=True)
    return found


def _serve(
    config: Config | None,
    listener: socket.socket | None,
    log: Logging,
    *,
    watch: bool,
    drain: float,
    host: str = "",
    callers: CallerAuth | None = None,
    tls: TlsOptions | None = None,
    control_token_file: Path | None = None,
    session_key_file: Path | None = None,
    predecessor: Predecessor | None = None,
    lame_duck: float = 0.0,
    fleet: str | None = None,
    worker: WorkerLink | None = None,
    advertise: str | None = None,
    approvals_lock: Path | None = None,
) -> None:
    # These imports take a second, and a bad config must not wait for them.
    from holdfast.serve import ServeOptions, log_to_stderr, run_hub, traced  # noqa: PLC0415 - see above  # noqa: PLC0415 - see above
    from holdfast.wire import adopt_orphans  # noqa: PLC0415 - see above

    adopt_orphans()
    who = callers or CallerAuth()
    if worker is not None:
        worker.end_with_supervisor()
        token = worker.task.token
    else:
        token = control_token(os.environ, callers=who.token, file=control_token_file)
    number = worker.task.number if worker is not None else None
    secrets_ = [*_secrets(who, token), *_passwords(fleet)]
    log_to_stderr(log.format.value, log.level.value, secrets=secrets_, worker=number)
    serving = ServeOptions(
        config=config,
        listener=listener,
        host=host,
        watch=watch,
        callers=who,
        drain=drain,
        control_token=token,
        control_token_file=control_token_file,
        tls=tls,
        session_key_file=session_key_file,
        predecessor=predecessor,
        fleet=fleet or None,
        lame_duck=lame_duck,
        worker=worker,
        advertise=advertise or None,
        approvals_lock=approvals_lock,
    )
    with traced(os.environ):
        run_hub(serving)


def _secrets(callers: CallerAuth, control: str) -> list[str]:
    gateway = callers.gateway.secret if callers.gateway is not None else None
    return [secret for secret in (callers.token, control, gateway) if secret]


def _passwords(url: str | None) -> list[str]:
    password = urlsplit(url or "").password
    return [unquote(password)] if password else []


def _gateway(
    file: Path | None, *, mtls: bool, certificate_names: tuple[str, ...], user_header: str, groups_header: str
) -> GatewayAuth | None:
    if file is None and not mtls:
        if certificate_names:
            raise UsageError("--gateway-cert-name needs --gateway-mtls", hint="give both, or neither")
        return None
    secret = read_token(file, "the gateway's secret") if file is not None else None
    return GatewayAuth(
        secret=secret,
        secret_file=file,
        mtls=mtls,
        certificate_names=certificate_names,
        user_header=user_header,
        groups_header=groups_header,
    )


def _jwt(
    issuer: str | None, audience: str | None, keys: str | None, *, groups_claim: str, scopes_claim: str
) -> AcceptedJwt | None:
    if issuer is None and audience is None and keys is None:
        return None
    if not issuer or not audience or not keys:
        raise UsageError(
            "--jwt-issuer, --jwt-audience and --jwt-keys belong together",
            hint="a JWT is checked for its issuer, its audience and its signature",
        )
    return AcceptedJwt(
        issuer=issuer, audience=audience, keys=keys, groups_claim=groups_claim, scopes_claim=scopes_claim
    )


def _demo_of(worker: WorkerLink) -> Config:
    from holdfast.demo import DemoControl  # noqa: PLC0415 - of the demo alone

    return load_config(DemoControl(Path(worker.task.demo)).config_file)


def _load(config: Path | None) -> Config | None:
    """The configuration to serve; None for the demo fleet, if there is no file and none was named."""
    try:
        return load_trusted(config)
    except ConfigNotFound as exc:
        side = side_console()
        side.print("No mcp.json was found, so this serves demo servers. To serve your own:", soft_wrap=True)
        side.print(f"  {command_line('import')}   copies them from your other MCP clients", soft_wrap=True)
        side.print(f"  or put an mcp.json at one of: {', '.join(map(str, exc.searched))}", soft_wrap=True)
        return None


def _refuse_empty(given: Mapping[str, str | None], allowed_hosts: Sequence[str]) -> None:
    """Refuse empty values. An unset variable must not remove a protection."""
    empty = [name for name, value in given.items() if value is not None and not value.strip()]
    if not all(host.strip() for host in allowed_hosts):
        empty.append("--allow-host")
    if empty:
        raise UsageError(f"{empty[0]} is empty", hint="check the variable that it comes from, or leave the option out")


def _token(given: str | None, file: Path | None) -> str | None:
    if given is not None and file is not None:
        raise UsageError("--token and --token-file exclude each other", hint="use one of them")
    if file is not None:
        return read_token(file)
    token = given or os.environ.get(TOKEN_VARIABLE) or None
    if token is not None:
        check_token_length("the token", token)
    return token


def control_token(environ: Mapping[str, str], *, callers: str | None, file: Path | None = None) -> str:
    """The operator's own control token, or a new random one; never the token of the callers."""
    given = read_token(file, "the control token") if file is not None else environ.get(CONTROL_TOKEN_VARIABLE)
    if not given:
        return secrets.token_urlsafe(32)
    check_token_length(CONTROL_TOKEN_VARIABLE, given)
    if given == callers:
        raise UsageError(
            "the control token is also the callers' token: every caller could disable servers",
            hint="give it another value, or none",
        )
    return given
