"""``holdfast login``, ``logout`` and ``auth status``: the logins of servers, and whether they are valid.

``open_privately`` opens an address in the user's browser without showing it to other users of the machine (SEC-10); the
status page is opened by it too. Every user can read the command line of every process, and the address of a sign-in is
as good as a password. So the browser gets another address: that of a small web server in this process, which redirects
to the real one, once. On Linux it redirects only a browser of this user: the kernel tells who is at the other end of a
connection. Elsewhere the browser opens a private file with a secret address of that server. A file alone would not do
on Linux: browsers from Snap and Flatpak cannot read it.
"""

from __future__ import annotations

import html
import os
import secrets
import socket
import sys
import tempfile
import threading
import time
import webbrowser
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import quote

import anyio
import typer

import holdfast.auth
import holdfast.serve
from holdfast.access import PeerUids
from holdfast.cli.command_options import AsJson, ConfigFile, group_of_commands
from holdfast.cli.config import try_server
from holdfast.cli.output import print_json, print_line, print_note, print_try, until
from holdfast.cli.trust import load_trusted
from holdfast.config import Config, ServerSpec
from holdfast.core import command_line, plain, scopes_in
from holdfast.errors import ConfigError, HoldfastError, UnknownServer, UsageError

if TYPE_CHECKING:
    from holdfast.auth import DeviceCode, Grant, GrantStore, LoginMethod, LoginStatus, RungStatus, UserRow

__all__ = ["auth_app", "log_in_to", "login", "logout", "open_privately"]


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
    config: ConfigFile = None,
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
    how: LoginMethod = "device" if device else "paste" if paste else "browser"
    more = scopes_in(" ".join(scope or ()))
    log_in_to(found, server, how, opens=browser, more=more, within=timeout, user=user)
    logins = holdfast.auth.Logins(store_of(user))  # to prove that the server accepts the login
    raise typer.Exit(print_try(try_server(found, server, logins), but="But "))


def log_in_to(
    config: Config,
    server: str,
    how: LoginMethod = "browser",
    *,
    opens: bool = True,
    more: tuple[str, ...] = (),
    within: float = 300.0,
    user: str | None = None,
) -> None:
    """Log in, and show what came of it; `setup` uses it too."""
    spec = chosen_server(config, server, "log in to")
    refuse_useless_login(spec)
    require_per_user(spec, user)
    typed = how == "paste" or (how == "browser" and sys.stdin.isatty())
    person = TerminalLogin(server, opens=opens and how == "browser" and has_browser(), pastes=typed, within=within)
    log_in = partial(holdfast.auth.log_in, store=store_of(user), person=person, how=how, scope=more, within=within)
    _show(server, anyio.run(log_in, spec), user)


def store_of(user: str | None) -> GrantStore:
    """The logins of a user of the hub; the hub's own without one."""
    if user is None:
        return holdfast.auth.TokenStore()
    return holdfast.serve.command_user_tokens(os.environ).of(user)


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
        where = f"the hub's store of users' logins, encrypted, for {plain(user)}"
    lasts = f" It expires {until(grant.expires_at)}" if grant.expires_at is not None else ""
    if grant.refresh_token:
        lasts += " and is renewed automatically" if lasts else " It is renewed automatically"
    elif lasts:
        lasts += "; then log in again"
    granted = f" Granted: {grant.scope}." if grant.scope else ""
    text = f"Logged in to {server}.{granted}{lasts}{'.' if lasts else ''} The tokens are in {where}."
    print_line(text)


