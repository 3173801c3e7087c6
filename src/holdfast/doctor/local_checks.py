"""Checks that need no network: the definition, the command, and files with credentials or state."""

from __future__ import annotations

import re
import sqlite3
import stat
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import cast

import anyio.to_thread

from holdfast.config import Definition, KeyPath, joined, looks_secret
from holdfast.core import CommandUnusable, command_line
from holdfast.doctor.case import Case, GlobalContext, Observation, found
from holdfast.doctor.diagnose.process_exits import missing_interpreter, unusable
from holdfast.doctor.report import Finding, ask_for, finding, problem_finding, rename_edits, shell
from holdfast.errors import Problem, ServerFailure
from holdfast.wire import environment_of, find_program

__all__ = ["look_at_command", "look_at_definition", "look_at_files", "look_at_state", "look_at_tokens"]

_PLACEHOLDER = re.compile(
    r"<[A-Za-z][\w .:/-]{1,60}>"
    r"|[\[{(]{0,2}\b(?:YOUR|INSERT|REPLACE|ENTER)[_-](?:[A-Za-z0-9]+[_-])*"
    r"(?:KEY|TOKEN|SECRET|PASSWORD|PASS|ID|URL|HERE)\b[\]})]{0,2}"
    r"|\b(?:change|replace)[_-]?me\b|(?<=[_-])x{6,}\b",
    re.IGNORECASE,
)
"""How documentation marks a value that the reader must replace."""


async def look_at_definition(case: Case) -> Observation:
    """Report every problem, not only the first."""
    server = case.server
    if not server.problems:
        notes = (*_placeholders(case), *_old_placement(case))
        return Observation(case.source_map.label(case.definition.path), notes)
    missing = {problem.variable: problem for problem in reversed(server.problems) if problem.variable}
    others = [problem for problem in server.problems if not problem.variable]
    variables = [_missing_variable(problem) for problem in reversed(missing.values())]
    return found(
        *variables, *(problem_finding("HF-DEFINITION", problem, edits=rename_edits(problem)) for problem in others)
    )


def _placeholders(case: Case) -> Iterator[Finding]:
    """Values that were copied from documentation and not replaced."""
    for keys, text in _texts(case.given):
        placeholder = _PLACEHOLDER.search(text)
        if placeholder is None or case.definition.expansion.sources((*case.definition.path, *keys)):
            continue
        name = str(keys[-1]) if keys[0] == "env" else _variable_name(case.id, placeholder[0])
        value = text.replace(placeholder[0], f"${{env:{name}}}")
        words = f"`{joined(keys)}` is a placeholder, not a value"
        remedy = "put the real value into a variable (this command waits for you to paste it), and use it here"
        yield finding("HF-PLACEHOLDER", words, remedy, ask_for(name), edits=(case.edit(keys, value),))


def _old_placement(case: Case) -> Iterator[Finding]:
    if case.given.get("placement") is not None:
        words = "`placement` has no effect any more: a stdio server runs on each replica"
        yield finding("HF-PLACEMENT", words, "remove the key, or write null", edits=(case.edit("placement", None),))


def _texts(given: Mapping[str, object]) -> Iterator[tuple[KeyPath, str]]:
    for key in ("env", "headers", "args", "url", "serverUrl", "httpUrl"):
        value = given.get(key)
        if isinstance(value, str):
            yield (key,), value
        items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        yield from (((key, inner), text) for inner, text in items if isinstance(text, str))


def _variable_name(server: str, placeholder: str) -> str:
    """A variable for a placeholder: ``<YOUR_API_KEY>`` of `github` is ``GITHUB_API_KEY``."""
    words = re.sub(r"[^A-Z0-9]+", "_", placeholder.upper()).strip("_")
    words = re.sub(r"^(?:YOUR|MY|INSERT|REPLACE|ENTER)_+|_+HERE$", "", words)
    name = re.sub(r"[^A-Z0-9]+", "_", f"{server.upper()}_{words}").strip("_")
    return f"_{name}" if name[:1].isdigit() else name


