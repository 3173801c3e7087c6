"""The trace of one call: its admission, its wait for a connection, and the time of the server (OBS-2).

Spans are made with OpenTelemetry's API, which does nothing until a program sets up its SDK. Without an SDK the
trace context in a request's ``_meta`` passes through unchanged.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Literal, TypeAlias

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.environment_variables import OTEL_PYTHON_TRACER_PROVIDER
from opentelemetry.propagate import extract, inject
from opentelemetry.trace import ProxyTracerProvider, Span, SpanKind, StatusCode

from holdfast._version import __version__
from holdfast.hub.records import CallEnded
from holdfast.wire import BadJson, Fields, dumps, fields, join_fields, text_of

__all__ = ["Stage", "Trace", "begin", "is_tracing"]

Stage: TypeAlias = Literal["admission", "wait", "upstream"]
"""Asking the breaker and waiting for a place; waiting for a connection; waiting for the server."""

ANSWERED = ("completed", "tool_error", "rpc_error")

_tracer = trace.get_tracer("holdfast", __version__)
_NAMED_BY_ENVIRONMENT = OTEL_PYTHON_TRACER_PROVIDER in os.environ


class Trace:
    """The spans of one call."""

    __slots__ = ("_call", "_context", "_stage")

    def __init__(self, call: Span) -> None:
        self._call = call
        self._context = trace.set_span_in_context(call)
        self._stage: Span | None = None

    @property
    def id(self) -> str:
        """The id of the trace, as other programs write it."""
        return trace.format_trace_id(self._call.get_span_context().trace_id)

    def enter(self, stage: Stage) -> None:
        """End the span of the stage before, and start the span of this one."""
        self._leave()
        kind = SpanKind.CLIENT if stage == "upstream" else SpanKind.INTERNAL
        self._stage = _tracer.start_span(f"holdfast.{stage}", context=self._context, kind=kind)

    def carried(self, params: Fields) -> Fields:
        """The parameters with the trace context: the current stage is the parent of the server's span."""
        own: dict[str, str] = {}
        inject(own, context=trace.set_span_in_context(self._stage or self._call, self._context))
        meta = {**_meta(params), **{key: dumps(value) for key, value in own.items()}}
        return {**params, "_meta": join_fields(meta)}

    def end(self, ended: CallEnded) -> None:
        """End the spans of the call."""
        self._leave(failed=ended.outcome not in ANSWERED)
        self._call.set_attribute("holdfast.outcome", ended.outcome)
        if ended.outcome not in ("completed", "cancelled"):
            self._call.set_attribute("error.type", ended.error or ended.outcome)
            self._call.set_status(StatusCode.ERROR, ended.reason or None)
        self._call.end()

    def _leave(self, *, failed: bool = False) -> None:
        if self._stage is not None:
            if failed:
                self._stage.set_status(StatusCode.ERROR)
            self._stage.end()
            self._stage = None


def is_tracing() -> bool:
    """Whether a tracer is configured."""
    # The public function reads the environment at every call until a provider is set; this is asked for every call.
    if _NAMED_BY_ENVIRONMENT or trace.__dict__.get("_TRACER_PROVIDER", trace) is not None:
        return not isinstance(trace.get_tracer_provider(), ProxyTracerProvider)
    return False


def begin(server: str, method: str, params: Fields, *, principal: str = "") -> Trace:
    """Start the trace of a call, inside the current span if there is one."""
    attributes = {"holdfast.server": server, "mcp.method.name": method}
    if principal:
        attributes["enduser.id"] = principal
    if method == "tools/call" and (tool := text_of(params.get("name"))) is not None:
        attributes["gen_ai.tool.name"] = tool
    return Trace(_tracer.start_span("holdfast.call", context=_parent(params), attributes=attributes))


def _parent(params: Fields) -> Context | None:
    """None for the current span; if there is none, the context in the request."""
    if trace.get_current_span().get_span_context().is_valid:
        return None
    with suppress(ValueError):
        return extract({key: text for key, value in _meta(params).items() if (text := text_of(value)) is not None})
    return None


def _meta(params: Fields) -> Fields:
    try:
        return fields(params["_meta"]) if "_meta" in params else {}
    except BadJson:
        return {}
