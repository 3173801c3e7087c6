"""Finds configuration files, and reads their bytes. No other module reads one from disk."""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Mapping
from pathlib import Path

from holdfast.config.own_folders import user_folders
from holdfast.errors import ConfigError, ConfigNotFound, Problem

__all__ = ["find_config", "is_named", "project_folder", "read_config", "search_places"]

LARGEST = 16 << 20
"""Bytes; a larger file is not a configuration."""

_NAME = "mcp.json"
_IN_PROJECT = (Path(_NAME), Path(f".{_NAME}"), Path(".vscode") / _NAME)
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


def search_places(*, environ: Mapping[str, str], cwd: Path) -> tuple[Path, ...]:
    """Every path that is searched when no file is named, in order."""
    return (*(cwd / place for place in _IN_PROJECT), *(folder / _NAME for folder in user_folders(environ)))


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
            raise ConfigError([Problem(message=message, hint=_name_it(file), file=file)])
        if status.st_mode & stat.S_IWOTH and not stat.S_ISLNK(status.st_mode):
            message = "every user of this machine can write the file, so it is not used"
            hint = f"correct its mode: chmod o-w {shlex.quote(str(file))}"
            raise ConfigError([Problem(message=message, hint=hint, file=file)])


def _name_it(file: Path) -> str:
    return f"if you trust it, name it: --config {shlex.quote(str(file))}"


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
