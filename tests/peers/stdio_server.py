"""An MCP server over stdio that a test runs as a real child process, with every fault behind a flag.

Run it through ``tests.peers.stdio.StdioPeer``. It needs the standard library alone and starts in
a moment. Neither it nor its grandchild lives longer than two minutes, also after a failed test.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))  # noqa: PTH100, PTH120 - pathlib doubles the starting time

from tests.peers.rpc import BUILT_IN, Mind, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from tests.peers.rpc import Message

_LIFETIME = 120
_FLOOD = 4 * 1024 * 1024


def main() -> None:
    """Serve until stdin ends, or fail as the flags say."""
    flags = _flags()
    signal.alarm(_LIFETIME)
    if flags.ignore_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    log = _Log(flags.log)
    log.write(f"start {os.getpid()}")
    if flags.grandchild or flags.grandchild_daemon:
        log.write(f"grandchild {_leave_grandchild(leave_group=flags.grandchild_daemon)}")
    _make_noise(flags)
    if flags.exit_at_once is not None:
        sys.exit(flags.exit_at_once)
    time.sleep(flags.read_after)
    _Server(flags, log).run()
    log.write("eof")
    if flags.ignore_stdin_close:
        _sleep_for_ever()


class _Server:
    """Reads lines, answers them, and has the manners that the flags ask for."""

    def __init__(self, flags: argparse.Namespace, log: _Log) -> None:
        self._flags = flags
        self._log = log
        self._slow: list[Message] = []
        self._listening = flags.era != "modern"
        self._mind = Mind(
            era=flags.era,
            tools=flags.tools,
            extra_tools=(
                *(("env",) if flags.print_env else ()),
                *(("grow",) if flags.grow else ()),
                *(("step", "release") if flags.steps else ()),
            ),
            hints={name: {"readOnlyHint": True} for name in BUILT_IN} if flags.read_only else None,
            page_size=flags.page_size,
            instructions=flags.instructions,
            list_fault=flags.list_fault,
            handshake_fault=flags.handshake_fault,
            oversized=flags.oversized,
        )

    def run(self) -> None:
        """Answer every line until there is no more."""
        flags_stall, is_modern = self._flags.stall_after_probe, self._flags.era == "modern"
        for line in sys.stdin.buffer:
            message = json.loads(line)
            method = message.get("method", "response")
            self._log.write(f"message {method}")
            if flags_stall and method != "server/discover":
                continue
            if not self._is_ignored(method):
                self._die_if_told(method, before=True)
                self._answer(message)
                self._die_if_told(method, before=False)
            if self._flags.stop_reading and method == "tools/list":
                _sleep_for_ever()
            if self._flags.close_stdin and method == ("subscriptions/listen" if is_modern else "tools/list"):
                os.close(0)
                _sleep_for_ever()
            if self._flags.flood and method == "tools/list":
                _flood()

    def _is_ignored(self, method: str) -> bool:
        flags = self._flags
        return flags.never_answer or flags.garbage or (flags.ignore_discover and method == "server/discover")

    def _die_if_told(self, method: str, *, before: bool) -> None:
        flags = self._flags
        last = "server/discover" if flags.era == "modern" else "notifications/initialized"
        if before and flags.die_on_discover and method == "server/discover":
            sys.exit(1)
        if before and flags.die_in_call and method == "tools/call":
            sys.exit(9)
        if before and flags.die_in_first_call and method == "tools/call" and self._log.count("start") == 1:
            sys.exit(9)
        if not before and flags.die_after_handshake and method == last:
            sys.exit(1)
        if not before and flags.die_after_list and method == "tools/list":
            sys.exit(1)

    def _answer(self, message: Message) -> None:
        if message.get("method") == "subscriptions/listen" and self._flags.era == "modern":
            self._listen(message)
            return
        answer = self._mind.answer(message)
        if answer is not None:
            _send(self._own_answer(message) or answer)
        elif message.get("method") == "tools/call":
            self._take_time(message)
        elif message.get("method") == "notifications/cancelled":
            gone = message["params"]["requestId"]
            self._slow = [call for call in self._slow if call["id"] != gone]

    def _listen(self, message: Message) -> None:
        """A subscription stays open, and is answered when it ends: never."""
        self._listening = True
        params = {"notifications": message["params"]["notifications"]}
        _send({"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged", "params": params})

    def _grow(self) -> None:
        """Offer one tool more, and say so as often as the flag asks."""
        self._mind.names.append(f"grown_{len(self._mind.names)}")
        for _ in range(self._flags.grow if self._listening else 0):
            _send({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})

    def _own_answer(self, message: Message) -> Message | None:
        """The answers that only a process can give: its environment, and slow calls that step or go."""
        tool = message["params"].get("name") if message["method"] == "tools/call" else None
        if tool == "env" and self._flags.print_env:
            return self._mind.text_result(message, json.dumps(dict(os.environ)))
        if tool == "grow":
            self._grow()
            return self._mind.text_result(message, self._mind.names[-1])
        if tool == "step":
            for call in self._slow:
                for notice in self._mind.step(call, len(self._slow)):
                    _send(notice)
            return self._mind.text_result(message, "stepped")
        if tool == "release":
            while self._slow:
                _send(self._mind.called(self._slow.pop(0)))
            return self._mind.text_result(message, "released")
        return None

    def _take_time(self, message: Message) -> None:
        if message["params"]["name"] == "slow":
            self._slow.append(message)
            return
        for notice in [*self._mind.progress(message), self._mind.called(message)]:
            _send(notice)


class _Log:
    """A file of lines that tells a test what this process itself saw."""

    def __init__(self, path: str | None) -> None:
        self._path = path

    def write(self, line: str) -> None:
        """Add a line; several processes may share the file, so each line is one write."""
        if self._path is None:
            return
        target = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(target, f"{line}\n".encode())
        os.close(target)

    def count(self, kind: str) -> int:
        """How many lines of that kind there are, over all processes."""
        if self._path is None:
            return 0
        with open(self._path, encoding="utf-8") as log:  # noqa: PTH123 - pathlib doubles the starting time
            return sum(line.startswith(f"{kind} ") for line in log)


def _flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--mark", help="ignored; makes the process recognisable from outside")
    parser.add_argument("--log", help="append a line for each start, grandchild and message")
    parser.add_argument("--era", choices=("legacy", "modern", "both"), default="legacy")
    parser.add_argument("--tools", type=int, default=5)
    parser.add_argument("--page-size", type=int)
    parser.add_argument("--instructions")
    parser.add_argument("--list-fault", choices=("error", "misfit", "repeating_cursor", "endless_cursors"))
    parser.add_argument("--handshake-fault", choices=("error", "misfit", "version"))
    parser.add_argument("--oversized", type=int, default=0, help="pad each tool's description by N bytes")
    parser.add_argument("--exit-at-once", type=int, help="exit with this code before reading anything")
    parser.add_argument("--read-after", type=float, default=0.0, help="read nothing for so many seconds")
    parser.add_argument("--stderr", help="write this line there at the start")
    parser.add_argument("--grow", type=int, default=0, help="have a tool `grow` that adds one, and say so N times")
    for name, meaning in _SWITCHES.items():
        parser.add_argument(f"--{name}", action="store_true", help=meaning)
    return parser.parse_args()


_SWITCHES = {
    "garbage": "write lines that are no protocol, and never answer",
    "garbage-flood": "write such lines without end",
    "banner": "write a few friendly lines on stdout first, then work",
    "bad-utf8": "write a line that is not UTF-8 on stdout first, then work",
    "flood-stderr": "write 4 MiB to stderr first, then work",
    "never-answer": "read everything and stay silent",
    "ignore-discover": "stay silent on server/discover alone",
    "stall-after-probe": "answer server/discover, and nothing after it",
    "die-on-discover": "exit 1 on server/discover",
    "die-after-handshake": "exit 1 once the handshake is over",
    "die-after-list": "exit 1 once the tools were listed",
    "die-in-first-call": "the same, but only in the first process that writes to the log",
    "read-only": "declare every tool read-only",
    "flood": "write to stderr, and notices to stdout, without end, once the tools were listed",
    "die-in-call": "exit 9 in the middle of a tool call",
    "stop-reading": "read no more of stdin once the tools were listed",
    "close-stdin": "close stdin once the tools were listed, in the modern era with a subscription open, and live on",
    "ignore-stdin-close": "live on when stdin ends",
    "ignore-term": "do not die of SIGTERM",
    "grandchild": "leave a process that holds stdout and stderr and ignores SIGTERM",
    "grandchild-daemon": "the same, in a session of its own",
    "steps": "list the tools `step` and `release`, which tell of progress in slow calls, and end them",
    "print-env": "have a tool `env` that returns the environment",
}


def _leave_grandchild(*, leave_group: bool) -> int:
    pid = os.fork()
    if pid == 0:
        _live_on(leave_group=leave_group)
    return pid


def _live_on(*, leave_group: bool) -> NoReturn:
    signal.alarm(_LIFETIME)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.close(0)
    if leave_group:
        os.setsid()
    _sleep_for_ever()


def _make_noise(flags: argparse.Namespace) -> None:
    """Everything that is written before the first message is read."""
    if flags.stderr is not None:
        sys.stderr.write(f"{flags.stderr}\n")
        sys.stderr.flush()
    if flags.flood_stderr:
        sys.stderr.buffer.write((b"x" * 1023 + b"\n") * (_FLOOD // 1024))
        sys.stderr.buffer.flush()
    if flags.banner:
        _write(b"Welcome to the peer!\nlistening on stdio\n\n")
    if flags.bad_utf8:
        _write(b"caf\xe9 \xff\xfe\n")
    if flags.garbage:
        _write(b"Traceback (most recent call last):\n  this is no protocol\n")
    while flags.garbage_flood:
        _write(b"this is no protocol either\n" * 1000)


def _flood() -> NoReturn:
    notice = encode({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x"}})
    while True:
        os.write(2, b"x" * 1023 + b"\n")
        _write((notice + b"\n") * 10)


def _send(message: Message) -> None:
    _write(encode(message) + b"\n")


def _write(data: bytes) -> None:
    try:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        os._exit(0)


def _sleep_for_ever() -> NoReturn:
    while True:
        time.sleep(_LIFETIME)


if __name__ == "__main__":
    main()
