"""How a server's requests are let in: a header of its definition, or a login, which is renewed if it has expired."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import ClassVar

import anyio.to_thread

from holdfast.auth.status import LoginStatus, Refreshed, refresh_now, status_of
from holdfast.doctor.case import Case
from holdfast.doctor.checks.base import Check, Seen
from holdfast.doctor.findings import finding
from holdfast.doctor.tokens import claims_of, configured_token

__all__ = ["LoginCheck"]


class LoginCheck(Check):
    """Where the server's credentials come from, and whether they have expired."""

    id: ClassVar[str] = "login"
    looks_at: ClassVar[str] = "where its credentials come from and whether they have expired; a login is renewed then"
    needs: ClassVar[tuple[str, ...]] = ("definition",)
    transports: ClassVar[tuple[str, ...]] = ("http", "sse")
    finds: ClassVar[tuple[str, ...]] = ("HF-LOGIN-RENEWED",)

    async def look(self, case: Case) -> Seen:
        """Read the store; ask the authorization server only about a token that has expired."""
        store = case.tools.logins.store
        # A keyring may ask a person first: the deadline holds all the same.
        status = await anyio.to_thread.run_sync(status_of, case.spec, store, abandon_on_cancel=True)
        match status.kind:
            case "login":
                return await self._login(case, status)
            case "header":
                return Seen(_header(case))
            case "off":
                return Seen("no login is used: the definition says so")
            case "none":
                return Seen("nobody has logged in" if not case.spec.headers else "headers of its definition, no login")
            case _:
                return Seen("credentials come from elsewhere")

    async def _login(self, case: Case, status: LoginStatus) -> Seen:
        if status.refused or (status.expired(time.time()) and not status.refreshable):
            why = "the authorization server renews it no more" if status.refused else "its token expired"
            return _ended(case, why)
        if not status.expired(time.time()):
            return Seen(f"a login from {status.place}{_until(status)}")
        return _renewed(case, await refresh_now(case.spec, case.tools.logins.store, renewer=case.tools.logins.renewer))


def _renewed(case: Case, result: Refreshed) -> Seen:
    match result.outcome:
        case "renewed":
            case.learned.renewed = f"renewed the login of `{case.id}`, which had expired{_until(result.status)}"
            words = f"its token had expired and was renewed{_until(result.status)}"
            note = finding("HF-LOGIN-RENEWED", words, "nothing is to be done", "holdfast auth status")
            return Seen(f"a login from {result.status.place}{_until(result.status)}, renewed just now", (note,))
        case "unreachable":
            return Seen(f"a login that expired and could not be renewed just now: {result.reason}")
        case _:
            return _ended(case, result.reason)


def _ended(case: Case, why: str) -> Seen:
    """No finding yet: the server may let us in all the same, and if it does not, the handshake tells of it."""
    case.learned.login_ended = why
    return Seen(f"a login that has ended: {why}")


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
