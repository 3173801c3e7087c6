"""What is made of a failure."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.core.messages import FailureStatus

__all__ = ["Verdict"]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a failure is, why, what would change it, and how long the server asked us to wait."""

    status: FailureStatus
    reason: str
    hint: str = ""
    retry_after: float | None = None
