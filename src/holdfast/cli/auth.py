"""``holdfast auth status``: where the credentials of each server come from, and whether they are valid."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from holdfast.cli.login import store_of
from holdfast.cli.output import data_console, print_json, side_console, until
from holdfast.cli.trust import load_trusted
from holdfast.config import Config
from holdfast.core import command_line, plain

if TYPE_CHECKING:
    from holdfast.auth import LoginStatus

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False, no_args_is_help=True)

_WITHOUT_LOGIN = {
    "none": "not logged in",
    "header": "uses the Authorization header of its definition",
    "callable": "its headers come from a program",
    "off": "login is off in its definition",
    "process": "needs no login (it is a local command)",
}


@app.callback()
def auth() -> None:
    """Show logins. `holdfast login` and `holdfast logout` change them."""


@app.command()
def status(
    user: Annotated[
        str | None,
        typer.Option(
            "--user", metavar="USER", help="Show the logins of this user of the hub, to servers that are per user"
        ),
    ] = None,
    users: Annotated[bool, typer.Option("--users", help="Show which users of the hub have logins")] = False,
    config: Annotated[Path | None, typer.Option("--config", metavar="FILE", help="The mcp.json to use")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs")] = False,
) -> None:
    """Show the servers that you are logged in to, for how long, and with which scopes. No token is shown.

    No server is contacted.
    Exit code 0: every login is valid. 1: at least one has ended, and you have to log in again.
    """
    if users:
        _show_users(as_json=as_json)
        return
    found = load_trusted(config)
    now = time.time()
    statuses = _statuses(found, user)
    if as_json:
        print_json({"servers": [_as_json(one, now) for one in statuses]})
    else:
        _show(statuses, now)
    raise typer.Exit(0 if all(one.kind != "login" or _is_valid(one, now) for one in statuses) else 1)


def _statuses(config: Config, user: str | None) -> list[LoginStatus]:
    from holdfast.auth import status_of  # noqa: PLC0415 - slow to import; a bad config must not wait

    store = store_of(user)
    servers = [one for one in config.servers.values() if user is None or one.sharing == "per-user"]
    return [status_of(server, store) for server in servers if not server.problems]


def _show_users(*, as_json: bool) -> None:
    """Show all users' logins, as an operator may see them."""
    from holdfast.auth import UserTokens  # noqa: PLC0415 - see above

    logins, now = UserTokens().all(), time.time()
    if as_json:
        print_json({"version": 1, "logins": [asdict(one) for one in logins]})
        return
    console = data_console()
    for one in logins:
        words = "no key opens it: the user has to log in again"
        if one.readable:
            ends = f"; its token ends {until(one.expires_at, now)}" if one.expires_at is not None else ""
            renewed = " and is renewed" if one.refreshable and ends else ""
            words = f"was refused ({one.refused})" if one.refused else f"logged in{ends}{renewed}"
        console.print(Text.assemble((plain(one.principal), "bold"), f"  {one.resource}  {words}"), soft_wrap=True)
    if not logins:
        side_console().print("no user of the hub has a login")


def _as_json(status: LoginStatus, now: float) -> dict[str, Any]:
    if status.kind != "login":
        return {"id": status.server_id, "credentials": status.kind}
    return {
        "id": status.server_id,
        "credentials": status.kind,
        "usable": status.usable(now),
        "expired": status.expired(now),
        "expires_at": status.expires_at,
        "refreshable": status.refreshable,
        "refused": status.refused or None,
        "scope": status.scope,
        "issuer": status.issuer,
        "resource": status.resource,
        "client_id": status.client_id,
        "source": status.source,
        "place": status.place,
    }


def _show(statuses: list[LoginStatus], now: float) -> None:
    console = data_console()
    for one in statuses:
        style, words = _words(one, now)
        console.print(Text.assemble((one.server_id, "bold"), "  ", (words, style)), soft_wrap=True)
        if one.kind == "login":
            scope = f"for {one.scope}, " if one.scope else ""
            console.print(Text(f"  {scope}by {one.issuer}, kept in {one.place}", style="dim"), soft_wrap=True)
    if not statuses:
        side_console().print("no servers are configured")


def _words(one: LoginStatus, now: float) -> tuple[str, str]:
    if one.kind != "login":
        return "dim", _WITHOUT_LOGIN[one.kind]
    when = "ended" if one.expired(now) else "ends"
    time_left = f"; its token {when} {until(one.expires_at, now)}" if one.expires_at is not None else ""
    if _is_valid(one, now):
        renewed = " and is renewed automatically" if one.refreshable and time_left else ""
        return "green", f"logged in{time_left}{renewed}"
    why = "was revoked or has expired" if one.refused else f"expired {until(one.expires_at, now)} and cannot be renewed"
    return "yellow", f"the login {why}: run `{command_line('login', server=one.server_id)}`"


def _is_valid(one: LoginStatus, now: float) -> bool:
    """Whether it is valid, and no server refused it."""
    return one.usable(now) and not one.refused
