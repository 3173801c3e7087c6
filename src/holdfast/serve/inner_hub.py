"""What differs in a hub that other hubs use (FLEET-6): a part of the file, a second listener, and no approvals.

A server that bears only one process is run by one hub: under systemd, as a StatefulSet of one, or as the stdio process
of ``--workers``. The hubs in front have ``{"hub": ADDRESS}`` as its definition.

- ``--only`` leaves the other servers of the file out. The file may name servers that this hub itself has elsewhere, and
  reading it again while the hub runs leaves out the same ones.
- ``--listen-hubs`` opens a second listener. Each peer there is proven: by a certificate that follows from the session
  key, or on a Unix socket by the kernel. So the principals that it names are believed. The listener of ``--host`` and
  ``--port`` stays what it is: for commands, probes and metrics of this machine.
- Approvals are decided once, by the hubs in front, which know the people. If this hub held a changed tool too, two
  persons would have to approve one change, and the second one would not know where.
- There is no successor that takes over, and there are no workers: two processes at a time are what this hub prevents.
  Its restart is an outage that the hubs in front tell as such.
"""

from __future__ import annotations

import os
import re
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import holdfast.fleet  # slow to import, and needed for a Unix socket alone
from holdfast.config import UNIX, Config, ServerSpec
from holdfast.core import is_loopback
from holdfast.errors import HoldfastError, Problem, UnknownServer, UsageError
from holdfast.serve.listening import bind
from holdfast.serve.options import ServeConfig
from holdfast.serve.program import config_in
from holdfast.serve.worker_link import WorkerTask

if TYPE_CHECKING:  # slow to import, and a supervisor imports this module
    from holdfast.identity import FleetIdentity

__all__ = ["HubListener", "bind_for_hubs", "require_shared_key", "served_part", "without_itself"]


@dataclass(frozen=True)
class HubListener:
    """Where other hubs connect."""

    listener: socket.socket
    identity: FleetIdentity
    """Proves this hub to the others; not on a Unix socket, where the kernel says who connects."""

    @property
    def tls(self) -> ssl.SSLContext | None:
        """For TCP; None for a Unix socket."""
        return self.identity.server() if self.listener.family != socket.AF_UNIX else None

    @property
    def uids(self) -> frozenset[int] | None:
        """The users that may connect to a Unix socket; None where TLS decides."""
        return frozenset({os.geteuid()}) if self.tls is None else None


def served_part(options: ServeConfig, config: Config, worker: WorkerTask | None = None) -> Config:
    """The part of a configuration that this hub serves, now and after each change of the file.

    A worker has the stdio servers behind the process that runs them, and that process has no others.
    """
    config = without_itself(options, config)
    if options.only:
        if unknown := [one for one in options.only if one not in config.servers]:
            error = UnknownServer.among(unknown[0], config.servers)
            raise UsageError(f"--only: {error.message}", hint=error.hint)
        config = replace(config, servers={name: one for name, one in config.servers.items() if name in options.only})
    if worker is not None and not worker.runs_stdio:
        address = f"{UNIX}{worker.stdio}"
        behind = {name: one.behind(address) if _is_stdio(one) else one for name, one in config.servers.items()}
        return replace(config, servers=behind)
    if worker is not None:
        config = replace(config, servers={name: one for name, one in config.servers.items() if _is_stdio(one)})
    elif options.listen_hubs is None:
        return config
    servers = {name: replace(one, approvals="off") for name, one in config.servers.items()}
    return replace(config, servers=servers, settings=replace(config.settings, approvals="off"))


def without_itself(options: ServeConfig, config: Config) -> Config:
    """The configuration with each entry that is this very hub unusable, and named: it would start itself for ever.

    ``import`` copies the servers of clients, and one of them may be the hub. Another hub, of another file, is a server
    like any other.
    """
    source = config.source
    if source is None:
        return config
    itself = {
        name: ServerSpec(
            id=name, problems=(Problem(message=ITSELF, hint="remove it", file=source),), enabled=one.enabled
        )
        for name, one in config.servers.items()
        if _starts(one, source) or _calls(one, options)
    }
    return replace(config, servers={**config.servers, **itself}) if itself else config


ITSELF = "this server is Holdfast itself with the same file, so it is left out"

OWN_NAMES = ("holdfast", "holdfast-mcp")
RUNNERS = ("uvx", "uv", "pipx")
"""Programs that run ours with this machine's files. A container has files of its own, so a hub in it is another one."""


def _starts(server: ServerSpec, source: Path) -> bool:
    """Whether a command starts a hub that serves the same file, or the one that is found."""
    words = [server.command, *server.args]
    runner, started = Path(server.command).name, words[: words.index("serve")] if "serve" in words else []
    last = re.split(r"[@=\[]", Path(started[-1]).name)[0] if started else ""  # `uvx holdfast-mcp@0.2.0`
    if last not in OWN_NAMES or (len(started) > 1 and runner not in RUNNERS and started[-2] != "-m"):
        return False
    named = config_in(words)
    is_same = not named or os.path.realpath(named) == os.path.realpath(source)
    return is_same and {"serve", "--stdio"} <= set(words) and "--demo" not in words


def _calls(server: ServerSpec, options: ServeConfig) -> bool:
    """Whether a URL is that of this hub."""
    try:
        at = urlsplit(server.url)
        return is_loopback(at.hostname or "") and at.port == options.port != 0 and at.path == "/mcp"
    except ValueError:
        return False


def _is_stdio(server: ServerSpec) -> bool:
    return server.transport == "stdio" and not server.problems


@contextmanager
def bind_for_hubs(address: str | None) -> Iterator[socket.socket | None]:
    """The listening socket for other hubs; None if there is none. A Unix socket is removed at the end."""
    if address is None:
        yield None
        return
    if not address.startswith(UNIX):
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit():
            raise UsageError("--listen-hubs is no HOST:PORT", hint="write it as in --listen-hubs 0.0.0.0:4654")
        with bind(host.strip("[]"), int(port)) as listener:
            yield listener
        return
    path = Path(address.removeprefix(UNIX))
    try:
        listener = holdfast.fleet.bind_unix(path)
    except OSError as exc:
        hint = "another hub may run there; the path must be short, and its folder must exist"
        raise HoldfastError(f"cannot listen on {path}: {exc.strerror or exc}", hint=hint) from exc
    with listener:
        try:
            yield listener
        finally:
            path.unlink(missing_ok=True)


def require_shared_key(options: ServeConfig, *, shared: bool) -> None:
    """Refuse a listener that no other machine can use: a key in the state folder is known on this machine alone."""
    address = options.listen_hubs or UNIX
    if shared or address.startswith(UNIX) or is_loopback(address.rpartition(":")[0].strip("[]")):
        return
    raise UsageError(
        "--listen-hubs beyond this machine needs the session key that the other hubs have",
        hint="start all of them with the same --session-key-file, or with the same HOLDFAST_SESSION_KEY",
    )
