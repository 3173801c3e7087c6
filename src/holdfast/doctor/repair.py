"""The safe repairs: correct a file's mode, set a damaged file aside. Nothing is deleted."""

from __future__ import annotations

from pathlib import Path

from holdfast.doctor.report import Finding, Repaired
from holdfast.files import PRIVATE_FILE, set_aside

__all__ = ["repair"]


def repair(found: Finding) -> Repaired | None:
    """Make the repair that the finding names; None if it names none."""
    file = Path(found.target)
    try:
        match found.repair:
            case "chmod":
                file.chmod(PRIVATE_FILE)
                return Repaired(code=found.code, done=True, words=f"{file} can now be read only by you (mode 600)")
            case "set_aside":
                aside = set_aside(file)
                return Repaired(code=found.code, done=True, words=f"set {file} aside as {aside.name}")
            case None:
                return None
    except OSError as exc:
        why = exc.strerror or type(exc).__name__
        return Repaired(code=found.code, done=False, words=f"{file} could not be repaired: {why}")
