"""Write the parts of the documentation that are made from the program: ``python docs/generate.py [--check]``."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from holdfast.doctor.checks.all import CHECKS, WHOLE_CHECKS
from holdfast.doctor.checks.base import Check
from holdfast.doctor.codes import GROUPS, Code

DOCS = Path(__file__).parent
COMMANDS = DOCS / "reference" / "commands.md"

HEAD = """\
# Commands

What each command prints for `--help`. This page is made by `make docs`; a test fails if it is out of date.

Everywhere: data goes to stdout, everything else to stderr; colour only on a terminal, and not with `NO_COLOR`;
`HOLDFAST_DEBUG=1` shows where an unexpected error came from.
"""


DOCTOR = DOCS / "reference" / "doctor.md"

DOCTOR_HEAD = """\
# Doctor: checks and codes

`holdfast doctor` looks at every server, side by side, and says how to mend what is broken; [how to use
it](../how-to/doctor.md). This page is made by `make docs`; a test fails if it is out of date.

| exit code | |
|---|---|
| 0 | nothing failed, or nothing is configured (it says where it looked) |
| 1 | something failed |
| 2 | wrong usage: an option, a server or a code that does not exist |

`--json` prints one document of the schema in [schema/doctor.schema.json](../../schema/doctor.schema.json). Its
`version` is raised when a field is renamed, removed or means something else; new fields may come at any time. Codes
are for ever: the words may change, the meaning does not.

## Checks

In this order; one whose needs failed is skipped, and says so. All checks of a server share its deadline (`--timeout`,
else `holdfast.load.attemptTimeout`); all servers are looked at side by side. A check that crashes is a finding of its
own. Nothing is sent to a server that the definition does not say: looking for another path stays on its origin, and a
certificate is looked at without sending anything of yours.

| check | looks at | needs |
|---|---|---|
"""

CODES_HEAD = """
## Codes

An *error* keeps a server from being used, and makes the exit code 1. A *warning* does not. A *note* is worth knowing.
`holdfast doctor explain CODE` prints the same.
"""


def doctor() -> str:
    """Every check and every code."""
    rows = [f"| `{check.id}` | {check.looks_at} | {_needs(check)} |" for check in CHECKS]
    rows += [f"| `{check.id}` | {check.looks_at} (once for all servers) | |" for check in WHOLE_CHECKS]
    parts = [DOCTOR_HEAD + "\n".join(rows), CODES_HEAD]
    for title, codes in GROUPS.items():
        parts.append(f"## {title}\n")
        parts += [f"### {code.id}\n\n*{code.severity}.* {_described(code)}\n" for code in codes]
    return "\n".join(parts)


def _needs(check: Check) -> str:
    return ", ".join(f"`{need}`" for need in check.needs)


def _described(code: Code) -> str:
    return f"{code.means}.\n\n- Cause: {code.cause}\n- Cure: {code.cure}"


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
    fresh = {COMMANDS: commands(), DOCTOR: doctor()}
    if "--check" in sys.argv:
        return 0 if all(page.exists() and page.read_text() == text for page, text in fresh.items()) else 1
    for page, text in fresh.items():
        page.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
