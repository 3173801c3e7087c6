"""Where a user's own configuration and state are.

Each joined client asks (PERF-10), so there are texts beside the paths: ``pathlib`` is imported for the paths alone.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

__all__ = ["state_folder", "state_folder_name", "user_folder_names", "user_folders"]


def user_folder_names(environ: Mapping[str, str]) -> Iterator[str]:
    """The folders of a user's own configuration."""
    home = environ.get("HOME") or os.path.expanduser("~")  # noqa: PTH111 - Path.home() raises where there is none
    xdg = environ.get("XDG_CONFIG_HOME", "")
    yield os.path.join(xdg if xdg.startswith("/") else os.path.join(home, ".config"), "holdfast")  # noqa: PTH118 - a text
    if sys.platform == "darwin":
        yield os.path.join(home, "Library", "Application Support", "holdfast")  # noqa: PTH118 - a text


def user_folders(environ: Mapping[str, str]) -> Iterator[Path]:
    """The folders of a user's own configuration, as paths."""
    from pathlib import Path  # noqa: PLC0415 - see the module's docstring

    yield from map(Path, user_folder_names(environ))


def state_folder_name(environ: Mapping[str, str]) -> str:
    """The folder of the state that Holdfast keeps between two runs."""
    home = environ.get("HOME") or os.path.expanduser("~")  # noqa: PTH111 - Path.home() raises where there is none
    given = environ.get("XDG_STATE_HOME")
    return os.path.join(given or os.path.join(home, ".local", "state"), "holdfast")  # noqa: PTH118 - a text


def state_folder(environ: Mapping[str, str]) -> Path:
    """The folder of the state that Holdfast keeps between two runs, as a path."""
    from pathlib import Path  # noqa: PLC0415 - see the module's docstring

    return Path(state_folder_name(environ))
