"""Writes the audit of a process: who did what, in chained files, by a thread, so that no call waits (SEC-15).

Theory of operation. The event loop makes a record and appends it to a queue (``AuditTrail``): that is all that a call
pays. A thread takes what is in the queue ten times a second, hashes the arguments, and appends the lines to a file
(``AuditFiles``). It makes the file safe from a power cut once a second. It is woken once for many records: a wake for
each one would cost more than the record. ``audit_reader`` reads and checks what is written here.

Each process writes a file of its own, so no call waits for another process. A file is JSON lines. A line ends with its
*link*::

    {"n":7,"time":"…","event":"call",…,"link":"9f0c…"}

    link of record n  =  HMAC(key, link of record n-1  +  the record without its link)

A link depends on all that was written before it. Without the key no link can be made, so a record cannot be changed,
removed or moved without a trace. A plain hash chain could be computed again by anyone.

The first record of a file (``opened``) repeats the last link of the file before: of this process after a rotation, else
of the file that was opened before it, by any process. The last record (``closed``) says that the writer ended well.
``manifest.jsonl`` is such a chain too, shared by all processes: it says which files were opened, where a closed file
ends, and which files were removed because they were too old. So a missing file is found, and a cut end of a closed
file.

What can happen, and what holds then:

- The process is killed: what was recorded in the last second may be lost, nothing else. A line that was half written is
  the last one of its file.
- The disk is full, or the folder cannot be written: that is an alarm (``failing``), in the log and in the metrics. The
  thread tries again every second. Records wait in the queue, which has a bound.
- The queue is full: records are lost, and counted. The first record that can be written after that says how many.
- With ``required`` no call is made meanwhile: ``refusal`` says why.

What must never happen:

- The event loop waits for the thread.
- Arguments are written that were not asked for, or a secret. Arguments have no bound of their own, so they are hashed
  and masked in the thread.
- A record is written after a part of another. A write that the disk cut short is continued, not repeated: the rest of
  the bytes waits in ``_unwritten``, and nothing else is written before it.
- Two processes write the manifest at once. It is appended under a lock, and its lines are short.
- A file is removed without an entry in the manifest.

What it cannot do: who has the key can write another history. And the end of a file that was not closed (the hub still
writes it, or crashed) can be cut off. Checkpoints that leave the machine are for both: see ``Checkpoint``.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import socket
import threading
import time
from binascii import hexlify
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal, TypeAlias

import msgspec
from opentelemetry import trace

from holdfast._version import __version__
from holdfast.config import AuditSettings, state_folder
from holdfast.core import Redactor, fault_line, masked_data
from holdfast.errors import UsageError
from holdfast.files import PRIVATE_FILE, NotPrivate, locked, make_secret, private_folder, read_secret
from holdfast.keys import SHORTEST_SECRET, derive, mac
from holdfast.wire import BadJson, dumps, loads

__all__ = [
    "MANIFEST",
    "ArgumentsMode",
    "AuditFiles",
    "AuditKey",
    "AuditRecord",
    "AuditTrail",
    "Checkpoint",
    "Line",
    "audit_places",
    "end_of",
    "link_of",
    "read_key",
    "read_line",
    "read_record",
    "send_checkpoints",
]

MANIFEST: Final = "manifest.jsonl"

LINK_DIGITS: Final = 32
"""Of HMAC with SHA-256, its first 128 bits: a forger needs 2**128 guesses, and the key is in no file."""

START: Final = b"0" * LINK_DIGITS
"""The link before the first record of all."""

ROTATE_BYTES: Final = 64 * 1024 * 1024
ROTATE_SECONDS: Final = 24 * 3600.0
"""A file is closed at this size, or after this time, and the next one is opened."""

ALL_BYTES: Final = 1024 * 1024 * 1024
"""How much all files of a folder may have."""

BUSY_SECONDS: Final = 300.0
"""A file that was written so short a time ago is not removed to make room."""

LONGEST_LINE: Final = 256 * 1024
"""Bytes; what a writer makes is shorter (``LARGEST_SHOWN``)."""

_LINK: Final = re.compile(rb'(?P<body>\{"n":(?P<n>[0-9]{1,18}).*),"link":"(?P<link>[0-9a-f]{32})"\}')
_encoded: Final = msgspec.json.Encoder().encode


class AuditRecord(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    """One line of a file, or of the manifest. What does not apply is left out."""

    n: int = 0
    """Its number in the chain of its process, from 1 on; the writer gives it."""
    time: datetime
    event: str
    """call, refusal, login, approval, switch, reconnect, reload, policy, sign-in; the writer: opened, closed, lost; in
    the manifest: opened, closed, removed.
    """
    principal: str = ""
    """Who did it; ``local`` where the hub asks for no credentials."""
    groups: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()
    """What a caller's credential said of it, for `access replay`."""
    program: str = ""
    """What the client calls itself: its name and version."""
    source: str = ""
    """Where it came from: an address, and the user if it is on this machine."""
    server: str = ""
    method: str = ""
    tool: str = ""
    """The original name at the server: of a tool or a prompt, or the URI of a resource."""
    outcome: str = ""
    ms: float = 0.0
    """How long it took."""
    trace: str = ""
    """The id of its trace."""
    rule: str = ""
    """The rule that decided it."""
    approval: str = ""
    """What a person decided about it, and who."""
    authz: str = ""
    """What the external service decided: ``allowed``, ``denied``, or why it could not be asked."""
    reason: str = ""
    argument_bytes: int = 0
    result_bytes: int = 0
    argument_hash: str = ""
    """HMAC of the arguments as they came: equal arguments of one hub have equal hashes, and no one can guess them."""
    arguments: msgspec.Raw = msgspec.Raw()
    """The arguments without secrets, where the operator asked for that."""
    file: str = ""
    key: str = ""
    after: str = ""
    """In ``opened``: the file before, and the number and the link of its last record then."""
    count: int = 0
    """In ``lost``: how many records could not be written."""
    last: int = 0
    end: str = ""
    """In ``closed`` of the manifest: the number and the link of the last record of a file."""


