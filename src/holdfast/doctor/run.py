"""All checks of all servers, side by side: each under a deadline, and one that crashes is a finding like any other."""

from __future__ import annotations

import os
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import anyio

from holdfast._version import __version__
from holdfast.config.definition import Definition
from holdfast.config.reading import Reading
from holdfast.config.spec import BadServer, ServerSpec
from holdfast.core.redact import Redactor
from holdfast.doctor.case import Case, Resolve, Tools
from holdfast.doctor.checks.all import CHECKS, WHOLE_CHECKS
from holdfast.doctor.checks.base import Check, Seen, Whole, WholeCheck
from holdfast.doctor.findings import Finding, finding, shell
from holdfast.doctor.report import CheckResult, Health, Report, ServerReport, worst
from holdfast.doctor.resolving import resolve
from holdfast.hub.store import default_state_file
from holdfast.hub.turnstile import Turnstile
from holdfast.wire.dial import Dialer
from holdfast.wire.warden import Warden

__all__ = ["Doctor", "OnServer"]

GRACE_SECONDS = 0.5
"""A check that keeps its own deadline says more than one that is cut off: it gets this moment to do so."""

OnServer = Callable[[ServerReport], None]
"""Told of each server as soon as everything is known of it."""


class Doctor:
    """Examines the servers of one configuration. The checks, and how names are resolved, can be given, for tests."""

    def __init__(
        self,
        reading: Reading,
        *,
        timeout: float | None = None,
        checks: Sequence[Check] = CHECKS,
        whole_checks: Sequence[WholeCheck] = WHOLE_CHECKS,
        resolve: Resolve = resolve,
    ) -> None:
        self._reading = reading
        self._timeout = timeout or reading.config.settings.load.attempt_timeout
        self._checks = checks
        self._whole_checks = whole_checks
        self._resolve = resolve

    async def examine(self, names: Sequence[str] = (), *, on_server: OnServer | None = None) -> Report:
        """Look at all servers that are enabled, or at those named."""
        began = anyio.current_time()
        chosen = [one for one in self._reading.definitions if not names or one.server.id in names]
        reports: dict[str, ServerReport] = {}
        whole: list[CheckResult] = []
        settings = self._reading.config.settings

        async with Warden() as warden, anyio.create_task_group() as timers:
            tools = Tools(
                dialer=Dialer(warden=warden, limits=settings.limits),
                turnstile=Turnstile(settings.load.concurrency, timers),
                settings=settings,
                resolve=self._resolve,
            )

            async def examine_one(definition: Definition) -> None:
                report = await self._examine(definition, tools, named=bool(names))
                reports[report.id] = report
                if on_server is not None:
                    on_server(report)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._look_at_whole, whole)
                for definition in chosen:
                    tasks.start_soon(examine_one, definition, name=f"examine {definition.server.id}")

        servers = tuple(reports[definition.server.id] for definition in chosen)
        source = self._reading.config.source
        return Report(
            holdfast=__version__,
            ok=all(server.health != "failed" for server in servers) and all(r.status != "failed" for r in whole),
            file=str(source) if source is not None else None,
            checks=tuple(whole),
            servers=servers,
            elapsed_ms=_ms(began),
        )

    async def _look_at_whole(self, results: list[CheckResult]) -> None:
        source = self._reading.config.source
        whole = Whole(reading=self._reading, state_file=_state_file(source))
        for check in self._whole_checks:
            look = _Look(check.id, self._timeout, Redactor(), "")
            results.append(await look.at(partial(check.look, whole)))

    async def _examine(self, definition: Definition, tools: Tools, *, named: bool) -> ServerReport:
        began = anyio.current_time()
        server = definition.server
        secrets = server.secrets if isinstance(server, ServerSpec) else definition.expansion.secrets
        case = Case(
            definition=definition,
            places=self._reading.around.places,
            tools=tools,
            deadline=began + self._timeout,
            redactor=Redactor(secrets),
        )
        if not server.enabled and not named:
            return ServerReport(id=server.id, transport=case.transport, target=case.target, health="disabled")
        results: dict[str, CheckResult] = {}
        for check in self._checks:
            if check.applies(case):
                results[check.id] = await self._result(check, case, results)
        return ServerReport(
            id=server.id,
            transport=case.transport,
            target=case.target,
            health=_health(results),
            tools=_tool_count(case),
            checks=tuple(results.values()),
            elapsed_ms=_ms(began),
        )

    async def _result(self, check: Check, case: Case, before: Mapping[str, CheckResult]) -> CheckResult:
        blocking = [need for need in check.needs if need in before and before[need].status in ("failed", "skipped")]
        if blocking:
            return CheckResult(check=check.id, status="skipped", seen=f"`{blocking[0]}` comes first")
        left = case.left if check.within is None else min(check.within, case.left)
        return await _Look(check.id, left, case.redactor, case.id).at(partial(check.look, case))


class _Look:
    """One look of one check: under a deadline, its words masked, its crash a finding."""

    def __init__(self, check: str, within: float, redactor: Redactor, server: str) -> None:
        self._check = check
        self._within = within
        self._redactor = redactor
        self._server = server

    async def at(self, look: Callable[[], Awaitable[Seen]]) -> CheckResult:
        began = anyio.current_time()
        try:
            with anyio.fail_after(self._within + GRACE_SECONDS):
                seen = await look()
        except TimeoutError:
            seen = Seen("", (self._too_slow(),))
        except Exception as exc:  # noqa: BLE001 - a crash of one check is a result, not a crash of the doctor
            seen = Seen("", (self._crashed(exc),))
        findings = tuple(one.rewritten(self._redactor.mask) for one in seen.findings)
        return CheckResult(
            check=self._check,
            status=worst(findings),
            seen=self._redactor.mask(seen.words),
            findings=findings,
            elapsed_ms=_ms(began),
        )

    def _too_slow(self) -> Finding:
        words = f"the check `{self._check}` did not finish within {self._within:.3g} s"
        longer = str(max(round(self._within * 4), 60))
        return finding("HF-CHECK-TIME", words, "give it longer", self._again("--timeout", longer))

    def _crashed(self, exc: Exception) -> Finding:
        words = f"the check `{self._check}` failed by itself ({type(exc).__name__})"
        text = "please report this as a bug in Holdfast, with what this prints"
        detail = "".join(traceback.format_exception(exc)) if os.environ.get("HOLDFAST_DEBUG") else ""
        return finding("HF-CHECK-CRASHED", words, text, f"HOLDFAST_DEBUG=1 {self._again()}", detail=detail)

    def _again(self, *options: str) -> str:
        return shell("holdfast", "doctor", *([self._server] if self._server else []), *options)


def _health(results: Mapping[str, CheckResult]) -> Health:
    statuses = {result.status for result in results.values()}
    if "failed" in statuses:
        return "failed"
    return "warned" if "warned" in statuses else "healthy"


def _tool_count(case: Case) -> int | None:
    seen = case.learned.probe
    if seen is None or seen.offers is None or isinstance(case.server, BadServer):
        return None
    return len(seen.offers.get("tools", ()))


def _state_file(source: Path | None) -> Path | None:
    return default_state_file(source) if source is not None else None


def _ms(began: float) -> float:
    return round((anyio.current_time() - began) * 1000, 1)
