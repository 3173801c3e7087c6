"""``holdfast gateway``: render the configuration of AgentGateway once, or keep it up to date.

What needs the packages of the extra `gateway` is named as an attribute, ``holdfast.gateway.…``: it is imported when it
is used, after the check that they are installed.
"""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import anyio
import typer

import holdfast.config
import holdfast.gateway
import holdfast.serve
from holdfast.cli.command_options import ConfigFile, group_of_commands, seconds_in, with_options_of
from holdfast.cli.output import print_note
from holdfast.cli.trust import load_trusted
from holdfast.errors import HoldfastError, UsageError
from holdfast.files import NotPrivate, read_secret, require_private
from holdfast.gateway import (
    ADMIN_ADDRESS,
    BODY_BYTES,
    EXT_AUTH_TIMEOUT,
    HEALTH_ADDRESS,
    LISTEN_PORT,
    OUTAGE_STATUS,
    ExtAuth,
    Gateway,
    Jwt,
    Release,
    check_address,
    family_of,
)

if TYPE_CHECKING:
    from holdfast.gateway import Bridge, BridgePlan, TargetSource

__all__ = ["app"]


@dataclass(frozen=True, kw_only=True)
class GatewayOptions:
    """The shared options. Each field is one option of the command line."""

    gateway_version: Annotated[
        str, typer.Option("--gateway-version", metavar="V", help="The version of AgentGateway, for example 1.4.1")
    ]
    ext_auth_host: Annotated[
        str | None,
        typer.Option("--ext-auth-host", metavar="HOST:PORT", help="Address of the authorization service"),
    ] = None
    ext_auth_timeout: Annotated[
        str,
        typer.Option("--ext-auth-timeout", metavar="TIME", help="How long the gateway waits for the authorization"),
    ] = EXT_AUTH_TIMEOUT
    outage_status: Annotated[
        int,
        typer.Option(
            "--outage-status",
            metavar="N",
            help="The HTTP status for clients when the authorization service does not answer: 500 to 599, or 403",
        ),
    ] = OUTAGE_STATUS
    ext_auth_protocol: Annotated[
        Literal["grpc", "http"], typer.Option("--ext-auth-protocol", help="The protocol of the authorization service")
    ] = "grpc"
    ext_auth_body_bytes: Annotated[
        int,
        typer.Option(
            "--ext-auth-body-bytes",
            metavar="N",
            help="How many bytes of a request's body the authorization service gets; 0 for none",
        ),
    ] = BODY_BYTES
    jwt_issuer: Annotated[
        str | None, typer.Option("--jwt-issuer", metavar="URL", help="Require a token of this issuer")
    ] = None
    jwt_jwks: Annotated[
        str | None, typer.Option("--jwt-jwks", metavar="URL|FILE", help="Where the keys of the issuer are")
    ] = None
    jwt_audience: Annotated[
        list[str] | None,
        typer.Option("--jwt-audience", metavar="NAME", help="The audience that tokens must have; may be repeated"),
    ] = None
    port: Annotated[
        int, typer.Option("--port", metavar="N", min=1, max=65535, help="The port that the gateway listens on")
    ] = LISTEN_PORT
    admin_address: Annotated[
        str, typer.Option("--admin-address", metavar="HOST:PORT", help="The admin address of the gateway")
    ] = ADMIN_ADDRESS
    schema: Annotated[
        Path | None,
        typer.Option("--schema", metavar="PATH", help="Check against AgentGateway's own schema: a file, or a folder"),
    ] = None

    @property
    def admin(self) -> str:
        """The admin address, checked."""
        return check_address(self.admin_address, option="--admin-address")

    def release(self) -> Release:
        """How to render for this version. Warns where the version is uncertain."""
        release = family_of(self.gateway_version)
        if release.warning:
            warn(release.warning)
        return release

    def ext_auth(self) -> ExtAuth | None:
        """The authorization service. Warns where there is none."""
        if self.ext_auth_host is None:
            warn("there is no --ext-auth-host: everyone who can reach the gateway can reach the servers")
            return None
        return ExtAuth(
            host=self.ext_auth_host,
            timeout=self.ext_auth_timeout,
            outage_status=self.outage_status,
            protocol=self.ext_auth_protocol,
            body_bytes=self.ext_auth_body_bytes,
        )

    def jwt(self) -> Jwt | None:
        """The tokens that the gateway requires, if any."""
        if self.jwt_issuer is None and self.jwt_jwks is None and not self.jwt_audience:
            return None
        if self.jwt_issuer is None or self.jwt_jwks is None:
            raise UsageError(
                "--jwt-issuer and --jwt-jwks belong together", hint="a token is checked with the keys of its issuer"
            )
        return Jwt(issuer=self.jwt_issuer, jwks=self.jwt_jwks, audiences=tuple(self.jwt_audience or ()))


