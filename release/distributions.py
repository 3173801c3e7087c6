"""The sdist and the wheel: built from what is under version control, compared with it, installed alone, and served.

The wheel is built twice, from the sources and from the sdist. Both must be the same bytes, so an installation from the
sdist is one from the wheel.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Timer

__all__ = ["Distributions", "NotReleasable", "build", "differences", "tracked", "try_out", "version_of"]

ROOT = Path(__file__).parents[1]
ADDED_TO_SDIST = frozenset({"PKG-INFO", "pyproject.toml", ".gitignore"})
"""What the build backend adds by itself."""

ADDED_TO_WHEEL = frozenset({"METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE"})

INSTALL_SECONDS = 600
"""A slow network installs thirty packages in less."""

START_SECONDS = 60
"""The first start of an installation compiles nothing, but reads everything from disk."""


class NotReleasable(Exception):
    """Why there is no release; the text is for a person."""


@dataclass(frozen=True)
class Distributions:
    """The two files that are published."""

    sdist: Path
    wheel: Path

    def listed(self) -> tuple[set[str], set[str]]:
        """The files in both: of the sdist below its one folder."""
        with tarfile.open(self.sdist) as packed:
            names = {one.name.partition("/")[2] for one in packed.getmembers() if one.isfile()}
        with zipfile.ZipFile(self.wheel) as packed_wheel:
            return names, set(packed_wheel.namelist())


def version_of(root: Path = ROOT) -> str:
    """The version that the sources have."""
    found = re.search(r'__version__ = "([^"]+)"', (root / "src/holdfast/_version.py").read_text(encoding="utf-8"))
    assert found is not None  # noqa: S101 - a file of this project
    return found[1]


def tracked(root: Path = ROOT) -> set[str]:
    """The files under version control."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True)  # noqa: S607
    return set(filter(None, listed.stdout.split("\0")))


def build(into: Path, root: Path = ROOT) -> Distributions:
    """Build both. Files that are not under version control have no part in it."""
    into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        export = Path(place, "export")
        for name in tracked(root):
            (export / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, export / name)
        sdist = _hatch(export, "sdist", Path(place, "sdist"))
        with tarfile.open(sdist) as packed:
            packed.extractall(Path(place, "unpacked"), filter="data")
        (unpacked,) = Path(place, "unpacked").iterdir()
        wheel = _hatch(export, "wheel", Path(place, "wheel"))
        again = _hatch(unpacked, "wheel", Path(place, "again"))
        if wheel.read_bytes() != again.read_bytes():
            raise NotReleasable("the wheel of the sdist differs from the wheel of the sources")
        return Distributions(Path(shutil.copy(sdist, into)), Path(shutil.copy(wheel, into)))


def _hatch(sources: Path, target: str, into: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(into)]
    subprocess.run(command, cwd=sources, check=True, capture_output=True, timeout=INSTALL_SECONDS)
    (made,) = into.iterdir()
    return made


def differences(known: Iterable[str], sdist: set[str], wheel: set[str], root: Path = ROOT) -> list[str]:
    """How the lists of files differ from what is under version control; none if they are as they must be."""
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    included = [one.lstrip("/") for one in settings["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]]
    known = set(known)
    in_sdist = {name for name in known if any(name == one or name.startswith(f"{one}/") for one in included)}
    in_wheel = {name.removeprefix("src/") for name in known if name.startswith("src/holdfast/")}
    about = {name for name in wheel if name.partition("/")[0].endswith(".dist-info")}
    found = []
    for where, wanted, got in (
        ("the sdist", in_sdist | ADDED_TO_SDIST, sdist),
        ("the wheel", in_wheel, wheel - about),
        ("the wheel", set(ADDED_TO_WHEEL), {name.partition("/")[2] for name in about}),
    ):
        found += [f"{where} lacks {name}" for name in sorted(wanted - got)]
        found += [f"{where} has {name}, which is not under version control" for name in sorted(got - wanted)]
    return found


def try_out(file: Path, python: str = sys.executable) -> str:
    """Install a distribution into an empty environment, serve the demo and call a tool. Return what was seen."""
    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        _run(python, "-m", "venv", home / "env")
        _run(home / "env/bin/python", "-m", "pip", "install", "--quiet", file)
        command = home / "env/bin/holdfast"
        version = _run(command, "--version", home=home)
        with _demo(command, home) as url:
            said = _run(command, "call", "ticker", "price", "symbol=ACME", "--url", url, home=home)
        return f"{version}; `holdfast serve --demo` answered a call with {said!r}"


@contextmanager
def _demo(command: Path, home: Path) -> Iterator[str]:
    """The URL of a demo that runs; at the end it must leave with code 0."""
    log = home / "log"
    with log.open("w") as stderr:
        served = subprocess.Popen(
            [command, "serve", "--demo", "--port", "0"],
            env=_alone(home),
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
    late = Timer(START_SECONDS, served.kill)
    late.start()
    try:
        assert served.stdout is not None  # noqa: S101 - a pipe was asked for
        for line in served.stdout:
            if found := re.search(r"MCP endpoint: (\S+)", line):
                yield found[1]
                break
    finally:
        late.cancel()
        served.terminate()
        if code := served.wait(START_SECONDS):
            raise NotReleasable(f"the demo ended with code {code}:\n{log.read_text()}")


def _run(*command: str | Path, home: Path | None = None) -> str:
    given = list(map(str, command))
    environ = os.environ if home is None else _alone(home)
    ran = subprocess.run(given, env=environ, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    if ran.returncode:
        raise NotReleasable(f"`{' '.join(given)}` ended with {ran.returncode}:\n{ran.stdout}{ran.stderr}")
    return ran.stdout.strip()


def _alone(home: Path) -> dict[str, str]:
    """As a person has it who never used Holdfast."""
    return {"PATH": os.environ["PATH"], "HOME": str(home), "TMPDIR": str(home), "NO_COLOR": "1"}
