"""``holdfast gateway bridge``: keeps the config file of the gateway up to date with its targets."""

from __future__ import annotations

import os
import signal
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import anyio
import typer

from holdfast.cli.gateway_options import GatewayOptions, with_gateway_options
from holdfast.cli.output import side_console
from holdfast.config.durations import Unfit, parse_duration
from holdfast.errors import HoldfastError, UsageError
from holdfast.gateway.defaults import HEALTH_ADDRESS
from holdfast.gateway.model import ExtAuth, Gateway, check_address

if TYPE_CHECKING:
    from holdfast.gateway.bridge import Bridge, BridgePlan
    from holdfast.gateway.source import TargetSource
    from holdfast.gateway.versions import Release

__all__ = ["bridge"]

TOKEN_VARIABLE = "HOLDFAST_TARGETS_TOKEN"  # noqa: S105 - the name of a variable


@with_gateway_options
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
        typer.Option("--bootstrap", metavar="FILE", help="A gateway config to add the routes to; its own routes win"),
    ] = None,
    listener: Annotated[
        str, typer.Option("--listener", metavar="NAME", help="The listener of the bootstrap that gets the routes")
    ] = "",
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
    plan = _plan(
        output,
        release,
        bootstrap or base,
        ext_auth=ext_auth,
        listener=listener,
        schema=options.schema,
        poll=_seconds(poll, "--poll"),
        patience=_seconds(accept_within, "--accept-within"),
    )
    if seed:
        _seed(plan)
        return
    worker = _bridge(
        plan, _source(targets, targets_url, token_file, allow_plain_http=allow_plain_http), options.admin, watch
    )
    worker.health.gateway_version = options.gateway_version
    address = check_address(listen, option="--listen", lowest=0)
    raise typer.Exit(anyio.run(_once, worker) if once else anyio.run(_serve, worker, address))


def _plan(
    output: Path,
    release: Release,
    base: Gateway | Path,
    *,
    ext_auth: ExtAuth | None,
    listener: str,
    schema: Path | None,
    poll: float,
    patience: float,
) -> BridgePlan:
    from holdfast.gateway.bridge import BridgePlan  # noqa: PLC0415 - an extra may be missing: see gateway()
    from holdfast.gateway.check import find_schema  # noqa: PLC0415 - as above
    from holdfast.gateway.merge import Rules, read_bootstrap  # noqa: PLC0415 - as above
    from holdfast.gateway.render import render  # noqa: PLC0415 - as above

    return BridgePlan(
        output=output.absolute(),
        rules=Rules(release=release, ext_auth=ext_auth, listener=listener, schema=find_schema(release, schema)),
        bootstrap=lambda: read_bootstrap(base) if isinstance(base, Path) else render(base, release.family),
        bootstrap_file=base if isinstance(base, Path) else None,
        poll=poll,
        patience=patience,
    )


def _source(file: Path | None, url: str | None, token_file: Path | None, *, allow_plain_http: bool) -> TargetSource:
    from holdfast.gateway.source import FileSource, HttpSource  # noqa: PLC0415 - as above

    if file is not None and url is None:
        return FileSource(file)
    if url is None or file is not None:
        raise UsageError("name exactly one source of targets", hint="--targets FILE, or --targets-url URL")
    has_token = token_file is not None or TOKEN_VARIABLE in os.environ
    token = (lambda: _token(token_file)) if has_token else None
    return HttpSource(url=url, token=token, allow_plain_http=allow_plain_http)


def _token(file: Path | None) -> str:
    """The token. It is read again at each poll, because a mounted secret can be replaced."""
    return file.read_text().strip() if file is not None else os.environ[TOKEN_VARIABLE]


def _bridge(plan: BridgePlan, source: TargetSource, admin: str, watched: bool) -> Bridge:
    from holdfast.gateway.bridge import Bridge  # noqa: PLC0415 - as above
    from holdfast.gateway.watch import AdminAddressWatch, NoAdminAddress  # noqa: PLC0415 - as above

    return Bridge(
        plan, source=source, watch=AdminAddressWatch(f"http://{admin}") if watched else NoAdminAddress(), report=_say
    )


def _seed(plan: BridgePlan) -> None:
    from holdfast.gateway.bridge import seed  # noqa: PLC0415 - as above

    try:
        written = seed(plan)
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
    from holdfast.gateway.serve import health_app, serving  # noqa: PLC0415 - as above

    host, _, port = address.rpartition(":")
    async with serving(health_app(worker.health), host.strip("[]"), int(port)) as url:
        _say(f"health at {url}/healthz, metrics at {url}/metrics")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(worker.run)
            with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
                async for _ in signals:
                    break
            tasks.cancel_scope.cancel()
    return 0


def _seconds(text: str, option: str) -> float:
    try:
        seconds = parse_duration(text)
    except Unfit as exc:
        raise UsageError(f"{option} {exc.message}", hint=exc.hint) from exc
    if not seconds:
        raise UsageError(f"{option} must be more than 0")
    return seconds


def _say(text: str) -> None:
    side_console().print(f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} {text}", soft_wrap=True)
