"""``--fix``: safe repairs are made and reported, and nothing is deleted."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from holdfast.auth.token_store import TokenStore
from holdfast.doctor.report import Report
from holdfast.hub.state_store import default_state_file
from tests.doctor.examination import Examination

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("DOC-8")]

SECRET = "hush-hush-of-clinic"
IDLE = {"off": {"command": "x", "enabled": False}}


def mode(file: Path) -> int:
    return stat.S_IMODE(file.stat().st_mode)


def codes(report: Report) -> list[str]:
    return [found.code for result in report.checks for found in result.findings]


async def test_a_file_with_credentials_that_others_may_read_is_closed(clinic: Examination) -> None:
    clinic.configure({"off": {"command": "x", "enabled": False, "env": {"API_KEY": SECRET}}})
    clinic.file.chmod(0o644)
    report = await clinic.all()
    assert (codes(report), mode(clinic.file), report.ok) == (["HF-FILE-READABLE"], 0o644, True)
    clinic.matches("readable", report.checks[0].findings)
    assert SECRET not in report.model_dump_json()
    repaired = await clinic.all(fix=True)
    assert (codes(repaired), mode(clinic.file)) == ([], 0o600)
    assert [(one.code, one.done) for one in repaired.repairs] == [("HF-FILE-READABLE", True)]
    assert "can now be read only by you" in repaired.repairs[0].words


async def test_the_secret_of_a_client_is_a_credential_too(clinic: Examination) -> None:
    clinic.configure({"off": {"url": "https://h.example/", "enabled": False, "oauth": {"clientSecret": SECRET}}})
    clinic.file.chmod(0o644)
    assert codes(await clinic.all()) == ["HF-FILE-READABLE"]


async def test_the_command_of_the_remedy_does_the_same(clinic: Examination) -> None:
    clinic.configure({"off": {"command": "x", "enabled": False, "env": {"API_KEY": SECRET}}})
    clinic.file.chmod(0o644)
    clinic.carry_out((await clinic.all()).checks[0].findings[0])
    assert codes(await clinic.all()) == []


@pytest.mark.parametrize(
    "env",
    [
        {"API_KEY": "${CLINIC_KEY}"},
        {"API_KEY": "${env:CLINIC_UNSET}"},
        {"API_KEY": ""},
        {"API_KEY": "<your key>"},
        {"COLOUR": "blue"},
        {},
    ],
    ids=["in a variable", "in a variable that is not set", "empty", "a placeholder", "no secret", "nothing"],
)
@pytest.mark.requirement("DOC-2")
async def test_a_file_without_credentials_may_be_read_by_all(
    clinic: Examination, env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLINIC_KEY", SECRET)
    clinic.configure({"off": {"command": "x", "enabled": False, "env": env}})
    clinic.file.chmod(0o644)
    assert codes(await clinic.all()) == []


async def test_an_env_file_with_credentials_counts_too(clinic: Examination) -> None:
    secrets = clinic.folder / "secrets.env"
    secrets.write_text(f"API_KEY={SECRET}\n")
    secrets.chmod(0o640)
    clinic.configure({"off": {"command": "x", "enabled": False, "envFile": "secrets.env"}})
    report = await clinic.all(fix=True)
    assert mode(secrets) == 0o600
    assert str(secrets) in report.repairs[0].words


async def test_a_damaged_state_file_is_set_aside(clinic: Examination) -> None:
    clinic.configure(IDLE)
    file = default_state_file(clinic.file)
    file.parent.mkdir(parents=True)
    file.write_bytes(b"this is no database, and long enough to be looked at" * 100)
    broken = await clinic.all()
    assert codes(broken) == ["HF-STATE-CORRUPT"]
    clinic.matches("state_corrupt", broken.checks[2].findings)
    assert file.exists()
    report = await clinic.all(fix=True)
    assert codes(report) == []
    assert not file.exists()
    assert file.with_name(f"{file.name}.corrupt-1").read_bytes().startswith(b"this is no database")
    assert [one.code for one in report.repairs] == ["HF-STATE-CORRUPT"]


async def test_a_damaged_token_store_is_left_alone_until_it_is_to_be_mended(clinic: Examination) -> None:
    clinic.configure({"server": {"url": "http://127.0.0.1:1/mcp"}})
    file = TokenStore().file
    file.parent.mkdir(parents=True)
    file.write_text('{"version": 1, "gra')
    file.chmod(0o600)
    broken = await clinic.all()
    assert codes(broken) == ["HF-TOKENS-CORRUPT"]
    clinic.matches("tokens_corrupt", broken.checks[1].findings)
    assert file.exists()
    report = await clinic.all(fix=True)
    assert codes(report) == []
    assert file.with_name(f"{file.name}.corrupt-1").read_text() == '{"version": 1, "gra'


async def test_a_token_store_that_others_may_read_is_closed(clinic: Examination) -> None:
    clinic.configure(IDLE)
    file = TokenStore().file
    file.parent.mkdir(parents=True)
    file.write_text('{"version": 1, "grants": []}')
    file.chmod(0o644)
    assert codes(await clinic.all()) == ["HF-FILE-READABLE"]
    await clinic.all(fix=True)
    assert mode(file) == 0o600


async def test_what_could_not_be_mended_is_told_too(clinic: Examination, monkeypatch: pytest.MonkeyPatch) -> None:
    clinic.configure({"off": {"command": "x", "enabled": False, "env": {"API_KEY": SECRET}}})
    clinic.file.chmod(0o644)

    def refuse(self: Path, mode: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "chmod", refuse)
    report = await clinic.all(fix=True)
    assert [(one.done, "Operation not permitted" in one.words) for one in report.repairs] == [(False, True)]
    assert codes(report) == ["HF-FILE-READABLE"]
