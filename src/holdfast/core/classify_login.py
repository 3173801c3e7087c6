"""A server that refuses for want of a login, in words: why, and what to type."""

from __future__ import annotations

import shlex

from holdfast.core.challenge import Challenge
from holdfast.core.evidence import HttpStatus, Login, LoginState
from holdfast.core.verdict import Verdict

__all__ = ["wants_login", "wants_scope"]


def wants_login(login: Login, challenge: Challenge) -> Verdict:
    """No credentials of the definition's own are in play: a person has to log in, and is told why."""
    why, hint = _LOGIN[login.state]
    if login.state is LoginState.NONE and not challenge.made:
        why = "it asks for credentials and none are configured"
    return Verdict(status="denied", reason=f"{why} (HTTP 401): run `{login.command}`", hint=hint)


def wants_scope(seen: HttpStatus, challenge: Challenge, login: Login) -> Verdict:
    """The scope is named and left to a person: more rights than were granted are never taken silently."""
    wanted = " ".join(challenge.scope)
    named = f"the scope `{wanted}`" if wanted else "a scope that it does not name"
    command = f"{login.command} --scope {shlex.quote(wanted)}" if wanted else login.command
    return Verdict(
        status="denied",
        reason=f"it asks for {named}, which the login does not have (HTTP {seen.status}): run `{command}`",
        hint="what was granted before is kept",
    )


_LOGIN = {
    LoginState.NONE: (
        "it asks for a login",
        'log in, or add a key to its definition: "headers": {"Authorization": "Bearer ${env:TOKEN}"}',
    ),
    LoginState.EXPIRED: ("the login has ended and cannot be renewed", "its authorization server gave no refresh token"),
    LoginState.REFUSED: ("the login was revoked, or has ended", "a running hub uses a new login at once"),
    LoginState.GOOD: (
        "it rejected the login",
        "if it rejects a new login too, it and its authorization server disagree: tell whoever runs them",
    ),
}
