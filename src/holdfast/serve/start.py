"""From the options to what runs: which socket, credentials and part of the file, a hub or a supervisor of several.

All that can be wrong with the options, the files that they name and the address is found here, before the web framework
and the MCP client are imported: they take a second, and a mistake is reported without waiting for them (PERF-5).

A hub behind other hubs (FLEET-6). A server that bears only one process is run by one hub: under systemd, as a
StatefulSet of one, or as the stdio process of ``--workers``. The hubs in front have ``{"hub": ADDRESS}`` as its
definition.

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

import errno
import os
import re
import socket
import sys
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

import holdfast.fleet  # slow to import, and needed for a Unix socket alone
from holdfast.config import UNIX, Config, ServerSpec
from holdfast.core import command_line, is_loopback
from holdfast.errors import HoldfastError, Problem, UnknownServer, UsageError
from holdfast.serve.hub_secrets import caller_token, control_token, local_token, read_token, uid_of
from holdfast.serve.joiner import runs_in_background
from holdfast.serve.listening import bind, inherited_socket
from holdfast.serve.options import ServeConfig, Serving, endpoint_url
from holdfast.serve.program import config_in
from holdfast.serve.takeover import Predecessor, find_predecessor
from holdfast.serve.worker_link import WorkerLink, WorkerTask

__all__ = ["require_credentials_beyond_loopback", "served_part", "start_serving", "without_itself"]


def start_serving(options: ServeConfig, config: Config | None, worker: WorkerLink | None) -> int:
    """Serve until a signal, or the end of stdin; returns the exit code. Without a configuration, the demo servers."""
    if config is None and options.worker_count > 1:
        raise UsageError("--workers needs an mcp.json: one process serves the demo servers", hint="use --config FILE")
    serving = Serving(
        options=options,
        config=config,
        token=caller_token(options.token, options.token_file, os.environ),
        token_file=options.token_file,
        gateway_secret=_secret_in(options.gateway_secret_file, "the gateway's secret"),
        oidc_secret=_secret_in(options.oidc_client_secret_file, "the OIDC client secret"),
        worker=worker,
    )
    if config is not None:
        part = served_part(options, config, worker.task if worker is not None else None)
        serving = replace(serving, config=part)
    if options.stdio:
        return _run(serving)
    serving = replace(serving, uids=_allowed_users(serving), predecessor=_predecessor(options, config, worker))
    if worker is not None:
        serving = replace(_known_local_callers(serving), host=worker.task.host, port=worker.task.port)
        with closing(worker.connections) as connections:
            if worker.task.runs_stdio:
                return _run(replace(serving, hub_listener=connections))
            return _run(replace(serving, listener=connections))
    given = _handed_over(serving) or inherited_socket(os.environ)
    host = given.getsockname()[0] if given is not None else options.host
    require_credentials_beyond_loopback(host, can_verify=serving.can_verify)
    serving = replace(_known_local_callers(serving), host=host)
    with closing(given or _bound(options)) as listener, bind_for_hubs(options.listen_hubs) as hubs:
        return _run(replace(serving, listener=listener, port=listener.getsockname()[1], hub_listener=hubs))


def _run(serving: Serving) -> int:
    from holdfast.serve.telemetry import log_to_stderr, traced  # noqa: PLC0415 - see the module's docstring

    options, worker = serving.options, serving.worker
    if worker is not None:
        token = worker.task.token
    else:
        token = control_token(os.environ, callers=serving.token, file=options.control_token_file)
    serving = replace(serving, control_token=token)
    number = worker.task.number if worker is not None else None
    log_to_stderr(options.log_format, options.log_level, secrets=_secrets(serving), worker=number)
    if worker is None and options.worker_count > 1:
        from holdfast.serve.supervisor import Supervisor  # noqa: PLC0415 - see the module's docstring

        return Supervisor(serving).run()
    from holdfast.serve.run import run_hub  # noqa: PLC0415 - see the module's docstring
    from holdfast.wire import adopt_orphans  # noqa: PLC0415 - see the module's docstring

    adopt_orphans()
    if worker is not None:
        worker.end_with_supervisor()
    with traced(os.environ):
        run_hub(serving)
    return 0


def _secrets(serving: Serving) -> Iterable[str]:
    """What the log must never show."""
    password = urlsplit(serving.options.fleet or "").password
    given = (
        serving.token,
        serving.control_token,
        serving.gateway_secret,
        serving.oidc_secret,
        unquote(password or ""),
    )
    return [secret for secret in given if secret]


def _secret_in(file: Path | None, name: str) -> str | None:
    return read_token(file, name) if file is not None else None


def _bound(options: ServeConfig) -> socket.socket:
    """The listening socket. A hub in the background takes another port if that one is in use: no one named it."""
    try:
        return bind(options.host, options.port)
    except HoldfastError as exc:
        in_use = isinstance(exc.__cause__, OSError) and exc.__cause__.errno == errno.EADDRINUSE
        if not in_use or not runs_in_background(os.environ):
            raise
    return bind(options.host, 0)


def _handed_over(serving: Serving) -> socket.socket | None:
    """The socket of the hub before this one. One that was not asked for is used only if its address is the same."""
    if serving.predecessor is None:
        return None
    listener, options = serving.predecessor.listener, serving.options
    if options.takeover or listener.getsockname()[:2] == (options.host, options.port):
        return listener
    listener.close()
    return None


def _of_background(config: Config | None, options: ServeConfig) -> Predecessor | None:
    """The hub that a client started in the background for this file: a hub that a person starts takes its place."""
    if config is None or config.source is None or runs_in_background(os.environ) or options.listen_hubs:
        return None
    try:
        found = find_predecessor(config.source, "", background=True)
    except HoldfastError as exc:
        _say(f"a hub runs in the background and cannot be taken over: {exc.message}")
        return None
    if found is not None:
        _say(f"this hub takes over from the one in the background (process {found.pid})")
    return found


def _predecessor(options: ServeConfig, config: Config | None, worker: WorkerLink | None) -> Predecessor | None:
    if worker is not None:
        return None
    if not options.takeover:
        return _of_background(config, options)
    if config is None or config.source is None:
        raise UsageError("--takeover needs an mcp.json: the demo servers end with their hub", hint="use --config FILE")
    found = find_predecessor(config.source, endpoint_url(options.host, options.port, "", tls=options.speaks_tls))
    if found is None:
        _say(f"no hub serves {config.source} here: this one starts without a takeover")
    return found


def _allowed_users(serving: Serving) -> tuple[int, ...]:
    uids = tuple(map(uid_of, serving.options.allow_uid or ()))
    if uids and (serving.can_verify or serving.options.local_token):
        raise UsageError(
            "--allow-uid is for a hub without credentials", hint="with a token, any user that sends it may call"
        )
    return uids


def require_credentials_beyond_loopback(host: str, *, can_verify: bool) -> None:
    """Refuse to listen beyond this machine without a token or a JWT (SEC-2)."""
    if not is_loopback(host) and not can_verify:
        raise UsageError(
            f"{host} can be reached from other machines, and callers need no token",
            hint="use --token-file FILE or --tokens-file FILE, or listen on 127.0.0.1",
        )


def _known_local_callers(serving: Serving) -> Serving:
    """How a hub without credentials knows its user: by the uid of a connection, or by a token of its own."""
    if serving.can_verify:
        return serving
    from holdfast.access import PeerUids  # noqa: PLC0415 - not needed for a config error

    wants_token = serving.options.local_token
    uids = None if wants_token else PeerUids.open()
    if uids is not None:
        uids.close()
        return serving
    if not wants_token and serving.uids:
        raise UsageError(
            "this system does not tell which user calls, so --allow-uid has no effect", hint="use --token-file FILE"
        )
    file = local_token(os.environ)
    if serving.worker is None:
        why = "" if wants_token else "This system does not tell which user calls. "
        _say(f"{why}Callers need the token in {file}; `{command_line('import')}` gives it to your clients")
    return replace(serving, token=read_token(file), token_file=file)


def _say(text: str) -> None:
    """Tell a person on stderr, before there is a log."""
    sys.stderr.write(f"{text}\n")


# What is served.


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
