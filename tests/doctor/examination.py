"""Examine servers as ``holdfast doctor`` does, look at what was found, and carry out what it advises."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.entry import COMMANDS
from holdfast.config.read import ConfigReading
from holdfast.config.spec import ServerSpec
from holdfast.doctor.codes import CODES
from holdfast.doctor.examine import Doctor
from holdfast.doctor.report import Edit, Finding, Report, ServerReport, read_or_report

__all__ = ["SNAPSHOTS", "Examination", "clinic", "told"]

SNAPSHOTS = Path(__file__).with_name("snapshots")

SHORTEST = 8
"""Shorter values of variables are no secrets, and turn up by chance."""

PLENTY = 20.0
"""Seconds that no healthy server of the tests needs, however busy the machine is."""


class Examination:
    """A folder with an ``mcp.json``, and the doctor that looks at it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.file = folder / "mcp.json"
        self._monkeypatch = monkeypatch
        self.planted: set[str] = set()

    def configure(self, servers: Mapping[str, object], **settings: object) -> None:
        self.file.write_text(json.dumps({"mcpServers": servers, "holdfast": settings}, indent=2))
        self.file.chmod(0o600)

    async def all(self, *, within: float = PLENTY, names: Sequence[str] = (), **more: Any) -> Report:
        """The whole report."""
        reading = self.reading()
        report = await Doctor(reading, timeout=within, **more).examine(names)
        for found in (one for server in report.servers for one in server.findings):
            _is_complete(found)
        for server in (definition.server for definition in reading.definitions):
            self.planted |= server.secrets if not server.problems else set()
        assert self.leaked_into(report.model_dump_json()) == []
        return report

    def leaked_into(self, text: str) -> list[str]:
        """The secrets of the servers that were examined which turn up in a text."""
        return [secret for secret in self.planted if len(secret) >= SHORTEST and secret in text]

    async def one(self, definition: object = None, *, within: float = PLENTY, **more: Any) -> ServerReport:
        """The report on the only server there is."""
        if definition is not None:
            self.configure({"server": definition})
        (server,) = (await self.all(within=within, **more)).servers
        return server

    async def found(self, definition: object, *, within: float = PLENTY, **more: Any) -> Finding:
        """The only finding of the only server."""
        server = await self.one(definition, within=within, **more)
        assert len(server.findings) == 1, told(server.findings)
        return server.findings[0]

    def carry_out(self, finding: Finding, **values: str) -> None:
        """Do what the remedy says: its edits, and its commands; ``values`` are what a person would paste."""
        for edit in (one for one in finding.remedy.edits if one.paste):
            self._write(edit)
        for command in finding.remedy.commands:
            self._run(command, values)

    def _write(self, edit: Edit) -> None:
        """Paste the text at the position that the edit names, as a person does."""
        text = self.file.read_text()
        line, column = map(int, edit.place.split(":")[-2:])
        at = sum(len(one) for one in text.splitlines(keepends=True)[: line - 1]) + column - 1
        if edit.action == "insert":
            assert text[at] == "{"
            text = f"{text[: at + 1]}{edit.paste}{text[at + 1 :]}"
        else:
            _, length = json.JSONDecoder().raw_decode(text[at:])
            text = f"{text[:at]}{edit.paste}{text[at + length :]}"
        json.loads(text)
        self.file.write_text(text)

    def _run(self, command: str, values: Mapping[str, str]) -> None:
        if asked := re.fullmatch(r"read -rs (\w+) && export \1", command):
            self._monkeypatch.setenv(asked[1], values[asked[1]])
        elif given := re.fullmatch(r"export (\w+)=(.*)", command):
            exported = f'{command}; printf %s "${given[1]}"'
            shown = values.get(given[1]) or subprocess.check_output(["sh", "-c", exported], text=True)
            self._monkeypatch.setenv(given[1], shown)
        elif not command.startswith("holdfast "):
            subprocess.run(["sh", "-c", command], check=True, stdout=subprocess.DEVNULL, cwd=self.folder)

    def reading(self) -> ConfigReading:
        read = read_or_report(self.file)
        assert isinstance(read, ConfigReading)
        return read

    def spec(self) -> ServerSpec:
        """The only server there is."""
        (server,) = self.reading().config.servers.values()
        assert not server.problems
        return server

    def matches(self, name: str, findings: Sequence[Finding] | Finding) -> None:
        """Compare with what is kept under that name; ``HOLDFAST_SNAPSHOTS=write`` keeps what is said now."""
        findings = [findings] if isinstance(findings, Finding) else findings
        said = self._steady(told(findings))
        file = SNAPSHOTS / f"{name}.txt"
        if os.environ.get("HOLDFAST_SNAPSHOTS") == "write":
            file.write_text(said)
        assert said == file.read_text()

    def _steady(self, text: str) -> str:
        """Without what differs from run to run: folders, ports, times and dates."""
        text = text.replace(str(self.folder), "FOLDER").replace(str(self.folder.parent), "TMP")
        text = text.replace(sys.executable, "PYTHON")
        text = re.sub(r"/\S*/tests/peers/", "PEERS/", text)
        text = re.sub(r"holdfast-test-\S+", "MARK", text)
        text = re.sub(r'env -i (?:[A-Z_]+="\$[A-Z_]+" )+', "env -i ENVIRONMENT ", text)
        text = re.sub(r"stdio-\w+\.log", "LOG", text)
        text = re.sub(r"((?:127\.0\.0\.1|localhost|\.example)[: ])\d{4,5}\b", r"\1PORT", text)
        text = re.sub(r"[0-9a-f]{16}\.sqlite", "STATE.sqlite", text)
        text = re.sub(r"trustme v[\d.]+", "trustme", text)
        text = re.sub(r"\d{4}-\d\d-\d\d(?: \d\d:\d\d)?", "DATE", text)
        return re.sub(r"\b\d+(\.\d+)? s\b", "N s", text)


