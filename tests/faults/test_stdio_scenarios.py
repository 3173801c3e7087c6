"""The scenario table for stdio: real child processes, each failing in its own way."""

from __future__ import annotations

import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from holdfast.config.settings import Limits
from holdfast.core.messages import FailureStatus
from holdfast.wire.process import Child
from tests.faults.outcomes import observe
from tests.peers.everything import everything_args, node
from tests.peers.stdio import StdioPeer

pytestmark = pytest.mark.anyio

MakePeer = Callable[..., StdioPeer]

SOON = 0.5


def connection(peer: StdioPeer) -> dict[str, Any]:
    return {"transport": "stdio", "command": peer.command, "args": list(peer.args)}


@dataclass(frozen=True)
class Row:
    """One line of the table: how the child is started, and what must be made of it."""

    name: str
    flags: tuple[str, ...]
    status: FailureStatus
    attempts: int
    says: str
    starts: int
    deadline: float = 10.0

    def __str__(self) -> str:
        return self.name


TABLE = [
    Row(
        "exits at once with a message on stderr",
        ("--exit-at-once", "3", "--stderr", "API_KEY is not set"),
        "permanent",
        1,
        'exited with code 3 before it was ready; stderr: "API_KEY is not set"',
        starts=1,
    ),
    Row("exits at once without a word", ("--exit-at-once", "1"), "permanent", 1, "exited with code 1", starts=1),
    Row("exits at once with success", ("--exit-at-once", "0"), "permanent", 1, "exited with code 0", starts=1),
    Row("asks to be tried again later", ("--exit-at-once", "75"), "transient", 3, "exited with code 75", starts=3),
    Row("garbage on stdout", ("--garbage",), "permanent", 1, "not MCP: it printed", starts=1, deadline=SOON),
    Row("a flood of garbage on stdout", ("--garbage-flood",), "permanent", 1, "not MCP: it printed", starts=1),
    Row("never answers", ("--never-answer",), "transient", 3, "no answer within 0.", starts=3, deadline=SOON),
    Row("dies after the handshake", ("--die-after-handshake",), "transient", 3, "its process", starts=3),
    Row(
        "answers over the bound", ("--oversized", "300000"), "permanent", 1, "bound on the size of a message", starts=1
    ),
    Row("pages that repeat", ("--list-fault", "repeating_cursor"), "permanent", 1, "a page cursor came back", starts=1),
    Row("an answer that does not fit", ("--list-fault", "misfit"), "permanent", 1, "does not fit", starts=1),
    Row("an unknown version", ("--handshake-fault", "version"), "permanent", 1, "no protocol version", starts=1),
]


@pytest.mark.requirement("LOAD-2", "LOAD-3", "LOAD-6", "LOAD-9", "LOAD-10", "MSG-1", "MSG-2", "SEC-4")
@pytest.mark.parametrize("row", TABLE, ids=str)
async def test_a_failing_child_gets_its_true_status_attempts_words_and_starts(row: Row, stdio_peer: MakePeer) -> None:
    peer = stdio_peer(*row.flags)
    outcome = await observe(connection(peer), attempt_timeout=row.deadline, limits=Limits(message_bytes=200_000))
    assert (outcome.status, outcome.attempts) == (row.status, row.attempts)
    assert row.says in (outcome.error or "")
    assert peer.starts == row.starts
    assert peer.living == []


