"""The edits that doctor proposes: correct when pasted literally, and written by ``--fix`` with a backup."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from holdfast.config.file_edit import Backups
from holdfast.config.jsonc import parse
from holdfast.doctor.report import Edit, Report, plan_edits, read_or_report, undo_edits
from holdfast.errors import HoldfastError
from tests.doctor.examination import Examination

pytestmark = pytest.mark.anyio

NEEDS_KEYS = "import sys; print('CLINIC_KEY and CLINIC_USER are not set', file=sys.stderr); sys.exit(1)"


def pasted(text: str, edits: tuple[Edit, ...]) -> str:
    """The text after each edit was pasted at its position, in the order of the report."""
    for edit in (one for one in edits if one.paste):
        line, column = map(int, edit.place.split(":")[-2:])
        at = sum(len(one) for one in text.splitlines(keepends=True)[: line - 1]) + column - 1
        if edit.action == "insert":
            text = text[: at + 1] + edit.paste + text[at + 1 :]
        else:
            _, length = json.JSONDecoder().raw_decode(text[at:])
            text = text[:at] + edit.paste + text[at + length :]
    return text


@pytest.mark.requirement("DOC-8")
@pytest.mark.parametrize(
    "env",
    [None, {}, {"COLOUR": "blue"}],
    ids=["no env", "an empty env", "an env with a variable"],
)
async def test_two_missing_variables_can_be_pasted_at_once(clinic: Examination, env: dict[str, str] | None) -> None:
    definition: dict[str, object] = {"command": sys.executable, "args": ["-c", NEEDS_KEYS]}
    found = await clinic.found(definition if env is None else {**definition, "env": env})
    after = json.loads(pasted(clinic.file.read_text(), found.remedy.edits))
    wanted = {**(env or {}), "CLINIC_KEY": "${env:CLINIC_KEY}", "CLINIC_USER": "${env:CLINIC_USER}"}
    assert after["mcpServers"]["server"]["env"] == wanted
    assert "export them (these commands wait for you to paste them)" in found.remedy.text


@pytest.mark.requirement("DOC-8")
async def test_a_misspelt_key_can_be_renamed_and_the_value_stays(clinic: Examination) -> None:
    clinic.configure({"server": {"comand": "npx", "args": []}})
    (server,) = (await clinic.all()).servers
    unknown = next(found for found in server.findings if "unknown key" in found.words)
    after = json.loads(pasted(clinic.file.read_text(), unknown.remedy.edits))
    assert after["mcpServers"]["server"] == {"command": "npx", "args": []}


@pytest.mark.requirement("DOC-8")
@pytest.mark.parametrize(
    ("definition", "path", "written"),
    [
        ({"command": "x", "env": {"API_KEY": "<YOUR_API_KEY>"}}, ("env", "API_KEY"), "${env:API_KEY}"),
        (
            {"url": "http://127.0.0.1:1/mcp", "headers": {"Authorization": "Bearer <YOUR_TOKEN>"}},
            ("headers", "Authorization"),
            "Bearer ${env:SERVER_TOKEN}",
        ),
        ({"command": "x", "args": ["-y", "--key=YOUR_API_KEY"]}, ("args", 1), "--key=${env:SERVER_API_KEY}"),
    ],
    ids=["env", "header", "argument"],
)
async def test_a_placeholder_becomes_a_reference_to_a_variable(
    clinic: Examination, definition: dict[str, object], path: tuple[str | int, ...], written: str
) -> None:
    clinic.configure({"server": {**definition, "enabled": False}})
    report = await clinic.all(names=["server"])
    (found,) = [one for one in report.servers[0].findings if one.code == "HF-PLACEHOLDER"]
    plan, left = plan_edits(report)
    assert plan is not None
    assert left == []
    value = parse(plan.after).value
    for step in ("mcpServers", "server", *path):
        value = value[step]  # type: ignore[index]
    assert value == written
    assert found.remedy.commands
    clinic.matches(f"placeholder_{path[0]}", found)


@pytest.mark.requirement("DOC-8")
async def test_fix_writes_what_was_shown_with_a_backup_and_undo_restores_it(clinic: Examination) -> None:
    text = '{\n  // my servers\n  "mcpServers": {"server": {"command": "x", "env": {"API_KEY": "<YOUR_API_KEY>"}}}\n}\n'
    clinic.file.write_text(text)
    clinic.file.chmod(0o600)
    report = await clinic.all()
    plan, _ = plan_edits(report)
    assert plan is not None
    kept = plan.perform(Backups(os.environ))
    assert clinic.file.read_text() == text.replace("<YOUR_API_KEY>", "${env:API_KEY}")
    assert kept.stat().st_mode & 0o077 == 0
    undo_edits(clinic.file)
    assert clinic.file.read_text() == text
    with pytest.raises(HoldfastError, match="nothing to undo"):
        undo_edits(clinic.file)


@pytest.mark.requirement("DOC-8")
async def test_a_file_that_changed_after_the_diff_is_not_written(clinic: Examination) -> None:
    clinic.configure({"server": {"command": "x", "env": {"API_KEY": "<YOUR_API_KEY>"}}})
    plan, _ = plan_edits(await clinic.all())
    assert plan is not None
    clinic.file.write_text("{}")
    with pytest.raises(HoldfastError, match="changed in the meantime"):
        plan.perform(Backups(os.environ))
    assert clinic.file.read_text() == "{}"


@pytest.mark.requirement("DOC-8")
async def test_undo_does_not_overwrite_a_later_change(clinic: Examination) -> None:
    clinic.configure({"server": {"command": "x", "env": {"API_KEY": "<YOUR_API_KEY>"}}})
    plan, _ = plan_edits(await clinic.all())
    assert plan is not None
    plan.perform(Backups(os.environ))
    later = clinic.file.read_text().replace('"x"', '"y"')
    clinic.file.write_text(later)
    with pytest.raises(HoldfastError, match="changed since"):
        undo_edits(clinic.file)
    assert clinic.file.read_text() == later


@pytest.mark.requirement("DOC-8")
async def test_an_edit_that_cannot_be_shown_is_not_written(clinic: Examination) -> None:
    clinic.configure({"server": {"url": "http://127.0.0.1:1/mcp?token=s3cret-s3cret&id=<YOUR_ACCOUNT_ID>"}})
    report = await clinic.all()
    before = clinic.file.read_text()
    plan, left = plan_edits(report)
    assert plan is None
    assert [(one.code, one.done) for one in left] == [("HF-PLACEHOLDER", False)]
    assert clinic.file.read_text() == before


@pytest.mark.requirement("DOC-8")
def test_a_misspelt_key_at_the_top_is_an_edit_of_the_report_too(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    file.write_text('{"mcpservers": {"a": {"command": "x"}}}')
    report = read_or_report(file)
    assert isinstance(report, Report)
    plan, _ = plan_edits(report)
    assert plan is not None
    assert plan.after == '{"mcpServers": {"a": {"command": "x"}}}'


@pytest.mark.requirement("FLEET-6")
async def test_a_placement_without_effect_is_reported(clinic: Examination) -> None:
    clinic.configure({"server": {"command": "x", "placement": "each", "enabled": False}})
    report = await clinic.all(names=["server"])
    (found,) = [one for one in report.servers[0].findings if one.code == "HF-PLACEMENT"]
    assert found.code == "HF-PLACEMENT"
    clinic.matches("placement", found)
