"""Findings for a process that ended: what its output says that it needs.

The output decides only which advice is given. Whether and how the server failed depends on its exit code.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import anyio

from holdfast.core.classify import STOPPED_FROM_OUTSIDE
from holdfast.core.evidence import ProcessExit
from holdfast.doctor.case import Case
from holdfast.doctor.findings import Edit, Finding, ask_for, finding, shell
from holdfast.wire.process import environment_of

__all__ = ["ended"]

LINES = 12
"""How many lines of its output are shown."""

ASKING_SECONDS = 5.0
"""How long ``--version`` of a runtime may take."""

_VARIABLE = re.compile(r"(?<![\w$./-])([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)(?![\w/-])")
_LACKS = re.compile(
    r"(?i)not (?:set|found|defined|provided|given|configured|specified)|missing|must|require|need|\bset\b|please"
    r"|KeyError|undefined|unset|empty"
)
_NOT_VARIABLES = re.compile(r"^(?:ERR|E|UV|NODE|HTTP|SIG|MODULE)_")
_PYTHON_MODULE = re.compile(r"No module named '?([\w.]+)'?")
_NODE_MODULE = re.compile(r"Cannot find (?:module|package) '([^']+)'")
_NO_PACKAGE = re.compile(
    r"(?:npm (?:error|ERR!) (?:code )?E?404.*?'([^']+?)(?:@[^'@]*)?' is not in this registry"
    r"|Because ([\w.@/-]+) was not found in the package registry)",
    re.DOTALL,
)
_WANTS = re.compile(
    r"(?i)\b(node|python)(?:\.js)?\b[^\n]{0,40}?((?:>=|~=|==|>|\^)\s?v?\d+(?:\.\d+)*)"
    r"|\b(?:requires?|needs?|wants?)\s+(?:at least\s+)?(node|python)(?:\.js)?\s+(?:version\s+)?(v?\d+(?:\.\d+)*)"
)
"""How programs say which runtime they need."""

_OLD_NODE = re.compile(
    r"ERR_REQUIRE_ESM|No such built-in module: node:|Cannot find module 'node:"
    r"|Unexpected token '(?:\?\.|\?\?=?|\|\|=|&&=)'|\b(?:fetch|structuredClone) is not defined"
)
_OLD_PYTHON = re.compile(
    r"No module named 'tomllib'"
    r"|cannot import name '\w+' from '(?:typing|types|asyncio|enum|datetime|collections(?:\.abc)?)'"
)
"""Errors of an old runtime about a program for a newer one."""


async def ended(case: Case, seen: ProcessExit) -> Finding:
    """The finding for a process that ended while it was needed."""
    if -seen.code in STOPPED_FROM_OUTSIDE:
        return _killed(case, seen)
    said = "\n".join(part for part in (seen.stderr, seen.noise) if part)
    return (
        _package(case, seen, said)
        or await _runtime(case, seen, said)
        or _module(case, seen, said)
        or _variable(case, seen, said)
        or _plain(case, seen)
    )


def how(seen: ProcessExit) -> str:
    """How it ended, as text."""
    when = "after the handshake" if seen.stood else "before it was ready"
    return f"killed by signal {-seen.code} {when}" if seen.code < 0 else f"exited with code {seen.code} {when}"


def by_hand(case: Case) -> str:
    """The server's command, for a shell."""
    spec = case.spec
    command = shell(spec.command, *spec.args)
    return f"cd {shell(str(spec.cwd))} && {command}" if spec.cwd is not None else command


def _killed(case: Case, seen: ProcessExit) -> Finding:
    text = "try again; if it happens again, look in the system's log for the cause, such as no free memory"
    words = f"its process was {how(seen)}"
    return finding("HF-KILLED", words, text, shell("holdfast", "doctor", case.id), detail=_tail(seen))


def _plain(case: Case, seen: ProcessExit) -> Finding:
    text = "its output says what it needs" if _tail(seen) else "it printed nothing: run it by hand to see more"
    return finding("HF-EXITED", f"its process {how(seen)}", text, by_hand(case), detail=_tail(seen))


