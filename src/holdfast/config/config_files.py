"""Configuration files on disk: where they are searched, how their bytes are read, and whether they are trusted.

No other module reads one from disk. A project's own file can name commands and send variables to addresses. If the
search finds such a file, it is used only after the user trusted its content once. Trust belongs to a path and a
content: a changed file, the same file at another path, and a link to a trusted file each need their own. A file that is
named with ``--config``, ``HOLDFAST_CONFIG`` or a path in a program needs no trust.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from holdfast.config.expand import texts_in
from holdfast.config.jsonc import parse
from holdfast.config.own_folders import state_folder, user_folders
from holdfast.core import command_line
from holdfast.errors import ConfigError, ConfigNotFound, HoldfastError, Problem, UntrustedConfig
from holdfast.files import locked, private_folder, replace_file, set_aside

__all__ = [
    "PROJECT_FILES",
    "TrustStore",
    "config_to_edit",
    "find_config",
    "is_named",
    "project_folder",
    "read_config",
    "require_trust",
    "rewrite_config",
    "search_places",
    "servers_in",
    "settings_in",
    "variables_in",
    "write_whole",
]

LARGEST = 16 << 20
"""Bytes; a larger file is not a configuration."""

_NAME = "mcp.json"
PROJECT_FILES = (Path(_NAME), Path(f".{_NAME}"), Path(".vscode") / _NAME)
"""Where a project has its servers, below its folder; the first one that exists counts."""
_CLIENT_FOLDERS = frozenset({".vscode", ".cursor", ".roo", ".kilocode", ".kiro", ".gemini", ".windsurf", ".claude"})


def find_config(path: Path | None, *, environ: Mapping[str, str], cwd: Path) -> Path:
    """The file to use: the given one, the one in ``HOLDFAST_CONFIG``, or the first that exists."""
    named = path or environ.get("HOLDFAST_CONFIG")
    if named:
        return cwd / named
    searched = search_places(environ=environ, cwd=cwd)
    found = next((place for place in searched if os.path.isfile(place)), None)  # noqa: PTH113 - never raises
    if found is None:
        raise ConfigNotFound(searched)
    return found


def config_to_edit(path: Path | None, environ: Mapping[str, str]) -> Path:
    """The file that a command edits: the given one, the one in ``HOLDFAST_CONFIG``, else the user's own.

    A project's file is edited only by its name.
    """
    named = path or environ.get("HOLDFAST_CONFIG")
    return Path(named or next(user_folders(environ)) / _NAME).absolute()


def search_places(*, environ: Mapping[str, str], cwd: Path) -> tuple[Path, ...]:
    """Every path that is searched when no file is named, in order."""
    return (*(cwd / place for place in PROJECT_FILES), *(folder / _NAME for folder in user_folders(environ)))


def project_folder(file: Path) -> Path:
    """The folder that relative paths start from: the file's own, or its parent if a client such as VS Code owns it."""
    folder = file.absolute().parent
    return folder.parent if folder.name in _CLIENT_FOLDERS else folder


def is_named(path: Path | None, environ: Mapping[str, str]) -> bool:
    """Whether the user named the file to use. Otherwise it is searched for."""
    return bool(path or environ.get("HOLDFAST_CONFIG"))


def read_config(file: Path, *, found: bool = False) -> bytes:
    """The file's bytes, or a ``ConfigError`` that says why not.

    A ``found`` file must belong to the user or root, and not everyone may write it: another user could have put
    it there. The owner and mode are those of the file that is read, also if its path changes meanwhile.
    """
    try:
        # A pipe in the place of a found file would never end: it is opened without a wait, and refused.
        with open(file, "rb", opener=_without_waiting if found else None) as stream:
            if found:
                _check_owner(file, os.fstat(stream.fileno()), os.lstat(file))
            data = stream.read(LARGEST + 1)
    except (OSError, ValueError) as error:
        raise ConfigError([_unreadable(file, error)]) from error
    if len(data) > LARGEST:
        hint = f"a configuration is smaller than {LARGEST >> 20} MiB: is this the right file?"
        raise ConfigError([Problem(message="the file is too large", hint=hint, file=file)])
    return data


def _without_waiting(file: str, flags: int) -> int:
    return os.open(file, flags | os.O_NONBLOCK)


def _check_owner(file: Path, *statuses: os.stat_result) -> None:
    """Check the file, and the link that leads to it."""
    if not stat.S_ISREG(statuses[0].st_mode):
        message = "this is no regular file, so it is not used"
        raise ConfigError([Problem(message=message, hint="a configuration is a file of text", file=file)])
    for status in statuses:
        if status.st_uid not in (os.geteuid(), 0):
            message = f"the file belongs to another user (uid {status.st_uid}), so it is not used"
            hint = f"if you trust it, name it: --config {shlex.quote(str(file))}"
            raise ConfigError([Problem(message=message, hint=hint, file=file)])
        if status.st_mode & stat.S_IWOTH and not stat.S_ISLNK(status.st_mode):
            message = "every user of this machine can write the file, so it is not used"
            hint = f"correct its mode: chmod o-w {shlex.quote(str(file))}"
            raise ConfigError([Problem(message=message, hint=hint, file=file)])


