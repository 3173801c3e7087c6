"""Tasks of servers, as clients see them: each under an id of the hub's, bound to its server and its principal.

A server gives its tasks any ids, and clients of the hub share its connections. The id that a client gets holds the
server and the server's own id, sealed for the client's principal: it leads back to its task, and opens none of another
principal. In a fleet the id also names the replica whose connection made the task: only it can tell whose the task is.
A server's list of its tasks is not offered: it would show those of every client.

What a server last said of a task is noted for one question: whether one is still under way (``TaskIds.has_open``). A
hub that ends when it is not used must not end while a task runs whose client will come back for it.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from holdfast.keys import SHORTEST_SECRET, KeyRing, as_text, from_text
from holdfast.wire import (
    RELATED_TASK,
    Fields,
    RawObject,
    dumps,
    fields,
    is_object,
    join_fields,
    loads,
    text_of,
)

__all__ = ["LEGACY_TASKS", "MODERN_TASKS", "ServerTask", "TaskIds", "renamed"]

LEGACY_TASKS = frozenset({"tasks/get", "tasks/result", "tasks/cancel"})
MODERN_TASKS = frozenset({"tasks/get", "tasks/update", "tasks/cancel"})
"""The requests of each era about a task."""

_PURPOSE = "task id"
_SEAL_BYTES = 16
_LONGEST_ID = 4_096

_UNDER_WAY = frozenset({"working", "input_required"})
LONGEST_TASK = 3_600.0
"""Seconds. A task that its client never asks about again is taken for ended after that, or after its own lifetime."""
MOST_OPEN = 1_000
"""Tasks that are noted as under way. The oldest gives way."""


class ServerTask(NamedTuple):
    """A task by the name that its server gave it."""

    server: str
    id: str
    home: str = ""
    """Names the replica that has the task; empty for a hub that is alone."""


class TaskIds:
    """The ids that clients see."""

    def __init__(
        self,
        ring: Callable[[], KeyRing] | None = None,
        home: str = "",
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Without a ``ring`` the ids end with the process."""
        own = KeyRing([secrets.token_bytes(SHORTEST_SECRET)])
        self._ring = ring or (lambda: own)
        self._home = home
        self._now = now
        self._open: dict[ServerTask, float] = {}
        """The tasks that are under way by what their servers last said, and until when that counts."""

    @property
    def has_open(self) -> bool:
        """Whether a task is still under way, as far as is known."""
        return any(until > self._now() for until in self._open.values())

    def note(self, task: ServerTask, said: Fields) -> None:
        """A server told the state of a task."""
        status = text_of(said.get("status"))
        if status is None:
            return
        self._open.pop(task, None)
        if status in _UNDER_WAY:
            self._open[task] = self._now() + _lifetime(said)
            if len(self._open) > MOST_OPEN:
                del self._open[next(iter(self._open))]

    def shown(self, task: ServerTask, principal: str) -> str:
        """The id of a task for one principal; the same each time."""
        body = as_text(json.dumps([task.server, task.id, *([self._home] if self._home else [])]).encode())
        return f"{body}.{as_text(self._ring().sign(_said(body, principal), purpose=_PURPOSE, size=_SEAL_BYTES))}"

    def find(self, shown: str, principal: str) -> ServerTask | None:
        """The task that this principal was given the id of; None for every other id."""
        body, dot, seal = shown.partition(".")
        if not dot or len(shown) > _LONGEST_ID or not shown.isascii():
            return None
        given = from_text(seal) or b""
        if not self._ring().verify(given, _said(body, principal), purpose=_PURPOSE, size=_SEAL_BYTES):
            return None
        return ServerTask(*json.loads(from_text(body) or b""))


def _lifetime(said: Fields) -> float:
    """How many seconds a task lives at most, by its server."""
    given = next((said[key] for key in ("ttl", "ttlMs") if key in said), b"null")
    milliseconds: object = loads(given)
    if isinstance(milliseconds, bool) or not isinstance(milliseconds, int | float) or milliseconds < 0:
        return LONGEST_TASK
    return min(milliseconds / 1000, LONGEST_TASK)


def _said(body: str, principal: str) -> bytes:
    return f"{len(principal)}:{principal}{body}".encode()


def renamed(result: RawObject, server: str, ids: TaskIds, principal: str) -> RawObject:
    """A result about a task, with the id that its client knows."""

    def shown(raw: Any, said: Fields | None = None) -> bytes | None:
        own = text_of(raw)
        if own is None:
            return None
        if said is not None:
            ids.note(ServerTask(server, own), said)
        return dumps(ids.shown(ServerTask(server, own), principal))

    changes: dict[str, Any] = {}
    if (flat := shown(result.get("taskId"), result.members)) is not None:
        changes["taskId"] = flat
    inner = result.get("task")
    if inner is not None and is_object(inner):
        members = fields(inner)
        if (named := shown(members.get("taskId"), members)) is not None:
            changes["task"] = join_fields({**members, "taskId": named})
    meta = result.get("_meta")
    if meta is not None and is_object(meta) and RELATED_TASK in (keys := fields(meta)):
        related = keys[RELATED_TASK]
        about = fields(related) if is_object(related) else {}
        if (named := shown(about.get("taskId"))) is not None:
            changes["_meta"] = join_fields({**keys, RELATED_TASK: join_fields({**about, "taskId": named})})
    return result.changed(changes) if changes else result
