"""Random operations on a hub and its servers, all at once, and readers who look at every turn of it.

The sequence follows from the seed alone, never from what the hub does, so that it can be played again. The
servers are real: children and HTTP servers, healthy ones and some that are broken in the ways of the field.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import anyio
import anyio.abc

from holdfast.config.read import config_from_mapping
from holdfast.config.settings import BreakerSettings, CallPolicy, LoadPolicy, ReconnectSettings, Settings
from holdfast.config.spec import Config
from holdfast.core.catalog import Catalog
from holdfast.core.lifecycle.table import State
from holdfast.errors import HoldfastError
from holdfast.hub.hub import Hub
from holdfast.hub.registry import CLOSE_SECONDS
from holdfast.testing import Fault, HttpServer, StdioServer
from tests.harness.waiting import asked
from tests.peers.leaks import alive
from tests.peers.mcp_sse import SsePeer
from tests.peers.rpc import BUILT_IN
from tests.peers.stdio import StdioPeer

__all__ = ["HEALTHY", "Fleet", "Interleaving", "fleet"]

SETTINGS = Settings(
    load=LoadPolicy(attempt_timeout=3.0),
    call=CallPolicy(timeout=0.5, hard_timeout=1.0, ready_timeout=0.5, concurrency=8, queue=8),
    breaker=BreakerSettings(cooldown=0.3),
    reconnect=ReconnectSettings(backoff=(0.02, 0.04, 0.08, 0.16, 0.32), self_probe=1.0, standing=0.5),
    refresh=0.5,
    idle=0.3,
)
"""The shipped policies with short times, so that every timer fires many times in a run."""

START = "3s"
"""How long a process may take to start, as short as the other times."""

DEADLINE = SETTINGS.call.ready_timeout + 2 * SETTINGS.call.hard_timeout
SLACK = 10.0
"""For a loaded machine: a call that hangs hangs for ever, so that this makes no test blind."""

HEALTHY = ("child", "modern_child", "lazy", "stream", "modern", "quiet", "quiet_modern", "sse", "family")
"""Those that are healthy as soon as the torment ends."""

Names: TypeAlias = frozenset[str]


class Fleet:
    """The servers, and every list of tools that each of them ever truly offered."""

    def __init__(self, folder: Path) -> None:
        self.children = {
            "child": StdioServer({"tool_0": "0"}),
            "modern_child": StdioServer({"tool_0": "0"}, era="modern"),
            "lazy": StdioServer({"tool_0": "0"}),
        }
        self.https = {
            "stream": HttpServer({"tool_0": "0"}),
            "modern": HttpServer({"tool_0": "0"}, era="modern"),
            "quiet": HttpServer({"tool_0": "0"}, stream=False),
            "quiet_modern": HttpServer({"tool_0": "0"}, era="modern", stream=False),
        }
        self.sse = SsePeer()
        self.peers = {
            "family": StdioPeer("--grandchild", folder=folder),
            "deaf": StdioPeer("--stop-reading", folder=folder),
            "flapper": StdioPeer("--die-after-list", folder=folder),
        }
        self.scripted = (*self.children, *self.https)
        self.names = (*self.scripted, *self.peers, "sse")
        self.offered: dict[str, set[Names]] = {
            name: {frozenset(("tool_0",) if name in self.scripted else BUILT_IN)} for name in self.names
        }

    def config(self) -> Config:
        """All servers, with the short times."""
        # A process that hangs from its start on stays so until it is started again: here, soon.
        children = {name: {**server.definition, "startTimeout": START} for name, server in self.children.items()}
        servers: dict[str, object] = {**children, **{name: server.definition for name, server in self.https.items()}}
        servers |= {name: {"command": peer.command, "args": list(peer.args)} for name, peer in self.peers.items()}
        servers["sse"] = {"type": "sse", "url": self.sse.url}
        servers["lazy"] = {**children["lazy"], "lazy": True}
        return replace(config_from_mapping({"mcpServers": servers}), settings=SETTINGS)

    async def set_tools(self, name: str, count: int) -> None:
        """Have a scripted server offer so many tools, and say so."""
        tools = {f"tool_{number}": str(number) for number in range(count)}
        self.offered[name].add(frozenset(tools))
        if name in self.children:
            self.children[name].set_tools(tools)
        else:
            await self.https[name].set_tools(tools)

    async def bounce(self) -> None:
        """Stop the SSE server if it listens, start it if it does not."""
        if self.sse.is_listening:
            await self.sse.stop()
        else:
            await self.sse.start()

    def forget(self) -> None:
        """Let go of what the servers wrote down: it grows, as it should."""
        for http in self.https.values():
            http.asked.clear()
        self.sse.requests.clear()

    async def fail(self, name: str, fault: Fault) -> None:
        """Break a scripted server."""
        if name in self.children:
            self.children[name].fail(fault)
        else:
            await self.https[name].fail(fault)

    async def heal(self, name: str) -> None:
        """Mend it."""
        if name in self.children:
            self.children[name].heal()
        else:
            await self.https[name].heal()

    def kill(self, name: str) -> None:
        """``kill -9`` the latest process of a child, and of nothing that it started."""
        if name in self.children:
            self.children[name].kill()
        elif (pids := self.peers[name].pids) and alive(pids[-1]):
            with suppress(ProcessLookupError):
                os.kill(pids[-1], signal.SIGKILL)


@asynccontextmanager
async def fleet(folder: Path) -> AsyncIterator[Fleet]:
    """The servers, for the length of a block."""
    servers = Fleet(folder)
    async with AsyncExitStack() as stack:
        for child in servers.children.values():
            stack.enter_context(child)
        for http in servers.https.values():
            await stack.enter_async_context(http)
        await stack.enter_async_context(servers.sse)
        for peer in servers.peers.values():
            stack.callback(peer.kill)
        yield servers


class Interleaving:
    """One seeded run on one hub; everything that a reader or a caller must not see is in ``wrong``."""

    def __init__(self, hub: Hub, servers: Fleet, seed: int) -> None:
        self.hub = hub
        self.servers = servers
        self.wrong: list[str] = []
        self.calls: dict[str, int] = {"begun": 0, "answered": 0, "refused": 0, "cancelled": 0}
        self._full = hub.config
        self._chance = random.Random(seed)
        self._under_way: anyio.abc.TaskGroup | None = None
        self._seen: Catalog = hub.catalog
        self._history: deque[str] = deque(maxlen=40)
        self._operations: tuple[tuple[int, Callable[[], Awaitable[None] | None]], ...] = (
            (50, self._call),
            (10, self._cancelled_call),
            (12, self._change_list),
            (6, self._reconnect),
            (6, self._toggle),
            (6, self._kill),
            (4, self._break),
            (12, self._heal),
            (3, self._reconfigure),
            (4, self._remove_or_add),
            (3, self._bounce),
            (4, self._read),
        )
        hub.listen(lambda _: self.look())

    async def run(self, operations: int) -> None:
        """So many operations, a moment apart, each followed by a look; then calm."""
        async with anyio.create_task_group() as self._under_way:
            await self._play(operations)
        await self._calm()

    async def run_and_close(self, operations: int) -> None:
        """So many operations, and the hub is closed in the middle of them; then commands that must revive nothing."""
        async with anyio.create_task_group() as self._under_way:
            await self._play(operations)
            with anyio.fail_after(SLACK + CLOSE_SECONDS):
                await self.hub.close()
            await self._play(operations // 2)
            if standing := [
                name for name, slot in self.hub.registry.slots.items() if slot.state is not State.DISCONNECTED
            ]:
                self._complain(f"{standing} stand after the hub was closed")

    async def _play(self, operations: int) -> None:
        weights = [weight for weight, _ in self._operations]
        for _ in range(operations):
            ((_, operation),) = self._chance.choices(self._operations, weights)
            pause = self._chance.choice((0.0, 0.0, 0.001, 0.004))
            working = operation()
            if working is not None:
                await working
            await anyio.sleep(pause)
            self.look()

    async def _calm(self) -> None:
        """Heal all servers, and wait until each healthy server answers."""
        for name in self.servers.scripted:
            await self.servers.heal(name)
        if not self.servers.sse.is_listening:
            await self.servers.sse.start()
        await self.hub.apply(self._full)
        for name in self.servers.names:
            await self.hub.toggle(name, True)
        for name in HEALTHY:
            if self.hub.server_health(name).state is State.DENIED:  # a denial is not tried again by itself
                await self._tolerated(lambda name=name: self.hub.reconnect(name))  # type: ignore[misc]  # a default
            await self._answers(name)

    def story(self) -> str:
        """What went wrong, and what was done shortly before."""
        return "\n".join([*self.wrong[:10], "the last operations:", *self._history])

    # What a reader sees.

    def look(self) -> None:
        """See every configured server, and a catalog that lost nothing but for a good reason."""
        if self.hub.registry.is_closing:
            return
        before, self._seen = self._seen, self.hub.catalog
        shown, configured = set(self.hub.servers), set(self.hub.config.servers)
        if shown != configured:
            self._complain(f"a reader sees {sorted(shown)} instead of {sorted(configured)}")
        if before is not self._seen:
            for name in self.servers.names:
                self._look_at(name, _tools(before, name), _tools(self._seen, name))

    def _look_at(self, name: str, before: Names, now: Names) -> None:
        if before <= now or name not in self.hub.config.servers:
            return
        if self.hub.server_health(name).state in (State.DISABLING, State.DISABLED):
            return
        if now not in self.servers.offered[name]:
            self._complain(f"{name} shows {sorted(now)}, lost {sorted(before - now)}, and never offered just that")

    def _complain(self, words: str) -> None:
        self.wrong.append(words)

    def _did(self, words: str) -> None:
        self._history.append(words)

    # The operations.

    def _call(self) -> None:
        name, tool = self._some_tool()
        self._did(f"call {name}")
        self._start(self._one_call, name, tool)

    def _cancelled_call(self) -> None:
        name, tool = self._some_tool()
        after = self._chance.choice((0.0, 0.0005, 0.002, 0.02))
        self._did(f"call {name}, cancelled after {after}")
        self._start(self._one_cancelled_call, name, tool, after)

    async def _change_list(self) -> None:
        name, count = self._chance.choice(self.servers.scripted), self._chance.randint(1, 5)
        self._did(f"{name} lists {count}")
        await self.servers.set_tools(name, count)

    def _reconnect(self) -> None:
        name = self._chance.choice(self.servers.names)
        self._did(f"reconnect {name}")
        self._start(self._tolerated, lambda: self.hub.reconnect(name))

    def _toggle(self) -> None:
        name, enabled = self._chance.choice(self.servers.names), self._chance.random() < 0.75
        self._did(f"toggle {name} {enabled}")
        self._start(self._tolerated, lambda: self.hub.toggle(name, enabled))

    def _kill(self) -> None:
        name = self._chance.choice((*self.servers.children, *self.servers.peers))
        self._did(f"kill {name}")
        self.servers.kill(name)

    async def _break(self) -> None:
        name = self._chance.choice(self.servers.scripted)
        faults = [Fault.REFUSE, Fault.HANG, Fault.DIE, *([Fault.DENY] if name in self.servers.https else [])]
        fault = self._chance.choice(faults)
        self._did(f"{name} begins to {fault.value}")
        await self.servers.fail(name, fault)

    async def _heal(self) -> None:
        for name in self._chance.sample(self.servers.scripted, 2):
            self._did(f"{name} is healed")
            await self.servers.heal(name)

    async def _bounce(self) -> None:
        self._did("the SSE server stops or starts")
        await self.servers.bounce()

    async def _reconfigure(self) -> None:
        name = self._chance.choice(self.servers.names)
        spec = self._full.servers[name]
        assert not spec.problems
        changed = {"env": {"ROUND": str(self._chance.random())}} if spec.command else {"headers": {"x-round": "1"}}
        self._did(f"{name} gets a new definition")
        servers = {**self.hub.config.servers, name: replace(spec, **changed)}  # type: ignore[arg-type]  # one of two
        await self._tolerated(lambda: self.hub.apply(replace(self._full, servers=servers)))

    async def _remove_or_add(self) -> None:
        name, remove = self._chance.choice(self.servers.names), self._chance.random() < 0.4
        self._did(f"{name} is removed" if remove else "all are defined as at first")
        left = {other: spec for other, spec in self.hub.config.servers.items() if other != name}
        config = replace(self._full, servers=left) if remove else self._full
        await self._tolerated(lambda: self.hub.apply(config))

    def _read(self) -> None:
        self._did("read")
        repr(self.hub)
        with self._watched("a reader"):
            for health in self.hub.servers.values():
                repr(health)
            assert self.hub.warnings() is not None
            assert len(self.hub.tools()) == len(self.hub.catalog.tools)

    # What they need.

    def _start(self, work: Callable[..., Coroutine[object, object, None]], *args: object) -> None:
        assert self._under_way is not None
        self._under_way.start_soon(work, *args)

    def _some_tool(self) -> tuple[str, str]:
        name = self._chance.choice(self.servers.names)
        scripted = name in self.servers.scripted
        return name, f"tool_{self._chance.choice((0, 0, 0, 1, 4))}" if scripted else self._chance.choice(
            ("echo", "fail")
        )

    async def _one_call(self, name: str, tool: str) -> None:
        self.calls["begun"] += 1
        with self._watched(f"a call of {name}"):
            with anyio.fail_after(DEADLINE + SLACK):
                result = await self.hub.call_tool(f"{name}__{tool}", {"text": "x"})
            self.calls["answered"] += 1
            if name in self.servers.scripted and not result.is_error and result.text != tool.removeprefix("tool_"):
                self._complain(f"a call of {name}'s {tool} gave {result!r}")

    async def _one_cancelled_call(self, name: str, tool: str, after: float) -> None:
        self.calls["begun"] += 1
        with self._watched(f"a cancelled call of {name}"):
            with anyio.move_on_after(after) as scope:
                await self.hub.call_tool(f"{name}__{tool}", {"text": "x"})
            self.calls["cancelled" if scope.cancelled_caught else "answered"] += 1

    async def _tolerated(self, work: Callable[[], Awaitable[object]]) -> None:
        with self._watched("a command"), anyio.fail_after(DEADLINE + 2 * SLACK):
            await work()

    @contextmanager
    def _watched(self, what: str) -> Iterator[None]:
        """A refusal or a failure in our own words is an answer; anything else is wrong."""
        try:
            yield
        except HoldfastError as exc:
            self.calls["refused"] += 1
            if not exc.message:
                self._complain(f"{what} failed without a word: {exc!r}")
        except TimeoutError:
            self._complain(f"{what} did not end by its deadline")
        except Exception as exc:  # noqa: BLE001 - that is what is looked for
            self._complain(f"{what} raised {exc!r}")
        except asyncio.CancelledError:
            if not (task := asyncio.current_task()) or not task.cancelling():
                self._complain(f"{what} was cancelled without a cause")
            raise

    async def _answers(self, name: str) -> None:
        async def answered() -> bool:
            with suppress(HoldfastError):
                await self.hub.call_tool(f"{name}__{'tool_0' if name in self.servers.scripted else 'echo'}")
                return True
            return False

        try:
            await asked(answered)
        except TimeoutError:
            self._complain(f"{name} was healed and did not come back: {self.hub.server_health(name)}")


def _tools(catalog: Catalog, server: str) -> Names:
    return frozenset(entry.original for entry in catalog.tools if entry.server == server)
