"""Where the clients of one user find the hub that they share: a socket, and the lock of the hub that owns it.

Theory of operation. One key names one hub: the configuration file, the state folder, and the options that only a hub of
its own can honour. All programs of a user that mean the same hub derive the same key. Three files belong to it:

- ``KEY.sock``: the hub listens there. It binds a name of its own and renames that: the name changes its hub in one
  step, without a moment in which no hub is there.
- ``KEY.lock``: the hub holds it for its life. The program that starts a hub takes the lock and passes its descriptor
  on, so there is no gap: of ten programs that start in one moment, one gets the lock, and the others wait for the
  socket. The kernel frees it when the hub ends, however that happens.
- ``KEY.next``: the same lock for a hub that takes over from the one that runs. It keeps this one until it has the
  other: between the end of the first hub and that moment ``KEY.lock`` is free, and still no third hub may start.

What must never happen: that another user is at either end. The folder is private, and both ends ask the kernel who the
other one is. This module imports next to nothing: each joined client uses it (PERF-10).
"""

from __future__ import annotations

import fcntl
import os
import socket
import stat
import struct
import sys
from contextlib import suppress

try:
    from _blake2 import blake2b  # `hashlib` loads OpenSSL first, a sixth of the start of a client
except ImportError:  # another Python
    from hashlib import blake2b

from holdfast.config import state_folder_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["JoinAddress", "JoinRefused", "is_locked", "peer_of", "try_lock"]

LONGEST_PATH = 100
"""Bytes. The system allows 104 to 108 for the path of a Unix socket. A new one has a longer name for a moment."""

KEY_CHARACTERS = 16

LARGEST_LOG = 4 * 1024 * 1024
"""Bytes; a larger log is set aside when the next hub starts."""


class JoinRefused(Exception):
    """There is no place for the socket, or what is there is not ours."""


class JoinAddress:
    """The files of one shared hub."""

    __slots__ = ("_state", "folder", "key")

    def __init__(self, folder: str, key: str, state: str) -> None:
        self.folder = folder
        self.key = key
        self._state = state

    @classmethod
    def of(cls, config: str, options: Sequence[str], environ: Mapping[str, str]) -> JoinAddress:
        """The address of the hub that serves this file with these options; raises ``JoinRefused``."""
        state = state_folder_name(environ)
        named = "\0".join((os.path.realpath(config), os.path.abspath(state), *options))  # noqa: PTH100 - a text
        key = blake2b(os.fsencode(named), digest_size=KEY_CHARACTERS // 2).hexdigest()
        return cls(_runtime_folder(environ), key, state)

    def with_key(self, key: str) -> JoinAddress:
        """The address of a hub that was started for this key."""
        return JoinAddress(self.folder, key, self._state)

    @property
    def log(self) -> str:
        """What the hub logs, if it was started in the background."""
        return os.path.join(self._state, "log", f"hub-{self.key}.log")  # noqa: PTH118 - a text

    @property
    def path(self) -> str:
        """The socket at which the hub listens."""
        return f"{self.folder}/{self.key}.sock"

    @property
    def lock(self) -> str:
        """What the hub holds for its life."""
        return f"{self.folder}/{self.key}.lock"

    @property
    def next_lock(self) -> str:
        """What a hub holds while it takes over from another one."""
        return f"{self.folder}/{self.key}.next"

    def connect(self, within: float) -> socket.socket | None:
        """A connection to the hub, whose user was checked; None if no hub listens. Raises ``JoinRefused``."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(within)
        try:
            connection.connect(self.path)
        except OSError:
            connection.close()
            return None
        peer = peer_of(connection)
        if peer is None or peer.uid != os.geteuid():
            connection.close()
            raise JoinRefused(f"the hub at {self.path} runs as another user")
        return connection

    def listen(self) -> socket.socket:
        """Take the name for this process; raises ``OSError``. A hub that had it keeps the connections that it has."""
        own = f"{self.path}.{os.getpid() % 1000}"
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with suppress(FileNotFoundError):
                os.unlink(own)  # noqa: PTH108 - a text
            listener.bind(own)
            os.chmod(own, 0o600)  # noqa: PTH101 - a text
            listener.listen(128)
            os.rename(own, self.path)  # noqa: PTH104 - a text
        except OSError:
            listener.close()
            raise
        return listener

    def open_log(self) -> int:
        """The log of a hub in the background, for its stderr."""
        folder = os.path.dirname(self.log)  # noqa: PTH120 - a text
        for private in (os.path.dirname(folder), folder):  # noqa: PTH120 - a text
            os.makedirs(private, mode=0o700, exist_ok=True)  # noqa: PTH103 - a text
        with suppress(OSError):
            if os.stat(self.log).st_size > LARGEST_LOG:  # noqa: PTH116 - a text
                os.replace(self.log, f"{self.log}.1")  # noqa: PTH105 - a text
        return os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def __repr__(self) -> str:
        return f"<JoinAddress {self.path}>"


def _runtime_folder(environ: Mapping[str, str]) -> str:
    """A private folder with a short path. A program that was started without the variable finds the same one."""
    uid = os.geteuid()
    usual = environ.get("XDG_RUNTIME_DIR", "") or f"/run/user/{uid}"
    refused = ""
    for parent, folder in ((usual, f"{usual}/holdfast"), ("/tmp", f"/tmp/holdfast-{uid}")):  # noqa: S108 - checked
        if not parent.startswith("/") or len(os.fsencode(folder)) + KEY_CHARACTERS + len("/.sock.123") > LONGEST_PATH:
            continue
        try:
            if parent == usual and os.stat(parent).st_uid != uid:  # noqa: PTH116 - a text
                continue
            os.makedirs(folder, mode=0o700, exist_ok=True)  # noqa: PTH103 - a text
            found = os.lstat(folder)
        except OSError as exc:
            refused = refused or f"{folder}: {exc.strerror}"
            continue
        if stat.S_ISDIR(found.st_mode) and found.st_uid == uid and not found.st_mode & 0o077:
            return folder
        refused = f"{folder} is not a folder that is private to you"
    raise JoinRefused(f"there is no private folder for the hub's socket ({refused})")


def try_lock(path: str) -> int | None:
    """The descriptor that holds a lock; None if another process has it. Raises ``OSError``."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def is_locked(path: str) -> bool:
    """Whether a process has a lock now. Raises ``OSError``."""
    lock = try_lock(path)
    if lock is not None:
        os.close(lock)
    return lock is None


class SocketPeer:
    """The process at the other end of a Unix socket."""

    __slots__ = ("pid", "uid")

    def __init__(self, pid: int, uid: int) -> None:
        self.pid = pid
        self.uid = uid

    def __repr__(self) -> str:
        return f"<SocketPeer pid={self.pid} uid={self.uid}>"


def peer_of(connection: socket.socket) -> SocketPeer | None:
    """Who is connected; None if the system does not say. macOS does not say the process id: it is 0."""
    try:
        if sys.platform == "darwin":
            local_peercred = 1
            return SocketPeer(0, int(struct.unpack_from("=II", connection.getsockopt(0, local_peercred, 128))[1]))
        found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        pid, uid, _ = struct.unpack("3i", found)
        return SocketPeer(pid, uid)
    except (OSError, struct.error):
        return None
