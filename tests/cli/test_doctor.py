"""``holdfast doctor`` as people and programs use it."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import stat
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import anyio.to_thread
import pytest
from jsonschema import Draft202012Validator

from holdfast.cli import entry
from holdfast.cli.doctor import print_report
from holdfast.control.hub_finder import RunningHub, registered
from holdfast.doctor.codes import CODES
from holdfast.doctor.report import CheckResult, HubSeen, LiveState, Report, ServerReport, finding
from schema.generate import report_schema
from tests.cli.command import LONGEST, Cli, stdio
from tests.cli.serve_process import PACKAGE
from tests.peers.http_fault import FaultServer, closed_port, respond
from tests.peers.leaks import alive
from tests.peers.mcp_http import McpPeer
from tests.peers.stdio import StdioPeer

ROOT = Path(__file__).parents[2]
SECRET = "hunter22-of-ours"

Make = Callable[..., StdioPeer]


class Ran(NamedTuple):
    """How a command ended, and what it printed."""

    returncode: int
    stdout: str
    stderr: str


class Clinic(Cli):
    """The command line in this very process, eighty columns wide: starting Python dozens of times takes a minute."""

    def run(self, *arguments: str, **environment: str) -> Ran:  # type: ignore[override]  # what a process would give
        out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
        surroundings = mock.patch.dict(os.environ, {**self.environment, **environment}, clear=True)
        here = contextlib.chdir(self.folder)
        with surroundings, here, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = entry.run(["doctor", *arguments])
        for stream in (out, err):
            stream.seek(0)
        return Ran(code, out.read(), err.read())


@pytest.fixture
def clinic(tmp_path: Path) -> Clinic:
    folder = tmp_path / "home"
    folder.mkdir()
    clinic = Clinic(folder)
    clinic.environment |= {"PYTHONPATH": PACKAGE, "COLUMNS": "80", "HOLDFAST_TOKEN_STORE": "file"}
    return clinic


def shape() -> Draft202012Validator:
    return Draft202012Validator(report_schema())


# Five broken servers


class Newcomer:
    """A user who knows only what the doctor prints: edits the file, exports variables, runs commands."""

    def __init__(self, clinic: Clinic, values: Mapping[str, str]) -> None:
        self._clinic = clinic
        self._values = values
        self._file = clinic.folder / "mcp.json"

    def follow(self, printed: str) -> None:
        lines = printed.splitlines()
        edits = []
        for line, following in zip(lines, [*lines[1:], ""], strict=True):
            if place := re.fullmatch(r" {6}in (\S+):(\d+):(\d+), (replace|insert) .*:", line):
                assert place[1] == self._file.name
                edits.append((int(place[2]), int(place[3]), place[4], following))
            elif typed := re.fullmatch(r" {6}\$ (.*)", line):
                self._type(typed[1])
        for edit in sorted(edits, reverse=True):  # from the end, so that no position moves
            self._paste(*edit)

    def _paste(self, line: int, column: int, action: str, text: str) -> None:
        """Paste a printed line, as it is, at the position that was printed."""
        lines = self._file.read_text().splitlines()
        before, rest = lines[line - 1][: column - 1], lines[line - 1][column - 1 :]
        if action == "insert":
            assert rest.startswith("{")
            lines[line - 1] = f"{before}{{{text}{rest[1:]}"
        else:
            _, length = json.JSONDecoder().raw_decode(rest)
            lines[line - 1] = before + text + rest[length:]
        self._file.write_text("\n".join(lines))
        json.loads(self._file.read_text())
        self._clinic.trust()

    def _type(self, command: str) -> None:
        if asked := re.fullmatch(r"read -rs (\w+) && export \1", command):
            self._clinic.environment[asked[1]] = self._values[asked[1]]
        else:
            subprocess.run(["sh", "-c", command], cwd=self._clinic.folder, check=True)


@pytest.mark.anyio
@pytest.mark.requirement("DOC-4", "DOC-6")
async def test_a_newcomer_mends_five_broken_servers_by_what_is_printed_alone(clinic: Clinic, stdio_peer: Make) -> None:
    tools = clinic.folder / "tools"
    tools.mkdir()
    (tools / "clinic-python").symlink_to(sys.executable)
    script = tools / "serve.sh"
    words = " ".join(f"'{word}'" for word in (sys.executable, *stdio_peer().args))
    script.write_text(
        f"#!/bin/sh\n[ \"$CLINIC_KEY\" ] || {{ echo 'error: CLINIC_KEY is not set' >&2; exit 1; }}\nexec {words}\n"
    )
    script.chmod(0o644)
    async with McpPeer() as misplaced, McpPeer(auth="Bearer the-right-token") as guarded:
        clinic.configure(
            {
                "misspelt": {**stdio(stdio_peer()), "command": "clinic-pyhton", "env": {"PATH": f"{tools}:/bin"}},
                "unset": stdio(stdio_peer(), env={"X": "${env:CLINIC_UNSET}"}),
                "misplaced": {"url": misplaced.origin.replace("http", "https")},
                "guarded": {"url": guarded.url},
                "script": {"command": "./tools/serve.sh"},
            }
        )
        person = Newcomer(
            clinic, {"CLINIC_UNSET": "a value", "GUARDED_TOKEN": "the-right-token", "CLINIC_KEY": "opensesame"}
        )
        ran = await anyio.to_thread.run_sync(clinic.run)
        assert ran.returncode == 1
        assert "0 of 5 servers work" in ran.stdout
        for _ in range(3):  # behind https was also the wrong path, and behind the run bit a variable
            person.follow(ran.stdout)
            ran = await anyio.to_thread.run_sync(clinic.run)
            if ran.returncode == 0:
                break
    assert "5 of 5 servers work" in ran.stdout
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "the-right-token" not in ran.stdout


# What is printed


@pytest.mark.requirement("DOC-1", "DOC-2")
def test_people_see_what_is_well_in_a_line_and_the_worst_last(clinic: Clinic, stdio_peer: Make) -> None:
    with closed_port() as port:
        clinic.configure(
            {
                "down": {"url": f"http://127.0.0.1:{port}/mcp"},
                "noisy": stdio(stdio_peer("--banner")),
                "files": stdio(stdio_peer("--tools", "2")),
                "old": {"command": "x", "enabled": False},
            }
        )
        ran = clinic.run()
    assert (ran.returncode, ran.stderr) == (1, "")
    lines = ran.stdout.splitlines()
    assert lines[0] == f"Configuration: {clinic.folder / 'mcp.json'}"
    assert re.fullmatch(r"ok       files  2 tools, MCP 2025-11-25, \d+\.\d\d s", lines[2])
    assert lines[3] == "off      old    disabled in its definition"
    assert [line.split()[1] for line in lines if line.startswith(("warning", "FAILED"))] == ["noisy", "down"]
    assert lines[-2:] == [
        "2 of 3 servers work; failed: down",
        "For more about a code: `holdfast doctor explain HF-REFUSED`",
    ]
    fixed = [line for line in lines if not line.startswith(("      $ ", "      in ", "    | ", "Configuration"))]
    assert max(map(len, fixed)) <= 80
    assert "\x1b" not in ran.stdout


@pytest.mark.requirement("DOC-5")
def test_a_running_hubs_states_stand_beside_what_was_seen(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    well = LiveState(state="connected", status="available", breaker="closed", agrees=True)
    parked = LiveState(
        state="parked", status="permanent", breaker="half_open", retry_in=12.3, agrees=False, difference="x"
    )
    handshake = CheckResult(check="handshake", status="passed", seen="speaks MCP 2026-07-28 after 0.10 s")
    report = Report(
        holdfast="1",
        ok=False,
        file="/mcp.json",
        hub=HubSeen(url="http://127.0.0.1:4653", version="1", pid=7),
        servers=(
            ServerReport(
                id="broken",
                transport="http",
                target="http://x/mcp",
                health="failed",
                hub=parked,
                checks=(
                    CheckResult(
                        check="port", status="failed", findings=(finding("HF-REFUSED", "no", "start it", "x"),)
                    ),
                ),
            ),
            ServerReport(
                id="a-server-with-a-long-name",
                transport="stdio",
                health="healthy",
                tools=1,
                hub=well,
                checks=(handshake,),
            ),
        ),
    )
    print_report(report)
    printed = capsys.readouterr().out
    assert printed.splitlines()[1] == "Running hub:   http://127.0.0.1:4653, pid 7, version 1"
    assert "1 tool, MCP 2026-07-28, 0.00 s, hub: connected, breaker closed" in " ".join(printed.split())
    assert "  hub: parked, breaker half open, next try in 12 s" in printed
    assert max(map(len, printed.splitlines())) <= 80


@pytest.mark.requirement("DOC-4", "DOC-7")
def test_a_cause_that_many_servers_share_is_told_once(clinic: Clinic) -> None:
    names = [f"server{number}" for number in range(12)]
    servers: dict[str, object] = {name: {"command": "npx", "args": ["-y", name]} for name in names}
    clinic.configure({**servers, "other": {"command": "uvx", "args": ["other"]}})
    clinic.environment["PATH"] = str(clinic.folder / "nowhere")
    ran = clinic.run()
    assert ran.returncode == 1
    assert ran.stdout.count("HF-COMMAND-MISSING  ") == 2, "one for npx, one for uvx"
    assert f"FAILED   12 servers with the same finding: {', '.join(names)}" in " ".join(ran.stdout.split()).replace(
        "FAILED ", "FAILED   "
    )
    assert len(ran.stdout.splitlines()) < 30
    as_json = json.loads(clinic.run("--json").stdout)
    shape().validate(as_json)
    (cause,) = as_json["causes"]
    assert (cause["code"], cause["servers"]) == ("HF-COMMAND-MISSING", names)
    assert all(server["checks"][1]["findings"] for server in as_json["servers"]), "each server has its finding too"


@pytest.mark.requirement("DOC-4")
def test_findings_that_only_look_alike_are_not_taken_for_one(clinic: Clinic) -> None:
    def failing(words: str) -> dict[str, object]:
        return {"command": sys.executable, "args": ["-ISc", f"import sys; sys.exit({words!r})"]}

    missing = "npm error code E404\nnpm error 404  '@{}/mcp@*' is not in this registry."
    clinic.configure(
        {
            "acme": failing(missing.format("acme")),
            "other": failing(missing.format("other")),
            "silent": failing(""),
            "mute": failing(""),
            "boom": failing("boom"),
            "bang": failing("bang"),
        }
    )
    assert json.loads(clinic.run("--json").stdout)["causes"] == []


@pytest.mark.requirement("DOC-4", "DOC-8")
def test_of_edits_that_are_alike_some_are_shown_and_all_are_written(clinic: Clinic) -> None:
    clinic.configure({f"s{number}": {"command": "x", "env": {"KEY": "<your key>"}} for number in range(6)})
    told = clinic.run().stdout
    assert told.count("HF-PLACEHOLDER") == 1
    assert "and at 3 more places; `holdfast doctor --fix` writes all of them" in told
    clinic.run("--fix", "--yes")
    assert (clinic.folder / "mcp.json").read_text().count("${env:KEY}") == 6


@pytest.mark.requirement("DOC-7")
def test_programs_get_the_same_as_json_of_the_published_schema(clinic: Clinic, stdio_peer: Make) -> None:
    with closed_port() as port:
        clinic.configure({"files": stdio(stdio_peer()), "down": {"url": f"http://127.0.0.1:{port}/mcp"}})
        ran = clinic.run("--json", "--timeout", "20")
    assert (ran.returncode, ran.stderr) == (1, "")
    report = json.loads(ran.stdout)
    shape().validate(report)
    assert (report["version"], report["ok"]) == (1, False)
    assert [(server["id"], server["health"], server["tools"]) for server in report["servers"]] == [
        ("files", "healthy", 5),
        ("down", "failed", None),
    ]
    (found,) = (one for result in report["servers"][1]["checks"] for one in result["findings"])
    assert (found["code"], found["severity"]) == ("HF-REFUSED", "error")
    assert found["remedy"]["commands"] == ["ss -ltn"]


@pytest.mark.requirement("DOC-7")
def test_the_schema_that_is_checked_in_is_fresh() -> None:
    assert json.loads((ROOT / "schema/doctor.schema.json").read_text()) == report_schema(), "run `make schema`"
    Draft202012Validator.check_schema(report_schema())


@pytest.mark.requirement("DOC-8")
@pytest.mark.parametrize("written", ["HF-REFUSED", "refused"])
def test_a_code_is_explained(clinic: Clinic, written: str) -> None:
    ran = clinic.run("explain", written)
    assert ran.returncode == 0
    assert ran.stdout == (
        "HF-REFUSED  error\n"
        "  Nothing listens at the address.\n"
        "  Cause: The machine refused the connection: the server is not running, or\n"
        "         listens on another port.\n"
        "  Cure:  Start it, or correct the port in `url`.\n"
    )


@pytest.mark.requirement("DOC-8")
def test_the_reference_has_every_code_with_its_cause_and_cure() -> None:
    page = (ROOT / "docs/reference/doctor.md").read_text()
    for code in CODES.values():
        assert f"### {code.id}" in page
        assert code.cause in page
        assert code.cure in page
    assert set(re.findall(r"### (HF-[A-Z-]+)", page)) == set(CODES)


@pytest.mark.requirement("DOC-8")
def test_what_was_mended_is_told(clinic: Clinic) -> None:
    clinic.configure({"off": {"command": "x", "enabled": False, "env": {"API_KEY": SECRET}}})
    file = clinic.folder / "mcp.json"
    file.chmod(0o644)
    ran = clinic.run("--fix")
    assert ran.returncode == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    told = " ".join(ran.stdout.split())
    assert f"--fix, done: {file} can now be read only by you (mode 600) (HF-FILE-READABLE)" in told


# Exit codes


@pytest.mark.requirement("DOC-6")
def test_nothing_configured_is_no_failure_and_says_where_it_looked(clinic: Clinic) -> None:
    ran = clinic.run()
    assert (ran.returncode, ran.stderr) == (0, "")
    for place in ("mcp.json", ".mcp.json", ".vscode/mcp.json", ".config/holdfast/mcp.json"):
        assert f"  {clinic.folder / place}" in ran.stdout
    as_json = json.loads(clinic.run("--json").stdout)
    shape().validate(as_json)
    assert (as_json["ok"], as_json["file"], len(as_json["searched"]) >= 4) == (True, None, True)


@pytest.mark.requirement("DOC-6")
def test_where_only_a_hub_has_a_file_that_one_is_named(clinic: Clinic) -> None:
    state = clinic.folder / "state"
    clinic.environment["XDG_STATE_HOME"] = str(state)
    hub = RunningHub(
        url="http://127.0.0.1:1", token="t", pid=os.getpid(), started=1.0, config="/a/mcp.json", version="1"
    )
    with registered(hub, environ={"XDG_STATE_HOME": str(state)}):
        ran = clinic.run()
    assert ran.returncode == 0
    assert "To check that one: `holdfast doctor --config /a/mcp.json`" in ran.stdout


@pytest.mark.requirement("DOC-6")
def test_a_server_that_is_named_where_no_file_is_found_is_wrong_usage(clinic: Clinic) -> None:
    ran = clinic.run("down")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "no server named `down` is configured: no configuration was found" in ran.stderr
    assert str(clinic.folder / "mcp.json") in ran.stderr
    assert clinic.run("down", "--json").returncode == 2


@pytest.mark.requirement("DOC-6")
def test_a_file_without_servers_is_no_failure(clinic: Clinic) -> None:
    clinic.configure({})
    ran = clinic.run()
    assert ran.returncode == 0
    assert "the configuration has no servers" in ran.stdout


BROKEN = {
    "empty": (b"", ""),
    "cut short": (b'{"mcpServers": {"a": {"command": "x"}', ":1:"),
    "a missing comma": (b'{"mcpServers": {\n"a": {"command": "x"}\n"b": {"command": "y"}}}', ":3:"),
    "no JSON at all": (b"servers:\n  - a\n", ":1:1"),
    "a list": (b"[]", ":1:1"),
    "a text": (b'"hello"', ":1:1"),
    "servers that are a list": (b'{"mcpServers": [1]}', ":1:16"),
    "an unknown key": (b'{"mcpServerz": {}}', ":1:2"),
    "an unknown setting": (b'{"mcpServers": {}, "holdfast": {"lood": {}}}', ":1:33"),
    "a bad setting": (b'{"mcpServers": {}, "holdfast": {"load": {"attempts": "many"}}}', ":1:"),
    "settings at odds": (b'{"holdfast": {"load": {"attemptTimeout": "9s", "totalTimeout": "1s"}}}', ":1:"),
    "a key twice": (b'{"mcpServers": {}, "mcpServers": {}}', ":1:"),
    "no UTF-8": (b'{"mcpServers": {"\xff": {}}}', ""),
    "binary": (b"\x00\x01\x02\x7fELF", ":1:1"),
    "too deep": (b"[" * 5000, ":1:"),
}


@pytest.mark.requirement("DOC-6")
@pytest.mark.parametrize("kind", BROKEN)
def test_a_wholly_broken_file_is_told_with_its_place_and_cause(clinic: Clinic, kind: str) -> None:
    content, place = BROKEN[kind]
    file = clinic.folder / "mcp.json"
    file.write_bytes(content)
    clinic.trust()
    ran = clinic.run()
    assert (ran.returncode, ran.stderr) == (1, "")
    assert "HF-CONFIG" in ran.stdout
    assert f"{file}{place}" in "".join(ran.stdout.split())
    assert "no server was checked: fix this first" in ran.stdout
    assert "Traceback" not in ran.stdout


@pytest.mark.requirement("DOC-6", "DOC-7")
@pytest.mark.parametrize("content", [b"[", b"\xff"])
def test_a_wholly_broken_file_is_json_for_programs(clinic: Clinic, content: bytes) -> None:
    (clinic.folder / "mcp.json").write_bytes(content)
    ran = clinic.run("--json")
    report = json.loads(ran.stdout)
    shape().validate(report)
    assert (ran.returncode, report["ok"], report["servers"]) == (1, False, [])


@pytest.mark.requirement("DOC-6")
@pytest.mark.parametrize("kind", ["missing", "folder"])
def test_a_file_that_is_named_and_cannot_be_read_is_a_failure(clinic: Clinic, kind: str) -> None:
    place = clinic.folder / kind
    if kind == "folder":
        place.mkdir()
    ran = clinic.run("--config", str(place))
    assert (ran.returncode, ran.stderr) == (1, "")
    assert str(place) in ran.stdout


WRONG = [("--nonsense",), ("--timeout", "0"), ("--timeout", "soon"), ("unknown",), ("explain",), ("explain", "HF-NO")]


@pytest.mark.requirement("DOC-6")
@pytest.mark.parametrize("arguments", WRONG)
def test_wrong_usage_is_told_apart(clinic: Clinic, arguments: tuple[str, ...]) -> None:
    clinic.configure({"server": {"command": "x"}})
    ran = clinic.run(*arguments)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.requirement("DOC-6")
def test_wrong_usage_and_a_broken_file_cost_no_import_of_the_client(clinic: Clinic) -> None:
    (clinic.folder / "broken.json").write_text("[")
    clinic.configure({"server": {"command": "x"}})
    program = f"""
