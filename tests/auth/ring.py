"""A keyring for tests: it lives as long as its test, and can be locked."""

from __future__ import annotations

from keyring.backend import KeyringBackend
from keyring.errors import KeyringLocked


class Ring(KeyringBackend):
    """A keyring that lives as long as the test; it is never chosen by default."""

    priority = -1

    def __init__(self) -> None:
        self.held: dict[tuple[str, str], str] = {}
        self.locked = False

    def _check(self) -> None:
        if self.locked:
            raise KeyringLocked

    def get_password(self, service: str, username: str) -> str | None:
        self._check()
        return self.held.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        self._check()
        self.held[service, username] = password

    def delete_password(self, service: str, username: str) -> None:
        self._check()
        del self.held[service, username]
