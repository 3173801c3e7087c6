"""``holdfast login``: log in to a server."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import anyio
import typer
from rich.text import Text

from holdfast.cli.browser import open_privately
from holdfast.cli.output import counted, data_console, side_console, until, working
from holdfast.cli.trust import load_trusted
from holdfast.config import Config, ServerSpec
from holdfast.core import plain, scopes_in
from holdfast.errors import ConfigError, HoldfastError, UnknownServer, UsageError

if TYPE_CHECKING:
    from holdfast.auth import DeviceCode, Grant, GrantStore, LoginMethod
    from holdfast.types import MCPServerLoadOutcome

__all__ = ["TerminalLogin", "chosen_server", "has_browser", "refuse_useless_login"]

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
    user: Annotated[
        str | None,
        typer.Option(
            "--user",
            metavar="USER",
            help='Log in for this user of the hub, at a server with `"sharing": "per-user"`: the name of her principal',
        ),
    ] = None,
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
    found = load_trusted(config)
    spec = chosen_server(found, server, "log in to")
    refuse_useless_login(spec)
    require_per_user(spec, user)
    how: LoginMethod = "device" if device else "paste" if paste else "browser"
    more = scopes_in(" ".join(scope or ()))
    grant = anyio.run(_log_in, spec, how, browser, more, timeout, user)
    _show(server, grant, user)
    raise typer.Exit(anyio.run(_try_out, found, server, user))


def log_in_to(config: Config, server: str, within: float = 300.0) -> None:
    """Log in with a browser, and show what came of it; `setup` uses it."""
    spec = chosen_server(config, server, "log in to")
    refuse_useless_login(spec)
    _show(server, anyio.run(_log_in, spec, "browser", True, (), within))


async def _log_in(
    spec: ServerSpec,
    how: LoginMethod,
    browser: bool,
    more: tuple[str, ...],
    timeout: float,  # noqa: ASYNC109 - handed on
    user: str | None = None,
) -> Grant:
    from holdfast.auth import log_in  # noqa: PLC0415 - slow to import; a bad config must not wait for it

    typed = how == "paste" or (how == "browser" and sys.stdin.isatty())
    opens = browser and how == "browser" and has_browser()
    person = TerminalLogin(spec.id, opens=opens, pastes=typed, within=timeout)
    return await log_in(spec, store=store_of(user), person=person, how=how, scope=more, within=timeout)


def store_of(user: str | None) -> GrantStore:
    """The logins of a user of the hub; the hub's own without one."""
    from holdfast.auth import TokenStore, UserTokens  # noqa: PLC0415 - see above

    return UserTokens().of(user) if user is not None else TokenStore()


def require_per_user(server: ServerSpec, user: str | None) -> None:
    """Refuse a user's login to a server that would never use it."""
    if user is not None and server.sharing != "per-user":
        raise HoldfastError(
            f"all users of `{server.id}` share one login, so a login of `{plain(user)}` has no effect",
            hint='write `"sharing": "per-user"` into its definition, or log in without --user',
        )


def _show(server: str, grant: Grant, user: str | None = None) -> None:
    where = "the OS keyring" if grant.source == "keyring" else "a file that only you can read"
    if user is not None:
        where = f"the hub's file of users' logins, encrypted, for {plain(user)}"
    lasts = f" It expires {until(grant.expires_at)}" if grant.expires_at is not None else ""
    if grant.refresh_token:
        lasts += " and is renewed automatically" if lasts else " It is renewed automatically"
    elif lasts:
        lasts += "; then log in again"
    granted = f" Granted: {grant.scope}." if grant.scope else ""
    text = f"Logged in to {server}.{granted}{lasts}{'.' if lasts else ''} The tokens are in {where}."
    data_console().print(Text(text), soft_wrap=True)


async def _try_out(config: Config, server: str, user: str | None = None) -> int:
    """Connect once, to prove that the server accepts the login."""
    from holdfast.auth import Logins  # noqa: PLC0415 - see above
    from holdfast.hub import Loader  # noqa: PLC0415 - see above

    with working(f"connecting to {server}"):
        outcome = (await Loader(config, logins=Logins(store_of(user))).load([server])).outcomes[0]
    return _tell(outcome)


