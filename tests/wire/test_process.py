"""A server's process: what it is given, what is kept of it, and that its whole group ends with it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.lowlevel
import pytest

import holdfast.wire.process as room
from holdfast.config.settings import Limits
from holdfast.config.spec import ServerSpec
from holdfast.core.evidence import BadConfig, CommandFault, CommandUnusable, ProcessExit
from holdfast.core.redact import MASK, Redactor
from holdfast.errors import ServerFailure
from holdfast.wire.dial import Dialer
from holdfast.wire.process import INHERITED, LONGEST_LINE, LONGEST_SECRET, Child, StderrTail
from holdfast.wire.session import Connection
from holdfast.wire.warden import CHILD_MARK, MARK, Warden
from tests.harness.waiting import came_true
from tests.peers.leaks import alive, no_leaks
from tests.peers.stdio import StdioPeer
from tests.wire.processes import gone

pytestmark = pytest.mark.anyio


def program(source: str, **more: object) -> ServerSpec:
    fields: dict[str, object] = {"id": "a", "transport": "stdio", "command": sys.executable, **more}
    return ServerSpec(args=("-I", "-S", "-c", source), **fields)  # type: ignore[arg-type]  # the fields of a spec


def pipe(peer: StdioPeer, **more: object) -> ServerSpec:
    return ServerSpec(id="a", transport="stdio", command=peer.command, args=peer.args, **more)  # type: ignore[arg-type]  # as above


@asynccontextmanager
async def started(
    spec: ServerSpec,
    *,
    keep: int = 16 * 1024,
    secrets: tuple[str, ...] = (),
    hear: Callable[[bytes], None] = lambda _: None,
) -> AsyncIterator[Child]:
    async with Warden() as warden:
        child = await Child.start(spec, warden=warden, redactor=Redactor(secrets), keep=keep, on_line=hear)
        try:
            yield child
        finally:
            await child.close(politely=False)


@asynccontextmanager
async def dialed(spec: ServerSpec) -> AsyncIterator[Connection]:
    async with Warden() as warden:
        dialer = Dialer(warden=warden, limits=Limits())
        async with dialer.connect(spec, within=10, redactor=Redactor(spec.secrets)) as connection:
            yield connection


async def everything_from(child: Child) -> bytes:
    received = b""
    with anyio.fail_after(20):
        try:
            while True:
                received += await child.stdout.receive()
        except anyio.EndOfStream:
            return received


# What it is given


@pytest.mark.requirement("SEC-1")
async def test_a_server_sees_a_minimal_environment_and_what_its_definition_names(
    stdio_peer: Callable[..., StdioPeer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of the hub")
    monkeypatch.setenv("HOLDFAST_ANYTHING", "of the hub")
    monkeypatch.setenv("SHELL", "() { echo a function; }")
    monkeypatch.setenv("HOME", "/home/somebody")
    spec = pipe(stdio_peer("--print-env"), env={"API_KEY": "its own", "TZ": "Mars/Base"})
    async with dialed(spec) as connection:
        result = await connection.call_tool("env", {}, idle=5, within=5)
    seen = json.loads(result.text)
    assert set(seen) <= {*INHERITED, "API_KEY", MARK, CHILD_MARK}
    assert (seen["API_KEY"], seen["TZ"], seen["HOME"]) == ("its own", "Mars/Base", "/home/somebody")
    assert "SHELL" not in seen


async def test_a_command_is_looked_for_where_its_own_path_says_and_relative_to_its_folder(tmp_path: Path) -> None:
    script = tmp_path / "hello"
    script.write_text("#!/bin/sh\necho hello from $PWD\n")
    script.chmod(0o755)
    for spec in (
        ServerSpec(id="a", transport="stdio", command="hello", env={"PATH": str(tmp_path)}, cwd=tmp_path),
        ServerSpec(id="a", transport="stdio", command="./hello", cwd=tmp_path),
    ):
        async with started(spec) as child:
            assert await everything_from(child) == f"hello from {tmp_path}\n".encode()


@pytest.mark.requirement("LOAD-3")
@pytest.mark.parametrize(
    ("command", "fault"),
    [
        ("no-such-command-anywhere", CommandFault.NOT_FOUND),
        ("./missing", CommandFault.NOT_FOUND),
        ("./not-executable", CommandFault.NOT_EXECUTABLE),
        ("./not-a-program", CommandFault.BAD_FORMAT),
        ("./", CommandFault.IS_FOLDER),
    ],
)
async def test_a_command_that_cannot_be_started_says_why_and_leaves_nothing(
    command: str, fault: CommandFault, tmp_path: Path
) -> None:
    (tmp_path / "not-executable").write_text("")
    (tmp_path / "not-a-program").write_text("neither a script nor a binary")
    (tmp_path / "not-a-program").chmod(0o755)
    async with no_leaks():
        with pytest.raises(ServerFailure) as failed:
            async with started(ServerSpec(id="a", transport="stdio", command=command, cwd=tmp_path)):
                pass
    assert isinstance(failed.value.evidence, CommandUnusable)
    assert failed.value.evidence.fault is fault


async def test_a_folder_that_does_not_exist_and_a_nul_character_are_told_apart() -> None:
    async with no_leaks():
        with pytest.raises(ServerFailure) as no_folder:
            async with started(program("", cwd=Path("/no/such/folder"))):
                pass
        with pytest.raises(ServerFailure) as nul:
            async with started(program("", env={"A": "b\0c"})):
                pass
    assert isinstance(no_folder.value.evidence, CommandUnusable)
    assert no_folder.value.evidence.fault is CommandFault.BAD_DIRECTORY
    assert isinstance(nul.value.evidence, BadConfig)


# Its whole group ends


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group that ignores SIGTERM is not waited for as long as people would."""
    monkeypatch.setattr(room, "POLITE_SECONDS", 0.2)
    monkeypatch.setattr(room, "BRISK_SECONDS", 0.1)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("politely", [True, False])
