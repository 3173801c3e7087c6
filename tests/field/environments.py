"""An environment for each client, made from PyPI or npm when it is first needed: ``.tools/field/NAME``.

Clients cannot share one: some need ``mcp<2``, others ``mcp>=2``. An environment is made again when its packages change.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Environment", "NodeEnvironment", "PythonEnvironment"]

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".tools" / "field"
_BIN = Path(sys.executable).parent
# A cold cache and a slow network.
_INSTALLING = 600


@dataclass(frozen=True)
class Environment:
    """A folder with a client library and what it needs."""

    name: str
    packages: tuple[str, ...]

    @property
    def folder(self) -> Path:
        return FOLDER / self.name

    def ready(self) -> None:
        """Make it, unless it is there with these packages."""
        stamp = self.folder / "packages.json"
        wanted = json.dumps(self.packages)
        if stamp.exists() and stamp.read_text() == wanted:
            return
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self._install()
        stamp.write_text(wanted)

    def _install(self) -> None:
        raise NotImplementedError

    def _run(self, *command: str | Path) -> str:
        ran = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=_INSTALLING, check=False)
        assert ran.returncode == 0, f"{' '.join(map(str, command))}\n{ran.stdout}{ran.stderr}"
        return ran.stdout


class PythonEnvironment(Environment):
    """A virtual environment."""

    @property
    def python(self) -> Path:
        return self.folder / "venv" / "bin" / "python"

    def _install(self) -> None:
        self._run(_BIN / "uv", "venv", "--quiet", "--python", sys.executable, self.folder / "venv")
        self._run(_BIN / "uv", "pip", "install", "--quiet", "--python", self.python, *self.packages)

    def versions(self, *names: str) -> str:
        """The installed versions, for the table."""
        listed = self._run(_BIN / "uv", "pip", "list", "--quiet", "--format", "json", "--python", self.python)
        found = {one["name"]: one["version"] for one in json.loads(listed)}
        return ", ".join(f"{name} {found[name]}" for name in names)


class NodeEnvironment(Environment):
    """A folder with ``node_modules``."""

    @property
    def modules(self) -> Path:
        return self.folder / "node_modules"

    def _install(self) -> None:
        (self.folder / "package.json").write_text('{"private": true}')
        self._run(_BIN / "npm", "install", "--silent", "--no-audit", "--no-fund", *self.packages)

    def versions(self, *names: str) -> str:
        """The installed versions, for the table."""
        files = [(name, self.modules / name / "package.json") for name in names]
        return ", ".join(f"{name} {json.loads(file.read_text())['version']}" for name, file in files)
