"""Runs all checks of all servers concurrently, each with a deadline. A check that crashes is a finding.

Theory of operation. The checks that concern no server come first: with ``--fix`` they repair files that the servers
need, such as the token store. Then each server is examined in a task of its own, check after check in the order of
``CHECKS``. A check whose needs did not pass is skipped, so one cause gives one finding and not ten. A running hub is
asked meanwhile. It is asked again when every server is examined, which may be minutes later. The last check compares
that answer with what was seen, so the report shows what ``status`` shows now.

All checks of a server share one deadline. A check gets ``GRACE_SECONDS`` more, because its own report of a timeout says
what it waited for. Doctor starts many processes: a command that ran out of time beside more of them than there are
processors is not judged (``HF-CROWDED``), and the report is then not ok.

What must never happen: one check or one server ends the examination of the others; a text leaves ``_look`` unmasked; an
examination without ``--fix`` changes a file, except that a login which expired is renewed.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import anyio
import anyio.abc

from holdfast._version import __version__
from holdfast.auth import Logins, TokenStore
from holdfast.config import ConfigReading, Definition, ServerSpec
from holdfast.core import Redactor, command_line, mask_url
from holdfast.doctor.case import (
    HOLD_SECONDS,
    Case,
    Check,
    GlobalCheck,
    GlobalContext,
    LiveHub,
    Observation,
    Resolve,
    Tools,
    hub_of,
    places_here,
)
from holdfast.doctor.checks import (
    OVER_NETWORK,
    look_at_command,
    look_at_definition,
    look_at_files,
    look_at_handshake,
    look_at_hub,
    look_at_login,
    look_at_name,
    look_at_port,
    look_at_state,
    look_at_tls,
    look_at_tokens,
    look_at_tools,
)
from holdfast.doctor.network_faults import not_judged, resolve
from holdfast.doctor.report import (
    CheckResult,
    Finding,
    HubSeen,
    Repaired,
    Report,
    ServerReport,
    causes_of,
    finding,
    repair,
    worst,
)
from holdfast.hub import DialLimit, OnStarting, default_state_file, is_shown, report_starts
from holdfast.wire import Dialer, HubTls, Warden

__all__ = ["CHECKS", "GLOBAL_CHECKS", "Doctor", "OnExamined"]

_EITHER = (
    "HF-CUT",
    "HF-SILENT",
    "HF-CROWDED",
    "HF-NOT-READY",
    "HF-RATE",
    "HF-AUTH-OUTAGE",
    "HF-DENIED",
    "HF-DENIED-HOST",
    "HF-DENIED-UNCLEAR",
    "HF-AUTH-SCOPE",
    "HF-PROTOCOL",
    "HF-RPC-ERROR",
    "HF-BOUND",
    "HF-BEHIND-HUB",
    "HF-DESCRIPTORS",
    "HF-KILLED",
    "HF-EXITED",
    "HF-UNEXPECTED",
)
"""Codes of the handshake and of the listing."""

CHECKS: Sequence[Check] = (
    Check(
        id="definition",
        looks_at="whether its definition can be used, and every missing variable",
        finds=("HF-DEFINITION", "HF-VARIABLE", "HF-PLACEHOLDER", "HF-PLACEMENT"),
        look=look_at_definition,
    ),
    Check(
        id="command",
        looks_at="whether its command exists and can be executed",
        needs=("definition",),
        transports=("stdio",),
        finds=(
            "HF-COMMAND-MISSING",
            "HF-COMMAND-RUN-BIT",
            "HF-COMMAND-FOLDER",
            "HF-COMMAND-INTERPRETER",
        ),
        look=look_at_command,
    ),
    Check(
        id="name",
        looks_at="whether the host in its URL, or of the proxy, has an address",
        needs=("definition",),
        transports=OVER_NETWORK,
        finds=("HF-DNS-NAME", "HF-DNS-SERVER", "HF-PROXY-DOWN"),
        look=look_at_name,
    ),
    Check(
        id="port",
        looks_at="whether its port, or the proxy's, accepts a connection",
        needs=("name",),
        transports=OVER_NETWORK,
        finds=("HF-REFUSED", "HF-FILTERED", "HF-UNREACHABLE", "HF-PROXY-DOWN"),
        look=look_at_port,
    ),
    Check(
        id="tls",
        looks_at="whether its certificate is valid, trusted and for that name",
        needs=("port",),
        transports=OVER_NETWORK,
        # Behind a proxy, the handshake check covers TLS.
        only_if=lambda case: bool(case.learned.route and case.learned.route.tls and not case.learned.route.proxy),
        finds=(
            "HF-TLS-NAME",
            "HF-TLS-EXPIRED",
            "HF-TLS-EARLY",
            "HF-TLS-CLOCK",
            "HF-TLS-AUTHORITY",
            "HF-TLS-UNVERIFIED",
            "HF-TLS-PLAIN",
            "HF-TLS-HANDSHAKE",
        ),
        look=look_at_tls,
    ),
    Check(
        id="login",
        looks_at="where its credentials come from and whether they have expired; an expired login is renewed",
        needs=("definition",),
        transports=("http", "sse"),
        finds=("HF-LOGIN-RENEWED", "HF-LOGIN-SETTINGS"),
        look=look_at_login,
    ),
    Check(
        id="handshake",
        looks_at="whether it answers, accepts the credentials, and speaks a known protocol version",
        needs=("definition", "command", "port", "tls"),
        finds=(
            *_EITHER,
            "HF-COMMAND-FORMAT",
            "HF-COMMAND-START",
            "HF-EXIT-VARIABLE",
            "HF-EXIT-RUNTIME",
            "HF-EXIT-MODULE",
            "HF-EXIT-VERSION",
            "HF-EXIT-ADDRESS",
            "HF-EXIT-PORT",
            "HF-HUB-ALONE",
            "HF-EXIT-PACKAGE",
            "HF-EXIT-EXECUTABLE",
            "HF-EXIT-WITHDRAWN",
            "HF-EXIT-BROKEN",
            "HF-EXIT-ARGUMENT",
            "HF-EXIT-CERTIFICATE",
            "HF-EXIT-DOCKER",
            "HF-STDOUT-ONLY",
            "HF-STDOUT-NOISE",
            "HF-PROXY-LOGIN",
            "HF-PROXY-REFUSED",
            "HF-HTTPS-MEANT",
            "HF-PLAIN-CREDENTIALS",
            "HF-AUTH-NEEDED",
            "HF-AUTH-REJECTED",
            "HF-AUTH-EXPIRED",
            "HF-AUTH-AUDIENCE",
            "HF-LOGIN-INPUT",
            "HF-LOGIN-ENDED",
            "HF-LOGIN-UNREACHABLE",
            "HF-PATH",
            "HF-TYPE-SSE",
            "HF-TYPE-HTTP",
            "HF-REDIRECT",
            "HF-STATUS",
            "HF-NOT-MCP",
            "HF-VERSION",
        ),
        look=look_at_handshake,
    ),
    Check(
        id="tools",
        looks_at="whether it lists its tools, with names and schemas that clients accept",
        needs=("handshake",),
        finds=(
            *_EITHER,
            "HF-TOOLS-NONE",
            "HF-TOOLS-HIDDEN",
            "HF-TOOLS-DUPLICATE",
            "HF-TOOLS-NAME",
            "HF-TOOLS-CUT",
            "HF-TOOLS-LONG",
            "HF-TOOLS-SCHEMA",
            "HF-LIST",
        ),
        look=look_at_tools,
    ),
    Check(
        id="hub",
        looks_at="the server's state in a running hub, and why it may differ from this examination",
        only_if=lambda case: case.tools.hub is not None,
        compares=True,
        finds=("HF-HUB-DIFFERS", "HF-HUB-BREAKER", "HF-HUB-DISABLED"),
        look=look_at_hub,
    ),
)
"""Checks of each server, in the order in which they run."""

GLOBAL_CHECKS: Sequence[GlobalCheck] = (
    GlobalCheck(
        id="files",
        looks_at="whether other users can read files with credentials",
        finds=("HF-FILE-READABLE",),
        look=look_at_files,
    ),
    GlobalCheck(
        id="tokens",
        looks_at="whether the file with the logins is intact",
        finds=("HF-TOKENS-CORRUPT",),
        look=look_at_tokens,
    ),
    GlobalCheck(
        id="state",
        looks_at="whether the file with the hub's last listings is intact",
        finds=("HF-STATE-CORRUPT",),
        look=look_at_state,
    ),
)
"""Checks that concern no single server."""


GRACE_SECONDS = 3.0
"""Seconds beyond the deadline that a check gets to report its own timeout, which says more than a cancellation."""

OnExamined = Callable[[str], None]
"""Called with the name of each server when its own checks are done."""


class _Examined(NamedTuple):
    """What was seen of a server, before it is compared with a running hub."""

    case: Case
    results: Mapping[str, CheckResult]
    elapsed_ms: float
    is_disabled: bool


class Doctor:
    """Examines the servers of one configuration. Tests replace the checks and the resolver."""

    def __init__(
        self,
        reading: ConfigReading,
        *,
        timeout: float | None = None,
        fix: bool = False,
        checks: Sequence[Check] = CHECKS,
        global_checks: Sequence[GlobalCheck] = GLOBAL_CHECKS,
        resolve: Resolve = resolve,
        hub_tls: HubTls | None = None,
    ) -> None:
        self._reading = reading
        self._hub_tls = hub_tls
        self._given_timeout = timeout
        self._timeout = timeout or reading.config.settings.load.attempt_timeout
        self._fix = fix
        self._checks = checks
        self._global_checks = global_checks
        self._resolve = resolve
        self._repairs: list[Repaired] = []

    async def examine(
        self,
        names: Sequence[str] = (),
        *,
        on_examined: OnExamined | None = None,
        on_starting: OnStarting | None = None,
    ) -> Report:
        """Examine all enabled servers, or those named; ``on_starting`` gets the processes that have not answered."""
        began = anyio.current_time()
        serving = hub_of(self._source)
        hub = LiveHub(serving) if serving is not None else None
        async with Warden() as warden, anyio.create_task_group() as timers:
            if hub is not None:
                timers.start_soon(hub.ask)
            store = TokenStore()
            whole = await self._run_global_checks(store)
            chosen = [one for one in self._reading.definitions if not names or one.server.id in names]
            tools = self._tools(warden, timers, store, whole, hub, chosen)
            if on_starting is not None:
                timers.start_soon(report_starts, tools.probes, on_starting)
            examined = await self._examine_all(chosen, tools, on_examined, named=bool(names))
            if hub is not None:
                await hub.ask_again()
            servers = tuple([await self._report(one) for one in examined])
            timers.cancel_scope.cancel()
        of_hub = _hub_findings(hub) if hub is not None else ()
        view = hub.view if hub is not None else None
        seen = HubSeen(url=mask_url(serving.url), version=view.version, pid=view.pid) if serving and view else None
        return Report(
            holdfast=__version__,
            ok=not any(map(_is_in_doubt, servers)) and all(one.status != "failed" for one in whole),
            file=str(self._source) if self._source is not None else None,
            hub=seen,
            checks=(*whole, *(CheckResult(check="hub", status="warned", findings=(one,)) for one in of_hub)),
            servers=servers,
            causes=causes_of(servers),
            repairs=tuple(self._repairs),
            elapsed_ms=_ms(began),
        )

    @property
    def _source(self) -> Path | None:
        return self._reading.config.source

    def _tools(
        self,
        warden: Warden,
        timers: anyio.abc.TaskGroup,
        store: TokenStore,
        whole: Sequence[CheckResult],
        hub: LiveHub | None,
        chosen: Sequence[Definition],
    ) -> Tools:
        settings = self._reading.config.settings
        if any(one.code == "HF-TOKENS-CORRUPT" for result in whole for one in result.findings):
            store = TokenStore(store.folder / "unread")  # reading a damaged store moves it, which only --fix may do
        logins = Logins(store)
        # A process begins early enough to have half of its time, also that of the server that has the least.
        shortest = min((self._seconds(one.server) for one in self._reading.definitions), default=self._timeout)
        return Tools(
            dialer=Dialer(warden=warden, limits=settings.limits, authorize=logins.authorize, hub_tls=self._hub_tls),
            dials=DialLimit(settings.load.concurrency, timers),
            starts=DialLimit(places_here(), timers, hold=HOLD_SECONDS, wait=shortest / 2),
            commands=sum(one.server.enabled and bool(one.server.command) for one in chosen),
            settings=settings,
            resolve=self._resolve,
            logins=logins,
            hub=hub,
        )

    # Checks that concern no single server

    async def _run_global_checks(self, store: TokenStore) -> list[CheckResult]:
        """Run before the servers are examined, so that a repair applies to all of them."""
        state_file = default_state_file(self._source) if self._source is not None else None
        whole = GlobalContext(reading=self._reading, store=store, state_file=state_file)
        return [await self._global_result(check, whole) for check in self._global_checks]

    async def _global_result(self, check: GlobalCheck, whole: GlobalContext) -> CheckResult:
        look = partial(check.look, whole)
        result = await self._look(check.id, look, self._timeout)
        if not self._fix:
            return result
        repaired = [done for found in result.findings if (done := repair(found)) is not None]
        self._repairs += repaired
        return await self._look(check.id, look, self._timeout) if repaired else result

    # Checks of one server

    async def _examine_all(
        self, chosen: Sequence[Definition], tools: Tools, on_examined: OnExamined | None, *, named: bool
    ) -> list[_Examined]:
        examined: dict[str, _Examined] = {}

        async def examine_one(definition: Definition) -> None:
            examined[definition.server.id] = await self._examine(definition, tools, named=named)
            if on_examined is not None:
                on_examined(definition.server.id)

        async with anyio.create_task_group() as tasks:
            for definition in chosen:
                tasks.start_soon(examine_one, definition, name=f"examine {definition.server.id}")
        return [examined[definition.server.id] for definition in chosen]

    async def _examine(self, definition: Definition, tools: Tools, *, named: bool) -> _Examined:
        """Run all checks but those that compare."""
        began = anyio.current_time()
        server = definition.server
        case = Case(
            definition=definition,
            document=self._reading.context.document,
            tools=tools,
            deadline=began + self._seconds(server),
            redactor=Redactor(server.secrets),
        )
        results: dict[str, CheckResult] = {}
        is_disabled = not server.enabled and not named
        for check in () if is_disabled else self._checks:
            if check.applies(case) and not check.compares:
                result = results[check.id] = await self._result(check, case, results)
                case.learned.failed |= result.status == "failed"
        _drop_repeated(results)
        if self._fix and case.learned.renewed:
            words = case.redactor.mask(case.learned.renewed)
            self._repairs.append(Repaired(code="HF-LOGIN-RENEWED", server=server.id, done=True, words=words))
        return _Examined(case, results, _ms(began), is_disabled)

    async def _report(self, examined: _Examined) -> ServerReport:
        """Run the checks that compare, and report on the server."""
        case, results = examined.case, dict(examined.results)
        if examined.is_disabled:
            return ServerReport(id=case.id, transport=case.transport, target=case.target, health="disabled")
        for check in self._checks:
            if check.applies(case) and check.compares:
                results[check.id] = await self._result(check, case, results)
        statuses = {result.status for result in results.values()}
        return ServerReport(
            id=case.id,
            transport=case.transport,
            target=case.target,
            health="failed" if "failed" in statuses else "warned" if "warned" in statuses else "healthy",
            tools=_tool_count(case),
            checks=tuple(results.values()),
            hub=case.learned.live,
            elapsed_ms=examined.elapsed_ms,
        )

    def _seconds(self, server: ServerSpec) -> float:
        """How long all checks of a server may take. A process may start for as long as its ``startTimeout`` says."""
        if self._given_timeout is None and not server.problems and server.transport == "stdio":
            return self._timeout + server.start_timeout
        return self._timeout

    async def _result(self, check: Check, case: Case, before: Mapping[str, CheckResult]) -> CheckResult:
        blocking = [need for need in check.needs if need in before and before[need].status in ("failed", "skipped")]
        if blocking:
            return CheckResult(check=check.id, status="skipped", seen=f"`{blocking[0]}` did not pass")
        return await self._look(check.id, partial(check.look, case), case.left, case)

    async def _look(
        self, check: str, look: Callable[[], Awaitable[Observation]], within: float, case: Case | None = None
    ) -> CheckResult:
        """Run one check with a deadline, mask its texts, and turn a crash into a finding."""
        began, mask = anyio.current_time(), (case.redactor if case is not None else Redactor()).mask
        try:
            with anyio.fail_after(within + GRACE_SECONDS):
                seen = await look()
        except TimeoutError:
            seen = Observation("", (_too_slow(check, within, self._timeout, case),))
        except Exception as exc:  # noqa: BLE001 - a crash of one check must not end the examination
            seen = Observation("", (_crashed(check, exc, case),))
        findings = tuple(one.rewritten(mask) for one in seen.findings)
        return CheckResult(
            check=check, status=worst(findings), seen=mask(seen.words), findings=findings, elapsed_ms=_ms(began)
        )


def _too_slow(check: str, within: float, allowed: float, case: Case | None) -> Finding:
    if case is not None and case.transport and case.was_crowded:
        return not_judged(case)
    words = f"the check `{check}` did not finish within {within:.3g} s"
    longer = str(max(round(max(within, allowed) * 4), 60))
    return finding("HF-CHECK-TIME", words, "give it longer", _again(case, "--timeout", longer))


def _crashed(check: str, exc: Exception, case: Case | None) -> Finding:
    words = f"the check `{check}` crashed ({type(exc).__name__})"
    text = "please report this as a bug in Holdfast, with the output of this command"
    detail = "".join(traceback.format_exception(exc)) if os.environ.get("HOLDFAST_DEBUG") else ""
    return finding("HF-CHECK-CRASHED", words, text, f"HOLDFAST_DEBUG=1 {_again(case)}", detail=detail)


def _again(case: Case | None, *options: str) -> str:
    return command_line("doctor", server=case.id if case is not None else "", options=options)


def _drop_repeated(results: dict[str, CheckResult]) -> None:
    """Drop what the definition lacks for a login where the handshake named it, with what the server said."""
    login, handshake = results.get("login"), results.get("handshake")
    if login is None or handshake is None or "HF-LOGIN-INPUT" not in {one.code for one in handshake.findings}:
        return
    left = tuple(one for one in login.findings if one.code != "HF-LOGIN-SETTINGS")
    results["login"] = login.model_copy(update={"findings": left})


def _is_in_doubt(server: ServerReport) -> bool:
    """Whether a server failed, or was not judged."""
    return server.health == "failed" or any(one.code == "HF-CROWDED" for one in server.findings)


def _tool_count(case: Case) -> int | None:
    seen = case.learned.probe
    if seen is None or seen.listing is None or case.server.problems:
        return None
    return sum(is_shown(name, case.spec.tools) for name, _ in seen.listing.get("tools", ()))


def _hub_findings(hub: LiveHub) -> Iterator[Finding]:
    """What is wrong with the running hub itself."""
    if hub.error:
        yield finding(
            "HF-HUB-SILENT",
            f"a hub serves this configuration and did not answer: {hub.error}",
            "look at its log, or restart it",
            command_line("status"),
        )
    if hub.view is None:
        return
    # Its own words, which `status` and the page show too: configurations and clocks of replicas that do not agree.
    said, fleet = [hub.view.notice], hub.view.fleet
    if fleet is not None and fleet.problem:
        silent = "" if fleet.shared else f"{fleet.store} does not answer: "
        said.append(f"it does not share with the other replicas: {silent}{fleet.problem}")
    for words in filter(None, said):
        remedy = "do what it says; this command shows the hub and its replicas"
        yield finding("HF-HUB-NOTICE", f"the running hub reports: {words}", remedy, command_line("status"))


def _ms(began: float) -> float:
    return round((anyio.current_time() - began) * 1000, 1)
