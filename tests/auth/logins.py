"""Log in as a person does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import anyio

from holdfast.auth.person_login import LoginMethod, log_in
from holdfast.auth.token_store import Grant, GrantStore, TokenStore
from holdfast.config.spec import ServerSpec
from tests.peers.browser import Browser

__all__ = ["PATIENCE", "aged", "logged_in"]

PATIENCE = 20.0
"""For things that take a fraction of a second on an idle machine."""


async def logged_in(
    spec: ServerSpec,
    store: GrantStore,
    *,
    how: LoginMethod = "browser",
    scope: tuple[str, ...] = (),
    name: str = "someone",
) -> tuple[Grant, Browser]:
    """A person of this name logs in; their browser records what it saw."""
    async with Browser(elsewhere=how == "paste", name=name) as browser:
        with anyio.fail_after(PATIENCE):
            given = await log_in(spec, store=store, person=browser, how=how, scope=scope)
    return given, browser


def aged(store: TokenStore, kept: Grant, **changes: Any) -> Grant:
    """The grant as it will be when its access token has ended."""
    return store.put(replace(kept, **{"expires_at": 1.0, **changes}))
