"""Keeps a grant's secrets in the OS keyring where there is one; otherwise the store's file has them.

The keyring is used through the package ``keyring``, an extra. ``HOLDFAST_TOKEN_STORE=file`` turns it off.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from holdfast.auth.grant import GrantKey

if TYPE_CHECKING:
    from keyring.backend import KeyringBackend

__all__ = ["CHOICE", "KeyringVault", "Vault", "VaultClosed", "find_vault"]

log = logging.getLogger("holdfast.auth")

CHOICE = "HOLDFAST_TOKEN_STORE"
"""The variable that selects where tokens are kept: ``file`` or ``keyring``; by default the keyring if there is one."""

SERVICE = "holdfast"


class VaultClosed(Exception):
    """The keyring cannot be used: it is locked, absent, or it refuses."""


class Vault(Protocol):
    """Keeps the secrets of grants. Its methods block."""

    def read(self, key: GrantKey) -> Mapping[str, str] | None:
        """The secrets of a grant; None if it has none. Raises ``VaultClosed``."""

    def write(self, key: GrantKey, secrets: Mapping[str, str]) -> None:
        """Keep the secrets of a grant. Raises ``VaultClosed``."""

    def remove(self, key: GrantKey) -> None:
        """Remove a grant's secrets, if there are any."""


class KeyringVault:
    """The OS keyring: one entry for each grant."""

    def __init__(self, backend: KeyringBackend) -> None:
        self._backend = backend

    def read(self, key: GrantKey) -> Mapping[str, str] | None:
        """The secrets of a grant."""
        try:
            text = self._backend.get_password(SERVICE, _entry(key))
            found = json.loads(text) if text else None
        except Exception as exc:  # every backend has errors of its own
            raise VaultClosed(type(exc).__name__) from exc
        return found if isinstance(found, dict) else None

    def write(self, key: GrantKey, secrets: Mapping[str, str]) -> None:
        """Keep the secrets of a grant."""
        try:
            self._backend.set_password(SERVICE, _entry(key), json.dumps(dict(secrets)))
        except Exception as exc:  # every backend has errors of its own
            raise VaultClosed(type(exc).__name__) from exc

    def remove(self, key: GrantKey) -> None:
        """Remove a grant's secrets; a failure is only logged."""
        try:
            self._backend.delete_password(SERVICE, _entry(key))
        except Exception as exc:  # noqa: BLE001 - every backend has errors of its own
            log.warning("the keyring did not remove the tokens of %s (%s)", key.resource, type(exc).__name__)


def find_vault(environ: Mapping[str, str] = os.environ) -> Vault | None:
    """The keyring of this machine and user; None where there is none or the user turned it off."""
    choice = environ.get(CHOICE, "")
    if choice == "file":
        return None
    backend = _backend()
    if backend is None and choice == "keyring":
        log.warning("%s=keyring, but there is no keyring here: tokens are kept in a file", CHOICE)
    return KeyringVault(backend) if backend is not None else None


def _backend() -> KeyringBackend | None:
    try:
        import keyring  # noqa: PLC0415 - an extra, and slow to import
        from keyring.backends import fail, null  # noqa: PLC0415

        found = keyring.get_keyring()
    except Exception as exc:  # noqa: BLE001 - tokens must be kept also where a keyring is broken
        log.debug("no keyring: %s", type(exc).__name__)
        return None
    return None if isinstance(found, fail.Keyring | null.Keyring) else found


def _entry(key: GrantKey) -> str:
    return f"{key.issuer} {key.resource}"
