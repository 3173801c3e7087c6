"""A denial is a denial: each answer of ``refusals.toml`` gets one verdict, live and from every text of it."""

from __future__ import annotations

import gzip
import tomllib
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from holdfast import classify_load_error
from tests.faults.outcomes import observe
from tests.peers.http1 import head_of
from tests.peers.http_fault import (
    Behaviour,
    Exchange,
    FaultServer,
    never_answer,
    reset_before_answer,
    respond,
)

pytestmark = pytest.mark.anyio

FORMS = [
    "HTTP {status}: {body}",
    "{status}: {body}",
    "HTTP/1.1 {status} {phrase}: {body}",
    "{status} {phrase}: {body}",
    "got {status}: {body}",
    "HTTPStatusError: {status}: {body}",
    "HTTP {status} error connecting to {url}: {body}",
    "HTTP {status} {phrase} for url: {url}: {body}",
    "Client error '{status} {phrase}' for url '{url}': {body}",
    "loading timeout-api: HTTP {status}: {body}",
]
"""What programs write about an answer."""

URL = "https://timeout.example:503/forbidden?error=upstream+call+timeout"
PHRASES = {
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    429: "Too Many Requests",
    503: "Service Unavailable",
}
SENT = {"gzip": gzip.compress, "deflate": zlib.compress, "cut gzip": lambda data: gzip.compress(data)[:-9]}


@dataclass(frozen=True, kw_only=True)
class Row:
    """One answer, and what must be made of it."""

    verdict: str
    body: str = ""
    filled: int = 0
    status: int = 403
    headers: dict[str, str] = field(default_factory=dict)
    sent: str = ""
    only_live: bool = False
    happens: str = ""
    texts: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        shown = self.happens or f"{self.status} {self.body[:60]!a}"
        return " ".join(filter(None, (self.verdict, shown, str(self.filled or ""), self.sent)))

    @property
    def status_of_load(self) -> str:
        return "denied" if self.verdict == "unconfirmed" else self.verdict

    @property
    def whole(self) -> str:
        return self.body + "x" * self.filled

    def behaviour(self) -> Behaviour:
        if self.happens:
            return never_answer if self.happens == "silence" else reset_before_answer
        data = self.whole.encode()
        if self.sent == "cut":
            return shorter_than_declared(self.status, data)
        if self.sent:
            data = SENT[self.sent](data) if self.sent in SENT else b"not compressed"
            return respond(self.status, data, {"content-encoding": self.sent.split()[-1]})
        return respond(self.status, data, self.headers)

    def judged_texts(self) -> Iterator[tuple[str, int | None]]:
        """Each text of this answer, with the status where the caller has it."""
        yield from ((text, None) for text in self.texts)
        if self.happens or self.only_live:
            return
        yield self.whole, self.status
        parts = {"status": self.status, "phrase": PHRASES[self.status], "url": URL, "body": self.whole}
        yield from ((form.format_map(parts), None) for form in FORMS)
        yield "HTTP {status} error connecting to {url}: {body}".format_map(parts), self.status


def shorter_than_declared(status: int, data: bytes) -> Behaviour:
    async def act(exchange: Exchange) -> None:
        await exchange.send(head_of(status, {"content-length": str(len(data) + 1)}) + data)
        exchange.close()

    return Behaviour("shorter-than-declared", act)


def rows() -> list[Row]:
    table: dict[str, Any] = tomllib.loads((Path(__file__).parent / "refusals.toml").read_text("utf-8"))
    return [Row(**answer) for answer in table["answer"]]


ROWS = rows()


@pytest.mark.requirement("LOAD-1", "LOAD-2", "LOAD-4", "LOAD-5", "LOAD-10", "MSG-6")
@pytest.mark.parametrize("row", ROWS, ids=str)
async def test_an_answer_gets_one_verdict_live_and_from_every_text_of_it(row: Row) -> None:
    judged = {given: classify_load_error(*given) for given in row.judged_texts()}
    assert judged == dict.fromkeys(judged, row.status_of_load)
    async with FaultServer(row.behaviour()) as server:
        if row.happens == "nothing listens":
            await server.stop()
        connection = {"transport": "streamable_http", "url": f"{server.origin}/timeout/503"}
        outcome = await observe(connection, attempt_timeout=0.3 if row.happens == "silence" else 10.0)
    assert (outcome.status, outcome.unconfirmed) == (row.status_of_load, row.verdict == "unconfirmed")
    assert outcome.attempts == (3 if row.verdict == "transient" else 1)
    assert "hunter2" not in f"{outcome.error} {outcome.message}"


def test_the_table_has_enough_of_each_verdict_to_prove_something() -> None:
    count = Counter(row.verdict for row in ROWS)
    assert count["denied"] >= 40
    assert count["transient"] >= 30
    assert count["unconfirmed"] >= 4
