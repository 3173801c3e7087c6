"""One text for a call that got no result: what happened, why, and when to try again. A model reads it."""

from __future__ import annotations

from holdfast.core import Failure, State, for_user
from holdfast.errors import HoldfastError, ServerUnavailable
from holdfast.hub.journal import failure_status

__all__ = ["explain"]


def explain(error: HoldfastError) -> str:
    """Return the text. The front, the framework integrations and the command line use the same."""
    if not isinstance(error, ServerUnavailable):
        return " ".join(filter(None, (f"{error.message.rstrip('.')}.", error.hint)))
    status = failure_status(State(error.state))
    if status is None:
        return f"{error.message.rstrip('.')}."
    words = for_user(Failure(error.server_id, status, error.reason))
    return f"{words} Try again in {max(error.retry_in, 1.0):.0f} s." if error.retry_in is not None else words