async def test_the_whole_group_is_gone_after_close(stdio_peer: Callable[..., StdioPeer], *, politely: bool) -> None:
    peer = stdio_peer("--grandchild", "--ignore-term", "--ignore-stdin-close", "--banner")
    async with no_leaks(), Warden() as warden:
        child = await Child.start(pipe(peer), warden=warden, redactor=Redactor(), keep=100)
        await child.stdout.receive()
        assert len(peer.living) == 2
        with anyio.fail_after(10):
            await child.close(politely=politely)
        assert peer.living == []
        assert child.process.returncode == -signal.SIGKILL


async def test_a_server_that_ends_by_itself_once_its_stdin_is_closed_is_sent_no_signal() -> None:
    source = "import signal, sys; print('up', flush=True); sys.stdin.read(); sys.exit(7)"
    async with Warden() as warden:
        child = await Child.start(program(source), warden=warden, redactor=Redactor(), keep=100)
        await child.stdout.receive()
        await child.close(politely=True)
    assert child.process.returncode == 7


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("flags", [("--never-answer",), ("--handshake-fault", "error"), ("--garbage-flood",)])
async def test_the_whole_group_is_gone_after_a_failed_handshake(
    flags: tuple[str, ...], stdio_peer: Callable[..., StdioPeer]
) -> None:
    peer = stdio_peer("--grandchild", *flags)
    async with no_leaks(), Warden() as warden:
        dialer = Dialer(warden=warden, limits=Limits())
        with pytest.raises(ServerFailure):
            async with dialer.connect(pipe(peer), within=1, redactor=Redactor()):
                pass
        assert peer.living == []
    assert peer.starts == 1


@pytest.fixture
def unburied() -> Iterator[int]:
    """A process in its own group that exits and stays a zombie."""
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", ""], start_new_session=True) as process:
        yield process.pid


async def test_dead_processes_that_nobody_buries_are_not_taken_for_living_ones(unburied: int) -> None:
    await gone(unburied)
    os.killpg(unburied, 0)  # the system still lists the group
    assert not room._has_living(unburied)


@pytest.mark.usefixtures("impatient")
async def test_an_exit_is_noticed_though_a_grandchild_holds_the_pipes(stdio_peer: Callable[..., StdioPeer]) -> None:
    peer = stdio_peer("--grandchild", "--die-in-call")
    async with no_leaks():
        with pytest.raises(ServerFailure) as failed, anyio.fail_after(10):
            async with dialed(pipe(peer)) as connection:
                await connection.call_tool("echo", {}, idle=60, within=60)
    assert isinstance(failed.value.evidence, ProcessExit)
    assert (failed.value.evidence.code, failed.value.evidence.stood) == (9, True)
    assert peer.living == []


# What is kept of its stderr


async def words_of(source: str, *, keep: int = 16 * 1024, secrets: tuple[str, ...] = ()) -> str:
    async with started(program(source), keep=keep, secrets=secrets) as child:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(child.stderr.drain)
            with anyio.fail_after(20):
                await child.process.wait()
            words, _ = await child.stderr.last_words()
            tasks.cancel_scope.cancel()
        return words


async def test_what_it_wrote_shortly_before_its_end_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    now, lines = [1_000.0], list[bytes]()
    monkeypatch.setattr(room, "time", SimpleNamespace(monotonic=lambda: now[0]))
    source = "import sys; print('started', file=sys.stderr, flush=True); input(); sys.exit('over')"
    async with started(program(source), hear=lines.append) as child, anyio.create_task_group() as tasks:
        tasks.start_soon(child.stderr.drain)
        await came_true(lambda: lines)
        now[0] += room.RECENT_SECONDS + 1
        await child.send(b"\n")
        with anyio.fail_after(20):
            await child.process.wait()
        assert await child.stderr.last_words() == ("started\nover", "over")
        tasks.cancel_scope.cancel()


