"""The traces of ``holdfast serve``, as a real collector gets them, together with what the server was sent."""

from __future__ import annotations

import gzip
import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from holdfast.errors import UsageError
from holdfast.serve.telemetry import traced
from tests.cli.serve_process import COMMAND, config, environment, served
from tests.peers.http_fault import FaultServer, closed_port, respond
from tests.peers.mcp_http import McpPeer

pytestmark = pytest.mark.anyio

TRACE_ID, CLIENT_SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE_ID}-{CLIENT_SPAN}-01"
BRISK = {"OTEL_BSP_SCHEDULE_DELAY": "100"}


class Collector(FaultServer):
    """Takes spans over OTLP, as a collector does."""

    def __init__(self) -> None:
        super().__init__(respond(200, ""))

    @property
    def environ(self) -> dict[str, str]:
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": self.origin, **BRISK}

    @property
    def exports(self) -> list[ExportTraceServiceRequest]:
        taken = [request for request in self.requests if request.path == "/v1/traces"]
        return [ExportTraceServiceRequest.FromString(_body(request)) for request in taken]

    @property
    def spans(self) -> dict[str, Span]:
        """The spans of the client's trace by name: there is one of each."""
        all_of_it = [span for span in _spans(self.exports) if span.trace_id.hex() == TRACE_ID]
        by_name = {span.name: span for span in all_of_it}
        assert len(by_name) == len(all_of_it)
        return by_name

    @property
    def service(self) -> set[str]:
        resources = (spans.resource for export in self.exports for spans in export.resource_spans)
        attributes = (one for resource in resources for one in resource.attributes)
        return {one.value.string_value for one in attributes if one.key == "service.name"}


def _body(request: Any) -> bytes:
    return gzip.decompress(request.body) if request.headers.get("content-encoding") == "gzip" else request.body


def _spans(exports: list[ExportTraceServiceRequest]) -> Iterator[Span]:
    for export in exports:
        for resource in export.resource_spans:
            for scope in resource.scope_spans:
                yield from scope.spans


def attributes(span: Span) -> dict[str, str]:
    return {one.key: one.value.string_value for one in span.attributes}


def sent_on(peer: McpPeer) -> tuple[str, str]:
    """The trace context of the one call that came, in its header and in its ``_meta``."""
    [call] = [request for request in peer.requests if b'"tools/call"' in request.body]
    return call.headers["traceparent"], json.loads(call.body)["params"]["_meta"]["traceparent"]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


@pytest.mark.requirement("OBS-2", "OBS-1")
@pytest.mark.parametrize(("era", "way"), [("modern", "headers"), ("legacy", "meta")])
async def test_one_trace_shows_the_admission_the_wait_and_the_upstream_call(
    tmp_path: Path, home: Path, era: Any, way: str
) -> None:
    trace: Any = {"traceparent": PARENT}
    async with McpPeer(era=era) as peer, Collector() as collector:
        file = config(tmp_path / "mcp.json", one={"type": "http", "url": peer.url})
        async with served(home, "--config", str(file), **collector.environ) as hub:
            await hub.said(": connected")
            headers = trace if way == "headers" else {}
            async with httpx2.AsyncClient(headers=headers, trust_env=False) as http:
                mode = "legacy" if era == "legacy" else "auto"
                async with Client(streamable_http_client(hub.url, http_client=http), mode=mode, cache=None) as client:
                    await client.call_tool("one__echo", {"text": "hi"}, meta=trace if way == "meta" else None)
            hub.send(signal.SIGTERM)
            assert await hub.ended() == 0
        spans = collector.spans
        call, upstream = spans["holdfast.call"], spans["holdfast.upstream"]
        assert call.parent_span_id.hex() == CLIENT_SPAN
        for stage in ("holdfast.admission", "holdfast.wait", "holdfast.upstream"):
            assert spans[stage].parent_span_id == call.span_id
            assert call.start_time_unix_nano <= spans[stage].start_time_unix_nano
            assert spans[stage].end_time_unix_nano <= call.end_time_unix_nano
        assert attributes(call) == {
            "holdfast.server": "one",
            "mcp.method.name": "tools/call",
            "gen_ai.tool.name": "echo",
            "holdfast.outcome": "completed",
            "enduser.id": "local",
        }
        on_the_wire = f"00-{TRACE_ID}-{upstream.span_id.hex()}-01"
        assert sent_on(peer) == (on_the_wire, on_the_wire)
        assert collector.service == {"holdfast"}


