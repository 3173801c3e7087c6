"""Tells where a hub listens: people on the terminal, and this user's commands by a private file."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from types import TracebackType
from typing import Self

from holdfast._version import __version__
from holdfast.config import Config, state_folder
from holdfast.control import TOKEN_VARIABLE, RunningHub, registered
from holdfast.core import command_line, counted
from holdfast.demo import running_demo
from holdfast.errors import HoldfastError
from holdfast.files import make_private
from holdfast.serve.listening_socket import notify_ready
from holdfast.serve.options import Serving
from holdfast.serve.shared_hub import runs_in_background

__all__ = ["Announcement", "keep_state_private", "tell_addresses"]

log = logging.getLogger("holdfast.serve")


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
    notify_ready(os.environ)
    workers = serving.options.worker_count
    by = f" with {counted(workers, 'worker')}" if workers > 1 else ""
    log.info("serving %s of %s%s", counted(len(config.servers), "server"), config.source, by)
    log.info("if a server does not start, run: %s", command_line("doctor"))
    if serving.is_demo:
        _tell_of_demo(serving.url)
    if serving.open_to:
        log.info("%s may call the hub, and use the credentials in that file", serving.open_to)
    if serving.needs_name:
        log.info("requests from other machines are refused until --allow-host NAME gives the host that they ask for")


def _tell_of_demo(url: str) -> None:
    try:
        _, controlled = running_demo()
    except HoldfastError:  # another one that ended in this moment, and this one has no record
        controlled = url
    if controlled == url:
        log.info("to see what a client sees, and to break servers, run in a second terminal: %s", command_line("demo"))
    else:
        log.info("another demo runs at %s: `%s` shows that one until it ends", controlled, command_line("demo"))


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
        )
        self._stack = ExitStack()
        self._withdrawn = False

    def __enter__(self) -> Self:
        self._register()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def at(self, handover: str) -> Self:
        """Name the Unix socket at which a successor gets the listening socket."""
        self._found = replace(self._found, handover=handover)
        return self

    def withdraw(self) -> None:
        """Let commands find the successor; nothing is announced any more."""
        self._withdrawn = True
        self._stack.close()

    def change_token(self, token: str) -> None:
        """Let commands find the new control token."""
        self._found = replace(self._found, token=token)
        self._register()

    def _register(self) -> None:
        if self._withdrawn:
            return
        try:
            self._stack.enter_context(registered(self._found))
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
