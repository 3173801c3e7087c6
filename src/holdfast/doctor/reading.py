"""Reads the configuration, or makes the report that says why that failed.

This module is cheap to import, so that a broken file is reported without loading the MCP client.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

from holdfast._version import __version__
from holdfast.config.find import find_config
from holdfast.config.load import read_file
from holdfast.config.reading import Reading
from holdfast.control.find import running_hubs
from holdfast.core.redact import Redactor
from holdfast.doctor.codes import CODES, Code
from holdfast.doctor.findings import Finding, finding, shell
from holdfast.doctor.report import CheckResult, Report
from holdfast.errors import ConfigError, ConfigNotFound, Problem, UsageError

__all__ = ["check_names", "code_named", "problem_finding", "read_or_report"]


def read_or_report(path: Path | None) -> Reading | Report:
    """The configuration at ``path``, or the first that the search finds, or a report that says why there is none."""
    try:
        file = find_config(path, environ=os.environ, cwd=Path.cwd())
    except ConfigNotFound as error:
        served = tuple(hub.config for hub in running_hubs() if hub.config)
        return Report(holdfast=__version__, ok=True, searched=tuple(map(str, error.searched)), served=served)
    try:
        return read_file(file, environ=os.environ)
    except ConfigError as error:
        mask = Redactor().mask
        findings = tuple(problem_finding("HF-CONFIG", problem).rewritten(mask) for problem in error.problems)
        result = CheckResult(check="configuration", status="failed", findings=findings)
        return Report(holdfast=__version__, ok=False, file=str(file), checks=(result,))


def check_names(names: Sequence[str], reading: Reading) -> None:
    """Reject names of servers that are not configured."""
    known = [definition.server.id for definition in reading.definitions]
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean `{near[0]}`?" if near else f"configured: {', '.join(sorted(known)) or 'none'}"
            raise UsageError(f"no server named `{name}` is configured", hint=hint)


def code_named(text: str) -> Code:
    """The code of that name, in upper or lower case, with or without ``HF-``."""
    wanted = text.upper() if text.upper().startswith("HF-") else f"HF-{text.upper()}"
    if wanted in CODES:
        return CODES[wanted]
    near = get_close_matches(wanted, CODES, n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(CODES)}"
    raise UsageError(f"there is no code `{text}`", hint=hint)


def problem_finding(code: str, problem: Problem) -> Finding:
    """The finding for a problem in the file, with the command that opens the file at its line."""
    text = problem.hint or "correct it there"
    if problem.file is None:
        return finding(code, str(problem), text, "holdfast config show")
    at = [f"+{problem.line}"] if problem.line else []
    return finding(code, str(problem), text, f"${{EDITOR:-vi}} {shell(*at, str(problem.file))}")