def chosen_server(config: Config, name: str, doing: str) -> ServerSpec:
    """The server of this name, if it is an HTTP server. Only those have logins."""
    server = config.servers.get(name)
    if server is None:
        raise UnknownServer.among(name, config.servers)
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

    def asked_for(self, scope: tuple[str, ...], issuer: str) -> None:
        """Show the requested scopes first, so that the user can judge them."""
        what = " ".join(scope) if scope else "its default scopes"
        print_note(f"Logging in to {self._server} at {plain(issuer)}, requested scopes: {plain(what)}")

    def visit(self, address: str) -> None:
        """Open the browser if there is one, and show the address in any case."""
        if self._opens:
            print_note("Opening your browser. If nothing opens, visit this address:")
            # A thread, because some browsers block. After a failure the user has the address.
            threading.Thread(target=open_privately, args=(address,), name="browser", daemon=True).start()
        else:
            print_note("Visit this address with a browser:")
        _print_address(address)
        if self._pastes:
            print_note("If the browser ends at a page that does not load, paste the address of that page here:")
        else:
            print_note(
                f"Waiting {self._within:g} s for that browser to come back to this machine. There is no terminal to"
                " paste an address: if the browser is on another machine, use --device, or --paste and its address on"
                " stdin."
            )

    def enter(self, code: DeviceCode) -> None:
        """Show the device code."""
        print_note("Visit this address with any browser, on any machine:")
        _print_address(code.complete_address or code.address)
        print_note("and enter the code ", (code.user_code, "bold"))
        print_note(f"The code is valid for {code.expires_in / 60:.0f} min. Waiting …")

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
            print_note(f"The input has ended: waiting {self._within:g} s for the browser to come back to this machine.")
        await anyio.sleep_forever()
        raise AssertionError("unreachable")


def _print_address(address: str) -> None:
    """Show an address on its own line, uncut, so that it can be copied."""
    print_note((f"\n  {plain(address)}\n", "cyan"))


