"""A dial that is under way, and a connection that stands: what the lifecycle remembers of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.core.lifecycle.effects import Cause

__all__ = ["Dialing", "Lease"]


@dataclass(slots=True)
class Dialing:
    """The dial that is under way."""

    generation: int
    cause: Cause
    again: bool = False
    """New credentials came while it was under way: if it fails, dial once more."""
    retry_at: float | None = None
    """The reconnect that was planned when somebody else's dial came first."""
    notices: int = 0
    """How often the server said already that its list changed."""


@dataclass(slots=True)
class Lease:
    """The connection that stands."""

    generation: int
    cause: Cause
    listed_at: float
    firm: bool = False
    """It has stood for a while, or completed a user's call: the past is forgotten."""
    failures: int = 0
    refreshing: bool = False
    checking: bool = False
    doubted: bool = False
    """Calls are refused for what failed before it: if it does not answer, no call will ever show that."""
    notices: int = 0
    covered: int = 0
    """How many of those notices the last good listing is newer than."""
    covering: int = 0
    """How many the listing that is under way will cover."""
