"""Progress notices of a server, read the short way where they are as the protocol has them: some calls have many."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from math import isfinite
from typing import TypeAlias

import msgspec

from holdfast.types import ProgressFn
from holdfast.wire.envelope import SMALL_BYTES, Fields

__all__ = ["AtOnce", "InOrder", "Progress", "finite", "progress_in", "usual_progress"]

log = logging.getLogger("holdfast.wire")

Progress: TypeAlias = tuple[float, float | None, str | None]
"""How far it is, of how much, and a text."""


class AtOnce:
    """A receiver of progress that never waits. It gets a notice when that comes.

    No task is woken for it. ``before`` is called first, if it is set.
    """

    __slots__ = ("before", "tell")

    def __init__(self, tell: Callable[[float, float | None, str | None], None]) -> None:
        self.tell = tell
        self.before: Callable[[], None] | None = None

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        """The same for one who would wait."""
        self.now(progress, total, message)

    def now(self, progress: float, total: float | None, message: str | None) -> None:
        """One notice."""
        if self.before is not None:
            self.before()
        self.tell(progress, total, message)


class InOrder(AtOnce):
    """The same for a callback that may wait: a task gives it one notice after the other.

    The task that waits for the answer cannot do that. While a stream brings nothing but progress, that task is not
    woken; and where the answer is a single JSON body, progress comes on another stream.
    """

    __slots__ = ("_callback", "_task", "_waiting")

    def __init__(self, callback: ProgressFn | None) -> None:
        super().__init__(self._add)
        self._callback = callback
        self._waiting: deque[Progress] = deque()
        self._task: asyncio.Task[None] | None = None

    def _add(self, progress: float, total: float | None, message: str | None) -> None:
        if self._callback is None:
            return
        self._waiting.append((progress, total, message))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._deliver(self._callback))

    async def _deliver(self, callback: ProgressFn) -> None:
        while self._waiting:
            try:
                await callback(*self._waiting.popleft())
            except Exception as exc:  # noqa: BLE001 - a broken callback must not cost its caller the result
                log.warning("a progress callback raised %s", type(exc).__name__)

    async def delivered(self) -> None:
        """Wait until the callback has all notices."""
        if self._task is not None:
            await asyncio.wait([self._task])

    def close(self) -> None:
        """Deliver nothing more."""
        if self._task is not None:
            self._task.cancel()


class _ProgressParams(msgspec.Struct):
    progressToken: int | str  # noqa: N815 - the protocol's name
    progress: int | float
    total: int | float | None = None
    message: str | None = None


_EXACT = 1 << 53
"""A whole number within these is a number for every reader."""

_METHOD_NAME = "notifications/progress"
_METHOD = b'"notifications/progress"'
_PARAMS = msgspec.json.Decoder(_ProgressParams)


class _Notice(msgspec.Struct):
    method: str
    params: _ProgressParams
    id: msgspec.Raw = msgspec.Raw()


_NOTICE = msgspec.json.Decoder(_Notice)
_LEAD_BYTES = 96
"""The method is among the first bytes of a notice."""


def progress_in(data: bytes) -> tuple[int | str, Progress] | None:
    """The same of a message that was not split."""
    if len(data) > SMALL_BYTES or data.find(_METHOD, 0, _LEAD_BYTES) < 0:
        return None
    try:
        said = _NOTICE.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if said.method != _METHOD_NAME or bytes(said.id):
        return None
    return _told(said.params)


def usual_progress(members: Fields) -> tuple[int | str, Progress] | None:
    """The token and the progress in a message; None for any other, and for a notice that needs a closer look."""
    method, params = members.get("method"), members.get("params")
    if method is None or params is None or len(memoryview(params)) > SMALL_BYTES:
        return None
    if bytes(memoryview(method)[: len(_METHOD) + 1]) != _METHOD:
        return None
    try:
        said = _PARAMS.decode(params)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return _told(said)


def _told(said: _ProgressParams) -> tuple[int | str, Progress] | None:
    progress: float | None = said.progress
    total: float | None = said.total
    if not -_EXACT < said.progress < _EXACT:
        progress = finite(progress)
    if total is not None and not -_EXACT < total < _EXACT:
        total = finite(total)
    return (said.progressToken, (progress, total, said.message)) if progress is not None else None


def finite(value: object) -> float | None:
    """A finite number as it came; None for anything else, also for an integer that no float can hold."""
    try:
        return value if isinstance(value, int | float) and isfinite(value) else None
    except OverflowError:
        return None
