"""Write the parts of the documentation that are made from the program: ``python docs/generate.py [--check]``."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from observing import observing

DOCS = Path(__file__).parent
COMMANDS = DOCS / "reference" / "commands.md"

HEAD = """\
# Commands

What each command prints for `--help`. This page is made by `make docs`; a test fails if it is out of date.

Everywhere: data goes to stdout, everything else to stderr; colour only on a terminal, and not with `NO_COLOR`;
`HOLDFAST_DEBUG=1` shows where an unexpected error came from.
"""


def commands() -> str:
    """The help of every command."""
    names = re.findall(r"^  (\w+)  ", _help(), flags=re.MULTILINE)
    parts = [HEAD, _section("holdfast", _help())]
    for name in names:
        text = _help(name)
        parts.append(_section(f"holdfast {name}", text))
        parts += [_section(f"holdfast {name} {sub}", _help(name, sub)) for sub in _subcommands(text)]
    return "\n".join(parts)


def _help(*command: str) -> str:
    environment = {**os.environ, "COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb", "PYTHONIOENCODING": "utf-8"}
    ran = subprocess.run(
        [sys.executable, "-m", "holdfast", *command, "--help"],
        capture_output=True,
        text=True,
        env=environment,
        check=True,
    )
    return "\n".join(line.rstrip() for line in ran.stdout.strip("\n").splitlines())


def _subcommands(text: str) -> list[str]:
    _, found, commands = text.partition("─ Commands")
    return re.findall(r"^│ (\w+) ", commands, flags=re.MULTILINE) if found else []


def _section(title: str, text: str) -> str:
    return f"## {title}\n\n```text\n{text}\n```\n"


def main() -> int:
    """Write the pages, or with ``--check`` say whether they are fresh."""
    fresh = {COMMANDS: commands(), **observing()}
    if "--check" in sys.argv:
        return 0 if all(page.exists() and page.read_text() == text for page, text in fresh.items()) else 1
    for page, text in fresh.items():
        page.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
