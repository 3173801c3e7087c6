"""The credentials of a hub: the tokens of its callers and of its operators, and the users of this machine.

This module is cheap to import: a supervisor checks them, and serves nothing itself.
"""

from __future__ import annotations

import pwd
import secrets
from collections.abc import Mapping
from pathlib import Path

from holdfast.config import state_folder
from holdfast.control import TOKEN_VARIABLE as CONTROL_TOKEN_VARIABLE
from holdfast.errors import HoldfastError, UsageError
from holdfast.files import NotPrivate, private_folder, read_secret, replace_file

__all__ = ["caller_token", "control_token", "local_token", "local_token_file", "read_token", "uid_of"]

TOKEN_VARIABLE = "HOLDFAST_TOKEN"  # noqa: S105 - the name of a variable

SHORTEST_TOKEN = 16
"""Characters. A shorter token can be guessed by anyone who can reach the port."""


def caller_token(given: str | None, file: Path | None, environ: Mapping[str, str]) -> str | None:
    """The token that callers need: typed, in a file, or in the environment."""
    if file is not None:
        return read_token(file)
    token = given or environ.get(TOKEN_VARIABLE) or None
    if token is not None:
        _check_length("the token", token)
    return token


def control_token(environ: Mapping[str, str], *, callers: str | None, file: Path | None = None) -> str:
    """The operator's own control token, or a new random one; never the token of the callers."""
    given = read_token(file, "the control token") if file is not None else environ.get(CONTROL_TOKEN_VARIABLE)
    if not given:
        return secrets.token_urlsafe(32)
    _check_length(CONTROL_TOKEN_VARIABLE, given)
    if given == callers:
        raise UsageError(
            "the control token is also the callers' token: every caller could disable servers",
            hint="give it another value, or none",
        )
    return given


def read_token(file: Path, name: str = "the token") -> str:
    """The token in a file; ``name`` is for messages."""
    try:
        token = read_secret(file).strip()
    except NotPrivate as exc:
        raise HoldfastError(f"{name} is not private: {exc}", hint=f"run: {exc.command}") from exc
    except (OSError, UnicodeDecodeError) as exc:
        why = getattr(exc, "strerror", None) or type(exc).__name__
        raise HoldfastError(f"cannot read the token file {file}: {why}", hint="check the path") from exc
    _check_length(name, token)
    return token


LOCAL_TOKEN = "caller.token"  # noqa: S105 - the name of a file
"""In the state folder: the token of local callers, where the system does not say which user calls."""


def local_token_file(environ: Mapping[str, str]) -> Path:
    """Where the token of local callers is."""
    return state_folder(environ) / LOCAL_TOKEN


def local_token(environ: Mapping[str, str]) -> Path:
    """The file with the token of local callers; it is made if there is none."""
    file = local_token_file(environ)
    try:
        if not file.exists():
            private_folder(file.parent)
            replace_file(file, f"{secrets.token_urlsafe(32)}\n")
    except OSError as exc:
        raise HoldfastError(
            f"cannot write the token of local callers, {file}: {exc.strerror}", hint="use --token-file FILE"
        ) from exc
    return file


def uid_of(user: str) -> int:
    """The uid of a user, by name or number."""
    if user.isascii() and user.isdigit():
        return int(user)
    try:
        return pwd.getpwnam(user).pw_uid
    except (KeyError, ValueError):
        raise UsageError(f"there is no user `{user}`", hint="give a user name or a uid") from None


def _check_length(name: str, token: str) -> None:
    """Refuse a token that is too short."""
    if len(token) < SHORTEST_TOKEN:
        raise UsageError(
            f"{name} has fewer than {SHORTEST_TOKEN} characters",
            hint="make one: python3 -c 'import secrets; print(secrets.token_urlsafe(32))'",
        )
