"""Where a user's own configuration and state are. It imports next to nothing: each joined client uses it (PERF-10)."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

__all__ = ["state_folder", "user_folders"]


def user_folders(environ: Mapping[str, str]) -> Iterator[Path]:
    """The folders of a user's own configuration."""
    home = Path(environ.get("HOME") or os.path.expanduser("~"))  # noqa: PTH111 - Path.home() raises where there is none
    xdg = environ.get("XDG_CONFIG_HOME", "")
    yield (Path(xdg) if xdg.startswith("/") else home / ".config") / "holdfast"
    if sys.platform == "darwin":
        yield home / "Library" / "Application Support" / "holdfast"


def state_folder(environ: Mapping[str, str]) -> Path:
    """The folder of the state that Holdfast keeps between two runs."""
    home = environ.get("HOME") or os.path.expanduser("~")  # noqa: PTH111 - Path.home() raises where there is none
    return Path(environ.get("XDG_STATE_HOME") or Path(home) / ".local" / "state") / "holdfast"
