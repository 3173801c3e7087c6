"""Where a hub listens, and who is told: the TCP socket, the place at which clients join, systemd, people and commands.

The TCP socket is bound here, or inherited from systemd. ``takeover`` hands it to a successor.

Each hub that serves a configuration file over HTTP also offers itself to ``serve --stdio`` (DX-8), if no other hub of
that file does: it holds the lock of the address (``join_address``) and listens there. A hub that takes over listens as
soon as it is ready, and gets the lock when the one before it has ended. Where the place cannot be had, the hub serves
all the same, and says so.

A hub is announced when it accepts connections, and not before: programs that read its addresses connect at once, and
the hub before it may stop then. Commands find it by a private file, which has its control token.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, NoReturn
from urllib.parse import urlsplit

import anyio

from holdfast._version import __version__
from holdfast.config import Config, state_folder
from holdfast.control import TOKEN_VARIABLE, RunningHub, is_running, registered, running_hubs
from holdfast.core import command_line, counted, plain
from holdfast.errors import HoldfastError, UsageError
from holdfast.files import PRIVATE_FOLDER, make_private, private_folder
from holdfast.serve.join_address import JoinAddress, JoinRefused, try_lock
from holdfast.serve.joiner import BACKGROUND_VARIABLE, runs_in_background
from holdfast.serve.options import Serving

__all__ = [
    "Announcement",
    "SharedPlace",
    "bind",
    "inherited_socket",
    "keep_state_private",
    "notify",
    "private_place",
    "shared_place",
    "tell_addresses",
]

log = logging.getLogger("holdfast.serve")

FIRST_INHERITED = 3
"""The descriptor of the first socket that systemd passes."""


def bind(host: str, port: int) -> socket.socket:
    """A socket that is bound and listens. Each error has a hint."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = min(found, key=lambda one: one[0] != socket.AF_INET)
    except (socket.gaierror, UnicodeError) as exc:
        raise HoldfastError(
            f"the host `{host}` cannot be resolved", hint="use an address of this machine, for example --host 127.0.0.1"
        ) from exc
    # asyncio disables Nagle's algorithm only if the protocol is IPPROTO_TCP. Else an answer in two parts waits 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(1024)
    except OSError as exc:
        listener.close()
        _cannot_bind(host, port, exc)
    return listener


def _cannot_bind(host: str, port: int, exc: OSError) -> NoReturn:
    match exc.errno:
        case errno.EADDRINUSE:
            owner, first = _owner(port)
            what = f"port {port} of {host} is in use{owner}"
            hint = f"{first}, use another port, or --port 0 for a free one"
        case errno.EACCES:
            what, hint = f"no permission to use port {port}", "use a port above 1023"
        case errno.EADDRNOTAVAIL:
            what, hint = f"{host} is not an address of this machine", "use 127.0.0.1, or 0.0.0.0 for all addresses"
        case _:
            what, hint = f"cannot listen on {host}, port {port}: {exc.strerror}", "use another --host or --port"
    raise HoldfastError(what, hint=hint) from exc


def _owner(port: int) -> tuple[str, str]:
    """Which hub of this user listens there, and how to end it; no name if it is another program."""
    for hub in running_hubs():
        if urlsplit(hub.url).port == port:
            end = f"end it with `{command_line('stop')}`" if hub.background else "use that hub, or end it"
            return f" by your hub of {'the demo servers' if hub.demo else plain(hub.config)} (process {hub.pid})", end
    tells = f"lsof -iTCP:{port} -sTCP:LISTEN" if sys.platform == "darwin" else f"ss -ltnp 'sport = :{port}'"
    return "", f"`{tells}` names the program that has it: end that"


def inherited_socket(environ: MutableMapping[str, str]) -> socket.socket | None:
    """The listening socket that systemd passes to this process; None if there is none.

    The variables are removed, so that no child process takes the socket for its own.
    """
    meant, count = environ.get("LISTEN_PID") == str(os.getpid()), environ.get("LISTEN_FDS", "")
    if not meant:
        return None
    for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"):
        environ.pop(name, None)
    if count != "1":
        raise UsageError(f"systemd passes {count} sockets", hint="the socket unit must have exactly one ListenStream")
    listener = socket.socket(fileno=FIRST_INHERITED)
    listener.set_inheritable(False)
    if listener.family not in (socket.AF_INET, socket.AF_INET6) or listener.type != socket.SOCK_STREAM:
        raise UsageError("systemd passes a socket that is not TCP", hint="write ListenStream=127.0.0.1:4653")
    return listener