def warn(text: str) -> None:
    """Print a warning on stderr."""
    print_note(f"warning: {text}")


TOKEN_VARIABLE = "HOLDFAST_TARGETS_TOKEN"  # noqa: S105 - the name of a variable


@with_options_of(GatewayOptions)
def bridge(
    options: GatewayOptions,
    output: Annotated[Path, typer.Option("--output", metavar="FILE", help="The file that the gateway reads")],
    targets: Annotated[
        Path | None, typer.Option("--targets", metavar="FILE", help="The mcp.json that lists the targets")
    ] = None,
    targets_url: Annotated[
        str | None,
        typer.Option("--targets-url", metavar="URL", help="An endpoint that serves such an mcp.json, or a hub"),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file", metavar="FILE", help=f"The bearer token for the endpoint; or set ${TOKEN_VARIABLE}"
        ),
    ] = None,
    allow_plain_http: Annotated[
        bool, typer.Option("--allow-plain-http", help="Send the token over plain http to another machine")
    ] = False,
    bootstrap: Annotated[
        Path | None,
        typer.Option(
            "--bootstrap",
            metavar="FILE",
            help="A gateway config whose first HTTP listener gets the routes; its own win",
        ),
    ] = None,
    session_key_file: Annotated[
        Path | None,
        typer.Option(
            "--session-key-file", metavar="FILE", help="64 hex digits: the gateway encrypts its session ids with them"
        ),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch/--no-watch", help="Check at the admin address that the gateway runs the config")
    ] = True,
    poll: Annotated[str, typer.Option("--poll", metavar="TIME", help="How often to read the targets")] = "5s",
    accept_within: Annotated[
        str, typer.Option("--accept-within", metavar="TIME", help="How long the gateway may take to load a config")
    ] = "10s",
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Where to serve /healthz, /livez and /metrics")
    ] = HEALTH_ADDRESS,
    allow_empty: Annotated[
        bool, typer.Option("--allow-empty", help="Remove all routes when the source lists no targets")
    ] = False,
    once: Annotated[bool, typer.Option("--once", help="Write the config once, and exit")] = False,
    seed: Annotated[
        bool, typer.Option("--seed", help="Write the config without targets if there is none yet, and exit")
    ] = False,
) -> None:
    """Keep the config file of the gateway up to date with its targets, and report its health.

    Exit code of --once: 0 if the config is in place and the gateway runs it, 1 if not.
    """
    release = options.release()
    ext_auth = options.ext_auth()
    base = Gateway(ext_auth=ext_auth, jwt=options.jwt(), port=options.port, admin=options.admin)
    # The gateway reads its key only when it starts, so the bridge reads it once.
    key = holdfast.gateway.session_key(session_key_file) if session_key_file is not None else None
    schema = holdfast.gateway.find_schema(release, options.schema)
    plan = holdfast.gateway.BridgePlan(
        output=output.absolute(),
        rules=holdfast.gateway.Rules(release=release, ext_auth=ext_auth, schema=schema),
        bootstrap=lambda: _bootstrap(bootstrap or base, release, key),
        bootstrap_file=bootstrap,
        allow_empty=allow_empty,
        poll=_seconds(poll, "--poll"),
        patience=_seconds(accept_within, "--accept-within"),
    )
    if seed:
        _seed(plan)
        return
    worker = holdfast.gateway.Bridge(
        plan,
        source=_source(targets, targets_url, token_file, allow_plain_http=allow_plain_http),
        watch=holdfast.gateway.AdminAddressWatch(f"http://{options.admin}") if watch else None,
        report=_say,
    )
    worker.health.gateway_version = options.gateway_version
    address = check_address(listen, option="--listen", lowest=0)
    raise typer.Exit(anyio.run(_once, worker) if once else anyio.run(_serve, worker, address))