def _variable(case: Case, seen: ProcessExit, said: str) -> Finding | None:
    """The finding for environment variables that it asked for and did not get."""
    given = environment_of(case.spec)
    wanted = list(dict.fromkeys(name for name in _asked_for(said) if name not in given))
    if not wanted:
        return None
    first = " and ".join(f"`{name}`" for name in wanted[:3])
    exported = [name for name in wanted if name in os.environ]
    where = "exported here, but servers get only the variables in `env`" if exported else "not set"
    edits: tuple[Edit, ...] = tuple(case.edit(f"env.{name}", f"${{env:{name}}}") for name in wanted[:3])
    commands = tuple(ask_for(name) for name in wanted[:3] if name not in exported)
    words = f"its process {how(seen)}. It needs {first}, which {'is' if len(wanted) == 1 else 'are'} {where}"
    text = "add it to the definition" + (", and export it (this command waits for you to paste it)" if commands else "")
    return finding("HF-EXIT-VARIABLE", words, text, *commands, edits=edits, detail=_tail(seen))


def _asked_for(said: str) -> Iterator[str]:
    for line in said.splitlines():
        if _LACKS.search(line):
            yield from (name for name in _VARIABLE.findall(line) if not _NOT_VARIABLES.match(name))


def _module(case: Case, seen: ProcessExit, said: str) -> Finding | None:
    if found := _PYTHON_MODULE.search(said):
        module = found[1].partition(".")[0]
        program = case.learned.program or case.spec.command
        install = shell(program, "-m", "pip", "install", module) if "python" in Path(program).name else ""
        text = f"install it for the Python that runs the server ({program})"
        words = f"its process {how(seen)}: Python has no module `{module}`"
        return finding("HF-EXIT-MODULE", words, text, install or by_hand(case), detail=_tail(seen))
    if found := _NODE_MODULE.search(said):
        words = f"its process {how(seen)}: Node has no module `{found[1]}`"
        if found[1].startswith(("/", ".")):
            text = "that file does not exist: build the server, or correct its path in `args`"
            return finding("HF-EXIT-MODULE", words, text, shell("ls", "-l", found[1]), detail=_tail(seen))
        folder = str(case.spec.cwd or ".")
        install = f"cd {shell(folder)} && {shell('npm', 'install', found[1])}"
        return finding("HF-EXIT-MODULE", words, "install it in the server's folder", install, detail=_tail(seen))
    return None


def _package(case: Case, seen: ProcessExit, said: str) -> Finding | None:
    found = _NO_PACKAGE.search(said)
    if found is None:
        return None
    name = found[1] or found[2]
    runner = Path(case.spec.command).name
    look = shell("npm", "search", name) if runner.startswith(("npx", "npm", "bun")) else shell("uvx", name, "--help")
    words = f"its process {how(seen)}: {runner} found no package `{name}`"
    text = "correct the name of the package in `args`; this command searches the registry"
    return finding("HF-EXIT-PACKAGE", words, text, look, detail=_tail(seen))


async def _runtime(case: Case, seen: ProcessExit, said: str) -> Finding | None:
    runtime = _wanted_runtime(said)
    if runtime is None:
        return None
    kind, version = runtime
    program = _runtime_program(case, kind)
    has = await _version_of(program)
    asked = f"{kind.title()} {version}" if version else f"a newer {kind.title()}"
    words = f"its process {how(seen)}: it needs {asked}, and {program} is {has or 'of another version'}"
    text = f"install {asked} and write its full path into `command`, or put it first on PATH"
    return finding("HF-EXIT-RUNTIME", words, text, shell(program, "--version"), detail=_tail(seen))


def _wanted_runtime(said: str) -> tuple[str, str] | None:
    """The runtime that it needs, and the version if it names one."""
    if wants := _WANTS.search(said):
        return (wants[1] or wants[3]).lower(), (wants[2] or wants[4]).replace(" ", "")
    if _OLD_NODE.search(said):
        return "node", ""
    return ("python", "") if _OLD_PYTHON.search(said) else None


def _runtime_program(case: Case, kind: str) -> str:
    program = case.learned.program or case.spec.command
    if kind in Path(program).name:
        return program
    path = environment_of(case.spec).get("PATH")
    names = ("node",) if kind == "node" else ("python3", "python")
    return next((found for name in names if (found := shutil.which(name, path=path))), names[0])


async def _version_of(program: str) -> str:
    try:
        with anyio.fail_after(ASKING_SECONDS):
            ran = await anyio.run_process([program, "--version"], check=False, stderr=subprocess.STDOUT)
    except (OSError, TimeoutError):
        return ""
    return ran.stdout.decode("utf-8", "replace").strip().splitlines()[0][:40] if ran.stdout.strip() else ""


def _tail(seen: ProcessExit) -> str:
    lines = [line.rstrip() for line in (seen.stderr or seen.noise).splitlines() if line.strip()]
    return "\n".join(lines[-LINES:])
