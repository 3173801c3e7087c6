"""Log in as a person does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import anyio

from holdfast.auth.credentials import Logins
from holdfast.auth.person_login import LoginMethod, log_in
from holdfast.auth.token_endpoint import canonical
from holdfast.auth.token_store import Grant, GrantStore, TokenStore
from holdfast.config.spec import ServerSpec
from holdfast.errors import ServerFailure
from tests.peers.browser import Browser

__all__ = ["PATIENCE", "aged", "logged_in", "renewal"]

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


async def renewal(spec: ServerSpec, store: GrantStore) -> Literal["renewed", "refused", "unreachable"]:
    """What comes of a renewal of the login to a server, expired or not."""
    kept = store.of(canonical(spec.url))
    assert kept is not None
    try:
        renewed = await Logins(store).renew(
            kept.key, instead_of=kept.access_token, allow_plain_http=spec.allow_plain_http
        )
    except ServerFailure:
        return "unreachable"
    return "renewed" if renewed is not None else "refused"
