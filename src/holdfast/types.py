"""The types that users hold: a tool, the result of a call, the outcome of a load.

They are plain data: what they hand out are dicts and lists that ``json.dumps`` accepts, and copies, so that a
change by their holder changes nothing else. This module imports neither the hub nor the transports.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, Self, TypeAlias

from holdfast.core import Failure, FailureStatus, counted, for_model, for_user

__all__ = [
    "CallResult",
    "FoundTool",
    "LoadResult",
    "LoadStatus",
    "MCPServerLoadOutcome",
    "ProgressFn",
    "Tool",
    "check_timeout",
]

LoadStatus: TypeAlias = Literal["available", "transient", "permanent", "denied"]


class ProgressFn(Protocol):
    """Receives the progress notifications of a call, in order, all of them before the result."""

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        """One notification."""


@dataclass(frozen=True, kw_only=True)
class CallResult:
    """The result of a tool call."""

    content: tuple[Mapping[str, Any], ...] = ()
    """The blocks as the server sent them: ``{"type": "text", "text": …}`` and so on."""
    structured: Mapping[str, Any] | None = None
    is_error: bool = False
    meta: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """All text blocks, joined by line ends."""
        return "\n".join(str(block["text"]) for block in self.content if block.get("type") == "text")

    @classmethod
    def from_raw(cls, raw: Mapping[str, Any]) -> CallResult:
        """Build it from the ``result`` of a JSON-RPC response."""
        return cls(
            content=tuple(raw.get("content") or ()),
            structured=raw.get("structuredContent"),
            is_error=bool(raw.get("isError")),
            meta=raw.get("_meta") or {},
        )


CallFunction: TypeAlias = Callable[[str, Mapping[str, Any], ProgressFn | None, float | None], Awaitable[CallResult]]
"""Calls a tool by its name, with these arguments; the number is the call's own timeout."""


class Tool:
    """A handle on one tool of one server. It holds no connection: each call finds the connection to use."""

    __slots__ = ("_call", "_raw", "name", "server_id")

    def __init__(self, server_id: str, name: str, raw: Mapping[str, Any], call: CallFunction) -> None:
        """``raw`` is the server's description of the tool; no part of it is handed out."""
        self.server_id = server_id
        self.name = name
        """The name to call it by."""
        self._raw = raw
        self._call = call

    @property
    def title(self) -> str | None:
        """A name for people, if the server gives one."""
        return self._raw.get("title")

    @property
    def description(self) -> str:
        """The server's description of the tool."""
        return self._raw.get("description") or ""

    @property
    def input_schema(self) -> dict[str, Any]:
        """The JSON Schema of the arguments; a copy."""
        return _copied(self._raw.get("inputSchema"))

    @property
    def output_schema(self) -> dict[str, Any] | None:
        """The JSON Schema of the structured result, if the tool has one; a copy."""
        return _copied(self._raw.get("outputSchema")) or None

    @property
    def annotations(self) -> dict[str, Any]:
        """Hints such as ``readOnlyHint``, as the server gives them; a copy."""
        return _copied(self._raw.get("annotations"))

    @property
    def meta(self) -> dict[str, Any]:
        """The tool's ``_meta``: from the server, and from a hub for a tool that it has not verified yet; a copy."""
        return _copied(self._raw.get("_meta"))

    async def call(
        self,
        args: Mapping[str, Any] | None = None,
        *,
        on_progress: ProgressFn | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - part of the public interface
    ) -> CallResult:
        """Call the tool. Raises ``NotAnswered`` unless the server returned a result, which may be a tool error.

        ``timeout`` is for this call, in seconds, its waits included; the server's own limits hold beside it.
        """
        check_timeout(timeout)
        return await self._call(self.name, args or {}, on_progress, timeout)

    def __repr__(self) -> str:
        return f"<Tool {self.name!r} of {self.server_id!r}>"


@dataclass(frozen=True, kw_only=True)
class FoundTool:
    """A tool that a search found, and whether it can be called now."""

    name: str
    """The name to call it by."""
    server_id: str
    signature: str
    """Its name and parameters in one line: every required one, optional ones as far as there is room."""
    summary: str
    """The first sentence of its description."""
    available: bool
    """Whether its server takes calls now; one that starts when it is first called does."""
    state: str
    reason: str = ""
    """Why it cannot be called, when that changes and what helps, in words for a model; empty if it is available."""
    retry_in: float | None = None
    """Seconds until the next try; None where none is planned."""

    @property
    def text(self) -> str:
        """Two or three lines for a model: signature, summary, and the truth about the server."""
        truth = "available" if self.available else f"not available ({self.state}): {self.reason}"
        return "\n  ".join(filter(None, (self.signature, self.summary, f"[{truth}]")))