def _bootstrap(base: Gateway | Path, release: Release, key: str | None) -> dict[str, Any]:
    """The config that the routes are added to: that of a file, or one that is rendered."""
    if isinstance(base, Path):
        document = holdfast.gateway.read_bootstrap(base)
    else:
        document = holdfast.gateway.render_config(base, release.family)
    return holdfast.gateway.with_session_key(document, key) if key is not None else document


def _source(file: Path | None, url: str | None, token_file: Path | None, *, allow_plain_http: bool) -> TargetSource:
    if file is not None and url is None:
        return holdfast.gateway.FileSource(file)
    if url is None or file is not None:
        raise UsageError("name exactly one source of targets", hint="--targets FILE, or --targets-url URL")
    if token_file is not None:
        _check_token_file(token_file)
    has_token = token_file is not None or TOKEN_VARIABLE in os.environ
    token = (lambda: _token(token_file)) if has_token else None
    return holdfast.gateway.HttpSource(url=url, token=token, allow_plain_http=allow_plain_http)


def _check_token_file(file: Path) -> None:
    try:
        require_private(file)
    except NotPrivate as exc:
        raise UsageError(f"the token is not private: {exc}", hint=f"run: {exc.command}") from exc
    except OSError:
        return  # a secret that is not mounted yet: each poll says so


def _token(file: Path | None) -> str:
    """The token. It is read again at each poll, because a mounted secret can be replaced."""
    return read_secret(file).strip() if file is not None else os.environ[TOKEN_VARIABLE]


def _seed(plan: BridgePlan) -> None:
    try:
        written = holdfast.gateway.seed(plan)
    except OSError as exc:
        hint = "check that the folder exists, and that its disk is not full"
        raise HoldfastError(f"cannot write {plan.output}: {exc.strerror}", hint=hint) from exc
    _say(f"wrote {plan.output}" if written else f"{plan.output} exists already")


async def _once(worker: Bridge) -> int:
    health = await worker.once()
    for error in (health.source_error, health.config_error, health.gateway_error):
        if error:
            _say(error)
    return 0 if health.status == "ok" else 1


async def _serve(worker: Bridge, address: str) -> int:
    holdfast.serve.log_faults_in_lines()
    host, _, port = address.rpartition(":")
    async with holdfast.gateway.serving(worker.health, host.strip("[]"), int(port)) as url:
        _say(f"health at {url}/healthz, metrics at {url}/metrics")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(worker.run)
            with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
                async for _ in signals:
                    break
            tasks.cancel_scope.cancel()
    return 0


def _seconds(text: str, option: str) -> float:
    seconds = seconds_in(text, option)
    if not seconds:
        raise UsageError(f"{option} must be more than 0")
    return seconds


def _say(text: str) -> None:
    print_note(f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} {text}")


app = group_of_commands()
app.command()(bridge)


@app.callback()
def gateway() -> None:
    """Render the configuration of AgentGateway, with an authorization timeout that fits."""
    missing = [name for name in ("yaml", "jsonschema") if find_spec(name) is None]
    if missing:
        hint = "install Holdfast with its extra, in its clone: pipx install --force '.[gateway]'"
        raise HoldfastError(f"`holdfast gateway` needs missing packages: {', '.join(missing)}", hint=hint)


@app.command()
@with_options_of(GatewayOptions)
def render(
    options: GatewayOptions,
    config: ConfigFile = None,
) -> None:
    """Print the configuration as YAML, with a route for each server of an mcp.json that has a URL."""
    release = options.release()
    ext_auth = options.ext_auth()
    targets = holdfast.config.targets_of(load_trusted(config))
    for line in (*(f"no route for `{name}`: {why}" for name, why in targets.left_out.items()), *targets.notes):
        warn(line)
    wanted = Gateway(
        targets=targets.found, ext_auth=ext_auth, jwt=options.jwt(), port=options.port, admin=options.admin
    )
    document = holdfast.gateway.render_config(wanted, release.family)
    holdfast.gateway.check_config(document, release, holdfast.gateway.find_schema(release, options.schema))
    for warning in holdfast.gateway.short_timeouts(document, release.family):
        warn(warning)
    sys.stdout.write(holdfast.gateway.to_yaml(document))