read_record: Final = msgspec.json.Decoder(AuditRecord).decode
"""A record, from its line without the link. Raises ``msgspec.DecodeError``."""


@dataclass(frozen=True)
class AuditKey:
    """The keys of an audit, from the secret in a file that only the hub's user can read."""

    chain: bytes = field(repr=False)
    arguments: bytes = field(repr=False)
    name: str
    """Tells two keys apart, and nothing more."""

    @classmethod
    def of(cls, secret: bytes) -> AuditKey:
        """The keys of a secret."""
        chain = derive(secret, "audit chain")
        return cls(chain, derive(secret, "audit arguments"), mac(chain, b"name").hex()[:8])


def audit_places(settings: AuditSettings, source: Path | None, environ: Mapping[str, str]) -> tuple[Path, Path]:
    """The folder of the files, and the file with the key. Paths in the settings start at the folder of their file."""
    start = source.absolute().parent if source is not None else Path.cwd()
    own = state_folder(environ)
    folder = start / Path(settings.path).expanduser() if settings.path is not None else own / "audit"
    return folder, start / Path(settings.key_file).expanduser() if settings.key_file is not None else own / "audit.key"


def read_key(file: Path, *, make: bool) -> AuditKey:
    """The keys in a file. Where there is none it is made, if that is wanted. Raises ``UsageError``."""
    try:
        if make and not file.exists():
            make_secret(file)
        secret = read_secret(file).strip()
    except NotPrivate as exc:
        raise UsageError(f"the key of the audit is not private: {exc}", hint=f"run: {exc.command}") from exc
    except (OSError, UnicodeDecodeError) as exc:
        raise UsageError(f"the key of the audit cannot be used: {exc}", hint="`audit.keyFile` names it") from exc
    if len(secret) < SHORTEST_SECRET:
        raise UsageError(f"the key of the audit in {file} has fewer than {SHORTEST_SECRET} characters")
    return AuditKey.of(secret.encode())