@dataclass(frozen=True, kw_only=True)
class MCPServerLoadOutcome:
    """The outcome of loading one server: its tools, or the reason why there are none."""

    server_id: str
    status: LoadStatus
    tools: list[Tool] = field(default_factory=list)
    error: str | None = None
    """The reason, without secrets. None if the server is available."""
    attempts: int = 1
    hint: str = ""
    """What would change the outcome."""
    unconfirmed: bool = False
    """Whether a denial states no decision: it may be an outage of the authorization check."""
    elapsed_s: float = field(default=0.0, compare=False)

    @property
    def failure(self) -> Failure | None:
        """The failure, as ``core.messages`` takes it; None if the server is available."""
        if self.status == "available":
            return None
        return Failure(self.server_id, self.status, self.error or "", unconfirmed=self.unconfirmed)

    @property
    def message(self) -> str:
        """The message for a person; empty if the server is available. It promises nothing that a load does not do."""
        if self.status == "transient":
            return f"MCP server '{self.server_id}' is not ready yet: {self.error}."
        return for_user(self.failure) if self.failure else ""


class LoadResult(  # noqa: SLOT001 - the outcomes are stored beside the triple
    tuple[list[Tool], list[str], dict[str, str]]
):
    """``(all_tools, failed_servers, failed_errors)``, which also holds the outcome of each server."""

    outcomes: list[MCPServerLoadOutcome]

    def __new__(cls, outcomes: Iterable[MCPServerLoadOutcome]) -> Self:
        """Build the triple from the outcome of each server, in the order in which they were given."""
        every = list(outcomes)
        failed = [outcome for outcome in every if outcome.status != "available"]
        result = super().__new__(
            cls,
            (
                [tool for outcome in every for tool in outcome.tools],
                [outcome.server_id for outcome in failed],
                {outcome.server_id: outcome.error or "" for outcome in failed},
            ),
        )
        result.outcomes = every
        return result

    def __reduce__(self) -> tuple[type[Self], tuple[list[MCPServerLoadOutcome]]]:
        return type(self), (self.outcomes,)

    @property
    def tools(self) -> list[Tool]:
        """The tools of every available server."""
        return self[0]

    @property
    def status(self) -> dict[str, LoadStatus]:
        """The status of each server, by its id."""
        return {outcome.server_id: outcome.status for outcome in self.outcomes}

    @property
    def available(self) -> list[str]:
        """The ids of the servers whose tools were loaded."""
        return self._ids("available")

    @property
    def transient(self) -> list[str]:
        """The ids of the servers that are starting up."""
        return self._ids("transient")

    @property
    def permanent(self) -> list[str]:
        """The ids of the servers that need attention."""
        return self._ids("permanent")

    @property
    def denied(self) -> list[str]:
        """The ids of the servers that denied access."""
        return self._ids("denied")

    @property
    def model_message(self) -> str:
        """The message for a model about the servers that failed; empty if none did."""
        return for_model(outcome.failure for outcome in self.outcomes if outcome.failure)

    def _ids(self, status: LoadStatus | FailureStatus) -> list[str]:
        return [outcome.server_id for outcome in self.outcomes if outcome.status == status]

    def __repr__(self) -> str:
        counts = ", ".join(
            f"{len(ids)} {status}"
            for status in ("available", "transient", "permanent", "denied")
            if (ids := self._ids(status))
        )
        return f"<LoadResult {counted(len(self.tools), 'tool')}; {counts or 'no servers'}>"


def check_timeout(seconds: float | None) -> None:
    """Refuse a timeout of a call that is no time; raises ``ValueError``."""
    if seconds is not None and not seconds > 0:
        raise ValueError(f"the timeout of a call is a number of seconds above 0, not {seconds!r}")


def _copied(part: object) -> dict[str, Any]:
    """A copy of an object of a server, made of dicts and lists alone; empty where it sent none."""
    return {key: _plain(value) for key, value in part.items()} if isinstance(part, Mapping) else {}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return _copied(value)
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value
