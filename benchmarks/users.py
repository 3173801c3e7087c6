"""Many users with connections of their own: 1,000 principals, 3 per-user servers, 50 of them active (SEC-13).

``python -m benchmarks.users`` prints a table: the memory that an idle principal costs after her connections closed, how
many connections are open then, and the CPU time of a call with all these principals and with one alone. The hub is in
this process; the server is another one. Counts are checked; times are shown.
"""

from __future__ import annotations

import asyncio
import gc
import os
import statistics
import time
from pathlib import Path
from typing import Any

import anyio

from benchmarks.processes import upstream
from holdfast import Hub
from holdfast.config import config_from_mapping
from holdfast.hub import Slot
from holdfast.wire import dumps

__all__ = ["main"]

PRINCIPALS, SERVERS, ACTIVE = 1_000, 3, 50
IDLE_SECONDS = 15
AT_ONCE = 25
CALLS, ROUNDS = 200, 7
PATIENCE = 300


def main(principals: int = PRINCIPALS, active: int = ACTIVE, rounds: int = ROUNDS) -> None:
    """Measure, and print the table."""
    with upstream("--eras", "both") as (_, (port,)):
        asyncio.run(_measured(port, principals, active, rounds))


async def _measured(port: int, principals: int, active: int, rounds: int) -> None:
    definition = {"type": "http", "url": f"http://127.0.0.1:{port}/mcp", "sharing": "per-user", "oauth": False}
    servers = [f"s{number}" for number in range(SERVERS)]
    limits = {"connections": principals + 1, "idle": f"{IDLE_SECONDS}s"}
    config = config_from_mapping({"mcpServers": dict.fromkeys(servers, definition), "holdfast": {"perUser": limits}})
    async with Hub(config, has_local=False) as hub:
        with anyio.fail_after(PATIENCE):
            alone = [await _connected(hub, "user0", server) for server in servers]
            before = _resident()
            cost_alone = [await _cost(hub, "user0", alone[0]) for _ in range(rounds)]
            for first in range(1, principals, AT_ONCE):
                async with anyio.create_task_group() as tasks:
                    for number in range(first, min(first + AT_ONCE, principals)):
                        for server in servers:
                            tasks.start_soon(_connected, hub, f"user{number}", server)
            users = hub.registry.users
            opened = len({principal for server in servers for principal, _ in users.of_server(server)})
            kept = [users.slots.use(f"user{number}", server) for number in range(active) for server in servers]
            while len(users.slots.all()) > len([one for one in kept if one is not None]):  # noqa: ASYNC110 - a benchmark
                await anyio.sleep(0.2)
            for number in range(active):
                for server in servers:
                    await _connected(hub, f"user{number}", server)
            idle = principals - len(users.slots.servers_of)
            gc.collect()
            each = (_resident() - before) / max(idle, 1)
            slot = await _connected(hub, "user0", servers[0])
            cost_all = [await _cost(hub, "user0", slot) for _ in range(rounds)]
    print(f"| {principals} principals x {SERVERS} per-user servers, {active} active | |\n|---|---|")
    print(f"| principals with connections when the last one had connected | {opened} |")
    print(f"| principals with open connections after {IDLE_SECONDS} s without use | {principals - idle} |")
    print(f"| memory, divided by the {idle} idle principals | {each / 1024:.1f} KiB |")
    print(f"| CPU time of a call, one principal alone | {statistics.median(cost_alone):.0f} µs |")
    print(f"| CPU time of a call, with all of them | {statistics.median(cost_all):.0f} µs |")


async def _connected(hub: Hub, principal: str, server: str) -> Slot:
    """The slot of a user, once it is connected; one that was idle for too long meanwhile begins again."""
    while True:
        slot = hub.registry.users.of(principal, hub.registry.slot(server).spec, lambda: None)
        if slot.lease is not None and slot.lease.connection is not None:
            return slot
        await anyio.sleep(0.02)


async def _cost(hub: Hub, principal: str, slot: Slot) -> float:
    """The CPU time of one call in this process, in µs."""
    params: dict[str, Any] = {"name": dumps("echo"), "arguments": dumps({"text": "x"})}
    own = hub.registry.users.slots.use(principal, slot.id)
    began = time.process_time()
    for _ in range(CALLS):
        hub.registry.users.catalogs.of(principal)
        await slot.call("tools/call", params, repeatable=False)
    spent = time.process_time() - began
    hub.registry.users.slots.unuse(own)
    return spent / CALLS * 1e6


def _resident() -> float:
    gc.collect()
    return float(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main()