def link_of(key: AuditKey, before: bytes, body: bytes) -> bytes:
    """The link of a record whose line without the link is ``body``."""
    return hexlify(mac(key.chain, before + body)[: LINK_DIGITS // 2])


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a file, split into what is signed and its link."""

    n: int
    body: bytes
    link: bytes


def read_line(line: bytes) -> Line | None:
    """The parts of a line without its line end; None if it is not one of an audit."""
    found = _LINK.fullmatch(line)
    return Line(int(found["n"]), found["body"] + b"}", found["link"]) if found is not None else None


def end_of(file: Path) -> tuple[Line | None, int]:
    """The last whole line of a file, None if it has none; and how many bytes its whole lines have."""
    with file.open("rb") as stream:
        size = stream.seek(0, os.SEEK_END)
        start = stream.seek(max(0, size - 2 * LONGEST_LINE))
        whole, newline, _ = stream.read().rpartition(b"\n")
    return read_line(whole.rpartition(b"\n")[2]), start + len(whole + newline)


@dataclass(frozen=True)
class Checkpoint:
    """Where a chain was at one moment. One that is kept elsewhere proves that nothing before it was cut off."""

    file: str
    n: int
    link: str

    def __str__(self) -> str:
        return f"holdfast audit checkpoint file={self.file} record={self.n} link={self.link}"


class _Chain:
    """The state of one chain: the number and the link of its last record."""

    def __init__(self, key: AuditKey, n: int = 0, link: bytes = START) -> None:
        self._key = key
        self.n = n
        self.link = link

    def added(self, record: AuditRecord) -> bytes:
        """The line of the next record."""
        record.n = self.n + 1
        try:
            body = _encoded(record)
        except UnicodeEncodeError:
            body = _encoded(_readable(record))
        self.link = link_of(self._key, self.link, body)
        self.n = record.n
        return body[:-1] + b',"link":"' + self.link + b'"}\n'


def _readable(record: AuditRecord) -> AuditRecord:
    """A record whose texts can be written. Half of a surrogate pair, which JSON allows, becomes an escape."""
    for name, value in msgspec.structs.asdict(record).items():
        if isinstance(value, str):
            setattr(record, name, _escaped(value))
        elif isinstance(value, tuple):
            setattr(record, name, tuple(map(_escaped, value)))
    return record


def _escaped(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()


class AuditFiles:
    """Writes the records of one process. It blocks, so it belongs to a thread. All its methods may raise ``OSError``.

    After an error the records that were taken wait for the next ``write``; none is lost or written twice.
    """

    def __init__(  # noqa: PLR0913 - what an operator decides, and what tests shorten
        self,
        folder: Path,
        key: AuditKey,
        *,
        keep: float | None = None,
        max_bytes: int = ALL_BYTES,
        rotate_bytes: int = ROTATE_BYTES,
        rotate_seconds: float = ROTATE_SECONDS,
        wall: Callable[[], float] = time.time,
        checkpoint: Callable[[Checkpoint], None] = lambda _: None,
    ) -> None:
        """``keep``: how many seconds an old file is kept; None for always. ``max_bytes``: the bound of all files."""
        self.folder = folder
        self._key = key
        self._keep = keep
        self._max_bytes = max_bytes
        self._rotate_bytes = rotate_bytes
        self._rotate_seconds = rotate_seconds
        self._wall = wall
        self._checkpoint = checkpoint
        self._chain = _Chain(key)
        # Process ids are used again, and pods of one name have the same ones: the last part is by chance.
        begun = datetime.fromtimestamp(wall(), UTC)
        self._process = f"{begun:%Y%m%dT%H%M%S}-{_host()}-{os.getpid()}-{secrets.token_hex(3)}"
        self._open: _OpenFile | None = None
        self._number = 0
        self._marked = 0

    def __repr__(self) -> str:
        at = self._open.name if self._open is not None else "no file"
        return f"<AuditFiles {at} n={self._chain.n} of {self.folder}>"

    def write(self, records: Iterable[AuditRecord]) -> None:
        """Append records. They are safe from a crash of this process when this returns.

        They are taken when there is a file, and nothing that an error held back: none is lost by an error before.
        """
        file = self._file()
        file.flush()
        file.unwritten += b"".join(map(self._chain.added, records))
        file.flush()

    def sync(self) -> None:
        """Make what was written safe from a crash of the machine. A file that someone removed is given up here."""
        if self._open is not None:
            self._open.flush()
            os.fdatasync(self._open.descriptor)
            if os.fstat(self._open.descriptor).st_nlink == 0:
                name, self._open = self._open.close(), None
                raise FileNotFoundError(f"{name} was removed; the next record opens another file")

    def mark(self) -> None:
        """Give a checkpoint, if there is something new to prove."""
        if self._open is not None and self._marked != self._chain.n:
            self._marked = self._chain.n
            self._checkpoint(Checkpoint(self._open.name, self._chain.n, self._chain.link.decode()))

    def close(self) -> None:
        """End the file well, with a record that says so, here and in the manifest."""
        if (file := self._open) is None:
            return
        if not file.ended:  # on a full disk the end is tried again and again
            file.ended = True
            file.unwritten += self._chain.added(AuditRecord(time=self._now(), event="closed"))
        file.flush()
        os.fdatasync(file.descriptor)
        self.mark()
        self._open = None
        name = file.close()
        with self._manifest_locked():
            self._note("closed", name, last=self._chain.n, end=self._chain.link.decode())

    def _file(self) -> _OpenFile:
        """The file to write to: opened now, or the next one where this one is full or old."""
        file = self._open
        if file is None:
            return self._opened()
        if (
            file.ended
            or file.written >= self._rotate_bytes
            or not 0 <= self._wall() - file.opened < self._rotate_seconds
        ):
            self.close()
            return self._opened()
        return file

    def _opened(self) -> _OpenFile:
        private_folder(self.folder)
        with self._manifest_locked():
            before = self._before()
            name = self._name(self._number + 1)
            file = _OpenFile(self.folder / name, self._wall())
            try:
                self._note("opened", name, key=self._key.name)
            except OSError:
                os.unlink(self.folder / name)  # noqa: PTH108 - it is empty, and no entry names it
                file.close()
                raise
            self._number += 1
            self._open = file
            first = AuditRecord(time=self._now(), event="opened", file=name, key=self._key.name)
            if before is not None:
                first.after = f"{before.file} {before.n} {before.link}"
                self._chain.link = before.link.encode()
            file.unwritten += self._chain.added(first)
            self._remove_old()
        return file

    def _before(self) -> Checkpoint | None:
        """Where the file before ends now: that of this process, else the one that was opened last."""
        if self._number:
            return Checkpoint(self._name(self._number), self._chain.n, self._chain.link.decode())
        with suppress(OSError):
            for line in reversed((self.folder / MANIFEST).read_bytes().splitlines()):
                with suppress(msgspec.DecodeError):
                    if (entry := read_record(line)).event == "opened":
                        end, _ = end_of(self.folder / entry.file)
                        return Checkpoint(entry.file, end.n, end.link.decode()) if end is not None else None
        return None  # there is none; or it is gone or empty, and the manifest names it, so that is found

    def _remove_old(self) -> None:
        """Remove files that are too old, and the oldest of too many. The manifest says so first.

        A file that a process may still write is younger than ``BUSY_SECONDS``, or the latest of all: it stays.
        """
        found: list[tuple[float, int, Path]] = []
        for file in self.folder.glob("audit-*.jsonl"):
            with suppress(OSError):
                state = file.stat()
                found.append((state.st_mtime, state.st_size, file))
        total = sum(size for _, size, _ in found)
        for changed, size, file in sorted(found):
            age = self._wall() - changed
            expired = self._keep is not None and age > self._keep
            if not expired and (total <= self._max_bytes or age < BUSY_SECONDS):
                continue
            self._note("removed", file.name)
            with suppress(FileNotFoundError):
                file.unlink()
            total -= size

    def _name(self, number: int) -> str:
        return f"audit-{self._process}-{number:04}.jsonl"

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._wall(), UTC)

    def _manifest_locked(self) -> AbstractContextManager[None]:
        """While no other process writes the manifest."""
        return locked(self.folder / ".manifest.lock")

    def _note(self, event: str, name: str, *, key: str = "", last: int = 0, end: str = "") -> None:
        """Add an entry about a file to the manifest, and make it safe from a crash."""
        entry = AuditRecord(time=self._now(), event=event, file=name, key=key, last=last, end=end)
        manifest = self.folder / MANIFEST
        descriptor = os.open(manifest, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
        try:
            latest, whole = end_of(manifest)
            chain = _Chain(self._key, latest.n, latest.link) if latest is not None else _Chain(self._key)
            os.ftruncate(descriptor, whole)  # a crash may have left a part of an entry
            line = chain.added(entry)
            if os.write(descriptor, line) != len(line):
                os.ftruncate(descriptor, whole)
                raise OSError(f"{manifest} has no room for an entry")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class _OpenFile:
    """A file that records are appended to."""

    def __init__(self, path: Path, opened: float) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self.name = path.name
        self.descriptor = os.open(path, flags, PRIVATE_FILE)
        self.opened = opened
        self.written = 0
        self.unwritten = b""
        self.ended = False
        """Whether its last record was made; it may not be written yet."""

    def flush(self) -> None:
        while self.unwritten:
            count = os.write(self.descriptor, self.unwritten)
            self.written += count
            self.unwritten = self.unwritten[count:]

    def close(self) -> str:
        os.close(self.descriptor)
        return self.name


def _host() -> str:
    return re.sub(r"[^A-Za-z0-9.]", "_", socket.gethostname())[:64] or "host"


log = logging.getLogger("holdfast.audit")

ArgumentsMode: TypeAlias = Literal["hash", "masked"]
"""What a record has of the arguments: a keyed hash, or the arguments without secrets too."""

GATHER_SECONDS: Final = 0.1
"""How long records wait for others that are written with them."""

SYNC_SECONDS: Final = 1.0
"""How often what was written is made safe from a crash of the machine, and how often a failed write is tried again."""

CHECKPOINT_SECONDS: Final = 60.0

CLOSE_SECONDS: Final = 5.0
"""How long the end of a hub waits for the last records. A disk that hangs must not delay it for longer."""

MOST_RECORDS: Final = 20_000
MOST_BYTES: Final = 32 * 1024 * 1024
"""How much waits for a slow disk: records, and the bytes of their arguments. A single record always has room."""

LARGEST_SHOWN: Final = 64 * 1024
"""Bytes. Larger arguments are hashed, and not written in full; nor are those with too much text to be masked."""

LONGEST_TEXT: Final = 500
"""Characters of a name or a reason that a client or a server chose."""


_Entry: TypeAlias = "tuple[AuditRecord, bytes | msgspec.Raw | None]"
"""A record, and the arguments that belong to it. A plain tuple: one is made for each call."""


class AuditTrail:
    """Takes the records of one process and has them written."""

    def __init__(
        self,
        files: AuditFiles,
        key: AuditKey,
        *,
        arguments: ArgumentsMode = "hash",
        required: bool = False,
        redactor: Callable[[], Redactor] = Redactor,
        most_records: int = MOST_RECORDS,
    ) -> None:
        """``redactor`` returns what knows the secrets of the configuration in force."""
        self._files = files
        self._key = key
        self._arguments = arguments
        self._redactor = redactor
        self._most = most_records
        self.required = required
        self._queue: deque[_Entry] = deque()
        self._put = self._taken = 0
        """The bytes of arguments that were ever put into the queue, and ever taken out. Each has one writer."""
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="audit", daemon=True)
        self.failing = ""
        """Why records cannot be written now; empty if all is well."""
        self.written = self.lost = 0
        """How many records were written, and how many were lost, since the start."""
        self._lost_told = 0

    @property
    def folder(self) -> Path:
        """Where its files are."""
        return self._files.folder

    def __repr__(self) -> str:
        state = f"failing: {self.failing}" if self.failing else "well"
        return f"<AuditTrail {state} waiting={len(self._queue)} written={self.written} lost={self.lost}>"

    # For the event loop.

    def start(self) -> None:
        """Begin to write. Raises ``OSError`` if nothing can be written, and the audit is required."""
        try:
            self._files.write([])
        except OSError as exc:
            if self.required:
                raise
            self._failed(exc.strerror or str(exc))
        self._thread.start()

    def refusal(self) -> str:
        """Why no call may be made now; empty if calls may be made."""
        if not self.required:
            return ""
        if self.failing or not self._thread.is_alive():
            return f"the audit cannot be written ({self.failing or 'its writer ended'})"
        return "the audit is behind: too many records wait for the disk" if self._is_full(0) else ""

    def add(self, record: AuditRecord, arguments: bytes | msgspec.Raw | None = None) -> None:
        """Take a record, and the arguments that belong to it, whose size it says. Never waits."""
        size = record.argument_bytes
        if len(self._queue) >= self._most or (size and self._is_full(size)):
            self.lost += 1
            return
        self._put += size
        self._queue.append((record, arguments))
        if not self._wake.is_set():
            self._wake.set()

    def event(self, kind: str, **values: str) -> None:
        """Record what is no call: a login, an approval, a switch, a reload, a sign-in, a refusal at the door."""
        shown = {name: value[:LONGEST_TEXT] for name, value in values.items()}
        self.add(AuditRecord(time=datetime.now(UTC), event=kind, **shown))  # type: ignore[arg-type]  # texts all

    def _is_full(self, size: int) -> bool:
        waiting = self._put - self._taken
        return len(self._queue) >= self._most or (waiting > 0 and waiting + size > MOST_BYTES)

    def close(self) -> None:
        """Write what waits, and end the file well; gives up after a while. It blocks."""
        self._closing.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(CLOSE_SECONDS)
        if self._thread.is_alive() or self.failing:
            log.error("the audit was not closed: %s", self.failing or "its disk does not answer")

    # In the thread.

    def _run(self) -> None:
        sync_at = mark_at = time.monotonic()
        dirty = False
        while True:
            closing = self._closing.is_set()
            if not closing:
                self._wake.wait(SYNC_SECONDS if dirty or self.failing else None)
                closing = self._closing.wait(GATHER_SECONDS)
            self._wake.clear()
            try:
                dirty = self._write() or dirty
                now = time.monotonic()
                if dirty and (closing or now - sync_at >= SYNC_SECONDS):
                    self._files.sync()
                    sync_at, dirty = now, False
                if now - mark_at >= CHECKPOINT_SECONDS:
                    self._files.mark()
                    mark_at = now
                if closing:
                    self._files.close()
                self._recovered()
            except OSError as exc:
                self._failed(exc.strerror or str(exc))
                dirty = True  # what is written after that has to be made safe too
                if not closing:
                    self._closing.wait(SYNC_SECONDS)
            if closing:
                return

    def _write(self) -> bool:
        """Write what waits; whether there was something."""
        before = self.written
        self._files.write(self._waiting())
        return self.written > before

    def _waiting(self) -> Iterator[AuditRecord]:
        """Take the records that wait, and say how many found no room."""
        while self._queue:
            record, arguments = self._queue.popleft()
            try:
                whole = self._completed(record, arguments) if arguments is not None else record
            except Exception as exc:  # noqa: BLE001 - one record that cannot be made must not end the audit
                self.lost += 1
                words = "a record of the audit could not be made: %s"
                log.error(words, fault_line(exc))  # noqa: TRY400 - one line for each fault (SEC-7)
                continue
            self.written += 1
            yield whole
        if (lost := self.lost) > self._lost_told:
            count, self._lost_told = lost - self._lost_told, lost
            log.error("%d records of the audit were lost", count)
            self.written += 1
            yield AuditRecord(time=datetime.now(UTC), event="lost", count=count)

    def _completed(self, record: AuditRecord, arguments: bytes | msgspec.Raw) -> AuditRecord:
        """A record with what takes a while to make."""
        content = memoryview(arguments)
        self._taken += len(content)
        record.argument_hash = mac(self._key.arguments, content).hex()[:32]
        if self._arguments == "masked" and len(content) <= LARGEST_SHOWN:
            with suppress(BadJson):
                shown = masked_data(loads(arguments), self._redactor())
                if isinstance(shown, dict):  # else it has too much text to be masked
                    record.arguments = msgspec.Raw(dumps(shown))
        return record

    def _failed(self, why: str) -> None:
        if not self.failing:
            log.error("the audit cannot be written to %s: %s; it is tried again every second", self.folder, why)
        self.failing = why

    def _recovered(self) -> None:
        if self.failing:
            log.warning("the audit is written again")
        self.failing = ""


# Checkpoints.

_tracer = trace.get_tracer("holdfast", __version__)


def send_checkpoints(syslog: str) -> Callable[[Checkpoint], None]:
    """Send checkpoints to the log of the machine, or of another one (``HOST:PORT``), and as spans by OTLP.

    An empty address sends nothing to syslog. A checkpoint that cannot be sent is told in the log: it is not needed to
    write the next record.
    """

    def send(point: Checkpoint) -> None:
        if syslog:
            try:
                _send_to_syslog(syslog, str(point))
            except (OSError, ValueError) as exc:  # a name may be one that no host can have
                why = getattr(exc, "strerror", None) or exc
                log.warning("a checkpoint of the audit did not reach syslog at %s: %s", syslog, why)
        span = _tracer.start_span("holdfast.audit.checkpoint")
        span.set_attribute("holdfast.audit.file", point.file)
        span.set_attribute("holdfast.audit.record", point.n)
        span.set_attribute("holdfast.audit.link", point.link)
        span.end()

    return send


_INFO_OF_AUTH: Final = 4 * 8 + 6
"""The facility ``auth`` and the level ``info``, as syslog writes them."""


def _send_to_syslog(address: str, text: str) -> None:
    """One datagram. The socket is opened each time: a log daemon may have been started again since the last one."""
    host, _, port = address.rpartition(":")
    target: tuple[str, int] | str = address
    family = socket.AF_UNIX
    if host and port.isdigit():
        family, _, _, _, found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
        target = (str(found[0]), int(found[1]))
    with socket.socket(family, socket.SOCK_DGRAM) as stream:
        stream.settimeout(SYNC_SECONDS)
        stream.sendto(f"<{_INFO_OF_AUTH}>holdfast: {text}".encode(), target)
