"""Where the keys of session ids come from: a file, a variable, or a key that the hub makes once for itself.

A key of the operator is shared by the replicas of a hub. One key a line; the first seals, all of them open. A file is
read again when it changes, so a key is replaced without the loss of a session: write the new key above the old one, and
remove the old one after 30 days. No message and no ``repr`` shows a key.
"""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Callable, Mapping
from hashlib import blake2s
from pathlib import Path

from holdfast.errors import HoldfastError, UsageError
from holdfast.files import (
    FileStamp,
    NotPrivate,
    file_stamp,
    locked,
    private_folder,
    read_private,
    replace_file,
)
from holdfast.front.seal import TicketSeal
from holdfast.keys import SHORTEST_SECRET, KeyRing, derive

__all__ = ["KEY_VARIABLE", "SessionKeys"]

log = logging.getLogger("holdfast.front")

KEY_VARIABLE = "HOLDFAST_SESSION_KEY"
REREAD_SECONDS = 1.0
"""How often the file is checked before an id is sealed. An id that does not open checks it at once."""
LARGEST_FILE = 64 * 1024
NEW_KEY = "a new session key is in use: sessions from before must reconnect"
_MAKE = "make a key: python3 -c 'import secrets; print(secrets.token_urlsafe(32))'"


class SessionKeys:
    """The keys in force."""

    def __init__(
        self, keys: list[bytes], *, file: Path | None = None, shared: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._keys = keys
        self._ring = KeyRing(keys)
        self.seal = TicketSeal(self._ring)
        self.shared = shared
        """Whether other hubs may have the keys too: a session can then be used without this hub's knowledge."""
        self.notice = ""
        """What users should know about the keys; empty if there is nothing."""
        self.on_notice: Callable[[], object] | None = None
        """Called when the notice changed."""
        self._file = file
        self._stamp = file_stamp(file) if file is not None else None
        self._clock = clock
        self._checked = clock()

    @classmethod
    def find(
        cls, *, file: Path | None = None, environ: Mapping[str, str] | None = None, kept_in: Path | None = None
    ) -> SessionKeys:
        """The keys of a file, else of the variable, else the hub's own key in a folder, else one for this process.

        Raises ``HoldfastError`` if a given file or variable has no usable key.
        """
        given = (os.environ if environ is None else environ).get(KEY_VARIABLE)
        if file is not None and given:
            raise UsageError(f"--session-key-file and {KEY_VARIABLE} exclude each other", hint="use one of them")
        if file is not None:
            return cls(_read(file), file=file, shared=True)
        if given:
            return cls(_parsed(given.encode("utf-8", "surrogateescape"), KEY_VARIABLE), shared=True)
        return cls.kept(kept_in) if kept_in is not None else cls.for_this_process()

    @classmethod
    def kept(cls, folder: Path) -> SessionKeys:
        """The hub's own key: made once, private to the user, and used by every later hub of this folder."""
        file = folder / "session.key"
        made, used = False, any(folder.glob("*.sqlite"))
        try:
            private_folder(folder)
            with locked(folder / "session.key.lock"):
                if not file.exists():
                    replace_file(file, secrets.token_urlsafe(48) + "\n")
                    made = True
        except OSError as exc:
            if not file.exists():
                found = cls.for_this_process()
                found.announce(f"sessions end with this hub: no key can be kept in {folder} ({exc.strerror})")
                return found
        found = cls(_read(file), file=file, shared=False)
        if made and used:
            found.announce(NEW_KEY)
        elif made:
            log.info("made a session key in %s", file)
        return found

    @classmethod
    def for_this_process(cls) -> SessionKeys:
        """A key that ends with the process."""
        return cls([secrets.token_bytes(SHORTEST_SECRET)], shared=False)

    @property
    def is_of_one_process(self) -> bool:
        """Whether the key ends with the process."""
        return self._file is None and not self.shared

    @property
    def material(self) -> tuple[bytes, ...]:
        """The keys themselves, to derive other keys from; the first is the newest.

        The file is checked here too: a replica that begins no session must not miss what a new key signed.
        """
        self.refresh()
        return tuple(self._keys)

    @property
    def ring(self) -> KeyRing:
        """The keys in force, to seal and to sign with. The file is checked here too, as for ``material``."""
        self.refresh()
        return self._ring

    def label(self, name: str) -> str:
        """A name for others that have the keys, and that says nothing to anyone else."""
        key = derive(self._keys[-1], "labels")
        return blake2s(name.encode(), key=key, digest_size=8).hexdigest()

    def refresh(self, *, now: bool = False) -> bool:
        """Read the file again if it changed; whether the keys are others. A bad file changes nothing."""
        if self._file is None or (not now and 0 <= self._clock() - self._checked < REREAD_SECONDS):
            return False
        self._checked = self._clock()
        stamp: FileStamp = file_stamp(self._file)
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        try:
            keys = _read(self._file)
        except HoldfastError as exc:
            log.warning("%s; the keys read before stay in force", exc.message)
            return False
        if keys == self._keys:
            return False
        lost = not set(keys) & set(self._keys)
        self._keys, self._ring = keys, KeyRing(keys)
        self.seal = TicketSeal(self._ring)
        log.info("read the session keys in %s again: %d", self._file, len(keys))
        if lost:
            self.announce(NEW_KEY)
        return True

    def announce(self, notice: str) -> None:
        """Log what users should know, and show it in the status."""
        self.notice = notice
        log.warning("%s", notice)
        if self.on_notice is not None:
            self.on_notice()

    def __repr__(self) -> str:
        return f"<SessionKeys of {self._file or 'memory'}: {len(self._keys)}{', shared' if self.shared else ''}>"


def _read(file: Path) -> list[bytes]:
    try:
        content = read_private(file, largest=LARGEST_FILE + 1)
    except NotPrivate as exc:
        raise HoldfastError(f"the session key is not private: {exc}", hint=f"run: {exc.command}") from exc
    except OSError as exc:
        raise HoldfastError(f"cannot read the session key file {file}: {exc.strerror}", hint="check the path") from exc
    if len(content) > LARGEST_FILE:
        raise UsageError(f"the session key file {file} is larger than {LARGEST_FILE // 1024} KiB", hint=_MAKE)
    return _parsed(content, f"the session key file {file}")


def _parsed(content: bytes, where: str) -> list[bytes]:
    keys = [line.strip() for line in content.splitlines() if line.strip()]
    if not keys:
        raise UsageError(f"{where} holds no key", hint=_MAKE)
    for number, key in enumerate(keys, 1):
        if len(key) < SHORTEST_SECRET:
            which = f"key {number} of {where}" if len(keys) > 1 else f"the key of {where}"
            raise UsageError(f"{which} has fewer than {SHORTEST_SECRET} bytes", hint=_MAKE)
    return keys
