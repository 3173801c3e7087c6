"""A real network for tests: hosts are network namespaces behind a switch, and packets between two of them can be lost.

A cut drops packets without a word and in one direction, as a firewall or a broken switch does: the sending host gets
the address of a network card that does not exist. Nothing but ``ip`` and root is needed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from types import TracebackType
from typing import Self

__all__ = ["Host", "Network", "missing"]

_NO_CARD = "02:00:00:00:00:fe"


def missing() -> str:
    """Why no network can be made here; empty if one can."""
    if os.name != "posix" or not hasattr(os, "geteuid") or os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "ip (iproute2) is not installed"
    probe = f"hf-probe-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, check=False)
    bridge = ["ip", "-n", probe, "link", "add", "switch", "type", "bridge"]
    works = made.returncode == 0 and subprocess.run(bridge, capture_output=True, check=False).returncode == 0
    subprocess.run(["ip", "netns", "del", probe], capture_output=True, check=False)
    return "" if works else "this machine does not allow network namespaces"


class Host:
    """One machine."""

    def __init__(self, namespace: str, address: str, port: str) -> None:
        self.address = address
        self.enter = ("ip", "netns", "exec", namespace)
        """Before a command, to run it on this host."""
        self.namespace = namespace
        self.port = port
        """Its place at the switch."""


class Network:
    """``with Network("a", "b") as network``: ``network["a"]`` is a host. This process reaches all of them."""

    def __init__(self, *names: str) -> None:
        number = os.getpid() % 65_536
        self._switch = f"hf{number}"
        self._subnet = f"198.{18 + number // 256 % 2}.{number % 256}"
        self._hosts = {
            name: Host(f"{self._switch}-{name}", f"{self._subnet}.{last}", f"v{last}")
            for last, name in enumerate(names, 1)
        }

    def __getitem__(self, name: str) -> Host:
        return self._hosts[name]

    def __enter__(self) -> Self:
        try:
            self._make()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._remove()

    def _make(self) -> None:
        switch = self._switch
        _ip("netns", "add", switch)
        _ip("-n", switch, "link", "add", "switch", "type", "bridge")
        _ip("-n", switch, "link", "set", "switch", "up")
        for host in self._hosts.values():
            space = host.namespace
            _ip("netns", "add", space)
            _ip("link", "add", host.port, "netns", switch, "type", "veth", "peer", "name", "eth0", "netns", space)
            _ip("-n", switch, "link", "set", host.port, "master", "switch", "up")
            _ip("-n", space, "link", "set", "lo", "up")
            _ip("-n", space, "addr", "add", f"{host.address}/24", "dev", "eth0")
            _ip("-n", space, "link", "set", "eth0", "up")
        _ip("link", "add", switch, "type", "veth", "peer", "name", "v0", "netns", switch)
        _ip("-n", switch, "link", "set", "v0", "master", "switch", "up")
        _ip("addr", "add", f"{self._subnet}.254/24", "dev", switch)
        _ip("link", "set", switch, "up")

    def _remove(self) -> None:
        for space in (*(host.namespace for host in self._hosts.values()), self._switch):
            subprocess.run(["ip", "netns", "del", space], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", self._switch], capture_output=True, check=False)

    def cut(self, sender: str, receiver: str) -> None:
        """Lose all packets of one direction."""
        _ip("-n", self[sender].namespace, "neigh", "replace", self[receiver].address, "lladdr", _NO_CARD,
            "nud", "permanent", "dev", "eth0")  # fmt: skip

    def part(self, one: str, other: str) -> None:
        """Lose all packets between two hosts."""
        self.cut(one, other)
        self.cut(other, one)

    def unplug(self, name: str) -> None:
        """Take a host off the network."""
        _ip("-n", self._switch, "link", "set", self[name].port, "down")

    def heal(self) -> None:
        """End all of this."""
        for host in self._hosts.values():
            _ip("-n", host.namespace, "neigh", "flush", "nud", "permanent", "dev", "eth0")
            _ip("-n", self._switch, "link", "set", host.port, "up")


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, (words, done.stderr)
