"""The bridge: targets in, routes out. It reads, has it decided what to do, does that, and tells.

Whatever fails, the config in place stays; what failed is in ``health`` until it succeeds.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import anyio

from holdfast.config.targets import Targets
from holdfast.errors import ConfigError
from holdfast.files import FileLock
from holdfast.gateway.decide import Decision, Down, Ledger, Sight, Take, decide
from holdfast.gateway.health import Health
from holdfast.gateway.merge import MARK, Rendered, Rules, merge
from holdfast.gateway.render import Document
from holdfast.gateway.source import Source, SourceFailed
from holdfast.gateway.store import Store
from holdfast.gateway.watch import Watch

__all__ = ["Bridge", "Plan", "seed"]

WAITING_PAUSE = 0.25
"""Seconds between looks at a gateway that is loading a config: about what it waits before it reads a changed file."""

_SEEN = (Take.TAKEN, Take.REFUSED)
"""What was seen of the config before; of one that was just written, nothing is known."""

_MARK = re.compile(MARK.encode() + rb"[0-9a-f]{16}")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a bridge is to do."""

    output: Path
    """The file that the gateway reads."""
    rules: Rules
    bootstrap: Callable[[], Document]
    """Gives the config without the targets' routes, anew each time."""
    bootstrap_file: Path | None = None
    """Where that comes from, for messages."""
    poll: float = 5.0
    patience: float = 10.0
    """How long the gateway may take to load a config."""

    def render(self, targets: Targets) -> Rendered:
        """The config for these targets; ``ConfigError`` if it may not be written."""
        return merge(self.bootstrap(), targets.found, self.rules, source=self.bootstrap_file)


def seed(plan: Plan) -> bool:
    """Put the bootstrap in place where there is no config yet, so that the gateway can start; whether it was."""
    store = Store(plan.output)
    if store.read() is not None:
        return False
    store.write(plan.render(Targets()).data)
    return True