import sys
from holdfast.cli.entry import run
for arguments in [*{WRONG!r}, ("--config", "broken.json"), ("explain", "refused")]:
    run(["doctor", *arguments])
sys.exit("mcp" in sys.modules or "httpx2" in sys.modules)
"""
    process = [sys.executable, "-c", program]
    ran = subprocess.run(process, cwd=clinic.folder, env=clinic.environment, capture_output=True, check=False)
    assert ran.returncode == 0, ran.stderr


def test_a_misspelt_server_is_told_with_the_nearest(clinic: Clinic) -> None:
    clinic.configure({"weather": {"command": "x"}})
    ran = clinic.run("wether")
    assert ran.stderr == "error: no server named `wether` is configured\n\nhint: did you mean `weather`?\n"


# Secrets


@pytest.mark.anyio
@pytest.mark.requirement("MSG-6")
@pytest.mark.parametrize("options", [(), ("--json",), ("--fix",)])
async def test_no_secret_is_in_any_output_or_file(clinic: Clinic, stdio_peer: Make, options: tuple[str, ...]) -> None:
    planted = {
        name: f"planted-{name}-{os.getpid()}" for name in ("env", "header", "query", "user", "arg", "body", "var")
    }
    refusal = respond(401, f"bad token {planted['header']}", {"www-authenticate": f'Bearer x="{planted["header"]}"'})
    async with FaultServer(refusal) as server:
        origin = server.origin.replace("//", f"//me:{planted['user']}@")
        clinic.configure(
            {
                "a": {
                    "url": f"{origin}/mcp?api_key={planted['query']}",
                    "headers": {"Authorization": f"Bearer {planted['header']}"},
                },
                "b": stdio(
                    stdio_peer("--exit-at-once", "3", "--stderr", f"cannot use {planted['env']} and {planted['var']}"),
                    env={"API_KEY": planted["env"], "OTHER": "${PLANTED}"},
                ),
                "c": {"command": "no-such-command", "args": ["--token", planted["arg"]]},
                "d": {"comand": planted["body"], "url": f"http://me:{planted['user']}@x/", "headers": {"X": 5}},
            }
        )
        ran = await anyio.to_thread.run_sync(lambda: clinic.run(*options, PLANTED=planted["var"], HOLDFAST_DEBUG="1"))
    assert ran.returncode == 1
    kept = [file for file in clinic.folder.rglob("*") if file.is_file() and file.name != "mcp.json"]
    kept = [file for file in kept if file.parent.name != "backups"]  # a private copy of the file itself
    everything = ran.stdout + ran.stderr + "".join(file.read_text(errors="replace") for file in kept)
    assert [name for name, secret in planted.items() if secret in everything] == []


# On a terminal


@pytest.mark.parametrize("no_colour", ["", "1"])
def test_there_is_colour_on_a_terminal_unless_it_is_not_wanted(
    no_colour: str, clinic: Clinic, stdio_peer: Make
) -> None:
    clinic.configure({"we[/bold]ird": stdio(stdio_peer())})
    with clinic.on_terminal("doctor", **({"NO_COLOR": no_colour} if no_colour else {})) as terminal:
        assert terminal.code() == 0
    assert re.search(r"ok +we\[/bold\]ird  5 tools", terminal.text)
    assert ("\x1b[32m" in terminal.seen) == (not no_colour)


@pytest.mark.timeout(LONGEST)
def test_progress_is_shown_and_ctrl_c_ends_everything(clinic: Clinic, stdio_peer: Make, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    os.mkfifo(journal)
    slow = stdio_peer("--never-answer", "--grandchild", "--log", str(journal))
    clinic.configure({"fast": stdio(stdio_peer()), "[red]slow": stdio(slow)})
    with (
        clinic.on_terminal("doctor", "--timeout", "50") as terminal,
        os.fdopen(os.open(journal, os.O_RDWR)) as heard,
    ):
        terminal.until("1 of 2 servers checked; waiting for [red]slow")
        pids = [int(heard.readline().split()[1]) for _ in ("the child", "its own child")]
        terminal.press("\x03")
        assert terminal.code() == 130
    assert "Traceback" not in terminal.text
    assert not any(map(alive, pids))
