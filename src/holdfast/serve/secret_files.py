"""The secrets in force, and the files that they come from: read again when they change, and at SIGHUP (SEC-16).

A mounted secret is replaced while the hub runs. Callers with the new value must get in within a second, and a file that
is empty, unreadable or half written must lock out no one: the last good value stays in force, and the log says why.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import anyio.to_thread

from holdfast.access import JwtVerifier, NeededScopes, ProtectedResource, TokenPolicy, TokensFile, TrustedGateway
from holdfast.auth import SubjectTokens
from holdfast.config import AccessSettings
from holdfast.control import ControlServer
from holdfast.errors import HoldfastError, UsageError
from holdfast.front import ServerTls
from holdfast.hub import sleep_until_poll
from holdfast.serve.announcement import Announcement
from holdfast.serve.options import Serving
from holdfast.serve.telemetry import mask_in_log
from holdfast.serve.tokens import read_token

__all__ = ["CallerSecrets", "SecretFiles"]

log = logging.getLogger("holdfast.serve")

LOOK_SECONDS = 1.0
"""How often the files are read."""


class CallerSecrets:
    """The token of the callers, and the secrets of the gateway and of the sign-in, that are in force now."""

    def __init__(self, serving: Serving, settings: Callable[[], AccessSettings] = AccessSettings) -> None:
        """``settings`` returns the current rules."""
        self._options = serving.options
        self._can_verify = serving.can_verify
        self.tokens = {"caller": serving.token} if serving.token else {}
        """The token in force by the name of its principal."""
        self.gateway = serving.gateway_secret or ""
        self.oidc = serving.oidc_secret or ""
        issuer = serving.options.jwt_issuer
        needs = NeededScopes(settings)
        self.resource = ProtectedResource(serving.public_url, issuer, needs=needs) if issuer else None
        """The endpoints as clients know them, where an issuer gives tokens."""
        self.verifier = self._jwt_verifier()

    def policy(self, subjects: SubjectTokens) -> TokenPolicy | None:
        """How callers are checked; None if every local program may call. ``subjects`` gets their verified tokens."""
        if not self._can_verify:
            return None
        options = self._options
        return TokenPolicy(
            tokens=self.tokens,
            file=TokensFile(options.tokens_file) if options.tokens_file is not None else None,
            verify=self.verifier,
            gateway=self._trusted_gateway() if options.has_gateway else None,
            subjects=subjects,
        )

    def _jwt_verifier(self) -> JwtVerifier | None:
        options = self._options
        if not options.jwt_issuer or not options.jwt_keys:
            return None
        return JwtVerifier(
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
        return TrustedGateway(
            secret=(lambda: self.gateway) if options.gateway_secret_file is not None else None,
            mtls=options.gateway_mtls,
            certificate_names=frozenset(options.gateway_cert_name or ()),
            user_header=options.gateway_user_header,
            groups_header=options.gateway_groups_header,
        )


@dataclass
class _SecretFile:
    """One file, the value that is in force, and what a new one changes."""

    file: Path
    value: str
    use: Callable[[str], None]
    told: str
    problem: str = ""


class SecretFiles:
    """Follows the files with tokens and certificates."""

    def __init__(
        self,
        serving: Serving,
        secrets: CallerSecrets,
        *,
        admin: ControlServer,
        tls: ServerTls | None,
        note: Announcement,
    ) -> None:
        self._admin = admin
        self._note = note
        self._tls = tls
        self._secrets = secrets
        self._control_token = serving.control_token
        options = serving.options
        self._files: list[_SecretFile] = []
        if serving.token_file is not None:
            told = "the token file changed: callers need the new token"
            self._files.append(_SecretFile(serving.token_file, serving.token or "", self._use_caller_token, told))
        if options.control_token_file is not None:
            told = "the control token changed: commands and pages need the new one"
            self._files.append(
                _SecretFile(options.control_token_file, serving.control_token, self._use_control_token, told)
            )
        if options.gateway_secret_file is not None:
            told = "the gateway's secret changed: the gateway needs the new one"
            self._files.append(
                _SecretFile(options.gateway_secret_file, secrets.gateway, self._use_gateway_secret, told)
            )
        if options.oidc_client_secret_file is not None:
            told = "the OIDC client secret changed"
            self._files.append(_SecretFile(options.oidc_client_secret_file, secrets.oidc, self._use_oidc_secret, told))

    def __repr__(self) -> str:
        return f"<SecretFiles {', '.join(str(one.file) for one in self._files) or 'none'}>"

    async def run(self) -> None:
        """Look at the files until cancelled; without any there is nothing to do."""
        while self._files or self._tls is not None:
            await sleep_until_poll(LOOK_SECONDS)
            await self.refresh()

    async def refresh(self) -> None:
        """Look at the files now."""
        for one in self._files:
            value = await anyio.to_thread.run_sync(self._read, one)
            if value is not None and value != one.value:
                mask_in_log(value)
                one.value = value
                one.use(value)
                log.info(one.told)
        if self._tls is not None:
            await anyio.to_thread.run_sync(self._tls.refresh)
            self._tls.end_distrusted()

    def _read(self, one: _SecretFile) -> str | None:
        try:
            value = read_token(one.file)
            # A caller with the control token could disable servers.
            other = (
                self._secrets.tokens.get("caller", "") if one.use == self._use_control_token else self._control_token
            )
            if value == other:
                raise UsageError(f"{one.file} holds a token that has another use")
        except HoldfastError as exc:
            if exc.message != one.problem:
                log.warning("%s; the last token stays valid", exc.message)
            one.problem = exc.message
            return None
        one.problem = ""
        return value

    def _use_caller_token(self, token: str) -> None:
        self._secrets.tokens["caller"] = token

    def _use_gateway_secret(self, secret: str) -> None:
        self._secrets.gateway = secret

    def _use_oidc_secret(self, secret: str) -> None:
        self._secrets.oidc = secret

    def _use_control_token(self, token: str) -> None:
        self._control_token = token
        self._admin.sessions.use_control_token(token)
        self._note.change_token(token)
