"""``holdfast logout``: remove the login of a server, and revoke it at its authorization server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import anyio
import typer
from rich.text import Text

from holdfast.cli.login import chosen_server, require_per_user, store_of
from holdfast.cli.output import data_console, side_console
from holdfast.cli.trust import load_trusted
from holdfast.config import Config, ServerSpec
from holdfast.core import plain

if TYPE_CHECKING:
    from holdfast.auth import LoggedOut

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@app.command()
def logout(
    server: Annotated[str, typer.Argument(metavar="SERVER", help="Its name in the configuration")],
    user: Annotated[
        str | None, typer.Option("--user", metavar="USER", help="Remove the login of this user of the hub")
    ] = None,
    config: Annotated[Path | None, typer.Option("--config", metavar="FILE", help="The mcp.json to use")] = None,
) -> None:
    """Remove the login of a server. Its tokens are revoked too, if the authorization server supports that.

    Exit code 0: the server has no login any more.
    """
    found = load_trusted(config)
    spec = chosen_server(found, server, "log out of")
    require_per_user(spec, user)
    gone = anyio.run(_log_out, spec, user)
    whose = f" of {plain(user)}" if user is not None else ""
    tokens = f"the tokens{whose}" if whose else "its tokens"
    if gone is None:
        side_console().print(Text(f"There was no login{whose} for {server}."), soft_wrap=True)
        return
    revoked = f", and revoked by {gone.grant.issuer}" if gone.revoked else ""
    data_console().print(Text(f"Logged out of {server}: {tokens} are removed{revoked}."), soft_wrap=True)
    if others := _others(found, gone, server):
        side_console().print(Text(f"These servers used the same login: {', '.join(others)}."), soft_wrap=True)


async def _log_out(spec: ServerSpec, user: str | None) -> LoggedOut | None:
    from holdfast.auth import log_out  # noqa: PLC0415 - slow to import; a bad config must not wait for it

    return await log_out(spec, store=store_of(user))


def _others(config: Config, gone: LoggedOut, server: str) -> list[str]:
    """The other servers that had the same login."""
    from holdfast.auth import canonical  # noqa: PLC0415 - see above

    servers = [one for one in config.servers.values() if one.id != server]
    return [one.id for one in servers if one.url and canonical(one.url) in gone.grant.servers]