def _missing_variable(problem: Problem) -> Finding:
    name = problem.variable
    text = (
        f"export it in the shell that starts Holdfast (this command waits for you to paste it), "
        f"or write a default: ${{{name}:-…}}"
    )
    return finding("HF-VARIABLE", str(problem), text, ask_for(name))


async def look_at_command(case: Case) -> Observation:
    """Find it as the hub does."""
    try:
        program = find_program(case.spec, environment_of(case.spec))
    except ServerFailure as failure:
        return found(unusable(case, cast("CommandUnusable", failure.evidence)))
    case.learned.program = program
    interpreter = missing_interpreter(case)
    return found(interpreter) if interpreter is not None else Observation(str(Path(program)))


_OTHERS = stat.S_IRGRP | stat.S_IROTH


async def look_at_files(whole: GlobalContext) -> Observation:
    """Check the mode of each file with a credential in plain text."""
    files = dict.fromkeys([*_with_secrets(whole), *([whole.store.file] if whole.store.exposed else [])])
    return Observation("", tuple(_readable(file) for file in files if _others_may_read(file)))


def _with_secrets(whole: GlobalContext) -> Iterator[Path]:
    source = whole.reading.config.source
    for definition in whole.reading.definitions:
        if source is not None and _writes_secret(definition):
            yield source
        values = definition.env_file.values if definition.env_file is not None else {}
        if definition.env_file is not None and any(looks_secret(name) and value for name, value in values.items()):
            yield definition.env_file.path


def _writes_secret(definition: Definition) -> bool:
    """Whether a credential is in the file itself, not in a variable that the file names, set or not."""
    for section in ("env", "headers", "oauth"):
        values = definition.given.get(section)
        for name, value in values.items() if isinstance(values, dict) else ():
            path = (*definition.path, section, name)
            expansion = definition.expansion
            if not looks_secret(name) or not isinstance(value, str) or not value.strip() or _PLACEHOLDER.search(value):
                continue
            if not expansion.sources(path) and not expansion.broken(path):
                return True
    return False


def _others_may_read(file: Path) -> bool:
    try:
        return bool(file.stat().st_mode & _OTHERS)
    except OSError:
        return False


def _readable(file: Path) -> Finding:
    mode = stat.S_IMODE(file.stat().st_mode)
    words = f"{file} contains credentials, and other users can read it (mode {mode:o})"
    text = f"make it readable only by you; `{command_line('doctor', '--fix')}` does the same"
    return finding("HF-FILE-READABLE", words, text, shell("chmod", "600", str(file)), repair="chmod", target=str(file))


async def look_at_tokens(whole: GlobalContext) -> Observation:
    """Read it as the store does, without setting it aside."""
    file = whole.store.file
    fault = await anyio.to_thread.run_sync(whole.store.damage, abandon_on_cancel=True)
    if not fault:
        return Observation(str(file) if file.exists() else "")
    words = f"the token store {file} is damaged ({fault}): no login can be read from it"
    text = f"set it aside and log in again; `{command_line('doctor', '--fix')}` sets it aside and deletes nothing"
    aside = shell("mv", str(file), f"{file}.corrupt")
    return Observation("", (finding("HF-TOKENS-CORRUPT", words, text, aside, repair="set_aside", target=str(file)),))


async def look_at_state(whole: GlobalContext) -> Observation:
    """Let SQLite check every page."""
    file = whole.state_file
    if file is None or not file.exists():
        return Observation()
    fault = await anyio.to_thread.run_sync(_fault, file, abandon_on_cancel=True)
    if not fault:
        return Observation(str(file))
    words = f"the hub's state file {file} is damaged ({fault}): the hub cannot list the tools of its last run"
    text = f"set it aside; the hub writes a new one; `{command_line('doctor', '--fix')}` does the same"
    aside = shell("mv", str(file), f"{file}.corrupt")
    return Observation("", (finding("HF-STATE-CORRUPT", words, text, aside, repair="set_aside", target=str(file)),))


def _fault(file: Path) -> str:
    """Why it is damaged; empty if it is intact or locked by another process."""
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True, timeout=1.0)) as database:
            (verdict,) = database.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.DatabaseError as exc:
        damaged = getattr(exc, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT)
        return str(exc) if damaged else ""
    return "" if verdict == "ok" else str(verdict)[:100]
