"""Checks a server's credentials: a header of its definition, or a login, which is renewed if it has expired."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import ClassVar

import anyio.to_thread

from holdfast.auth.status import LoginStatus, Refreshed, refresh_now, status_of
from holdfast.doctor.case import Case
from holdfast.doctor.checks.base import Check, Observation
from holdfast.doctor.findings import finding
from holdfast.doctor.tokens import claims_of, configured_token

__all__ = ["LoginCheck"]


class LoginCheck(Check):
    """Where the server's credentials come from, and whether they have expired."""

    id: ClassVar[str] = "login"
    looks_at: ClassVar[str] = (
        "where its credentials come from and whether they have expired; an expired login is renewed"
    )
    needs: ClassVar[tuple[str, ...]] = ("definition",)
    transports: ClassVar[tuple[str, ...]] = ("http", "sse")
    finds: ClassVar[tuple[str, ...]] = ("HF-LOGIN-RENEWED",)

    async def look(self, case: Case) -> Observation:
        """Read the store; ask the authorization server only for an expired token."""
        store = case.tools.logins.store
        # A keyring may ask the user first. The thread lets the deadline hold.
        status = await anyio.to_thread.run_sync(status_of, case.spec, store, abandon_on_cancel=True)
        match status.kind:
            case "login":
                return await self._login(case, status)
            case "header":
                return Observation(_header(case))
            case "off":
                return Observation("no login is used: the definition says so")
            case "none":
                return Observation(
                    "there is no login" if not case.spec.headers else "headers of its definition, no login"
                )
            case _:
                return Observation("credentials come from elsewhere")

    async def _login(self, case: Case, status: LoginStatus) -> Observation:
        if status.refused or (status.expired(time.time()) and not status.refreshable):
            why = "the authorization server no longer renews it" if status.refused else "its token expired"
            return _ended(case, why)
        if not status.expired(time.time()):
            return Observation(f"a login from {status.place}{_until(status)}")
        return _renewed(case, await refresh_now(case.spec, case.tools.logins.store, renewer=case.tools.logins.renewer))


def _renewed(case: Case, result: Refreshed) -> Observation:
    match result.outcome:
        case "renewed":
            case.learned.renewed = f"renewed the login of `{case.id}`, which had expired{_until(result.status)}"
            words = f"its token had expired and was renewed{_until(result.status)}"
            note = finding("HF-LOGIN-RENEWED", words, "nothing needs to be done", "holdfast auth status")
            return Observation(f"a login from {result.status.place}{_until(result.status)}, renewed just now", (note,))
        case "unreachable":
            return Observation(f"a login that expired and could not be renewed just now: {result.reason}")
        case _:
            return _ended(case, result.reason)


def _ended(case: Case, why: str) -> Observation:
    """No finding yet: the server may accept the request without a login. If not, the handshake reports it."""
    case.learned.login_ended = why
    return Observation(f"a login that has ended: {why}")


def _header(case: Case) -> str:
    claims = claims_of(configured_token(case.spec))
    if claims is None or claims.expires is None:
        return "an Authorization header of its definition"
    when = "expired" if claims.expires < datetime.now(UTC) else "good until"
    return f"an Authorization header of its definition: a token, {when} {claims.expires:%Y-%m-%d %H:%M} UTC"


def _until(status: LoginStatus) -> str:
    if status.expires_at is None:
        return ""
    return f", good until {datetime.fromtimestamp(status.expires_at, UTC):%Y-%m-%d %H:%M} UTC"
