"""Commands that show more, or mend something, as this system calls them."""

from __future__ import annotations

import sys

from holdfast.doctor.findings import shell

__all__ = ["LISTENERS", "SET_CLOCK", "lookup", "route"]

_MAC = sys.platform == "darwin"

LISTENERS = "lsof -nP -iTCP -sTCP:LISTEN" if _MAC else "ss -ltn"
"""Lists what listens on this machine."""

SET_CLOCK = "sudo sntp -sS time.apple.com" if _MAC else "sudo timedatectl set-ntp true"


def lookup(host: str) -> str:
    """Shows the addresses of a host."""
    return shell("dscacheutil", "-q", "host", "-a", "name", host) if _MAC else shell("getent", "hosts", host)


def route(address: str) -> str:
    """Shows the way to an address."""
    return shell("route", "-n", "get", address) if _MAC else shell("ip", "route", "get", address)
