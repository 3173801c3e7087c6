"""Findings for a failed connection: which step failed, and what to change."""

from __future__ import annotations

from holdfast.core.evidence import NetworkFailure, NetworkFault, TimedOut
from holdfast.core.hosts import is_loopback
from holdfast.doctor.case import Case
from holdfast.doctor.findings import Finding, finding, shell
from holdfast.doctor.here import LISTENERS, lookup, show_route
from holdfast.doctor.way import Route

__all__ = ["cut", "filtered", "no_address", "proxied", "refused", "silent", "unreachable"]


def no_address(case: Case, route: Route, *, exists: bool) -> Finding:
    """The name does not resolve; ``exists`` means that the name server did not answer, so the name may exist."""
    if route.proxy:
        return proxied(case, route, f"its host name {route.host} does not resolve")
    if exists:
        words = f"the host name {route.host} could not be looked up: the name server does not answer"
        return finding(
            "HF-DNS-SERVER",
            words,
            "check this machine's network and name server, then try again",
            "cat /etc/resolv.conf",
            shell("holdfast", "doctor", case.id),
        )
    inside = "" if "." in route.host else "; a name without a dot exists only inside its own network"
    return finding(
        "HF-DNS-NAME",
        f"there is no host named {route.host}{inside}",
        "correct the host in `url`, or connect to the network in which it exists; this command succeeds then",
        lookup(route.host),
    )


def refused(case: Case, route: Route) -> Finding:
    """The machine refused the connection."""
    if route.proxy:
        return proxied(case, route, "it refuses connections")
    where = "on this machine" if is_loopback(route.host) else f"on {route.host}"
    listing = LISTENERS if is_loopback(route.host) else shell("ssh", route.host, "ss", "-ltn")
    return finding(
        "HF-REFUSED",
        f"nothing listens at {route}: the connection was refused",
        f"start the server, or correct the port in `url`; this command lists the open ports {where}",
        listing,
    )


def filtered(case: Case, route: Route, after: float) -> Finding:
    """No reply came."""
    if route.proxy:
        return proxied(case, route, f"it did not answer within {after:g} s")
    return finding(
        "HF-FILTERED",
        f"{route} did not answer within {after:g} s: a firewall drops the packets, or the host is off",
        "connect the VPN, open the port, or correct the host in `url`; this command succeeds when the port is open",
        shell("nc", "-vz", "-w", "5", route.host, str(route.port)),
    )


def unreachable(case: Case, route: Route) -> Finding:
    """The network reported that there is no route."""
    if route.proxy:
        return proxied(case, route, "there is no route to it")
    return finding(
        "HF-UNREACHABLE",
        f"there is no route to {route}",
        "connect to the host's network or VPN; this command then shows the route",
        show_route((case.learned.addresses or (route.host,))[0]),
    )


def proxied(case: Case, route: Route, why: str, *, code: str = "HF-PROXY-DOWN") -> Finding:
    """The proxy failed."""
    return finding(
        code,
        f"requests to {case.host} go through the proxy {route.proxy} ({route.variable}), and {why}",
        f"correct {route.variable}, or connect to this host without a proxy",
        f'export NO_PROXY="${{NO_PROXY:+$NO_PROXY,}}{case.host}"',
    )


def cut(case: Case, seen: NetworkFailure) -> Finding:
    """An open connection broke."""
    how = "reset" if seen.fault is NetworkFault.RESET else "closed"
    text = "the server may have crashed on the request: look at its log, then try again"
    words = f"the connection was {how} before an answer came"
    return finding("HF-CUT", words, text, shell("holdfast", "doctor", case.id))


def silent(case: Case, seen: TimedOut) -> Finding:
    """No answer came in time."""
    longer = max(round(seen.after * 4), 60)
    return finding(
        "HF-SILENT",
        f"no answer within {seen.after:g} s (waiting for {seen.doing})",
        "allow more time; if that helps, set `attemptTimeout` to that time, otherwise look at the server's log",
        shell("holdfast", "doctor", case.id, "--timeout", str(longer)),
        edits=(case.setting("load.attemptTimeout", f"{longer}s"),),
    )
