"""What a code is."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

__all__ = ["Code", "Severity"]

Severity: TypeAlias = Literal["error", "warning", "note"]
"""An error keeps the server from being used; a warning does not; a note is worth knowing."""


class Code(NamedTuple):
    """One code."""

    id: str
    severity: Severity
    means: str
    cause: str
    cure: str
