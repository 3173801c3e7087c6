"""What became of each server when its tools were loaded, and the tools themselves."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

from holdfast.core.messages import Failure, FailureStatus, for_model, for_user

if TYPE_CHECKING:
    from holdfast.wire.dial import CallResult, ProgressFn
    from holdfast.wire.listing import ToolInfo

__all__ = ["LoadResult", "LoadStatus", "MCPServerLoadOutcome", "Tool"]

LoadStatus: TypeAlias = Literal["available", "transient", "permanent", "denied"]

Caller: TypeAlias = "Callable[[str, Mapping[str, Any], ProgressFn | None], Awaitable[CallResult]]"


class Tool:
    """A handle on one tool of one server. It holds no connection: each call finds its own way."""

    __slots__ = ("_call", "_info", "server_id")

    def __init__(self, server_id: str, info: ToolInfo, call: Caller) -> None:
        self.server_id = server_id
        self._info = info
        self._call = call

    @property
    def name(self) -> str:
        """The name that the server gives it."""
        return self._info.name

    @property
    def title(self) -> str | None:
        """A name for people, if the server gives one."""
        return self._info.title

    @property
    def description(self) -> str:
        """What the server says that it does."""
        return self._info.description

    @property
    def input_schema(self) -> Mapping[str, Any]:
        """The JSON Schema of its arguments."""
        return self._info.input_schema

    @property
    def output_schema(self) -> Mapping[str, Any] | None:
        """The JSON Schema of its structured result, if it has one."""
        return self._info.output_schema

    @property
    def annotations(self) -> Mapping[str, Any]:
        """Hints such as ``readOnlyHint``, as the server gives them."""
        return self._info.annotations

    async def call(self, args: Mapping[str, Any] | None = None, *, on_progress: ProgressFn | None = None) -> CallResult:
        """Call it. Raises ``CallFailed`` unless the server gave a result (which may be an error of the tool's)."""
        return await self._call(self.name, args or {}, on_progress)

    def __repr__(self) -> str:
        return f"<Tool {self.name!r} of {self.server_id!r}>"


@dataclass(frozen=True, kw_only=True)
class MCPServerLoadOutcome:
    """What became of one server: its tools, or why there are none."""

    server_id: str
    status: LoadStatus
    tools: tuple[Tool, ...] = ()
    error: str | None = None
    """The reason, fit to be shown: no secret is in it. None if the server is available."""
    attempts: int = 1
    hint: str = ""
    """What would change it."""
    elapsed_s: float = field(default=0.0, compare=False)

    @property
    def failure(self) -> Failure | None:
        """The failure, for the words of ``core.messages``; None if the server is available."""
        return None if self.status == "available" else Failure(self.server_id, self.status, self.error or "")

    @property
    def message(self) -> str:
        """What a person is told about it; empty if the server is available."""
        return for_user(self.failure) if self.failure else ""


class LoadResult(  # noqa: SLOT001 - the outcomes stand beside the triple
    tuple[tuple[Tool, ...], tuple[str, ...], Mapping[str, str]]
):
    """``(all_tools, failed_servers, failed_errors)``, which also tells each server's outcome."""

    outcomes: tuple[MCPServerLoadOutcome, ...]

    def __new__(cls, outcomes: Iterable[MCPServerLoadOutcome]) -> Self:
        """Build the triple from what became of each server, in the order in which they were given."""
        every = tuple(outcomes)
        failed = [outcome for outcome in every if outcome.status != "available"]
        result = super().__new__(
            cls,
            (
                tuple(tool for outcome in every for tool in outcome.tools),
                tuple(outcome.server_id for outcome in failed),
                {outcome.server_id: outcome.error or "" for outcome in failed},
            ),
        )
        result.outcomes = every
        return result

    def __reduce__(self) -> tuple[type[Self], tuple[tuple[MCPServerLoadOutcome, ...]]]:
        return type(self), (self.outcomes,)

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The tools of every available server."""
        return self[0]

    @property
    def status(self) -> Mapping[str, LoadStatus]:
        """Each server's status."""
        return {outcome.server_id: outcome.status for outcome in self.outcomes}

    @property
    def available(self) -> tuple[str, ...]:
        """The ids of the servers whose tools are here."""
        return self._ids("available")

    @property
    def transient(self) -> tuple[str, ...]:
        """The ids of the servers that are starting up."""
        return self._ids("transient")

    @property
    def permanent(self) -> tuple[str, ...]:
        """The ids of the servers that need attention."""
        return self._ids("permanent")

    @property
    def denied(self) -> tuple[str, ...]:
        """The ids of the servers that denied access."""
        return self._ids("denied")

    @property
    def model_message(self) -> str:
        """What a model is told about the servers that failed; empty if none did."""
        return for_model(outcome.failure for outcome in self.outcomes if outcome.failure)

    def _ids(self, status: LoadStatus | FailureStatus) -> tuple[str, ...]:
        return tuple(outcome.server_id for outcome in self.outcomes if outcome.status == status)

    def __repr__(self) -> str:
        counts = ", ".join(
            f"{len(ids)} {status}"
            for status in ("available", "transient", "permanent", "denied")
            if (ids := self._ids(status))
        )
        return f"<LoadResult {len(self.tools)} tools; {counts or 'no servers'}>"
