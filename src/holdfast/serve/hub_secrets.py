"""The credentials of a hub: the tokens of its callers and of its operators, and the files that they come from (SEC-16).

What can happen. A mounted secret is replaced while the hub runs: callers with the new value must get in within a
second. So the files are read again every second, and at SIGHUP. A file that is empty, unreadable or half written must
lock out no one: the last good value stays in force, and the log says why.

What must never happen: one token that is both for callers and for operators, since each caller could disable servers;
and a value in the log, so that a new one is masked there before it is used.

This module is cheap to import: a supervisor and the commands read tokens, and serve nothing. What checks callers is
named by its package, and imported by a hub alone.
"""

from __future__ import annotations

import logging
import pwd
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import anyio.to_thread

import holdfast.access
import holdfast.hub
from holdfast.config import state_folder
from holdfast.control import TOKEN_VARIABLE as CONTROL_TOKEN_VARIABLE
from holdfast.errors import HoldfastError, UsageError
from holdfast.files import NotPrivate, make_secret, read_secret

if TYPE_CHECKING:
    from holdfast.access import JwtVerifier, Policy, TokenPolicy, TrustedGateway
    from holdfast.auth import SubjectTokens
    from holdfast.control import ControlServer
    from holdfast.front import ServerTls
    from holdfast.serve.listening import Announcement
    from holdfast.serve.options import Serving

__all__ = [
    "CallerSecrets",
    "SecretFile",
    "SecretFiles",
    "caller_token",
    "control_token",
    "local_token",
    "local_token_file",
    "read_token",
    "uid_of",
]

log = logging.getLogger("holdfast.serve")

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
            make_secret(file)
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


# In a hub: what is in force, and the files that it comes from.

LOOK_SECONDS = 1.0
"""How often the files are read."""


class CallerSecrets:
    """The token of the callers, and the secrets of the gateway and of the sign-in, that are in force now."""

    def __init__(self, serving: Serving, policy: Callable[[], Policy]) -> None:
        """``policy`` returns the rules in force."""
        self._options = serving.options
        self._can_verify = serving.can_verify
        self.tokens = {"caller": serving.token} if serving.token else {}
        """The token in force by the name of its principal."""
        self.given = {"gateway": serving.gateway_secret or "", "oidc": serving.oidc_secret or ""}
        """The secret that the gateway sends, and that of the client that signs people in."""
        issuer = serving.options.jwt_issuer
        self.resource = holdfast.access.ProtectedResource(serving.public_url, issuer, policy=policy) if issuer else None
        """The endpoints as clients know them, where an issuer gives tokens."""
        self.verifier = self._jwt_verifier()

    def policy(self, subjects: SubjectTokens) -> TokenPolicy | None:
        """How callers are checked; None if every local program may call. ``subjects`` gets their verified tokens."""
        if not self._can_verify:
            return None
        options = self._options
        return holdfast.access.TokenPolicy(
            tokens=self.tokens,
            file=holdfast.access.TokensFile(options.tokens_file) if options.tokens_file is not None else None,
            verify=self.verifier,
            gateway=self._trusted_gateway() if options.has_gateway else None,
            subjects=subjects,
        )

    def _jwt_verifier(self) -> JwtVerifier | None:
        options = self._options
        if not options.jwt_issuer or not options.jwt_keys:
            return None
        return holdfast.access.JwtVerifier(
            issuer=options.jwt_issuer,
            audience=options.jwt_audience or "",
            resource=self.resource if options.public_url else None,
            keys=options.jwt_keys,
            user_claim=options.jwt_user_claim,
            groups_claim=options.jwt_groups_claim,
            scopes_claim=options.jwt_scopes_claim,
        )

    def _trusted_gateway(self) -> TrustedGateway:
        options = self._options
        return holdfast.access.TrustedGateway(
            secret=(lambda: self.given["gateway"]) if options.gateway_secret_file is not None else None,
            mtls=options.gateway_mtls,
            certificate_names=frozenset(options.gateway_cert_name or ()),
            user_header=options.gateway_user_header,
            groups_header=options.gateway_groups_header,
        )


@dataclass
class SecretFile:
    """One file, the value that is in force, and what a new one changes."""

    file: Path | None
    """None if the value does not come from a file."""
    value: str
    use: Callable[[str], None]
    told: str
    """The line of the log about a new value."""
    other: Callable[[], str]
    """A secret of another use: the same value must not have both."""
    problem: str = ""


class SecretFiles:
    """Follows the files with tokens and certificates."""

    def __init__(
        self, files: Iterable[SecretFile], *, mask: Callable[[str], None], tls: ServerTls | None = None
    ) -> None:
        """``mask`` keeps a secret out of the log from now on."""
        self._files = [one for one in files if one.file is not None]
        self._mask = mask
        self._tls = tls

    @classmethod
    def of_hub(
        cls,
        serving: Serving,
        secrets: CallerSecrets,
        *,
        admin: ControlServer,
        tls: ServerTls | None,
        note: Announcement,
        mask: Callable[[str], None],
    ) -> SecretFiles:
        """All files of a hub."""
        options = serving.options

        def use_control_token(token: str) -> None:
            admin.sessions.use_control_token(token)
            note.change_token(token)

        control = SecretFile(
            options.control_token_file,
            serving.control_token,
            use_control_token,
            "the control token changed: commands and pages need the new one",
            # A caller with the control token could disable servers.
            other=lambda: secrets.tokens.get("caller", ""),
        )
        of_callers = (
            (
                *(serving.token_file, serving.token or "", lambda new: secrets.tokens.update(caller=new)),
                "the token file changed: callers need the new token",
            ),
            (
                *(options.gateway_secret_file, secrets.given["gateway"], lambda new: secrets.given.update(gateway=new)),
                "the gateway's secret changed: the gateway needs the new one",
            ),
            (
                *(options.oidc_client_secret_file, secrets.given["oidc"], lambda new: secrets.given.update(oidc=new)),
                "the OIDC client secret changed",
            ),
        )
        files = [SecretFile(*one, other=lambda: control.value) for one in of_callers]
        return cls([*files, control], mask=mask, tls=tls)

    def __repr__(self) -> str:
        return f"<SecretFiles {', '.join(str(one.file) for one in self._files) or 'none'}>"

    async def run(self) -> None:
        """Look at the files until cancelled; without any there is nothing to do."""
        while self._files or self._tls is not None:
            await holdfast.hub.sleep_until_poll(LOOK_SECONDS)
            await self.refresh()

    async def refresh(self) -> None:
        """Look at the files now."""
        for one in self._files:
            value = await anyio.to_thread.run_sync(_read_again, one)
            if value != one.value:
                self._mask(value)  # first: no line that the new value causes may show it
                one.value = value
                one.use(value)
                log.info(one.told)
        if self._tls is not None:
            await anyio.to_thread.run_sync(self._tls.refresh)


def _read_again(one: SecretFile) -> str:
    """The value of a file now; the last good one if it cannot be used."""
    assert one.file is not None  # noqa: S101 - only files are followed
    value, problem = one.value, ""
    try:
        found = read_token(one.file)
        if found == one.other():
            raise UsageError(f"{one.file} holds a token that has another use")
        value = found
    except HoldfastError as exc:
        problem = exc.message
        if problem != one.problem:
            log.warning("%s; the last token stays valid", problem)
    one.problem = problem
    return value
