"""``holdfast login``: log in to a server."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import anyio
import typer
from rich.text import Text

from holdfast.cli.output import data_console, side_console, working
from holdfast.cli.person import LoginPrompt, has_browser
from holdfast.cli.servers import chosen_server, refuse_useless_login
from holdfast.cli.times import until
from holdfast.config.load import load_config
from holdfast.config.spec import Config, ServerSpec
from holdfast.core.challenge import scopes_in
from holdfast.errors import UsageError

if TYPE_CHECKING:
    from holdfast.auth.grant import Grant
    from holdfast.auth.login import How
    from holdfast.types import MCPServerLoadOutcome

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@app.command()
def login(
    server: Annotated[str, typer.Argument(metavar="SERVER", help="Its name in the configuration")],
    device: Annotated[bool, typer.Option("--device", help="Log in with a code, in a browser on any machine")] = False,
    paste: Annotated[
        bool, typer.Option("--paste", help="Log in with a browser on another machine, and paste its last address")
    ] = False,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open a browser on this machine")] = True,
    scope: Annotated[
        list[str] | None,
        typer.Option("--scope", metavar="SCOPE", help="Request this scope too"),
    ] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=1, help="How long to wait for the login")
    ] = 300.0,
    config: Annotated[Path | None, typer.Option("--config", metavar="FILE", help="The mcp.json to use")] = None,
) -> None:
    """Log in to a server that requires it. A running hub uses the login at once.

    A browser opens for the login. On a machine without a browser, use --device if the authorization server
    supports it, else --paste. The tokens are stored in the OS keyring if there is one, else in a file that
    only you can read. They are renewed automatically.
    Exit code 0: logged in, and the server accepts the login. 1: it does not.
    """
    if device and paste:
        raise UsageError("--device and --paste exclude each other", hint="use one of them")
    found = load_config(config)
    spec = chosen_server(found, server, "log in to")
    refuse_useless_login(spec)
    how: How = "device" if device else "paste" if paste else "browser"
    more = scopes_in(" ".join(scope or ()))
    grant = anyio.run(_log_in, spec, how, browser, more, timeout)
    _show(server, grant)
    raise typer.Exit(anyio.run(_try_out, found, server))


async def _log_in(spec: ServerSpec, how: How, browser: bool, more: tuple[str, ...], timeout: float) -> Grant:  # noqa: ASYNC109 - handed on
    from holdfast.auth.login import log_in  # noqa: PLC0415 - slow to import; a bad config must not wait for it
    from holdfast.auth.store import TokenStore  # noqa: PLC0415

    typed = how == "paste" or (how == "browser" and sys.stdin.isatty())
    person = LoginPrompt(spec.id, opens=browser and how == "browser" and has_browser(), pastes=typed)
    return await log_in(spec, store=TokenStore(), person=person, how=how, scope=more, within=timeout)


def _show(server: str, grant: Grant) -> None:
    where = "the OS keyring" if grant.source == "keyring" else "a file that only you can read"
    lasts = f" It expires {until(grant.expires_at)}" if grant.expires_at is not None else ""
    if grant.refresh_token:
        lasts += " and is renewed automatically" if lasts else " It is renewed automatically"
    elif lasts:
        lasts += "; then log in again"
    granted = f" Granted: {grant.scope}." if grant.scope else ""
    text = f"Logged in to {server}.{granted}{lasts}{'.' if lasts else ''} The tokens are in {where}."
    data_console().print(Text(text), soft_wrap=True)


async def _try_out(config: Config, server: str) -> int:
    """Connect once, to prove that the server accepts the login."""
    from holdfast.hub.loader import Loader  # noqa: PLC0415 - see above

    with working(f"connecting to {server}"):
        outcome = (await Loader(config).load([server])).outcomes[0]
    return _tell(outcome)


def _tell(outcome: MCPServerLoadOutcome) -> int:
    if outcome.status == "available":
        count = len(outcome.tools)
        data_console().print(Text(f"It works: {count} {'tool' if count == 1 else 'tools'}."), soft_wrap=True)
        return 0
    side = side_console()
    side.print(Text(f"But {outcome.message}"), soft_wrap=True)
    if outcome.hint:
        side.print(Text.assemble(("hint: ", "bold cyan"), outcome.hint), soft_wrap=True)
    return 1
