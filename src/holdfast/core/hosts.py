"""Which hosts are this machine: one rule for what is sent unencrypted and for what may listen without a token."""

from __future__ import annotations

import ipaddress

__all__ = ["is_loopback"]


def is_loopback(host: str) -> bool:
    """Whether a host name or address is this machine and cannot be another one.

    True for ``127.0.0.0/8``, ``::1``, IPv4-mapped forms of these, and the name ``localhost``. False for every other
    name, ``app.localhost`` too: a resolver may ask the network for it, and the answer may be another machine.
    """
    name = host.removesuffix(".").lower()
    if name == "localhost":
        return True
    try:
        address = ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback
