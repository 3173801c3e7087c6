"""Compares the output of a command with the stored output. ``HOLDFAST_SNAPSHOTS=write`` stores it again."""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = Path(__file__).parent / "snapshots"


def assert_as_kept(name: str, shown: str) -> None:
    """Fail if it is not what is kept under that name. Escape characters are kept as ``\\e``, to be readable."""
    readable = shown.replace("\r\n", "\n").replace("\x1b", "\\e")
    file = FOLDER / f"{name}.txt"
    if os.environ.get("HOLDFAST_SNAPSHOTS") == "write":
        FOLDER.mkdir(exist_ok=True)
        file.write_text(readable, encoding="utf-8")
    assert readable == file.read_text(encoding="utf-8")
