"""The process that a client starts by ``serve --stdio``: it passes lines between the client and the hub of its user.

Theory of operation. The hub does the work; this process is as small as Python can be, because every client has one
(PERF-10). It uses the standard library alone, without asyncio, and one loop over three descriptors: stdin, stdout and
the socket of the hub. It begins with a hello (``front.stdio`` has the other end) and then passes lines as they are.

What can happen, and what is done:

- No hub runs: this process starts one in the background (``join_address`` says how ten of them start one). The hub is
  no child of it: a client that ends its children must not end the hub of all others.
- The hub ends or is killed. The client must not notice. So the id and the method of each line are read, and what the
  next hub has to know is kept: the handshake, the log level, the subscriptions, and each request without an answer. The
  next hub gets them marked as sent before, and decides which of them may be sent to a server again (LIFE-16). Lines
  that the old hub did not get are sent as usual.
- The hub says that it leaves. Then it finishes what it has, new lines wait for the next hub, and nothing is repeated.
  Without a request that waits, no hub is started: its user may have stopped it on purpose.
- The hub is older than this program, and runs in the background: it is replaced.
- No hub can be started: stderr says why, and so does the answer to each request.
- The client does not read: this process stops reading from the hub, whose own bounds then count (HUB-17). The hub does
  not read: this process stops reading from the client.

What must never happen: that a request is left without an answer, that one is sent twice without the mark, or that a
line of one hub is continued by the next. All that is kept has a bound.
"""

from __future__ import annotations

import json
import os
import select
import socket
import sys
import time
from collections import deque

from holdfast._version import __version__
from holdfast.config import user_folder_names
from holdfast.front import LineHead, Lines, heads_of
from holdfast.serve.isolation import hidden_environment, isolate
from holdfast.serve.join_address import JoinAddress, JoinRefused, is_locked, try_lock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

__all__ = ["BACKGROUND_VARIABLE", "CHILD_VARIABLE", "Conversation", "JoinOptions", "join_hub", "runs_in_background"]

BACKGROUND_VARIABLE = "HOLDFAST_BACKGROUND"
"""Set for a hub that runs in the background: the descriptor of its lock, and the key of its address."""


def runs_in_background(environ: Mapping[str, str]) -> bool:
    """Whether a client started this hub, for all clients of its user."""
    return BACKGROUND_VARIABLE in environ


CHILD_VARIABLE = "HOLDFAST_CHILD"
"""Set for the servers of a hub, and for what they start."""

PROTOCOL = 1

START_SECONDS = 60.0
"""How long a hub may take from its start to its hello. A busy machine takes ten times as long as an idle one."""

HELLO_SECONDS = 10.0
"""How long a hub that listens may take to answer the hello."""

GRACE_SECONDS = 2.0
"""How long a request waits for the next hub after one that left, before this process starts one: a service restarts."""

QUIET_SECONDS = 2.0
"""How often a process without a hub, whose client is silent, looks for one."""

RETRY_SECONDS = 5.0
"""After a hub could not be started, requests are refused for so long before it is tried again."""

FIRST_REQUEST_SECONDS = 30.0
"""How long a process that cannot serve waits for a request, to answer it."""

MOST_KEPT, KEPT_BYTES = 1_000, 8 * 1024 * 1024
"""How many requests without an answer are kept for the next hub, and how much of them."""

QUEUED_BYTES = 4 * 1024 * 1024
"""How much may wait for the hub or for the client before this process stops reading from the other one."""

LONGEST_LINE = 64 * 1024 * 1024
"""Bytes of a line of the client. The hub has a limit of its own, which is lower as a rule."""

CHUNK = 64 * 1024
SAFE_WRITE = 4096
"""Bytes: a pipe that can be written to takes as many without a wait (POSIX)."""

INTERNAL_ERROR = -32603


class ClientLeft(Exception):
    """The client closed its end."""


class JoinFailed(Exception):
    """There is no hub, and none could be started."""


