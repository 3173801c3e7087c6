"""The warden's process: a program that ends what its hub leaves behind. See ``warden.py``.

It is started by its path, in isolated mode, so it imports nothing but the standard library. That is why it is a file
of its own.
"""

import os
import select
import signal
import sys
import time

POLITE_SECONDS = 1.0
"""How long a group may take to end after SIGTERM, before SIGKILL."""

LOOKS = 50
"""How often, at most, the marked processes are searched for: until a search finds none."""

PAUSE_SECONDS = 0.02

LOOK_SECONDS = 1.0
"""Between two looks at the clock while a group has a time to end: a wait does not count a suspension."""


def main(mark: str, name: str) -> None:
    """Read ``+group`` and ``-group`` lines until the pipe ends, then end the groups that are left.

    A line ``=group seconds`` ends a group after that time, unless another one comes for it.
    """
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    until: dict[int, float] = {}
    with os.fdopen(0, "rb", buffering=0, closefd=False) as pipe:
        rest = b""
        while True:
            wait = min(LOOK_SECONDS, max(0.0, min(until.values()) - now())) if until else None
            if not select.select([pipe], [], [], wait)[0]:
                end_overdue(until)
                continue
            chunk = pipe.read(4096)
            if not chunk:
                break
            *lines, rest = (rest + chunk).split(b"\n")
            for line in filter(None, lines):
                take(line, groups, until)
    end(groups)
    end_marked(f"{mark}={name}".encode())


def take(line: bytes, groups: set[int], until: dict[int, float]) -> None:
    """One line of the hub."""
    group, _, seconds = line[1:].partition(b" ")
    if line[:1] == b"=":
        if int(group) in groups:
            until[int(group)] = now() + float(seconds)
        return
    until.pop(int(group), None)
    (groups.add if line[:1] == b"+" else groups.discard)(int(group))


def now() -> float:
    """A clock that goes on while the machine is suspended, where there is one."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def end_overdue(until: dict[int, float]) -> None:
    """SIGKILL the groups whose time is over: another hub may start the same server now."""
    for group in [group for group, at in until.items() if at <= now()]:
        del until[group]
        tell(group, signal.SIGKILL)


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
