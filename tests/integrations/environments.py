"""An environment of its own for each framework: made once, from the package index, and kept under ``.tools/envs``."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".tools" / "envs"
INSTALL_SECONDS = 300


def python_with(name: str, requirements: Sequence[str], *, holdfast: bool = True) -> Path:
    """The Python of the environment ``name``, which has ``requirements`` and, unless told otherwise, Holdfast."""
    wanted = [*requirements, *(["-e", str(ROOT)] if holdfast else [])]
    home = FOLDER / name
    python, note = home / "bin" / "python", home / "requirements.txt"
    with _locked(FOLDER / f"{name}.lock"):
        if not note.exists() or note.read_text() != "\n".join(wanted):
            _uv("venv", "--quiet", "--clear", "--python", sys.executable, str(home))
            _uv("pip", "install", "--quiet", "--python", str(python), *wanted)
            note.write_text("\n".join(wanted))
    return python


def _uv(*arguments: str) -> None:
    command = [str(Path(sys.executable).with_name("uv")), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    assert done.returncode == 0, done.stderr


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