@pytest.mark.requirement("SEC-4")
@pytest.mark.parametrize("keep", [1, 1000])
async def test_of_its_stderr_only_the_end_is_kept(keep: int) -> None:
    source = "import sys; [sys.stderr.write(f'line {n}\\n') for n in range(200_000)]"
    words = await words_of(source, keep=keep)
    assert len(words) <= keep
    if keep > 100:
        assert words.endswith("line 199999")


@pytest.mark.requirement("MSG-6")
async def test_secrets_and_control_characters_are_masked_in_its_last_words() -> None:
    source = "import sys; sys.stderr.write('\\x1b[31mbad key hunter22 and token=abcdef\\x1b[0m\\n')"
    assert await words_of(source, secrets=("hunter22",)) == f"bad key {MASK} and token={MASK}"


@pytest.mark.requirement("MSG-6")
@pytest.mark.parametrize(("keep", "shown"), [(1024, f"bad key {MASK}"), (12, "")])
async def test_secrets_are_masked_in_the_last_line_of_one_that_still_runs(keep: int, shown: str) -> None:
    source = "import sys; sys.stderr.write('starting\\n\\x1b[31mbad key hunter22\\n'); sys.stderr.flush(); input()"
    lines: list[bytes] = []
    async with (
        started(program(source), keep=keep, secrets=("hunter22",), hear=lines.append) as child,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(child.stderr.drain)
        await came_true(lambda: len(lines) == 2)
        assert child.stderr.last_line == shown, "a line that is kept in part may begin inside a secret"
        tasks.cancel_scope.cancel()


@pytest.mark.requirement("MSG-6")
@pytest.mark.parametrize("keep", range(2000, 2030, 3))
async def test_a_secret_that_is_cut_in_half_where_the_kept_part_begins_is_not_shown(keep: int) -> None:
    source = "import sys; sys.stderr.write('x' * 5000 + 'hunter22hunter22' + 'y' * 1990 + '\\n')"
    words = await words_of(source, keep=keep, secrets=("hunter22hunter22",))
    assert "unter" not in words
    assert words.endswith("yyy")


@pytest.mark.usefixtures("impatient")
async def test_last_words_are_had_though_a_grandchild_holds_stderr_open(stdio_peer: Callable[..., StdioPeer]) -> None:
    peer = stdio_peer("--grandchild", "--stderr", "it is over", "--exit-at-once", "4")
    with pytest.raises(ServerFailure) as failed:
        async with dialed(pipe(peer)):
            pass
    assert isinstance(failed.value.evidence, ProcessExit)
    assert failed.value.evidence.stderr == "it is over"


@pytest.mark.requirement("SEC-4")
async def test_last_words_are_had_though_the_event_loop_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "LAST_WORDS_SECONDS", 0.0)  # the time is over before the loop has turned

    async def pipe_read_late() -> AsyncIterator[bytes]:
        for part in (b"it is ", b"over"):
            await anyio.lowlevel.checkpoint()
            await anyio.lowlevel.checkpoint()
            yield part

    pipe: Any = pipe_read_late()
    stderr = StderrTail(pipe, Redactor(()), 1024, lambda _: None)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stderr.drain)
        assert await stderr.last_words() == ("it is over", "it is over")


@pytest.mark.requirement("MSG-6", "HUB-5")
async def test_what_it_says_while_it_is_closed_is_passed_on_and_no_line_is_cut_inside_a_secret() -> None:
    source = "import sys; e = sys.stderr; e.write('one\\nhunter'); e.flush(); sys.stdin.read(); e.write('22\\nlast\\n')"
    lines, begun = list[bytes](), anyio.Event()

    def hear(line: bytes) -> None:
        lines.append(line)
        begun.set()

    async with Warden() as warden:
        child = await Child.start(
            program(source), warden=warden, redactor=Redactor(("hunter22",)), keep=1024, on_line=hear
        )
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(child.stderr.drain)
            with anyio.fail_after(20):
                await begun.wait()
            tasks.cancel_scope.cancel()
        await child.close(politely=True)
    assert lines == [b"one", b"hunter22", b"last"]


# What is written to it

READS_WHEN_TOLD = """
import signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
print("up", flush=True)
signal.sigwait([signal.SIGUSR1])
sys.stdout.buffer.write(sys.stdin.buffer.read())
"""


@pytest.fixture
def large_lines() -> list[bytes]:
    """More than a pipe holds, each of them."""
    return [b"%d:" % n + b"x" * 300_000 + b"\n" for n in range(4)]


