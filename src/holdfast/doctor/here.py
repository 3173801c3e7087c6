"""Commands that differ between operating systems."""

from __future__ import annotations

import sys

from holdfast.doctor.findings import shell

__all__ = ["LISTENERS", "SET_CLOCK", "lookup", "show_route"]

_MAC = sys.platform == "darwin"

LISTENERS = "lsof -nP -iTCP -sTCP:LISTEN" if _MAC else "ss -ltn"
"""Lists the ports that are open on this machine."""

SET_CLOCK = "sudo sntp -sS time.apple.com" if _MAC else "sudo timedatectl set-ntp true"


def lookup(host: str) -> str:
    """The command that shows the addresses of a host."""
    return shell("dscacheutil", "-q", "host", "-a", "name", host) if _MAC else shell("getent", "hosts", host)


def show_route(address: str) -> str:
    """The command that shows the route to an address."""
    return shell("route", "-n", "get", address) if _MAC else shell("ip", "route", "get", address)
