"""A steady load of both eras on one address: a new connection for each request, no retries, every failure counted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.abc
import httpx2

from tests.clients.raw import MODERN_META, Answer, initialize, post

LEGACY = {"Mcp-Protocol-Version": "2025-11-25"}
MODERN = {"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call"}


@dataclass
class Load:
    """Requests at a rate, half of them of legacy sessions, half of the modern era."""

    url: str
    tool: str
    keep_alive: bool = False
    """Whether connections are used again, as most clients do."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """For each request, such as credentials."""
    answered: int = 0
    under_way: int = 0
    failed: list[str] = field(default_factory=list)
    _sessions: list[str] = field(default_factory=list)
    _stop: bool = False
    _news: anyio.Event = field(default_factory=anyio.Event)
    _http: httpx2.AsyncClient | None = None

    async def open_sessions(self, number: int) -> None:
        """Shake hands so many times."""
        for _ in range(number):
            answer = await post(self.url, initialize(), **self.headers)
            (session,) = [
                line.partition(": ")[2] for line in answer.head.splitlines() if line.startswith("mcp-session-id: ")
            ]
            self._sessions.append(session)

    async def run(self, rate: float) -> None:
        """Send so many requests a second, until stopped; each has a task of its own, so that none waits for another."""
        async with httpx2.AsyncClient(trust_env=False, timeout=30) as http, anyio.create_task_group() as tasks:
            self._http = http if self.keep_alive else None
            number = 0
            begun = anyio.current_time()
            while not self._stop:
                tasks.start_soon(self._ask, number)
                number += 1
                await anyio.sleep_until(begun + number / rate)

    def stop(self) -> None:
        """Send no more; ``run`` ends when all are answered."""
        self._stop = True

    async def until_answered(self, more: int) -> None:
        """Wait for so many more answers."""
        wanted = self.answered + more
        with anyio.fail_after(60):
            while self.answered < wanted:
                await self._news.wait()

    async def until_all_answered(self) -> None:
        """Wait until none is under way."""
        with anyio.fail_after(60):
            while self.under_way:
                await self._news.wait()

    async def _ask(self, number: int) -> None:
        params: dict[str, Any] = {"name": self.tool, "arguments": {}}
        if number % 2:
            headers = {**LEGACY, "Mcp-Session-Id": self._sessions[number % len(self._sessions)]}
        else:
            headers, params = {**MODERN, "Mcp-Name": self.tool}, {**params, "_meta": MODERN_META}
        body = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}
        self.under_way += 1
        try:
            answer = await self._post(body, {**headers, **self.headers})
        except (OSError, httpx2.HTTPError) as exc:
            self.failed.append(repr(exc))
        else:
            if (problem := _problem(answer)) is not None:
                self.failed.append(problem)
        self.under_way -= 1
        self.answered += 1
        self._news.set()
        self._news = anyio.Event()

    async def _post(self, body: dict[str, Any], headers: dict[str, str]) -> Answer:
        if self._http is None:
            return await post(self.url, body, **headers)
        accept = {"Accept": "application/json, text/event-stream"}
        got = await self._http.post(self.url, json=body, headers=headers | accept)
        return Answer(got.status_code, str(got.headers), got.content)


def _problem(answer: Answer) -> str | None:
    if answer.status != 200:
        return f"{answer.status} {answer.body[:200]!r}"
    result = json.loads(answer.body).get("result", {})
    return None if result.get("isError") is not True and "content" in result else repr(answer.body[:300])
