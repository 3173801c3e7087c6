"""Ports of this machine, for what is started later on one of them."""

from __future__ import annotations

import random
import socket
from pathlib import Path

__all__ = ["free_port"]

LOWEST, MOST_TRIES = 12_000, 200
_OWN = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_port() -> int:
    """A port that is free at this moment, and that the system gives to no connection and no listener meanwhile."""
    chance = random.SystemRandom()
    highest = int(_OWN.read_text().split()[0]) if _OWN.exists() else 0
    for _ in range(MOST_TRIES if highest > LOWEST + 1_000 else 0):
        port = chance.randrange(LOWEST, highest)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