def _tell(outcome: MCPServerLoadOutcome) -> int:
    if outcome.status == "available":
        data_console().print(Text(f"It works: {counted(len(outcome.tools), 'tool')}."), soft_wrap=True)
        return 0
    side = side_console()
    side.print(Text(f"But {outcome.message}"), soft_wrap=True)
    if outcome.hint:
        side.print(Text.assemble(("hint: ", "bold cyan"), outcome.hint), soft_wrap=True)
    return 1


def chosen_server(config: Config, name: str, doing: str) -> ServerSpec:
    """The server of this name, if it is an HTTP server. Only those have logins."""
    server = config.servers.get(name)
    if server is None:
        near = get_close_matches(name, config.servers, n=1)
        known = f"did you mean {near[0]}?" if near else f"configured: {', '.join(sorted(config.servers)) or 'none'}"
        raise UnknownServer(f"no server named `{name}` is configured", hint=known)
    if server.problems:
        raise ConfigError(server.problems)
    if server.transport == "stdio":
        raise HoldfastError(
            f"`{name}` is a local command: there is nothing to {doing}",
            hint="credentials of a local command go into its `env`; see its documentation",
        )
    return server


def refuse_useless_login(server: ServerSpec) -> None:
    """Refuse a login that the hub would never use."""
    if not server.oauth.enabled:
        raise HoldfastError(
            f'the definition of `{server.id}` has `"oauth": false`, so a login has no effect',
            hint="remove that key first",
        )
    if isinstance(server.headers, Mapping) and any(name.lower() == "authorization" for name in server.headers):
        raise HoldfastError(
            f"`{server.id}` uses the Authorization header of its definition, so a login has no effect",
            hint="remove that header first",
        )


LONGEST_LINE = 64 * 1024


class TerminalLogin:
    """The user at a terminal, as ``holdfast.auth.person_login`` needs it."""

    def __init__(self, server: str, *, opens: bool, pastes: bool, within: float) -> None:
        self._server = server
        self._within = within
        self._opens = opens
        self._pastes = pastes
        self._console = side_console()

    def asked_for(self, scope: tuple[str, ...], issuer: str) -> None:
        """Show the requested scopes first, so that the user can judge them."""
        what = " ".join(scope) if scope else "its default scopes"
        self._say(f"Logging in to {self._server} at {plain(issuer)}, requested scopes: {plain(what)}")

    def visit(self, address: str) -> None:
        """Open the browser if there is one, and show the address in any case."""
        if self._opens:
            self._say("Opening your browser. If nothing opens, visit this address:")
            # A thread, because some browsers block. After a failure the user has the address.
            threading.Thread(target=open_privately, args=(address,), name="browser", daemon=True).start()
        else:
            self._say("Visit this address with a browser:")
        self._show(address)
        if self._pastes:
            self._say("If the browser ends at a page that does not load, paste the address of that page here:")
        else:
            self._say(
                f"Waiting {self._within:g} s for that browser to come back to this machine. There is no terminal to"
                " paste an address: if the browser is on another machine, use --device, or --paste and its address on"
                " stdin."
            )

    def enter(self, code: DeviceCode) -> None:
        """Show the device code."""
        self._say("Visit this address with any browser, on any machine:")
        self._show(code.complete_address or code.address)
        self._console.print(Text.assemble("and enter the code ", (code.user_code, "bold")), soft_wrap=True)
        self._say(f"The code is valid for {code.expires_in / 60:.0f} min. Waiting …")

    async def paste(self) -> str:
        """The next line of input. Waits forever if no line comes."""
        line = b""
        while self._pastes and b"\n" not in line and len(line) < LONGEST_LINE:
            with suppress(PermissionError):  # a plain file cannot be waited for, and can always be read
                await anyio.wait_readable(sys.stdin)
            part = os.read(sys.stdin.fileno(), LONGEST_LINE)
            if not part:
                break
            line += part
        if line.strip():
            return line.decode("utf-8", "replace").strip()
        if self._pastes:
            self._say(f"The input has ended: waiting {self._within:g} s for the browser to come back to this machine.")
        await anyio.sleep_forever()
        raise AssertionError("unreachable")

    def _say(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)

    def _show(self, address: str) -> None:
        """Show an address on its own line, uncut, so that it can be copied."""
        self._console.print(Text(f"\n  {plain(address)}\n", style="cyan"), soft_wrap=True)


def has_browser(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether a graphical browser can open. A text browser would take over the terminal."""
    names = ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY")
    return sys.platform == "darwin" or any(environ.get(name) for name in names)