def notify(environ: Mapping[str, str], message: str) -> None:
    """Tell systemd how this hub is (``Type=notify``). Does nothing without systemd."""
    address = environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.connect(f"\0{address[1:]}" if address.startswith("@") else address)
        notify.send(message.encode())


# The folder of the private sockets.

LONGEST_FOLDER: Final = 80
"""Bytes. The system allows 104 to 108 for the path of a Unix socket in it."""


@contextmanager
def private_place(kind: str, environ: Mapping[str, str]) -> Iterator[Path]:
    """A folder for Unix sockets of this process, private to the user. One that a killed hub left is removed."""
    folder: Path | None = None
    with suppress(OSError):
        hubs = private_folder(private_folder(state_folder(environ)) / "hubs")
        for left in hubs.glob(f"*.{kind}"):
            if left.stem.isdigit() and not is_running(int(left.stem)):
                shutil.rmtree(left, ignore_errors=True)
        if len(os.fsencode(hubs)) < LONGEST_FOLDER:
            folder = hubs / f"{os.getpid()}.{kind}"
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(mode=PRIVATE_FOLDER)
    if folder is None:
        folder = Path(tempfile.mkdtemp(prefix="holdfast-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# The place at which clients join.

LOCK_SECONDS: Final = 0.2
"""How often a hub that took over looks whether the one before it has ended."""


class SharedPlace:
    """The address at which clients join, and the lock that says whose it is."""

    def __init__(
        self, address: JoinAddress, lock: int | None, given: int | None, *, is_supervised: bool = False
    ) -> None:
        """``is_supervised`` if another process holds the lock, and outlives this one."""
        self._address = address
        self._is_supervised = is_supervised
        self._lock = lock
        """The lock of the hub; None while the hub before this one has it."""
        self._given = given
        """The lock of one that takes over, which keeps others from doing the same."""
        self._inode = 0

    @classmethod
    def find(
        cls, config: Path, environ: MutableMapping[str, str], *, takes_over: bool = False, is_supervised: bool = False
    ) -> SharedPlace | None:
        """The place of the hub that serves this file; None if another hub has it, or there is none."""
        number, _, key = environ.get(BACKGROUND_VARIABLE, "").partition(" ")
        given = int(number) if number.isdigit() and int(number) > 2 else None
        try:
            address = JoinAddress.of(str(config), (), environ)
            if is_supervised:
                return cls(address, None, None, is_supervised=True)
            address = address.with_key(key) if key else address
            if given is not None:
                environ[BACKGROUND_VARIABLE] = f"0 {key}"  # a successor of this hub has no such descriptor
                is_lock = os.fstat(given).st_ino == os.stat(address.lock).st_ino  # noqa: PTH116 - a text
                return cls(address, given if is_lock else None, None if is_lock else given)
            lock = try_lock(address.lock)
        except (JoinRefused, OSError) as exc:
            log.info("no client can join this hub: %s", exc)
            return None
        return cls(address, lock, None) if lock is not None or takes_over else None

    def listen(self) -> socket.socket | None:
        """Listen for clients from now on; None if that is not possible."""
        try:
            listener = self._address.listen()
            self._inode = os.stat(self._address.path).st_ino  # noqa: PTH116 - a text
        except OSError as exc:
            log.warning("no client can join this hub: %s", exc)
            return None
        return listener

    async def follow(self) -> None:
        """Get the lock when the hub before this one has ended."""
        while self._lock is None and not self._is_supervised:
            with suppress(OSError):
                self._lock = try_lock(self._address.lock)
            if self._lock is None:
                await anyio.sleep(LOCK_SECONDS)
        if self._given is not None:
            os.close(self._given)
            self._given = None

    def close(self) -> None:
        """Take the name away, unless a successor has it. The lock stays until this process ends."""
        with suppress(OSError):
            if os.stat(self._address.path).st_ino == self._inode:  # noqa: PTH116 - a text
                os.unlink(self._address.path)  # noqa: PTH108 - a text

    def __repr__(self) -> str:
        return f"<SharedPlace {self._address.key} {'locked' if self._lock is not None else 'waits for its lock'}>"


def shared_place(serving: Serving) -> SharedPlace | None:
    """Where clients of this user join this hub; None for one that serves a part of its file, or no file."""
    options, worker, config = serving.options, serving.worker, serving.config
    if config is None or config.source is None or serving.is_demo:
        return None
    if worker is not None:
        return SharedPlace.find(config.source, os.environ, is_supervised=True) if worker.task.joins else None
    if not runs_in_background(os.environ) and (options.only or options.listen_hubs is not None):
        return None
    return SharedPlace.find(config.source, os.environ, takes_over=serving.predecessor is not None)


# Who is told.


def tell_addresses(serving: Serving, config: Config, *, sign_in_code: Callable[[], str]) -> None:
    """Print the addresses on stdout, because programs wait for them; log the rest.

    On a terminal, the address of the page carries a login code in its fragment, which a browser never sends. The hub
    before this one may stop when the addresses are printed.
    """
    base = serving.url.removesuffix("/mcp")
    code = f"#code={sign_in_code()}" if sys.stdout.isatty() else ""
    sys.stdout.write(
        f"MCP endpoint: {serving.url}\nstatus page:  {base}/{code}\nready when:   {base}/readyz answers 200\n"
    )
    sys.stdout.flush()
    if serving.predecessor is not None:
        serving.predecessor.ready()
    notify(os.environ, "READY=1")
    workers = serving.options.worker_count
    by = f" with {counted(workers, 'worker')}" if workers > 1 else ""
    log.info("serving %s of %s%s", counted(len(config.servers), "server"), config.source, by)
    log.info("if a server does not start, run: %s", command_line("doctor"))
    if serving.is_demo:
        log.info(
            "`%s` shows what a client sees, and breaks servers: of the demo that runs longest", command_line("demo")
        )
    if serving.open_to:
        log.info("%s may call the hub, and use the credentials in that file", serving.open_to)
    if serving.needs_name:
        log.info("requests from other machines are refused until --allow-host NAME gives the host that they ask for")


class Announcement:
    """Lets this user's commands find the hub while the block runs."""

    def __init__(self, serving: Serving, config: Config) -> None:
        source, certificate = config.source, serving.options.tls_cert
        self._found = RunningHub(
            url=serving.url.removesuffix("/mcp"),
            token=serving.control_token,
            pid=os.getpid(),
            started=time.time(),
            config=str(source.absolute()) if source is not None else "",
            version=__version__,
            certificate=str(certificate.absolute()) if certificate is not None else "",
            wants_certificate=serving.options.tls_client_ca is not None,
            background=runs_in_background(os.environ),
            demo=serving.is_demo,
        )
        self._note = ExitStack()
        self._is_announced = False
        """Not in a worker: its supervisor announces the hub."""

    def __repr__(self) -> str:
        return f"<Announcement of {self._found!r}{'' if self._is_announced else ' that is not announced'}>"

    @contextmanager
    def at(self, handover: str) -> Iterator[None]:
        """Announce the hub during the block, with the Unix socket at which a successor gets the listening socket."""
        self._is_announced = True
        self._change(handover=handover)
        try:
            yield
        finally:
            self.withdraw()

    def withdraw(self) -> None:
        """Let commands find the successor; nothing is announced any more."""
        # First the mark: a file of a token that changes later must not announce a hub that has left.
        self._is_announced = False
        self._note.close()

    def change_token(self, token: str) -> None:
        """Let commands find the new control token."""
        self._change(token=token)

    def _change(self, **changes: str) -> None:
        self._found = replace(self._found, **changes)  # type: ignore[arg-type]  # the fields that change are texts
        if not self._is_announced:
            return
        try:
            self._note.enter_context(registered(self._found))
        except OSError as exc:
            log.warning(
                "commands cannot find this hub (%s): set %s for both, and give them --url %s",
                exc,
                TOKEN_VARIABLE,
                self._found.url,
            )


def keep_state_private(environ: Mapping[str, str]) -> None:
    """Correct the modes of the state folder that an earlier version wrote for everyone to read.

    A folder of another user cannot be corrected: its owner can replace the files in it, so that is said.
    """
    folder = state_folder(environ)
    with suppress(OSError):
        owner = folder.stat().st_uid
        if owner not in (os.geteuid(), 0):
            log.warning(
                "the state folder %s belongs to uid %d, who can replace its files: give it to you", folder, owner
            )
    if corrected := make_private(folder):
        named = ", ".join(map(str, corrected[:3])) + (f" and {len(corrected) - 3} more" if len(corrected) > 3 else "")
        log.warning("other users of this machine could read %s; only you can now", named)