class JoinOptions:
    """What was asked for on the command line."""

    def __init__(
        self, config: str, view: dict[str, str], starts_with: tuple[str, ...], others: tuple[str, ...]
    ) -> None:
        self.config = config
        """The file that the hub serves."""
        self.view = view
        """What counts for this client alone: its tools, its profile, its folder."""
        self.starts_with = starts_with
        """Options of a hub that this process starts. One that runs may have others."""
        self.others = others
        """Options that only a hub of its own can honour."""

    @classmethod
    def read(cls, arguments: Sequence[str], environ: Mapping[str, str]) -> JoinOptions | None:
        """The options of ``serve``; None if they do not ask to join. What is wrong in them is not found here."""
        words = deque(arguments)
        values: dict[str, str] = {}
        starts_with: list[str] = []
        others: list[str] = []
        joins = False
        while words:
            word = words.popleft()
            name, given, value = word.partition("=")
            if word == "--stdio":
                joins = True
            elif word in ("--own", "--demo", "--help", "-h"):
                return None
            elif name in ("--config", "--tools", "--profile", "--folder"):
                if not given and not words:
                    return None
                values[name[2:]] = value if given else words.popleft()
            elif name in ("--log-level", "--log-format"):
                if not given and not words:
                    return None
                starts_with += [word] if given else [word, words.popleft()]
            else:
                others.append(word)
        # A server of a hub that runs `serve --stdio` gets a hub of its own. Joined, the hub would be its own server.
        if not joins or CHILD_VARIABLE in environ:
            return None
        config = values.pop("config", "") or environ.get("HOLDFAST_CONFIG", "")
        return cls(os.path.abspath(config) if config else _own_config(environ), values, (*starts_with,), (*others,))  # noqa: PTH100 - a text

    @property
    def is_plain(self) -> bool:
        """Whether these options need no further check."""
        return not self.others and not self.starts_with and self.view.get("tools", "all") in ("all", "find")


def _own_config(environ: Mapping[str, str]) -> str:
    """The user's own file. A project's file is never the base of a hub that is shared."""
    files = [os.path.join(folder, "mcp.json") for folder in user_folder_names(environ)]  # noqa: PTH118 - a text
    return next((file for file in files if os.path.isfile(file)), files[0])  # noqa: PTH113 - a text


# What the next hub has to know.


class KeptRequest:
    """A request without an answer."""

    __slots__ = ("line", "method", "sent")

    def __init__(self, line: bytes | None, method: str) -> None:
        self.line = line
        """None if there was no room for it."""
        self.method = method
        self.sent = False
        """Whether a hub got it."""


class Conversation:
    """What the client and the hub said to each other, as far as it must outlive the hub. It does no I/O."""

    def __init__(self) -> None:
        self.handshake: bytes | None = None
        """The client's ``initialize``, once it was answered."""
        self.level = ""
        self.subscribed: dict[str, None] = {}
        self.listed: dict[str, None] = {}
        """The lists that the client was given."""
        self.unanswered: dict[str | int, KeptRequest] = {}
        self.asked: set[str | int] = set()
        """The requests of the hub that the client has not answered."""
        self.last_question = 0
        self._kept_bytes = 0

    def from_client(self, line: bytes) -> list[str | int]:
        """Note a line of the client; the ids of the requests in it."""
        heads = heads_of(line)
        requests = [head for head in heads if head.id is not None and head.method is not None]
        for head in requests:
            # A batch is not kept: when the hub ends, some of it may be answered, and it cannot be sent in parts.
            self._keep(head, line if len(heads) == 1 else None)
        for head in heads:
            if head.method == "notifications/cancelled":
                self._settle(_params(line).get("requestId"))
            elif head.method is None and head.id is not None:
                self.asked.discard(head.id)
        return [head.id for head in requests if head.id is not None]

    def from_hub(self, line: bytes) -> None:
        """Note a line of the hub."""
        for head in heads_of(line):
            if head.id is None:
                continue
            if head.method is not None:
                self.asked.add(head.id)
                if isinstance(head.id, int):
                    # The next hub counts on from here: an answer to an old question must not fit a new one.
                    self.last_question = max(self.last_question, head.id)
            elif (request := self._settle(head.id)) is not None and not head.failed:
                self._answered(request)

    def lost(self) -> Iterator[bytes]:
        """The hub is gone: what the client is told at once. It need not answer the questions of that hub."""
        for question in self.asked:
            params = {"requestId": question, "reason": "the hub was restarted"}
            yield _line({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})
        self.asked.clear()
        for key in [key for key, request in self.unanswered.items() if request.sent and request.line is None]:
            self._settle(key)
            yield error_line(key, "the hub was restarted during this request, and its outcome is not known")

    def resumed(self) -> tuple[dict[str, Any], list[bytes]]:
        """What the next hub is told, and the requests that were sent before."""
        sent = [one.line for one in self.unanswered.values() if one.sent and one.line is not None]
        handshake = self.handshake.decode("utf-8", "replace") if self.handshake is not None else None
        told = {
            "handshake": handshake,
            "level": self.level,
            "subscribed": [*self.subscribed],
            "listed": [*self.listed],
            "question": self.last_question,
            "sent": len(sent),
        }
        return told, sent

    def refused(self, why: str) -> Iterator[bytes]:
        """Answers for all requests: there is no hub."""
        for key in [*self.unanswered]:
            self._settle(key)
            yield error_line(key, why)

    def _keep(self, head: LineHead, line: bytes | None) -> None:
        assert head.id is not None  # noqa: S101 - it is a request
        size = len(line or b"")
        # A request that is not kept is still noted: it gets an error when the hub ends, and is never without an answer.
        if len(self.unanswered) >= MOST_KEPT or self._kept_bytes + size > KEPT_BYTES:
            line, size = None, 0
        self._kept_bytes += size
        self.unanswered[head.id] = KeptRequest(line, head.method or "")

    def _settle(self, key: object) -> KeptRequest | None:
        """A request has its answer, or needs none any more."""
        if not isinstance(key, str | int) or (request := self.unanswered.pop(key, None)) is None:
            return None
        self._kept_bytes -= len(request.line or b"")
        return request

    def _answered(self, request: KeptRequest) -> None:
        line = request.line or b""
        match request.method:
            case "initialize":
                self.handshake = line
            case "logging/setLevel":
                self.level = str(_params(line).get("level", ""))
            case "resources/subscribe" if len(self.subscribed) < MOST_KEPT:
                self.subscribed[str(_params(line).get("uri", ""))] = None
            case "resources/unsubscribe":
                self.subscribed.pop(str(_params(line).get("uri", "")), None)
            case "tools/list" | "prompts/list" | "resources/list" | "resources/templates/list":
                self.listed[request.method] = None
            case _:
                pass

    def __repr__(self) -> str:
        state = "begun" if self.handshake is not None else "no handshake"
        return f"<Conversation {state} unanswered={[*self.unanswered]} asked={sorted(map(str, self.asked))}>"


