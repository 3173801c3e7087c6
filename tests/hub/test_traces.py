"""One trace for each call: its stages, its outcome, and the context that goes on to the server (OBS-2)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, StatusCode, TraceFlags, use_span

from holdfast.core import State
from holdfast.errors import ServerDisabled
from holdfast.hub.hub import Hub
from tests.harness.open_hubs import reaches, running
from tests.peers.mcp_http import McpPeer

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("OBS-2")]

EXPORTER = InMemorySpanExporter()
PROVIDER = TracerProvider(shutdown_on_exit=False)
PROVIDER.add_span_processor(SimpleSpanProcessor(EXPORTER))
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture(autouse=True)
def tracing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that traces: OpenTelemetry has one provider for a process, and no way to take it back."""
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", PROVIDER)
    EXPORTER.clear()


def spans() -> dict[str, ReadableSpan]:
    return {one.name.removeprefix("holdfast."): one for one in EXPORTER.get_finished_spans()}


def context_in(peer: McpPeer) -> str:
    """The trace context of the last call that came to a server."""
    calls = [json.loads(one.body) for one in peer.requests if b'"tools/call"' in one.body]
    return str(calls[-1]["params"]["_meta"]["traceparent"])


async def request(hub: Hub, meta: Any = None, name: str = "echo") -> None:
    params = {"name": name, "arguments": {"text": "hi"}} | ({"_meta": meta} if meta is not None else {})
    await hub.registry.request("o", "tools/call", params)


async def test_a_call_is_one_span_with_its_stages_inside() -> None:
    async with McpPeer() as peer, running({"o": peer}) as hub:
        await hub.ready()
        await hub.call_tool("o__echo", {"text": "hi"})
        found = spans()
        assert list(found) == ["admission", "wait", "upstream", "call"]
        call, upstream = found["call"], found["upstream"]
        assert call.context is not None
        assert upstream.context is not None
        assert call.parent is None
        assert all(
            one.parent is not None and one.parent.span_id == call.context.span_id
            for one in (upstream, found["admission"])
        )
        assert (upstream.kind, found["admission"].kind) == (SpanKind.CLIENT, SpanKind.INTERNAL)
        assert dict(call.attributes or {}) == {
            "holdfast.server": "o",
            "mcp.method.name": "tools/call",
            "gen_ai.tool.name": "echo",
            "holdfast.outcome": "completed",
        }
        assert [one.status.status_code for one in found.values()] == [StatusCode.UNSET] * 4
        trace_id, span_id = context_in(peer).split("-")[1:3]
        assert trace_id == trace.format_trace_id(call.context.trace_id)
        assert span_id == trace.format_span_id(upstream.context.span_id), "the server's span is inside the upstream one"


async def test_a_call_goes_on_with_the_trace_of_its_request_or_of_the_program() -> None:
    async with McpPeer() as peer, running({"o": peer}) as hub:
        await hub.ready()
        await request(hub, {"traceparent": PARENT, "own": 1})
        assert context_in(peer).split("-")[1] == PARENT.split("-")[1]
        current = SpanContext(trace_id=7, span_id=8, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))
        with use_span(NonRecordingSpan(current)):
            await request(hub, {"traceparent": PARENT})
        assert int(context_in(peer).split("-")[1], 16) == 7, "the current span of the program counts more"
        await request(hub, 7)
        assert context_in(peer).split("-")[1] != PARENT.split("-")[1]


async def test_a_call_that_is_refused_says_so_and_has_no_upstream() -> None:
    async with McpPeer() as peer, running({"o": peer}) as hub:
        await hub.ready()
        await hub.toggle("o", enabled=False)
        await reaches(hub, "o", State.DISABLED)
        EXPORTER.clear()
        with pytest.raises(ServerDisabled):
            await request(hub)
        found = spans()
        assert list(found) == ["admission", "call"]
        assert [one.status.status_code for one in found.values()] == [StatusCode.ERROR] * 2
        attributes = dict(found["call"].attributes or {})
        assert (attributes["holdfast.outcome"], attributes["error.type"]) == ("refused", "ServerDisabled")
        assert "is disabled" in (found["call"].status.description or "")
