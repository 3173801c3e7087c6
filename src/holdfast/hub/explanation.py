"""One text for an error: what happened, why, and when to try again."""

from __future__ import annotations

from holdfast.errors import HoldfastError, ServerUnavailable

__all__ = ["explain"]


def explain(error: HoldfastError) -> str:
    """Return the text. The front, the framework integrations and the command line use the same."""
    if isinstance(error, ServerUnavailable):
        return f"{error.message.rstrip('.')}."  # its message has the words of the evidence and the time already
    return " ".join(filter(None, (f"{error.message.rstrip('.')}.", error.hint)))
