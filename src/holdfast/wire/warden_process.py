"""The warden's process: a program that ends what its hub leaves behind. See ``warden.py``.

It is started by its path, in isolated mode, so it imports nothing but the standard library. That is why it is a file
of its own.
"""

import os
import signal
import sys
import time

POLITE_SECONDS = 1.0
"""How long a group may take to end after SIGTERM, before SIGKILL."""

LOOKS = 50
"""How often, at most, the marked processes are searched for: until a search finds none."""

PAUSE_SECONDS = 0.02


def main(mark: str, name: str) -> None:
    """Read ``+group`` and ``-group`` lines until the pipe ends, then end the groups that are left."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    with os.fdopen(0, "rb", closefd=False) as pipe:
        for line in pipe:
            if line[:1] in (b"+", b"-"):
                (groups.add if line[:1] == b"+" else groups.discard)(int(line[1:]))
    end(groups)
    end_marked(f"{mark}={name}".encode())


def end(groups: set[int]) -> None:
    """SIGTERM, a short wait, SIGKILL."""
    left = {group for group in groups if tell(group, signal.SIGTERM)}
    until = time.monotonic() + POLITE_SECONDS
    while left and time.monotonic() < until:
        time.sleep(PAUSE_SECONDS)
        left = {group for group in left if tell(group, 0)}
    for group in left:
        tell(group, signal.SIGKILL)


def tell(group: int, number: int) -> bool:
    """Signal a group; False if there is none, or it is no longer ours."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def end_marked(marked: bytes) -> None:
    """SIGKILL every process with our mark, and what it starts meanwhile, where the system shows environments."""
    if not os.path.isdir("/proc/self"):  # noqa: PTH112 - this program starts faster without pathlib
        return
    for _ in range(LOOKS):
        if not kill_marked(marked):
            return
        time.sleep(PAUSE_SECONDS)


def kill_marked(marked: bytes) -> bool:
    """One search through all processes; whether any had the mark."""
    found = False
    for entry in os.listdir("/proc"):  # noqa: PTH208 - as above
        if entry.isdigit() and int(entry) != os.getpid():
            try:
                with open(f"/proc/{entry}/environ", "rb") as environ:  # noqa: PTH123 - as above
                    if marked in environ.read().split(b"\0"):
                        found = True
                        os.kill(int(entry), signal.SIGKILL)
            except OSError:
                continue
    return found


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
