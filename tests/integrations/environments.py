"""An environment of its own for each framework: made once, from the package index, and kept under ``.tools/envs``.

Run as a program, it makes those of the current releases. ``make test`` does so before the tests.
"""

from __future__ import annotations

import fcntl
import subprocess
import sys
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["FRAMEWORKS", "ROOT", "Framework", "Release", "python_of", "python_of_fastmcp", "python_with"]

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".tools" / "envs"
INSTALL_SECONDS = 300

Release: TypeAlias = Literal["current", "oldest"]


@dataclass(frozen=True)
class Framework:
    """A framework: its module in ``holdfast.integrations``, what it is installed by, and the oldest release allowed."""

    name: str
    current: str
    oldest: str
    page: str


FRAMEWORKS = (
    Framework("langchain", "langchain", "langchain==1.2.12", "langchain.md"),
    Framework("openai_agents", "openai-agents", "openai-agents==0.20.0", "openai-agents.md"),
    Framework("pydantic_ai", "pydantic-ai-slim", "pydantic-ai-slim==2.20.0", "pydantic-ai.md"),
    Framework("google_adk", "google-adk[mcp]", "google-adk[mcp]==2.10.0", "google-adk.md"),
)


def python_of(framework: Framework, release: Release) -> Path:
    """The Python of an environment with Holdfast and this release of the framework."""
    requirement = framework.current if release == "current" else framework.oldest
    return python_with(f"{framework.name}-{release}", [requirement, "mcp>=2.3,<3"])


def python_with(name: str, requirements: Sequence[str], *, holdfast: bool = True) -> Path:
    """The Python of the environment ``name``, which has ``requirements`` and, unless told otherwise, Holdfast."""
    wanted = [*requirements, *(["-e", str(ROOT)] if holdfast else [])]
    home = FOLDER / name
    python, note = home / "bin" / "python", home / "requirements.txt"
    with _locked(FOLDER / f"{name}.lock"):
        if not note.exists() or note.read_text() != "\n".join(wanted):
            _uv("venv", "--quiet", "--clear", "--python", sys.executable, str(home))
            _uv("pip", "install", "--quiet", "--python", str(python), *wanted)
            note.write_text("\n".join(wanted))
    return python


def python_of_fastmcp() -> Path:
    """The Python of an environment with FastMCP as a server, on the SDK 2.x that it needs."""
    return python_with("fastmcp", ["fastmcp-slim[server]"], holdfast=False)


def _uv(*arguments: str) -> None:
    command = [str(Path(sys.executable).with_name("uv")), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    assert done.returncode == 0, done.stderr


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _make_all() -> None:
    for framework in FRAMEWORKS:
        python = python_of(framework, "current")
        # The first import compiles the framework's modules: that belongs to the set-up, too.
        modules = f"holdfast.integrations.{framework.name}, holdfast.testing"
        subprocess.run([python, "-c", f"import {modules}"], check=True, timeout=INSTALL_SECONDS)
    server = "from fastmcp import FastMCP; from fastmcp.server.auth import OAuthProxy"
    subprocess.run([python_of_fastmcp(), "-c", server], check=True, timeout=INSTALL_SECONDS)


if __name__ == "__main__":
    _make_all()
