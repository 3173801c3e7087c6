"""A client's side of what servers ask: every question gets the answer that costs least thought, defaults included."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.wire.in_flight import Caller

__all__ = ["Answering"]


class Answering:
    """Answers a server's questions, whichever way they come (a ``Relay`` and a ``Caller`` in one)."""

    principal = ""
    log_level = None
    client_key = None
    via = ()
    trace_id = ""

    @property
    def era(self) -> None:
        """The era of the connection does not matter to it."""

    @property
    def capabilities(self) -> Mapping[str, Any]:
        """All that can be asked."""
        return {"elicitation": {"form": {"applyDefaults": True}}, "sampling": {}, "roots": {}}

    async def asked(
        self, server: str, method: str, params: Mapping[str, Any] | None, caller: Caller | None
    ) -> dict[str, Any]:
        """A question on a stream."""
        return await self.ask(method, params)

    async def ask(self, method: str, params: Mapping[str, Any] | None) -> dict[str, Any]:
        """The answer to one question."""
        if method == "elicitation/create":
            return {"action": "accept", "content": _filled((params or {}).get("requestedSchema") or {})}
        if method == "roots/list":
            return {"roots": [{"uri": "file:///tmp", "name": "tmp"}]}
        return {"role": "assistant", "content": {"type": "text", "text": "hello"}, "model": "none"}

    async def round(self, questions: Mapping[str, Any]) -> dict[str, Any]:
        """The answers to all questions of an ``input_required`` result."""
        return {key: await self.ask(one["method"], one.get("params")) for key, one in questions.items()}

    def tell(self, method: str, params: Mapping[str, Any] | None) -> None:
        """A notice for us."""

    def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """The progress of a request."""

    def told(self, server: str, method: str, params: Mapping[str, Any] | None) -> None:
        """A notification that belongs to no call."""


def _filled(schema: Mapping[str, Any]) -> dict[str, Any]:
    samples: dict[str, Any] = {"boolean": True, "number": 1, "integer": 1, "array": []}
    return {
        name: one["default"] if "default" in one else (one.get("enum") or [samples.get(one.get("type"), "text")])[0]
        for name, one in (schema.get("properties") or {}).items()
    }
