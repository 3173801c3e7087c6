"""Renew a grant: one process asks once for all that need it, and a failure loses nothing.

Only a refusal by the authorization server ends a login. After a network fault, an outage or an invalid answer, the
refresh token is kept and used again after a growing pause.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import anyio
import anyio.to_thread

from holdfast.auth.grant import Grant, GrantKey
from holdfast.auth.token_endpoint import NoTokenAnswer, TokenRefused, request_tokens
from holdfast.auth.token_store import StoreReader, StoreUnusable, TokenStore, renewing
from holdfast.core import TokenNotRenewed, delay
from holdfast.errors import ServerFailure

__all__ = ["Renewer"]

FIRST_PAUSE = 1.0
LONGEST_PAUSE = 60.0
"""The pause in seconds after a failed renewal."""


@dataclass
class _Pause:
    """The pause after a failed renewal."""

    failures: int
    until: float
    reason: str


class _Unsaved(NamedTuple):
    """A renewed grant that the store did not accept; the grant before it may be invalid by now."""

    before: Grant
    after: Grant


class Renewer:
    """Renews the grants of a store for this process. Tests pass time and chance."""

    def __init__(
        self,
        store: TokenStore,
        *,
        now: Callable[[], float] = time.time,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.store = store
        self.reading = StoreReader(store)
        self.now = now
        self._chance = chance
        self._turns: dict[GrantKey, anyio.Lock] = {}
        self._pauses: dict[GrantKey, _Pause] = {}
        self._unsaved: dict[GrantKey, _Unsaved] = {}

    async def up_to_date(self) -> None:
        """Read the store if it changed.

        Raises ``ServerFailure`` with ``TokenNotRenewed`` if the store does not answer.
        """
        if not await self.reading.up_to_date():
            raise ServerFailure(
                TokenNotRenewed(reason="the token store does not answer: its keyring may wait to be unlocked")
            )

    async def renew(self, key: GrantKey, *, instead_of: str, allow_plain_http: bool = False) -> Grant | None:
        """The grant with another access token than ``instead_of``; None if only a new login can bring one.

        Raises ``ServerFailure`` with ``TokenNotRenewed`` if the authorization server could not be asked.
        """
        async with self._turns.setdefault(key, anyio.Lock()):
            try:
                async with renewing(self.store.folder, key):
                    return await self._renew(key, instead_of, allow_plain_http)
            except (OSError, StoreUnusable) as exc:
                why = getattr(exc, "strerror", None) or str(exc)
                raise ServerFailure(TokenNotRenewed(reason=f"the token store cannot be written: {why}")) from exc

    async def _renew(self, key: GrantKey, instead_of: str, plain_http: bool) -> Grant | None:
        await self.up_to_date()
        grant = await self._saved(next((one for one in self.store.known if one.key == key), None), key)
        if grant is not None and grant.access_token != instead_of:
            return grant  # another task or process renewed it while we waited
        if grant is None or not grant.refreshable:
            return None
        self._check_pause(key)
        with anyio.CancelScope() as scope:
            # Once the request is sent, the old refresh token may be invalid.
            # A cancelled caller must not lose the answer with the new one.
            return await self._ask(grant, plain_http, lambda: setattr(scope, "shield", True))
        raise AssertionError("the scope is never cancelled")

    async def _saved(self, stored: Grant | None, key: GrantKey) -> Grant | None:
        """The stored grant, or its renewed form that could not be stored before and now is."""
        unsaved = self._unsaved.get(key)
        if unsaved is None:
            return stored
        if stored is None or (stored.login, stored.refresh_token) != (
            unsaved.before.login,
            unsaved.before.refresh_token,
        ):
            del self._unsaved[key]  # there was a logout, a new login or another renewal since
            return stored
        return await self._keep_renewed(unsaved)

    async def _ask(self, grant: Grant, plain_http: bool, on_sending: Callable[[], None]) -> Grant | None:
        form = {"grant_type": "refresh_token", "refresh_token": grant.refresh_token or ""}
        form["resource"] = grant.named_resource
        try:
            given = await request_tokens(
                grant.token_endpoint, form, client=grant.client, allow_plain_http=plain_http, on_sending=on_sending
            )
        except NoTokenAnswer as exc:
            raise self._paused(grant.key, exc) from exc
        except TokenRefused as exc:
            if not exc.final:
                raise self._paused(grant.key, NoTokenAnswer(f"the authorization server answered {exc}")) from exc
            await self._keep(replace(grant, refused=exc.code))
            return None
        self._pauses.pop(grant.key, None)
        renewed = replace(
            grant,
            access_token=given.access_token,
            refresh_token=given.refresh_token or grant.refresh_token,
            scope=given.scope or grant.scope,
            expires_at=given.expires_at(self.now()),
        )
        return await self._keep_renewed(_Unsaved(grant, renewed))

    async def _keep_renewed(self, unsaved: _Unsaved) -> Grant:
        self._unsaved[unsaved.after.key] = unsaved
        kept = await self._keep(unsaved.after)
        del self._unsaved[kept.key]
        return kept

    async def _keep(self, grant: Grant) -> Grant:
        return await anyio.to_thread.run_sync(self.store.put, grant)

    def _check_pause(self, key: GrantKey) -> None:
        """Raise the last failure again, without a request, while its pause lasts."""
        pause = self._pauses.get(key)
        left = pause.until - self.now() if pause is not None else 0.0
        if pause is not None and 0 < left <= LONGEST_PAUSE:  # a longer pause means that the clock was set back
            raise ServerFailure(TokenNotRenewed(reason=pause.reason, retry_after=left))

    def _paused(self, key: GrantKey, why: NoTokenAnswer) -> ServerFailure:
        before = self._pauses.get(key)
        failures = before.failures + 1 if before is not None else 1
        wait = delay(failures, base=FIRST_PAUSE, chance=self._chance(), retry_after=why.retry_after)
        wait = min(wait, LONGEST_PAUSE)
        self._pauses[key] = _Pause(failures=failures, until=self.now() + wait, reason=why.reason)
        return ServerFailure(TokenNotRenewed(reason=why.reason, retry_after=wait))
