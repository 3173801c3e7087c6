"""Run a command in this process, against a real socket: a tenth of what a process of its own costs."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, TypeAlias

import pytest

from holdfast.cli.entry import run
from holdfast.config import TrustStore
from tests.cli.json_outputs import check_output


class Ran(NamedTuple):
    """What came of it."""

    code: int
    out: str
    err: str


Inside: TypeAlias = Callable[..., Ran]


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Inside]:
    """Runs ``holdfast`` in a folder and an environment of its own."""
    monkeypatch.chdir(tmp_path)
    # Where a user's own `holdfast` is: a command to paste is then told by that name.
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    for name, value in {"HOME": str(tmp_path), "TZ": "UTC", "NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "80"}.items():
        monkeypatch.setenv(name, value)
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "HOLDFAST_CONFIG", "HOLDFAST_URL", "HOLDFAST_CONTROL_TOKEN"):
        monkeypatch.delenv(name, raising=False)

    time.tzset()

    def inside(*arguments: str, environment: Mapping[str, str] | None = None) -> Ran:
        with monkeypatch.context() as patch:
            for name, value in (environment or {}).items():
                patch.setenv(name, value)
            code = run(list(arguments))
        ran = Ran(code, *capsys.readouterr())
        check_output(arguments, ran.out)
        return ran

    yield inside
    monkeypatch.undo()
    time.tzset()


def trusted(file: Path, environ: Mapping[str, str] | None = None) -> Path:
    """Trust a found file, as its user does once."""
    TrustStore(os.environ if environ is None else environ).trust(file, file.read_bytes())
    return file
