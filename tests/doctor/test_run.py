"""How checks run: side by side, in order, under deadlines; one that crashes is a finding, and no secret is shown."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from holdfast.doctor.case import Case, Check, GlobalCheck, GlobalContext, Observation, places_here
from holdfast.doctor.codes import CODES
from holdfast.doctor.examine import CHECKS, GLOBAL_CHECKS, Doctor
from holdfast.doctor.report import Report, read_or_report
from tests.doctor.examination import SNAPSHOTS, Examination
from tests.peers.http_fault import Behaviour, Exchange, Request
from tests.peers.mcp_http import McpPeer

pytestmark = pytest.mark.anyio

SECRET = "hush-hush-of-clinic"


async def _crash(case: Case) -> Observation:
    raise ValueError(f"with {SECRET} in it")


async def _never(case: Case) -> Observation:
    await anyio.sleep_forever()
    raise AssertionError


async def _well(case: Case) -> Observation:
    return Observation("all is well")


async def _crash_whole(whole: GlobalContext) -> Observation:
    raise RuntimeError("by itself")


CRASHING = Check(id="crashing", looks_at="nothing: it crashes", finds=(), look=_crash)
ENDLESS = Check(id="endless", looks_at="something that never comes", finds=(), look=_never)
FINE = Check(id="fine", looks_at="nothing much", finds=(), look=_well)
AFTER_CRASH = replace(FINE, id="after", needs=("crashing",))
CRASHING_WHOLE = GlobalCheck(id="crashing", looks_at="nothing: it crashes", finds=(), look=_crash_whole)


@pytest.mark.requirement("DOC-7")
async def test_a_check_that_crashes_is_a_finding_and_the_others_go_on(
    clinic: Examination, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_DEBUG", "1")
    clinic.configure({"a": {"command": "x", "env": {"KEY": SECRET}}})
    report = await clinic.all(checks=[CRASHING, AFTER_CRASH, FINE], global_checks=[CRASHING_WHOLE])
    (server,) = report.servers
    assert [(result.check, result.status) for result in server.checks] == [
        ("crashing", "failed"),
        ("after", "skipped"),
        ("fine", "passed"),
    ]
    (found,) = server.findings
    assert found.code == "HF-CHECK-CRASHED"
    assert "ValueError" in found.detail
    clinic.matches("check_crashed", found.model_copy(update={"detail": ""}))
    assert report.checks[0].findings[0].code == "HF-CHECK-CRASHED"
    clinic.configure({})
    assert (await clinic.all(global_checks=[CRASHING_WHOLE])).ok is False


@pytest.mark.requirement("DOC-1", "DOC-7")
async def test_a_check_that_does_not_end_is_ended_and_told(
    clinic: Examination, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.doctor.examine.GRACE_SECONDS", 0.1)
    clinic.configure({"a": {"command": "x"}})
    with anyio.fail_after(30):
        report = await clinic.all(checks=[ENDLESS, FINE], within=0.05)
    assert [result.status for result in report.servers[0].checks] == ["failed", "passed"]
    clinic.matches("check_time", report.servers[0].findings[0])


@pytest.mark.requirement("DOC-1")
async def test_servers_that_do_not_answer_hold_up_nobody(clinic: Examination) -> None:
    """Ten of fifty answer only once all the others are done: looked at one by one, or in turns, none would end."""
    others_done = anyio.Event()
    done: list[str] = []

    async def hold(exchange: Exchange) -> None:
        if await exchange.unless_gone(_true(others_done)):
            await exchange.respond(503, b"now at last")

    def script(request: Request) -> Behaviour:
        return Behaviour("hold", hold) if "slow" in request.headers.get("x-who", "") else peer.healthy

    def told(name: str) -> None:
        done.append(name)
        if sum(name.startswith("quick") for name in done) == 40:
            others_done.set()

    async with McpPeer() as peer:
        peer.script = script
        names = [f"slow{n}" if n % 5 == 0 else f"quick{n}" for n in range(50)]
        clinic.configure({name: {"url": peer.url, "headers": {"X-Who": name}} for name in names})
        with anyio.fail_after(90):
            report = await Doctor(clinic.reading(), timeout=80).examine(on_examined=told)
    assert [server.id for server in report.servers] == names
    assert all(name.startswith("quick") for name in done[:40])
    assert {server.health for server in report.servers if server.id.startswith("quick")} == {"healthy"}
    assert {server.findings[0].code for server in report.servers if server.id.startswith("slow")} == {"HF-NOT-READY"}


async def _true(event: anyio.Event) -> bool:
    await event.wait()
    return True


@pytest.mark.requirement("DOC-1")
async def test_all_servers_have_one_deadline_and_it_counts_from_the_start(clinic: Examination) -> None:
    deadlines: list[float] = []

    async def noting(case: Case) -> Observation:
        deadlines.append(case.deadline)
        return Observation()

    clinic.configure({f"s{n}": {"command": "x"} for n in range(20)})
    began = anyio.current_time()
    await clinic.all(checks=[replace(FINE, look=noting)], within=7.0)
    assert len(deadlines) == 20
    assert all(began + 7 <= deadline <= anyio.current_time() + 7 for deadline in deadlines)


async def test_a_disabled_server_is_looked_at_only_by_name(clinic: Examination) -> None:
    clinic.configure({"on": {"command": "x"}, "off": {"command": "y", "enabled": False}})
    by_default = await clinic.all(checks=[FINE])
    assert [server.health for server in by_default.servers] == ["healthy", "disabled"]
    by_name = await clinic.all(checks=[FINE], names=["off"])
    assert [(server.id, server.health) for server in by_name.servers] == [("off", "healthy")]


@pytest.mark.requirement("DOC-6")
def test_a_file_that_cannot_be_used_is_a_finding(clinic: Examination) -> None:
    clinic.file.write_text('{"mcpServers": {}, "holdfast": {"lood": 1}}')
    report = read_or_report(clinic.file)
    assert isinstance(report, Report)
    clinic.matches("config", report.checks[0].findings)


@pytest.mark.requirement("DOC-8")
def test_every_code_was_produced_for_real_and_its_words_are_kept() -> None:
    kept = "".join(file.read_text() for file in SNAPSHOTS.glob("*.txt"))
    assert set(re.findall(r"^(HF-[A-Z-]+) \(", kept, flags=re.MULTILINE)) == set(CODES)


@pytest.mark.requirement("DOC-8")
def test_every_code_is_found_by_a_check_and_every_check_names_its_codes() -> None:
    named = {
        code for finds in (*(one.finds for one in CHECKS), *(one.finds for one in GLOBAL_CHECKS)) for code in finds
    }
    engine = {
        "HF-CONFIG",
        "HF-CHECK-TIME",
        "HF-CHECK-CRASHED",
        "HF-HUB-NOTICE",
        "HF-HUB-SILENT",
    }
    assert named | engine == set(CODES)
    assert len({check.id for check in CHECKS}) == len(CHECKS)


def test_what_a_check_needs_runs_before_it() -> None:
    order = [check.id for check in CHECKS]
    for check in CHECKS:
        assert all(order.index(need) < order.index(check.id) for need in check.needs)


def test_every_code_says_its_cause_and_its_cure_and_none_says_only_to_check_the_configuration() -> None:
    for code in CODES.values():
        assert code.id.startswith("HF-")
        assert code.means
        assert code.cause.endswith(".")
        assert code.cure
        assert "check your configuration" not in code.cure.lower()


def counting(folder: Path, *, answers: bool) -> dict[str, object]:
    """A process that leaves a file while it starts, notes how many others start beside it, and answers or does not."""
    program = (
        "import os, sys, pathlib, time, json\n"
        "me = pathlib.Path(sys.argv[1]) / str(os.getpid())\n"
        "me.touch()\n"
        "seen = len([one for one in me.parent.iterdir() if one.suffix == ''])\n"
        "asked = json.loads(sys.stdin.readline())\n"
        "me.with_suffix('.seen').write_text(str(seen))\n"
        "me.unlink()\n" + ("sys.exit(3)\n" if answers else "sys.stdin.read()\n")
    )
    return {"command": sys.executable, "args": ["-ISc", program, str(folder)]}


@pytest.mark.requirement("DOC-1")
async def test_only_so_many_processes_start_at_a_time(
    clinic: Examination, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.doctor.examine.HOLD_SECONDS", 300.0)
    folder = tmp_path / "starting"
    folder.mkdir()
    clinic.configure({f"s{n}": counting(folder, answers=True) for n in range(places_here() * 3)})
    report = await clinic.all(within=600.0)
    assert {server.findings[0].code for server in report.servers} == {"HF-EXITED"}
    assert max(int(file.read_text()) for file in folder.glob("*.seen")) <= places_here()


@pytest.mark.requirement("DOC-1", "DOC-4")
async def test_a_server_that_doctor_itself_slowed_down_is_not_blamed(clinic: Examination, tmp_path: Path) -> None:
    folder = tmp_path / "starting"
    folder.mkdir()
    clinic.configure({f"s{n}": counting(folder, answers=False) for n in range(places_here() * 2)})
    report = await clinic.all(within=3.0)
    assert {server.health for server in report.servers} == {"warned"}
    assert not report.ok, "no server is known to work"
    found = report.servers[0].findings[0]
    assert (found.code, found.remedy.commands) == ("HF-CROWDED", ("holdfast doctor s0",))
    clinic.matches("crowded", found)
    alone = await clinic.all(within=1.0, names=["s0"])
    assert [one.code for one in alone.servers[0].findings] == ["HF-SILENT"]
