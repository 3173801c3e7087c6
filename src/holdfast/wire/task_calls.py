"""Tools that run as tasks: the names of the protocol, and a task that is called like a plain tool.

At 2025-11-25 a tool says ``execution.taskSupport``: a ``required`` one refuses a plain call. Most clients know no
tasks, so the hub makes such a call as a task itself and waits for its result. At 2026-07-28 the server decides, for
clients that declare the extension; nothing is needed here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

import anyio

from holdfast.core import HttpStatus, NetworkFailure, NetworkFault, TimedOut
from holdfast.errors import ServerFailure
from holdfast.wire.raw_json import Fields, RawObject, dumps, fields, is_object, join_fields, text_of

__all__ = [
    "RELATED_TASK",
    "TASKS_EXTENSION",
    "TASK_METHODS",
    "call_as_task",
    "task_support",
    "without_task_capabilities",
    "without_task_support",
]

TASKS_EXTENSION = "io.modelcontextprotocol/tasks"
RELATED_TASK = "io.modelcontextprotocol/related-task"
"""The key of ``_meta`` that names the task of a message."""

TASK_METHODS = frozenset({"tasks/get", "tasks/result", "tasks/cancel", "tasks/update"})
"""The requests about one task; ``taskId`` names it."""

CANCEL_SECONDS = 2.0
"""How long the cancellation of a task may take, once its caller has left."""


class Requester(Protocol):
    """Sends one request of the caller."""

    async def __call__(self, method: str, params: Fields, *, idle: float, within: float) -> RawObject:
        """The server's result."""


async def call_as_task(request: Requester, params: Fields, *, idle: float, within: float) -> RawObject:
    """Create the task, wait for its result, and cancel it if the caller leaves or the time is over."""
    until = anyio.current_time() + within
    created = await request("tools/call", {**params, "task": b"{}"}, idle=idle, within=within)
    task = _created_task(created)
    if task is None:
        return created
    about: Fields = {"taskId": dumps(task)} | ({"_meta": params["_meta"]} if "_meta" in params else {})
    left = max(until - anyio.current_time(), 0.0)
    ended = False
    try:
        result = await request("tasks/result", about, idle=left, within=left)
        ended = True
    except ServerFailure as failure:
        ended = isinstance(failure.evidence, HttpStatus | NetworkFailure)
        raise _after_creation(failure, text_of(params.get("name")) or "the task", within) from failure
    finally:
        if not ended:
            await _cancel(request, about)
    return _plain(result)


def task_support(raw: Mapping[str, Any]) -> str:
    """Whether a listed tool runs as a task: ``required``, ``optional`` or ``forbidden``."""
    execution = raw.get("execution")
    support = execution.get("taskSupport") if isinstance(execution, Mapping) else None
    return support if support in ("required", "optional") else "forbidden"


def without_task_support(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """The same tool as a plain one; one that never was a task stays as it is."""
    if task_support(raw) == "forbidden":
        return raw
    rest = {key: value for key, value in raw["execution"].items() if key != "taskSupport"}
    plain = {key: value for key, value in raw.items() if key != "execution"}
    return {**plain, "execution": rest} if rest else plain


def without_task_capabilities(capabilities: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a client declares, without tasks of either era."""
    extensions = capabilities.get("extensions")
    known = extensions if isinstance(extensions, Mapping) else {}
    if "tasks" not in capabilities and TASKS_EXTENSION not in known:
        return capabilities
    rest = {key: value for key, value in capabilities.items() if key not in ("tasks", "extensions")}
    others = {key: value for key, value in known.items() if key != TASKS_EXTENSION}
    return {**rest, "extensions": others} if others else rest


def _created_task(created: RawObject) -> str | None:
    task = created.get("task")
    return text_of(fields(task).get("taskId")) if task is not None and is_object(task) else None


def _after_creation(failure: ServerFailure, name: str, within: float) -> ServerFailure:
    """The failure of a task that runs. The server did act: no evidence may say that it refused before."""
    seen = failure.evidence
    if isinstance(seen, TimedOut):
        return ServerFailure(replace(seen, doing=f"the result of {name}", after=within))
    expired = isinstance(seen, HttpStatus) and seen.status == 404
    refused = isinstance(seen, NetworkFailure) and seen.fault is NetworkFault.REFUSED
    if expired or refused:
        detail = "the server lost the task's session" if expired else "the server went away while the task ran"
        return ServerFailure(NetworkFailure(fault=NetworkFault.CLOSED, stood=True, detail=detail))
    return failure


async def _cancel(request: Requester, about: Fields) -> None:
    with anyio.move_on_after(CANCEL_SECONDS, shield=True):
        try:
            await request("tasks/cancel", about, idle=CANCEL_SECONDS, within=CANCEL_SECONDS)
        except ServerFailure:
            return  # it has ended, or its server has


def _plain(result: RawObject) -> RawObject:
    """The result without the name of a task that its caller never saw."""
    meta = result.get("_meta")
    if meta is None or not is_object(meta) or RELATED_TASK not in (members := fields(meta)):
        return result
    rest = {key: value for key, value in members.items() if key != RELATED_TASK}
    return result.changed({"_meta": join_fields(rest) if rest else None})
