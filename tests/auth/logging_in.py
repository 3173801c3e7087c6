"""Log in as somebody would, and make grants where only their keeping matters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import anyio

from holdfast.auth.grant import Client, Grant
from holdfast.auth.login import How, log_in
from holdfast.auth.store import TokenStore
from holdfast.config.spec import ServerSpec
from tests.peers.browser import Browser

__all__ = ["PATIENCE", "aged", "grant", "logged_in"]

PATIENCE = 20.0
"""For things that take a fraction of a second on an idle machine."""


async def logged_in(
    spec: ServerSpec, store: TokenStore, *, how: How = "browser", scope: tuple[str, ...] = ()
) -> tuple[Grant, Browser]:
    """Somebody logs in; their browser tells what it saw."""
    async with Browser(elsewhere=how == "paste") as browser:
        with anyio.fail_after(PATIENCE):
            given = await log_in(spec, store=store, person=browser, how=how, scope=scope)
    return given, browser


def aged(store: TokenStore, kept: Grant, **changes: Any) -> Grant:
    """The grant as it will be when its access token has ended."""
    return store.put(replace(kept, **{"expires_at": 1.0, **changes}))


def grant(number: int = 1, **fields: Any) -> Grant:
    """Some grant."""
    whole: dict[str, Any] = {
        "issuer": f"https://auth{number}.example",
        "resource": f"https://files{number}.example/mcp",
        "servers": (f"https://files{number}.example/mcp",),
        "client": Client(id="holdfast", secret=f"planted-secret-{number}", method="client_secret_basic"),
        "token_endpoint": f"https://auth{number}.example/token",
        "access_token": f"planted-access-{number}",
        "refresh_token": f"planted-refresh-{number}",
        "login": "one",
    }
    return Grant(**{**whole, **fields})
