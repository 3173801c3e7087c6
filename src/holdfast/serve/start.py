"""From the options to what runs: which socket, which credentials, a hub or a supervisor of several.

All that can be wrong with the options, the files that they name and the address is found here, before the web framework
and the MCP client are imported: they take a second, and a mistake is reported without waiting for them (PERF-5).
"""

from __future__ import annotations

import errno
import os
import socket
import sys
from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

from holdfast.config import Config
from holdfast.core import command_line, is_loopback
from holdfast.errors import HoldfastError, UsageError
from holdfast.serve.hub_secrets import caller_token, control_token, local_token, read_token, uid_of
from holdfast.serve.inner_hub import bind_for_hubs, served_part
from holdfast.serve.joiner import runs_in_background
from holdfast.serve.listening import bind, inherited_socket
from holdfast.serve.options import ServeConfig, Serving, endpoint_url
from holdfast.serve.takeover import Predecessor, find_predecessor
from holdfast.serve.worker_link import WorkerLink

__all__ = ["require_credentials_beyond_loopback", "start_serving"]


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
    log_to_stderr(options.log_format.value, options.level.value, secrets=_secrets(serving), worker=number)
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
