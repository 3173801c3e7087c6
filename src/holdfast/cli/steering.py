"""How a hub that serves is seen and steered: its control token, its admin side, the word it leaves for commands."""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from holdfast._version import __version__
from holdfast.admin.app import Admin, MayRead
from holdfast.admin.views import About
from holdfast.cli.address import typed_command
from holdfast.control.find import TOKEN_VARIABLE, Found, noted
from holdfast.errors import UsageError
from holdfast.front.guard import TokenPolicy
from holdfast.front.words import IDENTITY
from holdfast.hub.hub import Hub

__all__ = ["admin_of", "control_token", "word_left"]

log = logging.getLogger("holdfast.serve")

SHORTEST_TOKEN = 16
"""Characters: whoever can reach the port can guess at a shorter one."""


def control_token(environ: Mapping[str, str], *, callers: str | None) -> str:
    """The operator's own, or one that nobody has seen; never one that callers have."""
    given = environ.get(TOKEN_VARIABLE)
    if not given:
        return secrets.token_urlsafe(32)
    if len(given) < SHORTEST_TOKEN:
        raise UsageError(
            f"{TOKEN_VARIABLE} has fewer than {SHORTEST_TOKEN} characters",
            hint="make one: python3 -c 'import secrets; print(secrets.token_urlsafe(32))'",
        )
    if given == callers:
        raise UsageError(
            "the control token is the callers' token too: every caller could switch servers off",
            hint=f"give {TOKEN_VARIABLE} a value of its own, or leave it unset",
        )
    return given


def admin_of(hub: Hub, endpoint: str, *, demo: bool, token: str, callers: TokenPolicy | None) -> Admin:
    """The admin side of a hub that is about to be served; where callers need a token, its metrics need one too."""
    source = hub.config.source
    about = About(
        endpoint=endpoint,
        config=str(source.absolute()) if source else "",
        demo=demo,
        identity=IDENTITY,
        program=typed_command(),
    )
    return Admin(hub, about, control_token=token, metrics_for=_known_to(callers) if callers is not None else None)


def _known_to(callers: TokenPolicy) -> MayRead:
    async def known(token: str) -> bool:
        return await callers.principal(token) is not None

    return known


@contextmanager
def word_left(base: str, config: Path | None, *, token: str) -> Iterator[None]:
    """Let this user's commands find the hub, for as long as the block runs."""
    found = Found(
        url=base,
        token=token,
        pid=os.getpid(),
        started=time.time(),
        config=str(config.absolute()) if config is not None else "",
        version=__version__,
    )
    with ExitStack() as stack:
        try:
            stack.enter_context(noted(found))
        except OSError as exc:
            log.warning(
                "commands will not find this hub (%s): give both %s, and them --url %s", exc, TOKEN_VARIABLE, base
            )
        yield