def has_browser(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether a graphical browser can open. A text browser would take over the terminal."""
    names = ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY")
    return sys.platform == "darwin" or any(environ.get(name) for name in names)


# Log out


def logout(
    server: Annotated[str, typer.Argument(metavar="SERVER", help="Its name in the configuration")],
    user: Annotated[
        str | None, typer.Option("--user", metavar="USER", help="Remove the login of this user of the hub")
    ] = None,
    config: ConfigFile = None,
) -> None:
    """Remove the login of a server. Its tokens are revoked too, if the authorization server supports that.

    Exit code 0: the server has no login any more.
    """
    found = load_trusted(config)
    spec = chosen_server(found, server, "log out of")
    require_per_user(spec, user)
    gone = anyio.run(partial(holdfast.auth.log_out, spec, store=store_of(user)))
    whose = f" of {plain(user)}" if user is not None else ""
    tokens = f"the tokens{whose}" if whose else "its tokens"
    if gone is None:
        print_note(f"There was no login{whose} for {server}.")
        return
    revoked = f", and revoked by {gone.grant.issuer}" if gone.revoked else ""
    print_line(f"Logged out of {server}: {tokens} are removed{revoked}.")
    others = [one for one in found.servers.values() if one.id != server and one.url]
    if also := [one.id for one in others if holdfast.auth.canonical(one.url) in gone.grant.servers]:
        print_note(f"These servers used the same login: {', '.join(also)}.")


# Show logins

auth_app = group_of_commands()

_WITHOUT_LOGIN = {
    "none": "not logged in",
    "header": "uses the Authorization header of its definition",
    "callable": "its headers come from a program",
    "off": "login is off in its definition",
    "process": "needs no login (it is a local command)",
}


@auth_app.callback()
def auth() -> None:
    """Show logins. `holdfast login` and `holdfast logout` change them."""


@auth_app.command()
def status(
    user: Annotated[
        str | None,
        typer.Option(
            "--user", metavar="USER", help="Show the logins of this user of the hub, to servers that are per user"
        ),
    ] = None,
    users: Annotated[bool, typer.Option("--users", help="Show which users of the hub have logins")] = False,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Show the servers that you are logged in to, for how long, and with which scopes. No token is shown.

    No server is contacted.
    Exit code 0: every login is valid. 1: at least one has ended, and you have to log in again.
    """
    if users:
        _show_users(as_json=as_json)
        return
    found = load_trusted(config)
    now, store = time.time(), store_of(user)
    usable = [one for one in found.servers.values() if not one.problems]
    servers = [one for one in usable if user is None or one.sharing == "per-user"]
    statuses = [holdfast.auth.status_of(server, store) for server in servers]
    # Where a user's credentials come from beside her login. The hub itself has its logins alone.
    rungs = (
        {one.id: holdfast.auth.rungs_of(one, store, now) for one in servers}
        if isinstance(store, holdfast.auth.UserGrants)
        else {}
    )
    if as_json:
        ladders = {name: {"ladder": [asdict(one) for one in rows]} for name, rows in rungs.items() if rows}
        print_json({"servers": [_login_data(one, now) | ladders.get(one.server_id, {}) for one in statuses]})
    else:
        _show_logins(statuses, now, rungs)
    raise typer.Exit(0 if all(one.grant is None or _is_valid_login(one.grant, now) for one in statuses) else 1)


def _show_users(*, as_json: bool) -> None:
    """Show all users' logins, as an operator may see them."""
    logins, now = holdfast.serve.command_user_tokens(os.environ).rows(), time.time()
    if as_json:
        print_json({"logins": [_user_login_data(one) for one in logins]})
        return
    for one in logins:
        words, grant, resource = "no key opens it: the user has to log in again", one.grant, one.key.resource
        if grant is not None:
            ends = f"; its token ends {until(grant.expires_at, now)}" if grant.expires_at is not None else ""
            renewed = " and is renewed" if grant.refreshable and ends else ""
            words = f"was refused ({grant.refused})" if grant.refused else f"logged in{ends}{renewed}"
        if resource == holdfast.auth.SIGN_IN:
            words = words.replace("logged in", "signed in", 1)
        where = "the hub" if resource == holdfast.auth.SIGN_IN else resource
        print_line((plain(one.principal), "bold"), f"  {where}  {words}")
    if not logins:
        print_note("no user of the hub has a login")


def _user_login_data(row: UserRow) -> dict[str, Any]:
    """One user's login, as an operator may see it: no secret is in it."""
    grant = row.grant
    return {
        "principal": row.principal,
        "issuer": row.key.issuer,
        "resource": row.key.resource,
        "readable": grant is not None,
        "scope": grant.scope if grant is not None else "",
        "expires_at": grant.expires_at if grant is not None else None,
        "refreshable": grant is not None and grant.refreshable,
        "refused": grant.refused if grant is not None else "",
    }


def _login_data(status: LoginStatus, now: float) -> dict[str, Any]:
    grant = status.grant
    if grant is None:
        return {"id": status.server_id, "credentials": status.kind}
    return {
        "id": status.server_id,
        "credentials": status.kind,
        "usable": grant.usable(now),
        "expired": grant.expired(now),
        "expires_at": grant.expires_at,
        "refreshable": grant.refreshable,
        "refused": grant.refused or None,
        "scope": grant.scope,
        "issuer": grant.issuer,
        "resource": grant.resource,
        "client_id": grant.client.id,
        "source": grant.source,
        "place": status.place,
    }


def _show_logins(statuses: list[LoginStatus], now: float, rungs: dict[str, tuple[RungStatus, ...]]) -> None:
    for one in statuses:
        style, words = _login_words(one, now)
        print_line((one.server_id, "bold"), "  ", (words, style))
        if one.grant is not None:
            scope = f"for {one.grant.scope}, " if one.grant.scope else ""
            print_line((f"  {scope}by {one.grant.issuer}, kept in {one.place}", "dim"))
        for rung in rungs.get(one.server_id, ()):
            print_line(f"  {rung.rung}: ", ("yes", "green") if rung.open else ("no", "dim"), f", {rung.words}")
    if not statuses:
        print_note("no servers are configured")


def _login_words(one: LoginStatus, now: float) -> tuple[str, str]:
    grant = one.grant
    if grant is None:
        return "dim", _WITHOUT_LOGIN[one.kind]
    ends = until(grant.expires_at, now)
    when = "ended" if grant.expired(now) else "ends"
    time_left = f"; its token {when} {ends}" if grant.expires_at is not None else ""
    if _is_valid_login(grant, now):
        renewed = " and is renewed automatically" if grant.refreshable and time_left else ""
        return "green", f"logged in{time_left}{renewed}"
    why = "was revoked or has expired" if grant.refused else f"expired {ends} and cannot be renewed"
    return "yellow", f"the login {why}: run `{command_line('login', server=one.server_id)}`"


def _is_valid_login(grant: Grant, now: float) -> bool:
    """Whether it is valid, and no server refused it."""
    return grant.usable(now) and not grant.refused


# The browser

FETCH_SECONDS: Final = 60.0
"""How long a browser may take to come for the address: it may have to start first."""

REQUEST_SECONDS: Final = 2.0
"""A browser that connected sends its request at once."""

LONGEST_HEAD: Final = 16 * 1024

_SAFE: Final = "%/:?#[]@!$&'()*+,;=~-._"
"""The characters of an address that stay as they are."""

_HEADERS: Final = "Cache-Control: no-store\r\nReferrer-Policy: no-referrer\r\nContent-Length: 0\r\nConnection: close"


def open_privately(address: str, *, within: float = FETCH_SECONDS) -> bool:
    """Open an address; True when the browser of this user has it. Waits for that, and for a browser that blocks."""
    uids = PeerUids.open()
    try:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            secret = secrets.token_urlsafe(24)
            own = f"http://127.0.0.1:{listener.getsockname()[1]}/{secret}"
            with _told(own, in_file=uids is None) as told:
                browser = _Browser(told)
                if not _redirect(listener, f"/{secret}", address, uids, browser, time.monotonic() + within):
                    return False
            browser.join()
            return True
    finally:
        if uids is not None:
            uids.close()


class _Browser(threading.Thread):
    """Runs the browser: some return at once, some when they are closed."""

    def __init__(self, address: str) -> None:
        super().__init__(name="browser", daemon=True)  # Ctrl-C ends the command, not the browser
        self._address = address
        self.failed = False
        self.start()

    def run(self) -> None:
        """Open the address."""
        try:
            self.failed = not webbrowser.open(self._address)
        except (webbrowser.Error, OSError):
            self.failed = True


@contextmanager
def _told(own: str, *, in_file: bool) -> Iterator[str]:
    """What the browser is told: the address itself, or that of a private file that leads to it."""
    if not in_file:
        yield own
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-") as folder:  # only this user may enter it
        file = Path(folder) / "open.html"
        file.touch(mode=0o600)
        place = html.escape(own, quote=True)
        file.write_text(
            '<!doctype html><meta charset="utf-8"><meta name="referrer" content="no-referrer">'
            f'<meta http-equiv="refresh" content="0;url={place}"><a href="{place}">Continue</a>\n',
            encoding="utf-8",
        )
        yield file.as_uri()


def _redirect(
    listener: socket.socket, path: str, address: str, uids: PeerUids | None, browser: _Browser, until: float
) -> bool:
    """Redirect the one who may have the address; False if no such browser came in time, or none could be opened."""
    listener.settimeout(0.1)  # then it is looked whether the browser failed
    while (left := until - time.monotonic()) > 0:
        if browser.failed:
            return False
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            continue
        with connection, suppress(OSError):
            connection.settimeout(min(REQUEST_SECONDS, left))
            if uids is not None and uids.of(connection) != os.geteuid():
                continue  # another user: it may hold up no one
            asked = _asked(connection)
            if secrets.compare_digest(asked.encode(), path.encode()):
                place = quote(address, safe=_SAFE)  # an authorization server names a part of it
                connection.sendall(f"HTTP/1.1 302 Found\r\nLocation: {place}\r\n{_HEADERS}\r\n\r\n".encode())
                return True
            connection.sendall(f"HTTP/1.1 404 Not Found\r\n{_HEADERS}\r\n\r\n".encode())
    return False


def _asked(connection: socket.socket) -> str:
    """The path of a request; empty if it is none."""
    head = b""
    while b"\r\n\r\n" not in head and len(head) < LONGEST_HEAD:
        part = connection.recv(4096)
        if not part:
            break
        head += part
    words = head.split(b"\r\n", 1)[0].split(b" ")
    return words[1].decode("latin-1") if len(words) == 3 and words[0] == b"GET" else ""
