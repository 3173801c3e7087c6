"""From evidence to a finding: one arm for each kind."""

from __future__ import annotations

from holdfast.core.classify import classify
from holdfast.core.evidence import (
    BadConfig,
    CommandUnusable,
    CredentialsUnavailable,
    Evidence,
    HttpStatus,
    NetworkFailure,
    NetworkFault,
    NotMcp,
    OverBound,
    PlainHttpRefused,
    ProcessExit,
    Redirected,
    RpcError,
    TimedOut,
    TlsFailure,
    TokenNotRenewed,
    Unexpected,
)
from holdfast.doctor.case import Case
from holdfast.doctor.diagnosis import answers, commands, exits, network, tls
from holdfast.doctor.findings import Finding, finding, shell
from holdfast.doctor.probe import trace_of
from holdfast.doctor.way import Way

__all__ = ["diagnose", "way_failed"]


async def diagnose(case: Case, seen: Evidence) -> Finding:  # noqa: PLR0912 - one arm for each kind of evidence
    """The finding for what a dial showed."""
    match seen:
        case HttpStatus():
            return await answers.status(case, seen)
        case NetworkFailure():
            return await _network(case, seen)
        case TlsFailure() if case.learned.way is not None:
            return await tls.unverified(case, case.learned.way, seen)
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
            return commands.unusable(case, seen)
        case ProcessExit():
            return await exits.ended(case, seen)
        case BadConfig():
            text = seen.hint or "correct the definition"
            return finding("HF-DEFINITION", "; ".join(seen.problems), text, "holdfast config show")
        case TokenNotRenewed():
            words = f"its token expired and could not be renewed just now: {seen.reason}; the login stands"
            text = "try again when the authorization server answers: nobody need log in anew"
            return finding("HF-LOGIN-UNREACHABLE", words, text, shell("holdfast", "doctor", case.id))
        case CredentialsUnavailable() | TlsFailure() | Unexpected():
            return _unexpected(case, seen)


def way_failed(case: Case, way: Way, seen: Evidence, *, after: float) -> Finding:
    """The finding for a connection that could not be made."""
    match seen:
        case NetworkFailure(fault=NetworkFault.REFUSED):
            return network.refused(case, way)
        case NetworkFailure(fault=NetworkFault.NAME_RESOLUTION):
            return network.no_address(case, way, exists=False)
        case TimedOut():
            return network.filtered(case, way, after)
        case _:
            return network.unreachable(case, way)


async def _network(case: Case, seen: NetworkFailure) -> Finding:
    if case.spec.transport == "stdio":
        return network.cut(case, seen)
    way = case.learned.way
    if way is not None and way.proxy and not seen.stood:
        return network.proxied(case, way, "it refused to connect", code="HF-PROXY-REFUSED")
    if seen.stood or way is None:
        return await answers.broken(case, seen)
    return way_failed(case, way, seen, after=0.0)


def _unexpected(case: Case, seen: Evidence) -> Finding:
    text = "please report this as a bug in Holdfast, with what this prints"
    command = f"HOLDFAST_DEBUG=1 {shell('holdfast', 'doctor', case.id)}"
    trace = trace_of(case.learned.probe) if case.learned.probe is not None else ""
    return finding("HF-UNEXPECTED", classify(seen).reason, text, command, detail=trace)