def _params(line: bytes) -> dict[str, Any]:
    try:
        params = json.loads(line).get("params")
    except (ValueError, RecursionError, AttributeError):
        return {}
    return params if isinstance(params, dict) else {}


def _line(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def error_line(key: str | int | None, why: str) -> bytes:
    """The refusal of a request."""
    return _line({"jsonrpc": "2.0", "id": key, "error": {"code": INTERNAL_ERROR, "message": why}})


# The loop.


class Outgoing:
    """Lines that wait to be written, and how much of the first one was."""

    def __init__(self) -> None:
        self._lines: deque[tuple[bytes, tuple[KeptRequest, ...]]] = deque()
        self._written = 0
        self.size = 0

    def __bool__(self) -> bool:
        return bool(self._lines)

    def add(self, line: bytes, requests: tuple[KeptRequest, ...] = ()) -> None:
        """One more line; ``requests`` are sent with its last byte."""
        self._lines.append((line, requests))
        self.size += len(line)

    def next(self, most: int) -> memoryview:
        """What to write next."""
        return memoryview(self._lines[0][0])[self._written : self._written + most]

    def wrote(self, count: int) -> None:
        """So much of it was written."""
        line, requests = self._lines[0]
        self._written += count
        if self._written >= len(line):
            for one in requests:
                one.sent = True
            self._lines.popleft()
            self.size -= len(line)
            self._written = 0

    def begin_again(self) -> None:
        """The reader is another one: a line that was written in part is written from its beginning."""
        self._written = 0


# To a hub.


class HubFinder:
    """Finds the hub of this user, greets it, and starts one."""

    def __init__(self, options: JoinOptions, environ: Mapping[str, str]) -> None:
        self._options = options
        self._environ = environ
        self.address = JoinAddress.of(options.config, options.others, environ)
        self._replacing = 0.0
        """Until when an older hub is waited out; 0 if none was replaced."""

    def greet(self, talk: Conversation) -> tuple[socket.socket, bytes] | None:
        """A hub that has what it needs for this client, and what it said after its hello; None if there is none."""
        hub = self.address.connect(HELLO_SECONDS)
        if hub is None:
            return None
        try:
            hub.sendall(_line({"holdfast": self._hello()}))
            said, rest = _first_line(hub)
            answer = json.loads(said)["holdfast"]
            if "error" in answer:
                raise JoinFailed(str(answer["error"]))
            if self._waits_for_newer(answer):
                hub.close()
                return None
            # Only now, with the hub's answer at hand: what was answered meanwhile is not sent again.
            told, sent = talk.resumed()
            offered = {name: self._environ[name] for name in answer["wants"] if name in self._environ}
            hub.sendall(_line({"holdfast": {"environment": offered, **told}}) + b"".join(sent))
        except (OSError, ValueError, KeyError, TypeError):
            hub.close()  # it ended meanwhile, or it is none that we know: the next look tells
            return None
        hub.setblocking(False)
        return hub, rest

    def start(self, lock: int, *more: str) -> int:
        """Start a hub that is no child of this process, with the lock; returns where its part of the log begins."""
        options = self._options
        arguments = ["serve", "--config", options.config, *options.starts_with, *options.others, *more]
        command = [sys.executable, "-P", "-m", "holdfast", *arguments]
        try:
            log = self.address.open_log()
            with hidden_environment(self._environ) as (shown, hidden):
                # The log is that of all hubs at this address: what this one says begins here.
                begins = os.fstat(log).st_size
                shown[BACKGROUND_VARIABLE] = f"{lock} {self.address.key}"
                _run_detached(command, shown, log=log, keep=(lock, hidden))
            os.close(log)
        except OSError as exc:
            place = f"{exc.filename}: " if exc.filename else ""
            raise JoinFailed(f"no hub could be started: {place}{exc.strerror or exc}") from exc
        return begins

    def start_once(self, begun: int | None) -> int | None:
        """Start a hub if none runs and none starts; returns where its log begins, for the next try of one search.

        A search starts one hub at most: a second one would fail as the first did. Raises ``JoinFailed`` if it ended.
        """
        address = self.address
        try:
            lock = try_lock(address.lock)
        except OSError as exc:
            raise JoinFailed(f"cannot lock {address.lock}: {exc.strerror}") from exc
        # Another process starts a hub, or a hub runs and does not listen yet: it will answer the next hello.
        if lock is None:
            return begun
        try:
            if is_locked(address.next_lock):
                return begun  # one that takes over is there already, and gets this lock in a moment
            if begun is not None:
                raise JoinFailed(_reason_in(address.log, begun))
            return self.start(lock)
        finally:
            os.close(lock)

    def _hello(self) -> dict[str, Any]:
        try:
            folder = os.getcwd()  # noqa: PTH109 - a text
        except OSError:  # it was removed
            folder = ""
        return {"join": PROTOCOL, "version": __version__, "pid": os.getpid(), "cwd": folder, **self._options.view}

    def _waits_for_newer(self, answer: Mapping[str, Any]) -> bool:
        """Whether the hub is older than this program and is being replaced. One that a person runs is not."""
        if not answer.get("background") or _numbers(str(answer["version"])) >= _numbers(__version__):
            return False
        lock = try_lock(self.address.next_lock)
        now = time.monotonic()
        if not self._replacing:
            self._replacing = now + START_SECONDS
            if lock is not None:
                self.start(lock, "--takeover")
        elif lock is not None:
            self._replacing = now  # the one that was started ended: the older hub serves on
        if lock is not None:
            os.close(lock)
        return now < self._replacing

    def __repr__(self) -> str:
        return f"<HubFinder {self.address.key}{' replaces an older hub' if self._replacing else ''}>"


class Joiner:
    """One client, and the hub that it has at the moment."""

    def __init__(self, options: JoinOptions, environ: Mapping[str, str], stdin: int = 0, stdout: int = 1) -> None:
        self._hubs = HubFinder(options, environ)
        self._stdin, self._stdout = stdin, stdout
        self._talk = Conversation()
        self._hub: socket.socket | None = None
        self._of_client, self._of_hub = Lines(LONGEST_LINE), Lines(sys.maxsize)
        self._to_client, self._to_hub = Outgoing(), Outgoing()
        self._leaving = False
        """Whether the hub said that it leaves: it gets no more lines."""

    def run(self) -> int:
        """Serve the client until it leaves; returns the exit code."""
        try:
            self._find()
            while True:
                if self._hub is None:
                    self._next_hub()
                self._turn(None)
        except ClientLeft:
            self._let_go()
            return 0
        except (JoinFailed, JoinRefused) as exc:
            return self._give_up(str(exc))

    def _next_hub(self) -> None:
        """Find the hub after one that is gone. One that said so is replaced only for a request that waits."""
        was_told, self._leaving = self._leaving, False
        since = time.monotonic()
        while was_told and not self._joined():
            if not self._talk.unanswered:
                self._turn(QUIET_SECONDS)
                since = time.monotonic()
            elif time.monotonic() - since < GRACE_SECONDS:
                self._turn(0.1)
            else:
                was_told = False
        while self._hub is None:
            try:
                self._find()
            except (JoinFailed, JoinRefused) as exc:
                self._refuse_for_a_while(str(exc))

    def _refuse_for_a_while(self, why: str) -> None:
        """No hub can be started: answer all that waits and all that comes with the reason, then try again."""
        _say(why)
        self._to_hub = Outgoing()
        until = time.monotonic() + RETRY_SECONDS
        # After the pause a hub is started for a request alone: a client that is silent needs none.
        while (left := until - time.monotonic()) > 0 or not self._talk.unanswered:
            if left > 0:
                for line in self._talk.refused(why):
                    self._to_client.add(line)
                self._to_hub = Outgoing()
            self._turn(max(left, QUIET_SECONDS))

    def _find(self) -> None:
        """Join the hub; start one if there is none. Raises ``JoinFailed``."""
        deadline = time.monotonic() + START_SECONDS
        begun: int | None = None
        pause = 0.02
        while not self._joined():
            begun = self._hubs.start_once(begun)
            if time.monotonic() > deadline:
                log = self._hubs.address.log
                raise JoinFailed(f"the hub did not answer within {START_SECONDS:g} s; its log is {log}")
            self._turn(pause)
            pause = min(pause * 1.5, 0.25)

    def _joined(self) -> bool:
        """Whether a hub answered the hello and has what it needs."""
        begun = self._hubs.greet(self._talk)
        if begun is None:
            return False
        self._hub, rest = begun
        # Half a line of the hub before this one is dropped, and half a line to it begins again: else the next hub would
        # continue what another one began.
        self._of_hub = Lines(sys.maxsize)
        self._to_hub.begin_again()
        self._take_of_hub(rest)
        return True

    # Between the client and the hub.

    def _turn(self, seconds: float | None) -> None:
        """Wait until something can be read or written, at most so long, and do it. Raises ``ClientLeft``."""
        poll = select.poll()
        if self._to_hub.size < QUEUED_BYTES:
            poll.register(self._stdin, select.POLLIN)
        if self._to_client:
            poll.register(self._stdout, select.POLLOUT)
        hub = self._hub
        sends = bool(self._to_hub) and not self._leaving
        reads = select.POLLIN if self._to_client.size < QUEUED_BYTES else 0
        wanted = reads | (select.POLLOUT if sends else 0)
        if hub is not None and wanted:  # else its end would be reported again and again
            poll.register(hub, wanted)
        ready = dict(poll.poll(None if seconds is None else max(seconds, 0) * 1000))
        if hub is not None and hub.fileno() in ready:
            self._exchange_with(hub, writable=sends and bool(ready[hub.fileno()] & select.POLLOUT))
        if self._stdout in ready:
            self._write_to_client()
        if self._stdin in ready:
            self._read_of_client()

    def _read_of_client(self) -> None:
        # Not through ``sys.stdin``: it would read ahead into a buffer that ``poll`` does not know.
        data = os.read(self._stdin, CHUNK)
        if not data:
            raise ClientLeft
        for line in self._of_client.add(data):
            keys = self._talk.from_client(line)
            requests = [self._talk.unanswered.get(key) for key in keys]
            self._to_hub.add(line, tuple(one for one in requests if one is not None))
        for key in self._of_client.refused:
            self._to_client.add(error_line(key, f"a message of more than {self._of_client.longest} bytes is refused"))
        self._of_client.refused.clear()

    def _write_to_client(self) -> None:
        try:
            # At most what a pipe that is writable takes whole: stdout may be shared, and stays a blocking one.
            self._to_client.wrote(os.write(self._stdout, self._to_client.next(SAFE_WRITE)))
        except OSError as exc:
            raise ClientLeft from exc

    def _exchange_with(self, hub: socket.socket, *, writable: bool) -> None:
        try:
            if writable:
                self._to_hub.wrote(hub.send(self._to_hub.next(CHUNK)))
            if self._to_client.size < QUEUED_BYTES:
                data = hub.recv(CHUNK)
                if not data:
                    self._hub_is_gone()
                    return
                self._take_of_hub(data)
        except BlockingIOError:
            pass
        except OSError:
            self._hub_is_gone()
        if self._leaving and not self._talk.unanswered:
            self._hub_is_gone()  # it has nothing of us any more

    def _take_of_hub(self, data: bytes) -> None:
        for line in self._of_hub.add(data):
            if line.startswith(b'{"holdfast":'):
                self._leaving = True
            else:
                self._talk.from_hub(line)
                self._to_client.add(line)

    def _hub_is_gone(self) -> None:
        if self._hub is not None:
            self._hub.close()
            self._hub = None
        for line in self._talk.lost():
            self._to_client.add(line)

    # The end.

    def _let_go(self) -> None:
        """The client left: the hub sees the end of its lines, and what it still says has no reader."""
        if self._hub is None:
            return
        try:
            # What the client sent before it left is still a request: the last lines go out, for a second at most.
            self._hub.settimeout(1.0)
            while self._to_hub:
                self._to_hub.wrote(self._hub.send(self._to_hub.next(CHUNK)))
        except OSError:
            pass
        self._hub.close()

    def _give_up(self, why: str) -> int:
        """There is no hub at all: tell the person, and the client with its first request."""
        _say(why)
        until = time.monotonic() + FIRST_REQUEST_SECONDS
        try:
            while not self._talk.unanswered and time.monotonic() < until:
                self._turn(until - time.monotonic())
            for line in self._talk.refused(why):
                self._to_client.add(line)
            while self._to_client and time.monotonic() < until:
                self._turn(until - time.monotonic())
        except ClientLeft:
            pass
        return 1

    def __repr__(self) -> str:
        state = "leaving" if self._leaving else "joined" if self._hub is not None else "without a hub"
        return f"<Joiner {state} of {self._hubs!r} {self._talk!r}>"


def _first_line(hub: socket.socket) -> tuple[bytes, bytes]:
    """The first line of the hub, and what came after it."""
    data = b""
    while b"\n" not in data:
        more = hub.recv(CHUNK)
        if not more:
            raise OSError("the hub closed the connection")
        data += more
    line, _, rest = data.partition(b"\n")
    return line, rest


def _numbers(version: str) -> tuple[int, ...]:
    """The numbers at the beginning of a version: what comes after them does not decide."""
    found: list[int] = []
    for part in version.split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        found.append(int(digits))
    return tuple(found)


def _run_detached(command: Sequence[str], environ: Mapping[str, str], *, log: int, keep: Sequence[int]) -> None:
    """Run a program in a session of its own. It is a grandchild that its parent does not wait for."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    try:  # from here on this is a copy that must never return
        # A session of its own: the terminal of the client, or the client that ends its group, must not end the hub.
        os.setsid()
        # Forked twice: the hub belongs to init, and leaves no zombie here when it ends.
        if os.fork() == 0:
            nothing = os.open(os.devnull, os.O_RDONLY)
            os.dup2(nothing, 0)
            os.dup2(log, 1)
            os.dup2(log, 2)
            for descriptor in keep:
                os.set_inheritable(descriptor, True)
            os.chdir(environ.get("HOME") or "/")
            os.execve(command[0], [*command], dict(environ))  # noqa: S606 - this program
    except OSError as exc:
        os.write(log, f"error: the hub could not be started: {exc.strerror}\n".encode())
    finally:
        os._exit(127)


def _reason_in(log: str, start: int) -> str:
    """Why a hub that was just started ended, as it said itself."""
    try:
        with open(log, "rb") as file:  # noqa: PTH123 - a text
            file.seek(start)
            said = file.read(CHUNK).decode("utf-8", "replace").strip()
    except OSError:
        said = ""
    words = said[said.rfind("error: ") + len("error: ") :] if "error: " in said else said[-500:]
    shown = " ".join(words.split())[:1000]
    return f"the hub could not be started: {shown or 'it said nothing'}; its log is {log}"


def _say(text: str) -> None:
    sys.stderr.write(f"error: {text}\n")
    sys.stderr.flush()


def join_hub(options: JoinOptions) -> int:
    """Serve the client on stdin and stdout with the hub of this user; returns the exit code."""
    isolate()
    try:
        joiner = Joiner(options, os.environ)
    except JoinRefused as exc:
        _say(str(exc))
        return 1
    return joiner.run()