async def test_a_writer_that_is_cancelled_never_cuts_a_line(large_lines: list[bytes]) -> None:
    async with started(program(READS_WHEN_TOLD)) as child:
        await child.stdout.receive()
        for line in large_lines:
            with anyio.move_on_after(0.02):
                await child.send(line)
        # The one whose line was begun left its rest; the others never began theirs.
        assert len(child._unsent) < len(large_lines[0])
        os.kill(child.group, signal.SIGUSR1)
        with anyio.fail_after(20):
            await child.send(b"last\n")
        child._close_stdin()
        received = await everything_from(child)
    assert received == large_lines[0] + b"last\n"


async def test_a_line_that_fits_into_the_pipe_is_written_without_a_wait() -> None:
    async with started(program("import time; time.sleep(100)")) as child:
        sending = child.send(b"short\n")
        with pytest.raises(StopIteration):  # the first step was the last
            sending.send(None)
        assert child.written == len(b"short\n")


async def test_two_writers_never_mix_their_lines(large_lines: list[bytes]) -> None:
    source = "import sys; [print(hash(line) and line[:2].decode(), len(line), flush=True) for line in sys.stdin.buffer]"
    async with started(program(source)) as child:
        async with anyio.create_task_group() as tasks:
            for line in large_lines:
                tasks.start_soon(child.send, line)
        child._close_stdin()
        received = await everything_from(child)
    assert sorted(received.splitlines()) == [b"%d: %d" % (n, len(large_lines[n])) for n in range(4)]


async def test_writing_to_a_closed_stdin_is_an_error_and_not_a_wait() -> None:
    async with started(program("")) as child:
        child._close_stdin()
        with anyio.fail_after(5), pytest.raises(BrokenPipeError):
            await child.send(b"too late\n")


async def test_a_process_says_in_its_repr_how_it_is() -> None:
    async with started(program("import time; time.sleep(100)")) as child:
        assert repr(child) == f"<Child group={child.group} running>"
    assert repr(child) == f"<Child group={child.group} exited -15>"
    assert not alive(child.group)


async def said(*parts: bytes, keep: int = 1 << 20) -> tuple[list[bytes], str, str]:
    """The lines that were passed on of what a process said in these parts, its last words, and its last line."""
    lines: list[bytes] = []

    async def pipe() -> AsyncIterator[bytes]:
        for part in parts:
            yield part

    given: Any = pipe()
    stderr = StderrTail(given, Redactor(()), keep, lines.append)
    await stderr.drain()
    return lines, (await stderr.last_words())[0], stderr.last_line


@pytest.mark.requirement("HUB-5", "SEC-7")
async def test_lines_are_passed_on_whole_and_of_a_long_one_the_beginning_once() -> None:
    long = b"x" * (LONGEST_LINE + 1)
    assert (await said(b"one\n\ntw", b"o\nrest"))[0] == [b"one", b"two", b"rest"]
    assert (await said(long, long, b"more\nnext\n"))[0] == [long[:-1], b"next"]
    assert (await said(long[:-1], b"\nnext"))[0] == [long[:-1], b"next"]
    flood = await said(b"".join(b"%d\n" % number for number in range(10_000)))
    assert (flood[0][-1], len(flood[0])) == (b"9999", room.LINES_PASSED_ON)


@pytest.mark.requirement("MSG-6")
async def test_last_words_are_cut_at_a_line_or_by_more_than_a_secret_is_long() -> None:
    line = "y" * (room.LONGEST_LAST_WORDS - 1)
    assert (await said(f"secret\n{line}".encode()))[1] == line, "the first line would be cut"
    whole = "z" * (room.LONGEST_LAST_WORDS + 1)
    assert len((await said(whole.encode()))[1]) == room.LONGEST_LAST_WORDS - LONGEST_SECRET
    assert len((await said(whole[1:].encode()))[1]) == room.LONGEST_LAST_WORDS
    assert len((await said(b"z" * 3_000, keep=2_000))[1]) == 2_000 - LONGEST_SECRET
    assert (await said(b"first\nsecond", keep=9))[1:] == ("second", "second")
    assert (await said(b"first line", keep=9))[2] == ""


async def test_the_beginning_of_a_line_that_does_not_end_is_passed_on_before_its_end() -> None:
    lines: list[bytes] = []
    before: list[list[bytes]] = []

    async def pipe() -> AsyncIterator[bytes]:
        for part in (b"x" * LONGEST_LINE, b"x", b"more", b"\nshort", b"\n"):
            yield part
            before.append([*lines])

    given: Any = pipe()
    await StderrTail(given, Redactor(()), 100, lines.append).drain()
    long = [b"x" * LONGEST_LINE]
    assert before == [[], long, long, long, [*long, b"short"]]
