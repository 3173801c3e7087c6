"""Where configurations are looked for, and the only place that reads one from disk."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from holdfast.errors import ConfigError, ConfigNotFound, Problem

__all__ = ["find_config", "project_folder", "read_config", "search_places", "state_folder", "user_folders"]

LARGEST = 16 << 20
"""Bytes; whatever is larger is not a configuration."""

_NAME = "mcp.json"
_IN_PROJECT = (Path(_NAME), Path(f".{_NAME}"), Path(".vscode") / _NAME)
_CLIENT_FOLDERS = frozenset({".vscode", ".cursor", ".roo", ".kilocode", ".kiro", ".gemini", ".windsurf", ".claude"})


def find_config(path: Path | None, *, environ: Mapping[str, str], cwd: Path) -> Path:
    """The configuration to use: the given one, ``HOLDFAST_CONFIG``, or the first that is found."""
    named = path or environ.get("HOLDFAST_CONFIG")
    if named:
        return cwd / named
    searched = search_places(environ=environ, cwd=cwd)
    found = next((place for place in searched if os.path.isfile(place)), None)  # noqa: PTH113 - never raises
    if found is None:
        raise ConfigNotFound(searched)
    return found


def search_places(*, environ: Mapping[str, str], cwd: Path) -> tuple[Path, ...]:
    """Every place that is looked at when no file is named, in order."""
    return (*(cwd / place for place in _IN_PROJECT), *(folder / _NAME for folder in user_folders(environ)))


def user_folders(environ: Mapping[str, str]) -> Iterator[Path]:
    """The folders that hold a user's own configuration."""
    home = Path(environ.get("HOME") or os.path.expanduser("~"))  # noqa: PTH111 - Path.home() raises where there is none
    xdg = environ.get("XDG_CONFIG_HOME", "")
    yield (Path(xdg) if xdg.startswith("/") else home / ".config") / "holdfast"
    if sys.platform == "darwin":
        yield home / "Library" / "Application Support" / "holdfast"


def state_folder(environ: Mapping[str, str]) -> Path:
    """The folder of what Holdfast keeps between two runs."""
    home = environ.get("HOME") or os.path.expanduser("~")  # noqa: PTH111 - Path.home() raises where there is none
    return Path(environ.get("XDG_STATE_HOME") or Path(home) / ".local" / "state") / "holdfast"


def project_folder(file: Path) -> Path:
    """The folder that a file's relative paths start from: its own, or the project's if that is a client's."""
    folder = file.absolute().parent
    return folder.parent if folder.name in _CLIENT_FOLDERS else folder


def read_config(file: Path) -> bytes:
    """The file's bytes, or a ``ConfigError`` that says why not."""
    try:
        with file.open("rb") as stream:
            data = stream.read(LARGEST + 1)
    except (OSError, ValueError) as error:
        raise ConfigError([_unreadable(file, error)]) from error
    if len(data) > LARGEST:
        hint = f"a configuration is smaller than {LARGEST >> 20} MiB: is this the right file?"
        raise ConfigError([Problem(message="the file is far too large", hint=hint, file=file)])
    return data


def _unreadable(file: Path, error: OSError | ValueError) -> Problem:
    match error:
        case FileNotFoundError():
            message, hint = "there is no such file", "is the path right? It came from --config or HOLDFAST_CONFIG"
        case IsADirectoryError():
            message, hint = "this is a folder, not a file", f"name the file in it, as in {file / _NAME}"
        case PermissionError():
            message, hint = "the file may not be read", f"allow it: chmod u+r '{file}'"
        case OSError():
            message, hint = f"the file cannot be read: {error.strerror or type(error).__name__}", ""
        case _:
            return Problem(message="the path holds a NUL character", hint="give the path of a file")
    return Problem(message=message, hint=hint, file=file)
