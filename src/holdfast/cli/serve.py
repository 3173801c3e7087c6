"""``holdfast serve``: serve all servers of an mcp.json at one MCP endpoint. ``ServeConfig`` has the options."""

from __future__ import annotations

import os
import sys
from dataclasses import fields
from inspect import Parameter, Signature
from pathlib import Path
from typing import Any, get_type_hints

import typer

from holdfast.cli.output import print_note
from holdfast.cli.trust import load_trusted
from holdfast.config import Config
from holdfast.core import command_line
from holdfast.errors import ConfigNotFound
from holdfast.serve import (
    JoinOptions,
    ServeConfig,
    WorkerLink,
    join_hub,
    own_file,
    runs_in_background,
    start_serving,
)

__all__ = ["serve"]


def serve(**options: Any) -> None:
    """Serve all servers of an mcp.json at one MCP endpoint, over HTTP or stdio.

    With --stdio the client joins the hub that you already run; without one, a hub starts in the background and serves
    all clients that join (`holdfast stop` ends it). With --own the hub is for this client alone.

    Without a configuration it serves demo servers, each with its own kind of failure.

    SIGTERM and Ctrl-C end it after the calls in flight. SIGHUP reads the mcp.json again; on a terminal it
    ends the hub, because the terminal was closed. Under systemd it listens on the socket that systemd passes.

    --workers serves with several processes that act as one hub: SIGHUP replaces them one at a time.

    --takeover replaces a running hub without a refused connection: the new hub gets the socket of the old one,
    connects its servers and accepts; then the old one finishes its calls and ends. SIGUSR2 makes a hub start
    such a successor itself, with the same options.

    Without credentials it serves programs of its own user (and of --allow-uid), which Linux tells. To listen beyond
    this machine it needs a token (--token-file, --token or $HOLDFAST_TOKEN), named tokens (--tokens-file), JWTs
    (--jwt-issuer, --jwt-audience and --jwt-keys together) or a gateway (--gateway-secret-file or --gateway-mtls).
    Files with tokens and certificates are read again when they change, and at SIGHUP.
    """
    asked = ServeConfig(**options)
    worker = WorkerLink.find(os.environ)
    asked.check(os.environ)
    if (joins := JoinOptions.read(sys.argv[2:], os.environ)) is not None and asked.stdio and worker is None:
        raise typer.Exit(join_hub(joins))
    is_demo = asked.demo or (worker is not None and bool(worker.task.demo))
    if code := start_serving(asked, None if is_demo else _load(asked.config), worker):
        raise typer.Exit(code)


GROUPS = {
    "Configuration": ("config", "watch", "demo", "approvals_lock"),
    "Listen": ("host", "port", "public_url", "allow_host", "tls_cert", "tls_key", "tls_client_ca", "takeover"),
    "One client over stdin and stdout": ("stdio", "own", "folder", "tools", "profile"),
    "Callers": (
        *("token", "token_file", "tokens_file", "jwt_issuer", "jwt_audience", "jwt_keys", "jwt_groups_claim"),
        *(
            "jwt_scopes_claim",
            "jwt_user_claim",
            "oidc_client_id",
            "oidc_client_secret_file",
            "oidc_scope",
            "gateway_secret_file",
            "gateway_user_header",
            "gateway_groups_header",
            "gateway_mtls",
        ),
        *("gateway_cert_name", "allow_uid", "local_token", "control_token_file"),
    ),
    "Several hubs": (*("workers", "advertise", "session_key_file", "listen_hubs", "only", "fleet"),),
    "End": ("lame_duck", "drain"),
    "Log": ("log_format", "log_level", "verbose"),
}
"""The groups of the help, each with its options; what stands in none is shown last."""


def _parameters() -> Signature:
    """Each field of ``ServeConfig`` as a parameter: typer makes an option of it."""
    types = get_type_hints(ServeConfig, include_extras=True)
    group_of = {name: title for title, names in GROUPS.items() for name in names}
    for name, title in group_of.items():
        for option in getattr(types.get(name), "__metadata__", ()):
            option.rich_help_panel = title
    order = [*group_of, *types]
    return Signature(
        [
            Parameter(one.name, Parameter.KEYWORD_ONLY, default=one.default, annotation=types[one.name])
            for one in sorted(fields(ServeConfig), key=lambda one: order.index(one.name))
        ]
    )


serve.__signature__ = _parameters()  # type: ignore[attr-defined]  # inspect reads it, mypy does not know it


def _load(config: Path | None) -> Config | None:
    """The configuration to serve; None for the demo servers, if there is no file and none was named."""
    if config is not None and runs_in_background(os.environ) and own_file(config, os.environ) and not config.exists():
        return Config(servers={}, source=config)  # the hub follows the file: it may be written later
    try:
        return load_trusted(config)
    except ConfigNotFound as exc:
        print_note("No mcp.json was found, so this serves demo servers. To serve your own:")
        print_note(f"  {command_line('import')}   copies them from your other MCP clients")
        print_note(f"  or put an mcp.json at one of: {', '.join(map(str, exc.searched))}")
        return None
