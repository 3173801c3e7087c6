"""What lies on the disk and concerns no single server: who may read it, and whether it is whole."""

from __future__ import annotations

import json
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import ClassVar

import anyio.to_thread

from holdfast.config.definition import Definition
from holdfast.config.secrets import looks_secret
from holdfast.doctor.checks.base import Seen, Whole, WholeCheck
from holdfast.doctor.findings import Finding, finding, shell

__all__ = ["FilesCheck", "StateCheck", "TokensCheck"]

_OTHERS = stat.S_IRGRP | stat.S_IROTH


class FilesCheck(WholeCheck):
    """Whether others can read the secrets in the configuration."""

    id: ClassVar[str] = "files"
    looks_at: ClassVar[str] = "whether files with credentials in them can be read by other users"
    finds: ClassVar[tuple[str, ...]] = ("HF-FILE-READABLE",)

    async def look(self, whole: Whole) -> Seen:
        """Look at the mode of each file that holds a credential in plain text."""
        files = dict.fromkeys([*_with_secrets(whole), *([whole.store.file] if whole.store.exposed else [])])
        return Seen("", tuple(_readable(file) for file in files if _others_may_read(file)))


def _with_secrets(whole: Whole) -> Iterator[Path]:
    source = whole.reading.config.source
    for definition in whole.reading.definitions:
        if source is not None and _writes_secret(definition):
            yield source
        if definition.env_file is not None and any(map(looks_secret, definition.env_file.values)):
            yield definition.env_file.path


def _writes_secret(definition: Definition) -> bool:
    """Whether a credential stands in the file itself, and not in a variable that the file names."""
    for section in ("env", "headers"):
        values = definition.given.get(section)
        for name in values if isinstance(values, dict) else ():
            if looks_secret(name) and not definition.expansion.sources((*definition.path, section, name)):
                return True
    return False


def _others_may_read(file: Path) -> bool:
    try:
        return bool(file.stat().st_mode & _OTHERS)
    except OSError:
        return False


def _readable(file: Path) -> Finding:
    mode = stat.S_IMODE(file.stat().st_mode)
    words = f"{file} holds credentials, and other users may read it (its mode is {mode:o})"
    text = "take that right away; `holdfast doctor --fix` does the same"
    return finding("HF-FILE-READABLE", words, text, shell("chmod", "600", str(file)), repair="chmod", target=str(file))


class TokensCheck(WholeCheck):
    """Whether the token store is whole."""

    id: ClassVar[str] = "tokens"
    looks_at: ClassVar[str] = "whether the file that keeps logins is whole"
    finds: ClassVar[tuple[str, ...]] = ("HF-TOKENS-CORRUPT",)

    async def look(self, whole: Whole) -> Seen:
        """Read it as the store does, but leave it where it is."""
        file = whole.store.file
        fault = await anyio.to_thread.run_sync(_not_a_store, file, abandon_on_cancel=True)
        if not fault:
            return Seen(str(file) if file.exists() else "")
        words = f"the token store {file} is damaged ({fault}): no login can be read from it"
        text = "set it aside and log in again; `holdfast doctor --fix` does the first, and deletes nothing"
        aside = shell("mv", str(file), f"{file}.corrupt")
        return Seen("", (finding("HF-TOKENS-CORRUPT", words, text, aside, repair="set_aside", target=str(file)),))


def _not_a_store(file: Path) -> str:
    """What is wrong with it; empty if nothing is, or if it cannot be looked at."""
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        return "" if isinstance(document["version"], int) and isinstance(document["grants"], list) else "other fields"
    except OSError:
        return ""
    except (ValueError, KeyError, TypeError) as exc:
        return type(exc).__name__


class StateCheck(WholeCheck):
    """Whether the hub's state file is whole."""

    id: ClassVar[str] = "state"
    looks_at: ClassVar[str] = "whether the file that keeps the hub's last listings is whole"
    finds: ClassVar[tuple[str, ...]] = ("HF-STATE-CORRUPT",)

    async def look(self, whole: Whole) -> Seen:
        """Let SQLite look at every page of it."""
        file = whole.state_file
        if file is None or not file.exists():
            return Seen()
        fault = await anyio.to_thread.run_sync(_fault, file, abandon_on_cancel=True)
        if not fault:
            return Seen(str(file))
        words = f"the hub's state file {file} is damaged ({fault}): tools of the last run are not listed at its start"
        text = "set it aside, a new one is written; `holdfast doctor --fix` does the same"
        aside = shell("mv", str(file), f"{file}.corrupt")
        return Seen("", (finding("HF-STATE-CORRUPT", words, text, aside, repair="set_aside", target=str(file)),))


def _fault(file: Path) -> str:
    """What is wrong with it; empty if nothing is, or if another process has it."""
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True, timeout=1.0)) as database:
            (verdict,) = database.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.DatabaseError as exc:
        damaged = getattr(exc, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT)
        return str(exc) if damaged else ""
    return "" if verdict == "ok" else str(verdict)[:100]