@pytest.mark.requirement("OBS-2")
async def test_a_call_that_is_refused_shows_so_and_has_no_upstream(tmp_path: Path, home: Path) -> None:
    async with McpPeer() as peer, Collector() as collector:
        definition = {"type": "http", "url": peer.url}
        file = config(tmp_path / "mcp.json", one=definition)
        environ = {**collector.environ, "OTEL_SERVICE_NAME": "mine"}
        async with served(home, "--config", str(file), **environ) as hub:
            await hub.said(": connected")
            config(file, one={**definition, "enabled": False})
            await hub.said(": disabled")
            async with (
                httpx2.AsyncClient(headers={"traceparent": PARENT}, trust_env=False) as http,
                Client(streamable_http_client(hub.url, http_client=http), cache=None) as client,
            ):
                assert (await client.call_tool("one__echo", {"text": "hi"})).is_error
            hub.send(signal.SIGTERM)
            assert await hub.ended() == 0
        spans = collector.spans
        call = spans["holdfast.call"]
        assert "holdfast.upstream" not in spans
        assert call.status.code == Status.STATUS_CODE_ERROR
        assert "is disabled" in call.status.message
        assert attributes(call)["holdfast.outcome"] == "refused"
        assert attributes(call)["error.type"] == "ServerDisabled"
        assert collector.service == {"mine"}


@pytest.mark.requirement("OBS-2")
async def test_over_stdio_a_trace_goes_on_too(tmp_path: Path, home: Path) -> None:
    async with McpPeer() as peer, Collector() as collector:
        file = config(tmp_path / "mcp.json", one={"type": "http", "url": peer.url})
        command, *rest = [*COMMAND, "serve", "--stdio", "--own", "--config", str(file)]
        server = StdioServerParameters(command=command, args=rest, env={**environment(home), **collector.environ})
        with anyio.fail_after(60):
            async with Client(stdio_client(server), cache=None) as client:
                trace: Any = {"traceparent": PARENT}
                await client.call_tool("one__echo", {"text": "hi"}, meta=trace)
            await collector.until(lambda: "holdfast.call" in collector.spans)
        upstream = collector.spans["holdfast.upstream"]
        assert sent_on(peer)[1] == f"00-{TRACE_ID}-{upstream.span_id.hex()}-01"


@pytest.mark.requirement("OBS-2")
async def test_a_collector_that_is_gone_holds_up_neither_calls_nor_the_end(tmp_path: Path, home: Path) -> None:
    async with McpPeer() as peer:
        file = config(tmp_path / "mcp.json", one={"type": "http", "url": peer.url})
        with closed_port() as port:
            environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}", **BRISK}
            async with served(home, "--config", str(file), **environ) as hub:
                await hub.said(": connected")
                assert (await hub.call("one__echo", {"text": "hi"})).text == "hi"
                hub.send(signal.SIGTERM)
                assert await hub.ended() == 0
        assert "Traceback" not in hub.err


@pytest.mark.requirement("OBS-2")
async def test_nothing_is_sent_to_anybody_unless_it_is_asked_for(tmp_path: Path, home: Path) -> None:
    async with McpPeer() as peer, Collector() as collector:
        file = config(tmp_path / "mcp.json", one={"type": "http", "url": peer.url})
        off = {**collector.environ, "OTEL_SDK_DISABLED": "true"}
        async with served(home, "--config", str(file), **off) as hub:
            await hub.said(": connected")
            await hub.call("one__echo", {"text": "hi"})
            hub.send(signal.SIGTERM)
            assert await hub.ended() == 0
        assert collector.requests == []
        [call] = [request for request in peer.requests if b'"tools/call"' in request.body]
        assert "traceparent" not in call.headers


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "otlp or none"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "http/protobuf"),
    ],
)
def test_what_cannot_be_done_is_said_at_the_start(environ: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError) as refused, traced(environ):
        pass
    assert words in refused.value.hint


async def test_without_the_extra_a_trace_that_is_asked_for_names_it(home: Path) -> None:
    hidden = "import sys; sys.modules['opentelemetry.sdk'] = None; from holdfast.cli.entry import main; main()"
    ran = await anyio.run_process(
        [sys.executable, "-c", hidden, "serve", "--demo", "--port", "0"],
        env={**environment(home), "OTEL_TRACES_EXPORTER": "otlp"},
        cwd=home,
        check=False,
    )
    assert ran.returncode == 2
    assert b"'.[otel]'" in ran.stderr
