"""Files that hold secrets: written in one move, for their owner alone; damaged ones are kept for a look."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

__all__ = ["MODE", "replace_file", "set_aside"]

MODE = 0o600


def replace_file(file: Path, text: str) -> None:
    """Put a text in place; whatever fails leaves what stood there before."""
    descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}-")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            os.fchmod(stream.fileno(), MODE)
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(name, file)  # noqa: PTH105 - atomic, and says so
    except BaseException:
        with suppress(OSError):
            os.unlink(name)  # noqa: PTH108 - the name is a text
        raise


def set_aside(file: Path) -> Path:
    """Move a damaged file out of the way, beside the damaged ones of before; gives its new place."""
    number = 1
    while (aside := file.with_name(f"{file.name}.corrupt-{number}")).exists():
        number += 1
    os.replace(file, aside)  # noqa: PTH105 - atomic, and says so
    return aside
