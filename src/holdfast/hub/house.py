"""The group that owns every task of a hub, held open by a task of its own."""

from __future__ import annotations

import anyio
import anyio.abc

__all__ = ["keep_house"]


async def keep_house(*, task_status: anyio.abc.TaskStatus[anyio.abc.TaskGroup]) -> None:
    """Hold the group of all tasks. Shielded: whoever cancels the hub's user still gets an orderly close."""
    with anyio.CancelScope(shield=True):
        async with anyio.create_task_group() as tasks:
            task_status.started(tasks)
            await anyio.sleep_forever()
