"""Stands between a client and the hub and notes what each sends: the reference of the differential test.

A recording holds, for every POST, what was asked and the messages that came back. What differs from run to run
(ids, times, names that a client makes up, how an answer is cut into events) is taken out of it.

``python -m tests.clients.recorder`` writes the recordings anew; they are checked by ``test_recordings.py``.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from tests.clients.programs import CLIENTS
from tests.conformance.fixture_hub import fixture_over_http, hub_over_http
from tests.conformance.runner import Requirements, run_suite
from tests.harness.web import serving

__all__ = ["RECORDINGS", "SUBJECTS", "record", "recorded"]

RECORDINGS = Path(__file__).parent / "recordings"

SUITES: tuple[Requirements, ...] = ("2025-11-25", "2026-07-28")
SUBJECTS = (*map(str, CLIENTS), *(f"conformance-{suite}" for suite in SUITES))

_TELLING = ("accept", "content-type", "mcp-protocol-version", "mcp-method", "mcp-name")
_DROPPED = {"host", "connection", "content-length", "transfer-encoding", "date", "server"}
_MADE_UP = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|\b[0-9a-f]{32}\b")
_STATE = re.compile(r"holdfast\.[\w-]+\.[\w-]+|\bv1\.[\w-]{40,}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z?|\b1[0-9]{12}\b")


class Recorder:
    """Passes everything on, and keeps each exchange."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._http = httpx2.AsyncClient(timeout=None)
        self.exchanges: list[dict[str, Any]] = []
        self.app = Starlette(
            routes=[Route("/{path:path}", self._pass, methods=["GET", "POST", "DELETE", "PUT", "OPTIONS"])]
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def _pass(self, request: Request) -> Response:
        body = await request.body()
        sent = [(name, value) for name, value in request.headers.items() if name not in _DROPPED]
        if "host" in request.headers and "127.0.0.1" not in request.headers["host"]:
            sent.append(("host", request.headers["host"]))  # a suite that tries a foreign name means it
        asked = self._http.build_request(
            request.method, f"{self._target}/{request.path_params['path']}", headers=sent, content=body
        )
        answer = await self._http.send(asked, stream=True)
        exchange: dict[str, Any] = {"request": _asked(request, body), "status": answer.status_code, "came": b""}
        self.exchanges.append(exchange)
        kept = {name: value for name, value in answer.headers.items() if name not in _DROPPED}

        async def passed() -> AsyncIterator[bytes]:
            try:
                async for chunk in answer.aiter_raw():
                    exchange["came"] += chunk
                    yield chunk
            except httpx2.HTTPError:
                return
            finally:
                with anyio.CancelScope(shield=True):
                    await answer.aclose()

        return StreamingResponse(passed(), status_code=answer.status_code, headers=kept)


def _asked(request: Request, body: bytes) -> dict[str, Any]:
    told = {name: request.headers[name] for name in _TELLING if name in request.headers}
    return {"http": request.method, "headers": told, "body": _json(body)}


def _json(body: bytes) -> Any:
    try:
        return json.loads(body) if body else None
    except ValueError:
        return "no JSON"


def _messages(came: bytes) -> list[Any]:
    """The messages of an answer, plain or in events; comments and priming events say nothing."""
    if not came.lstrip().startswith((b"event:", b"id:", b"data:", b":", b"retry:")):
        return [_json(came)] if came.strip() else []
    events = came.replace(b"\r\n", b"\n").split(b"\n\n")
    data = (
        b"\n".join(line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:")) for event in events
    )
    return [_json(one) for one in data if one]


def _normal(value: Any) -> Any:
    if isinstance(value, dict):
        if value.get("name") == "holdfast" and "version" in value:
            value = {**value, "version": "<version>"}
        return {
            key: "*"
            if key in ("id", "requestId", "progressToken", "elicitationId", "io.modelcontextprotocol/subscriptionId")
            else _normal(one)
            for key, one in value.items()
        }
    if isinstance(value, list):
        return [_normal(one) for one in value]
    if isinstance(value, str):
        return _TIME.sub("<time>", _STATE.sub("<state>", _MADE_UP.sub("<made up>", value)))
    return value


def recorded(exchanges: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The exchanges that say something, in an order that does not depend on the run."""
    kept = []
    for one in exchanges:
        asked = one["request"]
        if asked["http"] != "POST" or not isinstance(asked["body"], dict):
            continue
        messages = [_normal(message) for message in _messages(one["came"])]
        kept.append({"asked": _normal(asked), "status": one["status"], "messages": messages})
    return sorted(kept, key=lambda one: json.dumps(one, sort_keys=True))


@asynccontextmanager
async def recording(base: str) -> AsyncIterator[tuple[Recorder, str]]:
    recorder = Recorder(base)
    async with serving(recorder.app) as front:
        try:
            yield recorder, front
        finally:
            await recorder.close()


async def record(subject: str, folder: Path) -> list[dict[str, Any]]:
    """Run one client, or one suite, through the hub."""
    async with (
        fixture_over_http(folder=folder) as url,
        hub_over_http({"web": {"type": "http", "url": url, "era": "modern"}}, folder=folder) as hub,
        recording(hub.base) as (recorder, base),
    ):
        address = f"{base}/servers/web/mcp"
        if subject.startswith("conformance-"):
            suite: Any = subject.removeprefix("conformance-")
            await run_suite(address, suite, folder=folder)
        else:
            program = next(one for one in CLIENTS if str(one) == subject)
            await program.run(address, folder=folder)
        return recorded(recorder.exchanges)


def main() -> None:
    """Write the recordings of the subjects that are named, or of all."""
    for subject in sys.argv[1:] or SUBJECTS:
        with tempfile.TemporaryDirectory() as folder:
            exchanges = anyio.run(record, subject, Path(folder))
        file = RECORDINGS / f"{subject}.json"
        file.write_text("".join(json.dumps(one, sort_keys=True, separators=(",", ":")) + "\n" for one in exchanges))
        sys.stdout.write(f"{file.name}: {len(exchanges)} exchanges\n")


if __name__ == "__main__":
    main()
