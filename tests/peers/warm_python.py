"""A Python that has imported the heavy modules already, and forks a real process for each program that a test starts.

Starting an interpreter and importing the MCP SDK takes more than a second of CPU; a fork takes a few milliseconds.
The test gets the same: its own child, with a pid, descriptors, folder, environment, session and exit code. Only
programs of this repository are started in this way, and only on Linux; every other process is started as usual.
``HOLDFAST_TEST_COLD=1`` in a child's environment, or ``cold_start()``, starts one of ours as usual too, and
``HOLDFAST_TEST_WARM=1`` forks for a script that is none of ours.

This file is both sides: imported, it patches ``subprocess.Popen``; run as a program, it is the process that forks.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import inspect
import io
import json
import os
import pkgutil
import platform
import runpy
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

__all__ = ["cold_start", "warm_python"]

_ALSO = (
    "anyio._backends._asyncio",
    "anyio.streams.stapled",
    "encodings.idna",
    "httpcore2",
    "mcp.server.mcpserver",
    "truststore",
    "uvicorn.lifespan.on",
    "uvicorn.protocols.http.h11_impl",
    "uvicorn.protocols.websockets.auto",
)
"""Modules that programs import late. One that does not exist is left out."""

_PROGRAM = Path(__file__)
_COMMAND = Path(sys.executable).with_name("holdfast")
_OURS = ("holdfast", "tests.", "benchmarks.")
_ENTRY = "from holdfast.cli.entry import main"
_TAKEN_ON = ("PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX")
"""Settings of the interpreter that a forked one takes on; with any other, it is started as usual."""
_CLONE_PARENT = 0x8000
_CLONE = {"x86_64": 56, "aarch64": 220}
"""The number of the system call."""
_LENGTH = struct.Struct("!I")
_ROOM = 16_384
"""Bytes of the environment that a child can show under ``/proc``, where the warden looks for its mark."""

_cold = False


@contextlib.contextmanager
def cold_start() -> Iterator[None]:
    """Start every process in the block as usual: its imports or its start are what is tested."""
    global _cold  # noqa: PLW0603 - one switch for the process
    before, _cold = _cold, True
    try:
        yield
    finally:
        _cold = before


@contextlib.contextmanager
def warm_python() -> Iterator[None]:
    """Fork the programs of this repository from a process that is warm, for as long as the block lasts."""
    if sys.platform != "linux" or platform.machine() not in _CLONE:
        yield
        return
    ours, theirs = socket.socketpair()
    original = subprocess.Popen._execute_child  # type: ignore[attr-defined]  # the one place where a process begins
    with subprocess.Popen(
        [sys.executable, str(_PROGRAM), str(theirs.fileno())],
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
        env={**os.environ, "HOLDFAST_TEST_ROOM": "x" * _ROOM},
    ) as process:
        theirs.close()
        subprocess.Popen._execute_child = _warm(original, ours)  # type: ignore[attr-defined]
        try:
            yield
        finally:
            subprocess.Popen._execute_child = original  # type: ignore[attr-defined]
            ours.close()
            process.kill()  # a short run ends before its imports are done: to wait for them takes longer than the tests


def _warm(original: Any, ours: socket.socket) -> Any:
    names = inspect.signature(original)
    lock = threading.Lock()

    def execute_child(self: Any, *given: Any) -> None:
        call = names.bind(self, *given).arguments
        arguments = [os.fsdecode(one) for one in _listed(call["args"])]
        if (program := _program(arguments, call)) is None:
            original(self, *given)
            return
        streams = [
            call[name] if call[name] != -1 else number
            for number, name in enumerate(("p2cread", "c2pwrite", "errwrite"))
        ]
        kept = [*map(int, call["pass_fds"])]
        asked = {
            "program": program,
            "arguments": arguments,
            "kept": kept,
            "folder": os.fsdecode(call["cwd"]) if call["cwd"] is not None else str(Path.cwd()),
            "environment": _texts(os.environ if call["env"] is None else call["env"]),
            "session": bool(call["start_new_session"]),
            "group": call.get("process_group", -1),
        }
        with lock:
            _send(ours, asked, [*streams, *kept])
            self.pid = _LENGTH.unpack(_exactly(ours, _LENGTH.size))[0]
        self._child_created = True
        self._close_pipe_fds(
            *(call[name] for name in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite"))
        )

    return execute_child


def _listed(arguments: Any) -> list[Any]:
    return [arguments] if isinstance(arguments, (str, bytes, os.PathLike)) else list(arguments)


def _texts(environment: Any) -> dict[str, str]:
    return {os.fsdecode(name): os.fsdecode(value) for name, value in environment.items()}


def _program(arguments: list[str], call: Any) -> list[str] | None:
    """What to run, or None if this is not one of our programs or needs an interpreter of its own."""
    environment = _texts(os.environ if call["env"] is None else call["env"])
    special = any(name.startswith("PYTHON") and name not in _TAKEN_ON for name in environment)
    if _cold or call["shell"] or call["preexec_fn"] is not None or special or "HOLDFAST_TEST_COLD" in environment:
        return None
    if arguments[0] == str(_COMMAND):
        return ["path", str(_COMMAND)]
    match arguments:
        case [sys.executable, "-m", str(module), *_] if module == "holdfast" or module.startswith(_OURS):
            return ["module", module]
        case [sys.executable, "-c", str(code), *_] if code.startswith(_ENTRY):
            return ["code", code]
        case [sys.executable, str(script), *_] if script.endswith(".py") and "HOLDFAST_TEST_WARM" in environment:
            return ["script", script]
    return None


def _send(to: socket.socket, asked: dict[str, Any], descriptors: list[int]) -> None:
    data = json.dumps(asked).encode()
    socket.send_fds(to, [_LENGTH.pack(len(data))], descriptors)
    to.sendall(data)


def _exactly(of: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        if not (part := of.recv(count - len(data))):
            raise RuntimeError("the process that forks is gone")
        data += part
    return data


# The process that forks


def _serve(of: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Fork for every request. Returns in a child only, with what it is to become."""
    while True:
        head, descriptors, _, _ = socket.recv_fds(of, _LENGTH.size, 64)
        if not head:
            os._exit(0)
        asked = json.loads(_exactly(of, _LENGTH.unpack(head)[0]))
        if (pid := _fork_for_our_parent()) == 0:
            of.close()
            return asked, list(descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        of.sendall(_LENGTH.pack(pid))


def _fork_for_our_parent() -> int:
    """Fork a child whose parent is the test run: it waits for its children itself."""
    system = ctypes.CDLL(None, use_errno=True)
    ctypes.pythonapi.PyOS_BeforeFork()
    pid = int(system.syscall(_CLONE[platform.machine()], _CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0))
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
    else:
        ctypes.pythonapi.PyOS_AfterFork_Parent()
    return pid


def _settle(asked: dict[str, Any], descriptors: list[int]) -> None:
    """Take on the descriptors, the folder and the environment."""
    if asked["session"]:
        os.setsid()
    elif (group := asked["group"]) is not None and group >= 0:
        os.setpgid(0, group)
    wanted = [0, 1, 2, *asked["kept"]]
    above = 1 + max(*wanted, *descriptors)
    moved = [_duplicate(descriptor, above) for descriptor in descriptors]
    for descriptor, target in zip(moved, wanted, strict=True):
        os.dup2(descriptor, target, inheritable=True)
    for entry in Path("/proc/self/fd").iterdir():
        if int(entry.name) not in wanted:
            with contextlib.suppress(OSError):
                os.close(int(entry.name))
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    _show(asked["environment"])
    time.tzset()
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    sys.stdin = sys.__stdin__ = _stream(0)  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = _stream(1)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _stream(2)  # type: ignore[misc]


def _duplicate(descriptor: int, above: int) -> int:
    import fcntl  # noqa: PLC0415 - the other side does not need it

    return fcntl.fcntl(descriptor, fcntl.F_DUPFD, above)


def _stream(number: int) -> io.TextIOWrapper:
    """As the interpreter makes it at its start."""
    at_once = number > 0 and bool(os.environ.get("PYTHONUNBUFFERED"))
    buffer: Any = open(  # noqa: SIM115 - it lives as long as we do
        number, "rb" if number == 0 else "wb", buffering=0 if at_once else -1, closefd=False
    )
    return io.TextIOWrapper(
        buffer,
        encoding="utf-8",
        errors="backslashreplace" if number == 2 else "strict",
        line_buffering=not at_once and (number == 2 or (number == 1 and buffer.isatty())),
        write_through=at_once,
    )


def _show(environment: dict[str, str]) -> None:
    """Write the environment where the system shows it to others: ``/proc/PID/environ``."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[47]), int(fields[48])
    data = b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in environment.items())[: end - start]
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, data, len(data))


def _become(asked: dict[str, Any]) -> None:
    """Run the program, in place of the rest of this one."""
    kind, name = asked["program"]
    arguments = asked["arguments"]
    given = os.environ.get("PYTHONPATH", "")
    rest = [path for path in (*given.split(os.pathsep), *sys.path[1:]) if path]
    sys.orig_argv = list(arguments)
    if kind == "path":
        sys.argv = list(arguments)
        sys.path[:] = [str(Path(name).parent), *rest]
        runpy.run_path(name, run_name="__main__")
    elif kind == "script":
        sys.argv = arguments[1:]
        sys.path[:] = [str(Path(name).absolute().parent), *rest]
        runpy.run_path(name, run_name="__main__")
    elif kind == "module":
        sys.argv = ["-m", *arguments[3:]]
        sys.path[:] = [str(Path.cwd()), *rest]
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    else:
        sys.argv = ["-c", *arguments[3:]]
        sys.path[:] = ["", *rest]
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(name, "<string>", "exec"), main.__dict__)


def _import_all() -> None:
    """Import every module of the package, and what the peers need: all that a program could import."""
    package = importlib.import_module("holdfast")
    ours = [found.name for found in pkgutil.walk_packages(package.__path__, "holdfast.", onerror=lambda _: None)]
    for name in (*ours, *_ALSO):
        if not name.endswith("__main__"):
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
    read = importlib.import_module("holdfast.wire.http.client").ssl_context
    read()  # the system's authorities, which it keeps: those that the environment names, and the usual ones
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        os.environ.pop(name, None)
    read()


def _end(code: object) -> NoReturn:
    """End as the interpreter does, but without taking apart all that was imported."""
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)  # noqa: T201 - as the interpreter does
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]  # waits for the threads that are no daemons
    atexit._run_exitfuncs()
    status = int(code or 0)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            status = 120 if stream is sys.stdout else status
    os._exit(status & 0xFF)


if __name__ == "__main__":
    sys.path[0] = str(_PROGRAM.parents[2])
    _import_all()
    gc.collect()
    gc.freeze()
    _asked, _descriptors = _serve(socket.socket(fileno=int(sys.argv[1])))
    _settle(_asked, _descriptors)
    try:
        _become(_asked)
    except SystemExit as ended:
        _end(ended.code)
    _end(0)