def _unreadable(file: Path, error: OSError | ValueError) -> Problem:
    match error:
        case FileNotFoundError():
            message, hint = "the file does not exist", "check the path in --config or HOLDFAST_CONFIG"
        case IsADirectoryError():
            message, hint = "this is a folder, not a file", f"name the file in it, as in {file / _NAME}"
        case PermissionError():
            message, hint = "permission to read the file is denied", f"allow it: chmod u+r {shlex.quote(str(file))}"
        case OSError():
            message, hint = f"the file cannot be read: {error.strerror or type(error).__name__}", ""
        case _:
            return Problem(message="the path contains a NUL character", hint="give the path of a file")
    return Problem(message=message, hint=hint, file=file)


# Trust

VERSION = 1

_REFERENCE = re.compile(r"(?<!\$)\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(?::-[^}]*)?\}")
_GROUPS = ("mcpServers", "servers")


class TrustStore:
    """The trusted files of one user: a hash of the content for each path."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.file = state_folder(environ) / "trusted.json"

    def is_trusted(self, file: Path, data: bytes) -> bool:
        """Whether the user trusted this content at this path."""
        return self.files().get(_key(file)) == _hash(data)

    def files(self) -> dict[str, str]:
        """The trusted paths, and the hash of each; none if the store is damaged or another user could write it."""
        try:
            with self.file.open("rb") as stream:
                status = os.fstat(stream.fileno())
                if status.st_uid != os.geteuid() or status.st_mode & 0o022:
                    return {}
                document = json.load(stream)
            return {str(path): str(entry["sha256"]) for path, entry in document["files"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}

    def trust(self, file: Path, data: bytes) -> None:
        """Trust this content at this path."""
        entry = {"sha256": _hash(data), "at": datetime.now(UTC).isoformat(timespec="seconds")}
        self._change(lambda files: files.update({_key(file): entry}))

    def forget(self, file: Path) -> bool:
        """Trust this path no longer; False if it was not trusted."""
        known = _key(file) in self.files()
        if known:
            self._change(lambda files: files.pop(_key(file), None))
        return known

    def _change(self, change: Callable[[dict[str, Any]], object]) -> None:
        try:
            private_folder(self.file.parent)
            with locked(self.file.with_suffix(".lock")):
                document: dict[str, Any] = {"version": VERSION, "files": {}}
                if self.files() or not self.file.exists():
                    with suppress(OSError, ValueError):
                        document = json.loads(self.file.read_text(encoding="utf-8"))
                else:
                    set_aside(self.file)
                change(document["files"])
                replace_file(self.file, json.dumps(document, indent=2))
        except OSError as exc:
            why = exc.strerror or type(exc).__name__
            hint = f"check the permissions of {self.file.parent}"
            raise HoldfastError(f"{self.file} cannot be written: {why}", hint=hint) from exc


def require_trust(file: Path, data: bytes, *, environ: Mapping[str, str]) -> None:
    """Raise ``UntrustedConfig`` unless the user trusted this content at this path."""
    if not TrustStore(environ).is_trusted(file, data):
        raise UntrustedConfig(file.absolute(), data)


def write_whole(file: Path, text: str) -> None:
    """Replace a file in one step. Links are followed, an existing file keeps its mode, and a new one is private."""
    target = Path(os.path.realpath(file))
    try:
        private_folder(target.parent)
        replace_file(target, text, keep_mode=True)
    except OSError as exc:
        why = exc.strerror or type(exc).__name__
        raise HoldfastError(
            f"{target} cannot be written: {why}", hint=f"check the permissions of {target.parent}"
        ) from exc


def rewrite_config(file: Path, text: str, *, environ: Mapping[str, str]) -> None:
    """Write an edit of Holdfast's own. A file that was trusted stays trusted; one that was not does not become so.

    The user asked for the edit and saw it. What other programs write needs trust again.
    """
    store = TrustStore(environ)
    was_trusted = file.exists() and store.is_trusted(file, file.read_bytes())
    write_whole(file, text)
    if not was_trusted:
        return
    try:
        # What was written, and not what is there now: another program may have replaced it meanwhile.
        store.trust(file, text.encode("utf-8"))
    except HoldfastError as exc:
        again = f"trust it again: {command_line('trust', str(file))}"
        raise HoldfastError(f"{file} was written, but {exc.message}", hint=again) from exc


def servers_in(data: bytes) -> tuple[tuple[str, Mapping[str, Any]], ...]:
    """The definitions of a file as they are written, by name. Mask their texts before they are shown."""
    groups = (_object_in(data, group) for group in _GROUPS)
    return tuple((name, raw) for group in groups for name, raw in group.items() if isinstance(raw, dict))


def variables_in(definition: Mapping[str, Any]) -> tuple[str, ...]:
    """The environment variables that a definition sends to its server."""
    return tuple(dict.fromkeys(name for text in texts_in(definition) for name in _REFERENCE.findall(text)))


def settings_in(data: bytes) -> Mapping[str, Any]:
    """The settings of Holdfast itself that a file makes."""
    return _object_in(data, "holdfast")


def _object_in(data: bytes, key: str) -> Mapping[str, Any]:
    """The object under a key of the file; empty if there is none, and for a file that cannot be read."""
    with suppress(ConfigError):
        value = parse(data).value
        found = value.get(key) if isinstance(value, dict) else None
        return found if isinstance(found, dict) else {}
    return {}


def _key(file: Path) -> str:
    """The path as it was found. A link is not followed: relative paths in the file start where the link is."""
    return str(file.absolute())


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