def told(findings: Sequence[Finding]) -> str:
    """Findings as one text, a line for each thing that they say."""
    return "\n".join(line for found in findings for line in _lines(found)) + "\n"


def _lines(found: Finding) -> list[str]:
    return [
        f"{found.code} ({found.severity})",
        found.words,
        *(f"| {line}" for line in found.detail.splitlines()),
        f"fix: {found.remedy.text}",
        *(f"write at {edit.place}: {edit.key} = {edit.value}" for edit in found.remedy.edits),
        *(f"$ {command}" for command in found.remedy.commands),
    ]


def _is_complete(found: Finding) -> None:
    """Every finding has a code that is explained, and something that can be pasted."""
    assert found.code in CODES
    assert found.remedy.commands or found.remedy.edits, f"{found.code} has nothing to paste"
    assert "***" not in "".join(found.remedy.commands), f"{found.code}: {found.remedy.commands}"
    ours = [command.split()[1] for command in found.remedy.commands if command.startswith("holdfast ")]
    assert set(ours) <= {*COMMANDS, "--version"}


_PATIENCE = {
    "holdfast.doctor.examine.GRACE_SECONDS": 10.0,
    "holdfast.doctor.case.ASKING_SECONDS": 60.0,
    "holdfast.doctor.network_faults.LOOK_SECONDS": 10.0,
    "holdfast.doctor.network_faults.ANSWER_SECONDS": 3.0,
    "holdfast.doctor.diagnose.SEARCH_SECONDS": 20.0,
}
"""On a busy machine a second connection may need longer than a person would wait."""


@pytest.fixture
def clinic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> Iterator[Examination]:
    """An examination whose secrets, when it is over, are in no output, no log and no file that was left behind."""
    folder = tmp_path / "clinic"
    folder.mkdir()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("HOLDFAST_TOKEN_STORE", "file")  # no test may touch a keyring
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for constant, seconds in _PATIENCE.items():
        monkeypatch.setattr(constant, seconds)
    examination = Examination(folder, monkeypatch)
    yield examination
    may_hold_secrets = ("auth.json", "doctor-")  # the token store, and backups of the file itself
    files = [
        file
        for file in (tmp_path / "state").rglob("*")
        if file.is_file() and not file.name.startswith(may_hold_secrets)
    ]
    left = "".join(file.read_text(errors="replace") for file in files)
    assert examination.leaked_into(caplog.text + "".join(capfd.readouterr()) + left) == []