@pytest.mark.requirement("LOAD-9")
async def test_a_child_that_exits_before_it_gets_the_probe_is_not_started_again_for_it(
    stdio_peer: MakePeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = Child.send

    async def too_late(child: Child, data: bytes) -> None:
        await child.process.wait()
        await send(child, data)

    monkeypatch.setattr(Child, "send", too_late)
    peer = stdio_peer("--exit-at-once", "0")
    outcome = await observe(connection(peer), attempt_timeout=10.0, limits=Limits())
    assert (outcome.status, outcome.attempts, peer.starts) == ("permanent", 1, 1)


@pytest.mark.requirement("LOAD-8")
@pytest.mark.parametrize(
    ("flags", "methods"),
    [
        (("--era", "modern"), ["server/discover", "tools/list"]),
        (("--era", "both"), ["server/discover", "tools/list"]),
        (("--era", "legacy"), ["server/discover", "initialize", "notifications/initialized", "tools/list"]),
        (("--era", "modern", "--banner"), ["server/discover", "tools/list"]),
        (("--era", "modern", "--bad-utf8"), ["server/discover", "tools/list"]),
    ],
    ids=["modern", "both", "legacy", "noise before the protocol", "bytes that are no text before it"],
)
async def test_a_healthy_child_costs_one_start_and_no_message_too_many(
    flags: tuple[str, ...], methods: list[str], stdio_peer: MakePeer
) -> None:
    peer = stdio_peer(*flags)
    outcome = await observe(connection(peer))
    assert (outcome.status, outcome.attempts, len(outcome.tools)) == ("available", 1, 5)
    assert (peer.starts, peer.methods) == (1, methods)


@pytest.mark.requirement("LOAD-8")
async def test_an_old_server_that_ignores_the_probe_is_greeted_the_old_way(
    stdio_peer: MakePeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.wire.handshake.IGNORED_SECONDS", 0.05)
    peer = stdio_peer("--ignore-discover")
    outcome = await observe(connection(peer))
    assert (outcome.status, outcome.attempts, peer.starts) == ("available", 1, 1)


@pytest.mark.requirement("LOAD-8")
async def test_an_old_server_that_dies_of_the_probe_is_started_again_and_greeted_the_old_way(
    stdio_peer: MakePeer,
) -> None:
    peer = stdio_peer("--die-on-discover")
    outcome = await observe(connection(peer))
    assert (outcome.status, outcome.attempts, peer.starts) == ("available", 1, 2)


@pytest.mark.requirement("LOAD-6", "SEC-4")
async def test_a_catalog_of_5000_tools_over_pages_loads_whole(stdio_peer: MakePeer) -> None:
    peer = stdio_peer("--tools", "5000", "--page-size", "500")
    outcome = await observe(connection(peer))
    assert (outcome.status, len({tool.name for tool in outcome.tools})) == ("available", 5000)
    assert peer.methods.count("tools/list") == 10


@pytest.mark.requirement("LOAD-12")
@pytest.mark.parametrize(
    "flags",
    [
        ("--grandchild",),
        ("--grandchild", "--never-answer"),
        ("--grandchild", "--die-after-handshake"),
        ("--ignore-stdin-close", "--ignore-term"),
        ("--flood-stderr",),
        ("--stop-reading",),
    ],
    ids=" ".join,
)
async def test_nothing_of_a_childs_group_outlives_the_load(flags: tuple[str, ...], stdio_peer: MakePeer) -> None:
    peer = stdio_peer(*flags)
    await observe(connection(peer), attempts=1, attempt_timeout=SOON * 4)
    assert peer.starts == 1
    assert peer.living == []


@pytest.mark.requirement("LOAD-3")
async def test_a_command_that_does_not_exist_is_permanent() -> None:
    outcome = await observe({"transport": "stdio", "command": "holdfast-nonesuch"})
    assert (outcome.status, outcome.attempts) == ("permanent", 1)
    assert outcome.error == "the command `holdfast-nonesuch` was not found"


@pytest.mark.requirement("LOAD-3")
async def test_a_script_without_the_run_bit_is_permanent_and_says_so(tmp_path: Path) -> None:
    script = tmp_path / "server.sh"
    script.write_text("#!/bin/sh\n")
    script.chmod(stat.S_IRUSR)
    outcome = await observe({"transport": "stdio", "command": str(script)})
    assert (outcome.status, outcome.attempts) == ("permanent", 1)
    assert "may not be executed" in (outcome.error or "")
    assert "chmod +x" in outcome.hint


@pytest.mark.requirement("LOAD-3")
async def test_a_file_that_is_no_program_is_permanent(tmp_path: Path) -> None:
    script = tmp_path / "server"
    script.write_text("neither a script nor a binary\n")
    script.chmod(0o755)
    outcome = await observe({"transport": "stdio", "command": str(script)})
    assert (outcome.status, outcome.attempts) == ("permanent", 1)
    assert "is not a program" in (outcome.error or "")


@pytest.mark.requirement("LOAD-3")
async def test_a_folder_that_does_not_exist_is_permanent(stdio_peer: MakePeer, tmp_path: Path) -> None:
    outcome = await observe({**connection(stdio_peer()), "cwd": str(tmp_path / "gone")})
    assert (outcome.status, outcome.attempts) == ("permanent", 1)
    assert "`cwd`" in outcome.hint


@pytest.mark.requirement("MSG-6", "SEC-1")
async def test_a_childs_last_words_reach_the_user_without_its_secrets(stdio_peer: MakePeer) -> None:
    peer = stdio_peer("--exit-at-once", "2", "--stderr", "cannot log in with planted-secret at http://u:p@h/?token=t0k")
    outcome = await observe({**connection(peer), "env": {"API_KEY": "planted-secret"}})
    assert "cannot log in with *** at http://***@h/?token=***" in (outcome.error or "")


@pytest.mark.requirement("LOAD-6")
async def test_the_reference_server_loads_over_stdio() -> None:
    outcome = await observe({"transport": "stdio", "command": str(node()), "args": list(everything_args())})
    assert (outcome.status, outcome.attempts) == ("available", 1)
    assert "echo" in {tool.name for tool in outcome.tools}
