from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.gateway.bridge import GatewayConfigFile

WRITER = """
import sys
from pathlib import Path
from holdfast.gateway.bridge import GatewayConfigFile
store = GatewayConfigFile(Path(sys.argv[1]))
texts = [letter * (1 << 20) for letter in (b"a", b"b")]
print("begun", flush=True)
while True:
    for text in texts:
        store.write(text)
"""


@pytest.mark.requirement("GW-5")
def test_a_writer_that_is_killed_leaves_one_whole_config(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    GatewayConfigFile(file).write(b"a" * (1 << 20))
    for _ in range(5):
        with subprocess.Popen([sys.executable, "-c", WRITER, str(file)], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"begun\n"
            _wait_for_a_write(file)
            process.send_signal(signal.SIGKILL)
        data = file.read_bytes()
        assert (len(data), len(set(data))) == (1 << 20, 1)


def _wait_for_a_write(file: Path) -> None:
    before = file.stat().st_ino
    while file.stat().st_ino == before:
        os.sched_yield()


@pytest.mark.requirement("GW-5")
def test_a_write_that_fails_changes_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    store = GatewayConfigFile(file)
    store.write(b"good")
    program = (
        "import resource, sys; from pathlib import Path; from holdfast.gateway.bridge import GatewayConfigFile\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "GatewayConfigFile(Path(sys.argv[1])).write(b'x' * 5000)\n"
    )
    ran = subprocess.run([sys.executable, "-c", program, str(file)], capture_output=True, text=True, check=False)
    assert "File too large" in ran.stderr
    assert store.read() == b"good"
    assert list(tmp_path.iterdir()) == [file]


def test_a_new_config_is_not_for_everybody_and_an_old_one_keeps_its_mode(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    store = GatewayConfigFile(file)
    store.write(b"one")
    assert file.stat().st_mode & 0o777 == 0o640
    file.chmod(0o644)
    store.write(b"two")
    assert file.stat().st_mode & 0o777 == 0o644


def test_there_is_nothing_to_read_before_the_first_write(tmp_path: Path) -> None:
    store = GatewayConfigFile(tmp_path / "config.yaml")
    assert store.read() is None
    store.write(b"x")
    assert store.read() == b"x"
