"""The control API of a hub that serves, and the note by which the user's commands find it."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from holdfast._version import __version__
from holdfast.admin.app import Admin, MayRead
from holdfast.admin.views import About
from holdfast.cli.output import typed_command
from holdfast.control.find import TOKEN_VARIABLE, Found, noted
from holdfast.front.guard import TokenPolicy
from holdfast.front.words import IDENTITY
from holdfast.hub.hub import Hub

__all__ = ["admin_of", "announced"]


def admin_of(hub: Hub, endpoint: str, *, demo: bool, token: str, callers: TokenPolicy | None) -> Admin:
    """The control API of a hub. Where callers need a token, the metrics need one too."""
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
def announced(base: str, config: Path | None, *, token: str) -> Iterator[None]:
    """Let this user's commands find the hub while the block runs."""
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
            logging.getLogger("holdfast.serve").warning(
                "commands cannot find this hub (%s): set %s for both, and give them --url %s", exc, TOKEN_VARIABLE, base
            )
        yield
