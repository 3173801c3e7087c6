"""The repairs that are safe: a file's mode, a damaged file set aside. Nothing is deleted, and all is told."""

from __future__ import annotations

from pathlib import Path

from holdfast.doctor.findings import Finding
from holdfast.doctor.report import Repaired
from holdfast.files import PRIVATE_FILE, set_aside

__all__ = ["repair"]


def repair(found: Finding) -> Repaired | None:
    """Do what the finding says can be done; None where nothing can."""
    file = Path(found.target)
    try:
        match found.repair:
            case "chmod":
                file.chmod(PRIVATE_FILE)
                return Repaired(code=found.code, done=True, words=f"{file} can be read by you alone now (mode 600)")
            case "set_aside":
                aside = set_aside(file)
                return Repaired(code=found.code, done=True, words=f"set {file} aside as {aside.name}")
            case None:
                return None
    except OSError as exc:
        why = exc.strerror or type(exc).__name__
        return Repaired(code=found.code, done=False, words=f"{file} could not be mended: {why}")
