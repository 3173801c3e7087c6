"""What a client of each gateway sees while the server behind is killed and started again.

The client keeps its session. It lists and calls while the server is down, then calls until an answer comes. A server
over HTTP is killed and started again on its port; a server over stdio is the gateway's child and is killed with
``kill -9``: to start it again is the gateway's task.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any

from benchmarks.calls import Subject
from benchmarks.clients import LegacyClient
from benchmarks.peers import PEERS, Peer, PeerFailed
from benchmarks.processes import Tree, free_port, hub, stdio_server, upstream
from benchmarks.report import Check, Report, Row, Spread

__all__ = ["HTTP", "QUICK", "REQUIREMENTS", "STDIO", "Seen", "measure"]

REQUIREMENTS = ("LIFE-4", "LIFE-11", "LIFE-22")
QUICK: dict[str, Any] = {"peers": (), "patience": 20.0}

HTTP, STDIO = "Holdfast", "Holdfast, stdio behind"
PATIENCE = 20.0
"""How long the client waits for the server to be back."""

ANSWER_SECONDS = 15.0
PAUSE = 0.1
SHOWN = 90
"""How much of an error is shown."""

FAULTS = (OSError, RuntimeError, ValueError, HTTPException)


@dataclass(frozen=True)
class Seen:
    """What one client saw."""

    listed: str
    called: str
    answered_after: float
    back_after: float | None
    """From the start of the server to the first result; None if it never came."""
    new_session: bool
    """Whether only a new session helped."""


def measure(*, rounds: int = 1, peers: Sequence[Peer] = PEERS, patience: float = PATIENCE) -> Report:
    """One outage for each gateway."""
    del rounds  # what a client sees is told, not measured
    seen: dict[str, Seen] = {}
    missing: list[str] = []
    for name, stdio, start in _contenders(peers):
        try:
            seen[name] = _stdio_outage(start, patience) if stdio else _http_outage(start, patience)
        except PeerFailed as exc:
            missing.append(str(exc))
        except FAULTS as exc:
            missing.append(f"{name}: {exc!s:.200}")
    return Report(
        name="outage",
        title="The server behind is killed and started again",
        requirements=REQUIREMENTS,
        about=(
            "One client keeps its session. While the server is down it lists the tools and calls one; then the server "
            f"is started again and the client calls every {PAUSE:g} s, for at most {patience:g} s. The median column "
            "is the time from the start of the server to the first result. A child over stdio is started by the "
            "gateway itself, so there the time is counted from the kill. It is one outage, not a statistic."
        ),
        rows=tuple(_row(name, one, patience) for name, one in seen.items()),
        checks=tuple(_check(name, seen[name]) for name in (HTTP, STDIO) if name in seen),
        missing=tuple(missing),
    )


Start = Callable[[str], Any]


def _contenders(peers: Sequence[Peer]) -> Iterator[tuple[str, bool, Start]]:
    yield HTTP, False, _holdfast_http
    yield STDIO, True, _holdfast_stdio
    for peer in peers:
        yield peer.name, peer.stdio, peer.started


@contextmanager
def _holdfast_http(url: str) -> Iterator[Subject]:
    with hub({"up": {"type": "http", "url": url}}) as (pid, base):
        yield Subject(HTTP, f"{base}/mcp", pid, "up__echo")


@contextmanager
def _holdfast_stdio(url: str) -> Iterator[Subject]:
    del url
    command, *arguments = stdio_server()
    with hub({"child": {"command": command, "args": arguments}}) as (pid, base):
        yield Subject(STDIO, f"{base}/mcp", pid, "child__echo")


def _http_outage(start: Start, patience: float) -> Seen:
    port = free_port()
    with ExitStack() as stack:
        with ExitStack() as first:
            first.enter_context(upstream("--port", str(port)))
            subject = stack.enter_context(start(f"http://127.0.0.1:{port}/mcp"))
            client = _client(stack, subject)
        listed, called, took = _while_down(client, subject)
        stack.enter_context(upstream("--port", str(port)))
        return Seen(listed, called, took, *_until_back(client, subject, time.monotonic(), patience))


def _stdio_outage(start: Start, patience: float) -> Seen:
    with ExitStack() as stack:
        subject = stack.enter_context(start(""))
        client = _client(stack, subject)
        killed = time.monotonic()
        for pid in Tree(subject.pid).servers():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        listed, called, took = _while_down(client, subject)
        return Seen(listed, called, took, *_until_back(client, subject, killed, patience))


def _client(stack: ExitStack, subject: Subject) -> LegacyClient:
    """A client that has called once."""
    client = stack.enter_context(closing(LegacyClient(subject.url, headers=subject.headers, seconds=ANSWER_SECONDS)))
    client.open()
    client.tools()
    if (outcome := _call(client, subject)) != "a result":
        raise RuntimeError(f"the first call failed: {outcome}")
    return client


def _while_down(client: LegacyClient, subject: Subject) -> tuple[str, str, float]:
    try:
        names = client.tools()
        listed = "its tools" if subject.tool in names else f"{len(names)} tools"
    except FAULTS as exc:
        listed = _short(exc)
    began = time.monotonic()
    return listed, _call(client, subject), time.monotonic() - began


def _until_back(client: LegacyClient, subject: Subject, since: float, patience: float) -> tuple[float | None, bool]:
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        if _call(client, subject) == "a result":
            return time.monotonic() - since, False
        time.sleep(PAUSE)
    with closing(LegacyClient(subject.url, headers=subject.headers, seconds=ANSWER_SECONDS)) as other:
        try:
            other.open()
        except FAULTS:
            return None, False
        return None, _call(other, subject) == "a result"


def _call(client: LegacyClient, subject: Subject) -> str:
    """`a result`, or what came instead."""
    try:
        answer = client.ask("tools/call", {"name": subject.tool, "arguments": subject.wrap({"text": "hello"})})
    except FAULTS as exc:
        return _short(exc)
    return _outcome(answer)


def _outcome(answer: Mapping[str, Any]) -> str:
    if "error" in answer:
        return f"error: {answer['error'].get('message', '')!s:.{SHOWN}}"
    result = answer["result"]
    text = " ".join(str(block.get("text", "")) for block in result.get("content", ()))
    failed = result.get("isError") or '"success": false' in text
    return f"tool error: {' '.join(text.split()):.{SHOWN}}" if failed else "a result"


def _short(exc: BaseException) -> str:
    text = f"{exc}" or type(exc).__name__
    return "no answer" if isinstance(exc, TimeoutError) else f"{text:.{SHOWN}}"


def _row(name: str, seen: Seen, patience: float) -> Row:
    after = seen.back_after
    back = (
        "back in the same session"
        if after is not None
        else ("back in a new session only" if seen.new_session else f"not back after {patience:g} s")
    )
    return Row(
        label=name,
        time=None if after is None else Spread(after, after, after),
        note=f"listed {seen.listed}; called: {seen.called} after {seen.answered_after:.1f} s; {back}",
    )  # fmt: skip


def _check(name: str, seen: Seen) -> Check:
    back = "not back" if seen.back_after is None else f"back after {seen.back_after:.1f} s"
    return Check(
        demand=f"{name}: the tools stay listed, the call is answered, and the same session goes on",
        found=f"listed {seen.listed}; {back}",
        met=seen.listed == "its tools" and seen.called != "no answer" and seen.back_after is not None,
    )