class Bridge:
    """Keeps one config file as the targets want it."""

    def __init__(
        self,
        plan: Plan,
        *,
        source: Source,
        watch: Watch,
        tell: Callable[[str], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._plan = plan
        self._source = source
        self._watch = watch
        self._tell = tell
        self._clock = clock
        self._store = Store(plan.output)
        self._lock = FileLock(plan.output.with_name(f"{plan.output.name}.lock"))
        self._ledger = Ledger()
        self._targets: Targets | None = None
        self._polled = float("-inf")
        self._in_place: bytes | None = None
        self._accepted: bytes | None = None
        self.health = Health(source=source.name)

    async def run(self) -> None:
        """Go on until cancelled."""
        try:
            while True:
                await self.step()
                await anyio.sleep(WAITING_PAUSE if self.health.take is Take.WAITING else self._plan.poll)
        finally:
            self._lock.release()

    async def once(self) -> Health:
        """Go on until the config is in place and taken, or until that failed."""
        try:
            await self.step()
            while self.health.status in ("starting", "applying"):
                await anyio.sleep(WAITING_PAUSE)
                await self.step()
        finally:
            self._lock.release()
        return self.health

    async def step(self) -> None:
        """Read, decide, act, tell."""
        if not self._can_write():
            return
        if anyio.current_time() - self._polled >= self._plan.poll:
            await self._poll()
        wanted = self._wanted()
        sight = await self._watch.look()
        decision = decide(wanted, self._ledger, sight, now=anyio.current_time(), patience=self._plan.patience)
        wrote = await self._act(decision, wanted)
        self._note(Take.WAITING if wrote and decision.take in _SEEN else decision.take, wanted, sight)

    def _can_write(self) -> bool:
        """Whether the file is ours to write, and can be read."""
        try:
            if not self._is_ours():
                return False
            self._look_at_file()
        except OSError as exc:
            self._config_failed(f"the config or its lock cannot be read: {_reason(exc)}")
            return False
        return True

    def _is_ours(self) -> bool:
        ours = self._lock.try_acquire()
        if ours and self.health.role != "active":
            self._begin()
        elif not ours and self.health.role != "standby":
            self.health.role = "standby"
            self._tell(f"another bridge writes {self._plan.output}: standing by")
        return ours

    def _begin(self) -> None:
        self.health.role = "active"
        self._tell(f"writing {self._plan.output} from {self._source.name}")
        self._accepted = self._store.read_accepted()
        self._in_place = self._store.read()
        self._ledger = Ledger(
            live=_mark_in(self._in_place), accepted=_mark_in(self._accepted), since=anyio.current_time()
        )

    async def _poll(self) -> None:
        self._polled = anyio.current_time()
        health = self.health
        try:
            self._targets = targets = await self._source.read()
        except SourceFailed as exc:
            health.source_failures += 1
            if health.source_error != str(exc):
                self._tell(f"the source is down, and what it said last still holds: {exc}")
            health.source_error = str(exc)
            return
        if health.source_error:
            self._tell("the source is back")
        health.source_error, health.source_success = "", self._clock()
        if targets.left_out != health.left_out:
            health.left_out = targets.left_out
            for name, why in targets.left_out.items():
                self._tell(f"no route for `{name}`: {why}")
            for note in targets.notes:
                self._tell(note)

    def _look_at_file(self) -> None:
        """See whether somebody else changed the file."""
        data = self._store.read()
        if data != self._in_place:
            self._tell(f"{self._plan.output} was changed by somebody else")
            self._in_place, self._ledger.live = data, ""

    def _wanted(self) -> Rendered | None:
        """The config to have; None to leave what is there."""
        if self._targets is None and self._in_place is not None:
            return None
        try:
            return self._plan.render(self._targets or Targets())
        except ConfigError as exc:
            self._config_failed(exc.message)
            return None

    async def _act(self, decision: Decision, wanted: Rendered | None) -> bool:
        """Do what was decided; whether the wanted config was put in place."""
        if decision.newly_refused:
            self.health.refusals += 1
        if decision.accept and self._in_place is not None:
            await self._keep_accepted(self._in_place)
        if decision.restore and self._accepted is not None and await self._write(self._accepted):
            self.health.restores += 1
            self._tell("the last config that the gateway ran is back in place")
        if not decision.write or wanted is None or not await self._write(wanted.data):
            return False
        self._tell(f"wrote {wanted.mark}: {wanted.routes} routes")
        return True

    async def _write(self, data: bytes) -> bool:
        try:
            await anyio.to_thread.run_sync(self._store.write, data)
        except OSError as exc:
            self.health.write_failures += 1
            self._config_failed(f"the config could not be written: {_reason(exc)}")
            return False
        self._in_place = data
        self._ledger.live, self._ledger.since = _mark_in(data), anyio.current_time()
        self.health.writes += 1
        self.health.written = self._clock()
        return True

    async def _keep_accepted(self, data: bytes) -> None:
        self._accepted = data
        try:
            await anyio.to_thread.run_sync(self._store.keep_accepted, data)
        except OSError as exc:
            self._tell(f"the config that the gateway runs could not be kept for a restart: {_reason(exc)}")

    def _note(self, take: Take, wanted: Rendered | None, sight: Sight) -> None:
        health = self.health
        health.mark = self._ledger.live
        if wanted is not None and wanted.mark == self._ledger.live:
            health.routes, health.shadowed = wanted.routes, wanted.shadowed
            if health.config_error:
                self._tell("the config is in place again")
            health.config_error, health.config_success = "", self._clock()
        elif wanted is not None and not health.config_error:
            self._config_failed("the gateway did not run the one that is wanted")
        if take is not health.take:
            self._tell(f"gateway: {take.value}")
        health.take, health.gateway_error = take, _gateway_error(take, sight)
        if take is Take.TAKEN:
            health.gateway_success = self._clock()

    def _config_failed(self, why: str) -> None:
        if why != self.health.config_error:
            self._tell(f"the last good config stays: {why}")
        self.health.config_error = why


def _gateway_error(take: Take, sight: Sight) -> str:
    if take is Take.REFUSED:
        return "the gateway did not load the config that is wanted: its log says why"
    return sight.reason if isinstance(sight, Down) else ""


def _mark_in(data: bytes | None) -> str:
    found = _MARK.search(data) if data is not None else None
    return found.group().decode() if found else ""


def _reason(exc: OSError) -> str:
    return exc.strerror or type(exc).__name__
