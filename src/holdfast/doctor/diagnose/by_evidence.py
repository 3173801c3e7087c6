"""Maps evidence to a finding: one case for each type of evidence."""

from __future__ import annotations

from holdfast.core import (
    BadConfig,
    CommandUnusable,
    CredentialsUnavailable,
    Evidence,
    HttpStatus,
    NetworkFailure,
    NetworkFault,
    NotMcp,
    OutOfDescriptors,
    OverBound,
    PlainHttpRefused,
    ProcessExit,
    Redirected,
    RpcError,
    TimedOut,
    TlsFailure,
    TokenNotRenewed,
    ToldByHub,
    Unexpected,
    classify_evidence,
    command_line,
)
from holdfast.doctor.case import Case
from holdfast.doctor.diagnose import answers, network, process_exits
from holdfast.doctor.probe import trace_of
from holdfast.doctor.report import Finding, finding, on_server
from holdfast.doctor.route import Route

__all__ = ["diagnose", "route_failed"]


async def diagnose(case: Case, seen: Evidence) -> Finding:  # noqa: PLR0912 - one case for each type of evidence
    """The finding for the evidence of a dial."""
    match seen:
        case HttpStatus():
            return await answers.status(case, seen)
        case NetworkFailure() if case.transport == "hub" and not seen.stood:
            words = f"the hub that runs it cannot be reached: {classify_evidence(seen).reason}"
            text = "start that hub, or correct its address in `hub`"
            return finding("HF-BEHIND-HUB", words, text, on_server("doctor", case.id))
        case NetworkFailure():
            return await _network(case, seen)
        case TlsFailure() if case.learned.route is not None:
            return await network.unverified(case, case.learned.route, seen)
        case TimedOut():
            return network.silent(case, seen)
        case Redirected():
            return answers.redirected(case, seen)
        case PlainHttpRefused():
            return answers.plain_credentials(case)
        case NotMcp():
            return await answers.not_mcp(case, seen)
        case OverBound():
            return answers.bound(case, seen)
        case RpcError():
            return answers.rpc_error(case, seen)
        case CommandUnusable():
            return process_exits.unusable(case, seen)
        case ProcessExit():
            return await process_exits.ended(case, seen)
        case BadConfig():
            text = seen.hint or "correct the definition"
            return finding("HF-DEFINITION", "; ".join(seen.problems), text, command_line("config", "show"))
        case TokenNotRenewed():
            words = f"its token expired and could not be renewed at the moment: {seen.reason}; the login is still valid"
            text = "try again when the authorization server answers; a new login is not needed"
            return finding("HF-LOGIN-UNREACHABLE", words, text, on_server("doctor", case.id))
        case OutOfDescriptors():
            words = f"this machine allows {seen.limit} open files per process, and all are in use; it was not asked"
            text = "raise the limit in this shell, and check again"
            commands = ("ulimit -n 65536", on_server("doctor", case.id))
            return finding("HF-DESCRIPTORS", words, text, *commands)
        case ToldByHub():
            text = seen.hint or "ask the hub that runs it: run doctor there"
            words = f"the hub that runs it says: {seen.reason}"
            return finding("HF-BEHIND-HUB", words, text, on_server("doctor", case.id))
        case CredentialsUnavailable() | TlsFailure() | Unexpected():
            return _unexpected(case, seen)


def route_failed(case: Case, route: Route, seen: Evidence, *, after: float) -> Finding:
    """The finding for a connection that could not be made."""
    match seen:
        case NetworkFailure(fault=NetworkFault.REFUSED):
            return network.refused(case, route)
        case NetworkFailure(fault=NetworkFault.NAME_RESOLUTION):
            return network.no_address(case, route, exists=False)
        case TimedOut():
            return network.filtered(case, route, after)
        case _:
            return network.unreachable(case, route)


async def _network(case: Case, seen: NetworkFailure) -> Finding:
    if case.spec.transport == "stdio":
        return network.cut(case, seen)
    route = case.learned.route
    if route is not None and route.proxy and not seen.stood:
        return network.proxied(case, route, seen.detail or "it refused to connect", code="HF-PROXY-REFUSED")
    if seen.stood or route is None:
        return await answers.broken(case, seen)
    return route_failed(case, route, seen, after=0.0)


def _unexpected(case: Case, seen: Evidence) -> Finding:
    text = "please report this as a bug in Holdfast, with the output of this command"
    command = f"HOLDFAST_DEBUG=1 {on_server('doctor', case.id)}"
    trace = trace_of(case.learned.probe) if case.learned.probe is not None else ""
    return finding("HF-UNEXPECTED", classify_evidence(seen).reason, text, command, detail=trace)
