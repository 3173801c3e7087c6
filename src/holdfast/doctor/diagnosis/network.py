"""The way to a server failed: which part of it, and what would open it."""

from __future__ import annotations

from holdfast.core.evidence import NetworkFailure, NetworkFault, TimedOut
from holdfast.core.hosts import is_loopback
from holdfast.doctor.case import Case
from holdfast.doctor.findings import Finding, finding, shell
from holdfast.doctor.here import LISTENERS, lookup, route
from holdfast.doctor.way import Way

__all__ = ["cut", "filtered", "no_address", "proxied", "refused", "silent", "unreachable"]


def no_address(case: Case, way: Way, *, exists: bool) -> Finding:
    """The name does not resolve; ``exists`` says that the name server did not get to say so."""
    if way.proxy:
        return proxied(case, way, f"its host name {way.host} does not resolve")
    if exists:
        words = f"the host name {way.host} could not be looked up: the name server does not answer"
        return finding(
            "HF-DNS-SERVER",
            words,
            "look at this machine's network and name server, then try again",
            "cat /etc/resolv.conf",
            shell("holdfast", "doctor", case.id),
        )
    inside = "" if "." in way.host else "; a name without a dot is known only inside its own network"
    return finding(
        "HF-DNS-NAME",
        f"there is no host named {way.host}{inside}",
        "correct the host in `url`, or connect to the network that knows it; this shows when it is known",
        lookup(way.host),
    )


def refused(case: Case, way: Way) -> Finding:
    """The machine said no."""
    if way.proxy:
        return proxied(case, way, "it refuses connections")
    where = "on this machine" if is_loopback(way.host) else f"on {way.host}"
    listing = LISTENERS if is_loopback(way.host) else shell("ssh", way.host, "ss", "-ltn")
    return finding(
        "HF-REFUSED",
        f"nothing listens at {way}: the connection was refused",
        f"start the server, or correct the port in `url`; this lists what listens {where}",
        listing,
    )


def filtered(case: Case, way: Way, after: float) -> Finding:
    """Nobody said anything."""
    if way.proxy:
        return proxied(case, way, f"it did not answer within {after:g} s")
    return finding(
        "HF-FILTERED",
        f"{way} did not answer within {after:g} s, neither yes nor no: a firewall drops it, or the host is off",
        "connect the VPN, open the port, or correct the host in `url`; this succeeds when the way is open",
        shell("nc", "-vz", "-w", "5", way.host, str(way.port)),
    )


def unreachable(case: Case, way: Way) -> Finding:
    """The network said that there is no way."""
    if way.proxy:
        return proxied(case, way, "there is no route to it")
    return finding(
        "HF-UNREACHABLE",
        f"there is no route to {way}",
        "connect to the network, or the VPN, that the host is in; this shows a route when there is one",
        route((case.learned.addresses or (way.host,))[0]),
    )


def proxied(case: Case, way: Way, why: str, *, code: str = "HF-PROXY-DOWN") -> Finding:
    """The proxy is what failed."""
    return finding(
        code,
        f"requests to {case.host} go by the proxy {way.proxy} ({way.variable}), and {why}",
        f"correct {way.variable}, or let this host be reached without a proxy",
        f'export NO_PROXY="${{NO_PROXY:+$NO_PROXY,}}{case.host}"',
    )


def cut(case: Case, seen: NetworkFailure) -> Finding:
    """A connection stood, and broke."""
    how = "reset" if seen.fault is NetworkFault.RESET else "closed"
    text = "the server may have crashed on the request: look at its log, then try again"
    words = f"the connection was {how} before an answer came"
    return finding("HF-CUT", words, text, shell("holdfast", "doctor", case.id))


def silent(case: Case, seen: TimedOut) -> Finding:
    """Nothing came in time."""
    longer = max(round(seen.after * 4), 60)
    return finding(
        "HF-SILENT",
        f"no answer within {seen.after:g} s (waiting for {seen.doing})",
        "give it longer; if that helps, set `attemptTimeout` to as long, else look at the server's log",
        shell("holdfast", "doctor", case.id, "--timeout", str(longer)),
        edits=(case.setting("load.attemptTimeout", f"{longer}s"),),
    )
