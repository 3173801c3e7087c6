"""A program that is forked from a warm process is a process like any other."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.peers.warm_python import cold_start

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux only")

SAYS = """
import json, os, sys
about = [os.getpid(), os.getppid(), os.getsid(0), os.getcwd(), dict(os.environ), sys.argv]
print(json.dumps([*about, "mcp" in sys.modules]))
print("oops", file=sys.stderr)
sys.exit(3)
"""
ENTRY = "from holdfast.cli.entry import main\n"


@pytest.fixture
def environment() -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "MARK": "of this test"}


def test_it_has_its_own_pid_session_folder_environment_streams_and_exit_code(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", ENTRY + SAYS, "one", "two"],
        cwd=tmp_path,
        env=environment,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        out, err = process.communicate(timeout=30)
    pid, parent, session, folder, seen, arguments, warm = json.loads(out)
    assert (pid, parent, session) == (process.pid, os.getpid(), process.pid)
    assert (folder, seen, arguments) == (str(tmp_path), environment, ["-c", "one", "two"])
    assert (err, process.returncode, warm) == ("oops\n", 3, True)


def test_its_environment_is_visible_to_other_processes(environment: dict[str, str]) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", ENTRY + "print('up', flush=True); input()"],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        shown = Path(f"/proc/{process.pid}/environ").read_bytes().rstrip(b"\0").split(b"\0")
        assert b"MARK=of this test" in shown
        process.communicate("\n", timeout=30)
    assert process.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_it(number: signal.Signals, environment: dict[str, str]) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", ENTRY + "print('up', flush=True); input()"],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(number)
        assert process.wait(30) == -number


def test_an_exception_is_told_and_is_exit_code_one(environment: dict[str, str]) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", ENTRY + "raise ValueError('broken')"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 1
    assert ran.stderr.endswith("ValueError: broken\n")


def test_a_cold_start_imports_nothing_in_advance(environment: dict[str, str]) -> None:
    code = ENTRY + "import sys; print('mcp' in sys.modules)"
    with cold_start():
        ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert ran.stdout == "False\n"


def test_it_writes_at_once_where_the_environment_asks_for_it(environment: dict[str, str]) -> None:
    code = ENTRY + "import os, sys; print('mcp' in sys.modules); print('to here', end=''); os._exit(0)"
    said = {
        name: subprocess.run(
            [sys.executable, "-c", code], env={**environment, **more}, capture_output=True, text=True, check=False
        ).stdout
        for name, more in {"asked": {"PYTHONUNBUFFERED": "1"}, "not asked": {}}.items()
    }
    assert said == {"asked": "True\nto here", "not asked": ""}


def test_an_interpreter_with_settings_of_its_own_is_started_as_usual(environment: dict[str, str]) -> None:
    code = ENTRY + "import sys; print('mcp' in sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env={**environment, "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.stdout == "False\n"
