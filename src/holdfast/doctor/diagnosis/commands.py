"""Findings for a command that cannot be started: what is missing, and how to install it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path

from holdfast.core.evidence import CommandFault, CommandUnusable
from holdfast.doctor.case import Case
from holdfast.doctor.findings import Finding, finding, shell
from holdfast.wire.process import environment_of

__all__ = ["missing_interpreter", "unusable"]

PACKAGES: Mapping[str, tuple[str, str]] = {
    "npx": ("Node.js", "https://nodejs.org/en/download"),
    "npm": ("Node.js", "https://nodejs.org/en/download"),
    "node": ("Node.js", "https://nodejs.org/en/download"),
    "uvx": ("uv", "https://docs.astral.sh/uv/getting-started/installation/"),
    "uv": ("uv", "https://docs.astral.sh/uv/getting-started/installation/"),
    "pipx": ("pipx", "https://pipx.pypa.io/stable/installation/"),
    "bun": ("Bun", "https://bun.sh/docs/installation"),
    "bunx": ("Bun", "https://bun.sh/docs/installation"),
    "deno": ("Deno", "https://docs.deno.com/runtime/getting_started/installation/"),
    "docker": ("Docker", "https://docs.docker.com/get-docker/"),
    "python": ("Python", "https://www.python.org/downloads/"),
    "python3": ("Python", "https://www.python.org/downloads/"),
}
"""Commands that often start servers: the package that contains each, and its download page."""

INSTALLERS: Mapping[str, str] = {"uv": "python3 -m pip install --user uv", "pipx": "python3 -m pip install --user pipx"}
"""Commands that install a package with a Python that most machines have."""

STANDS_FOR = {"python": "python3", "python3": "python", "pip": "pip3", "nodejs": "node"}
"""Programs that have another name on some systems."""


RUNNERS = {".py": "python3", ".js": "node", ".mjs": "node", ".cjs": "node", ".rb": "ruby", ".pl": "perl"}
"""The program that runs a script, by suffix; a shell runs all others."""


def unusable(case: Case, seen: CommandUnusable) -> Finding:
    """The finding for a command that cannot be started."""
    match seen.fault:
        case CommandFault.NOT_FOUND if (interpreter := missing_interpreter(case)) is not None:
            return interpreter
        case CommandFault.NOT_FOUND:
            return _missing(case, seen.command)
        case CommandFault.NOT_EXECUTABLE:
            return finding(
                "HF-COMMAND-RUN-BIT",
                f"`{seen.command}` exists, but it is not executable",
                "make it executable",
                shell("chmod", "+x", _path(case)),
            )
        case CommandFault.BAD_DIRECTORY:
            return finding(
                "HF-COMMAND-FOLDER",
                f"the working folder of `{seen.command}` does not exist: {case.spec.cwd}",
                "create it, or correct `cwd` in the definition",
                shell("mkdir", "-p", str(case.spec.cwd)),
            )
        case CommandFault.BAD_FORMAT:
            return _no_program(case, seen.command)
        case CommandFault.OTHER:
            return finding(
                "HF-COMMAND-START",
                f"`{seen.command}` could not be started: {seen.detail or 'the system does not say why'}",
                "start it by hand to see the error",
                shell(seen.command, *case.spec.args),
            )


def missing_interpreter(case: Case) -> Finding | None:
    """The finding for a script whose first line names a program that does not exist."""
    script = Path(_path(case))
    words = _first_line(script).split()
    if not words:
        return None
    by_name = Path(words[0]).name == "env" and len(words) > 1
    wanted = next((word for word in words[1:] if not word.startswith("-") and "=" not in word), "") if by_name else ""
    if wanted and shutil.which(wanted, path=_search_path(case)):
        return None
    if not wanted and Path(words[0]).exists():
        return None
    return _no_interpreter(case, script, wanted or words[0])


def _no_interpreter(case: Case, script: Path, wanted: str) -> Finding:
    words = f"the first line of the script {script} names `{wanted}`, which does not exist"
    name = Path(wanted).name
    here = next((one for one in (name, STANDS_FOR.get(name, "")) if one and _is_on_path(case, one)), "")
    if here:
        edits = (case.edit("command", here), case.edit("args", [str(script), *case.spec.args]))
        return finding("HF-COMMAND-INTERPRETER", words, f"run it with the `{here}` on PATH", edits=edits)
    text = _install(name) or f"install `{name}`, or correct the first line of the script"
    return finding("HF-COMMAND-INTERPRETER", words, text, *(_installer(name) or _which_elsewhere(name)))


def _missing(case: Case, command: str) -> Finding:
    name = Path(command).name
    if os.sep in command:
        where = f"the file {_path(case)} does not exist"
        near = _nearest(name, _files_in(Path(_path(case)).parent))
        value = str(Path(_path(case)).with_name(near)) if near else ""
    else:
        where = f"the command `{command}` is not on the PATH that servers get"
        near = value = _instead(case, name)
    if near:
        text = f"if `{near}` is the right name, write it"
        return finding("HF-COMMAND-MISSING", where, text, edits=(case.edit("command", value),))
    text = _install(name) or _package_runner(case, name) or f"install `{name}`, or write its full path into `command`"
    return finding("HF-COMMAND-MISSING", where, text, *(_installer(name) or _which_elsewhere(name)))


def _instead(case: Case, name: str) -> str:
    """A command with a similar name; empty if there is none."""
    other = STANDS_FOR.get(name, "")
    if other and _is_on_path(case, other):
        return other
    return "" if name in PACKAGES else _nearest(name, _programs(_search_path(case)))


def _install(name: str) -> str:
    if name not in PACKAGES:
        return ""
    package, address = PACKAGES[name]
    return f"`{name}` is part of {package}: install it ({address})"


def _installer(name: str) -> tuple[str, ...]:
    package = PACKAGES.get(name, ("", ""))[0]
    return (INSTALLERS[package],) if package in INSTALLERS else ()


def _package_runner(case: Case, name: str) -> str:
    """Many servers are packages that a runner such as uvx downloads."""
    if not name.startswith(("mcp-", "server-")) and "mcp" not in name:
        return ""
    runner = next((runner for runner in ("uvx", "npx") if shutil.which(runner, path=_search_path(case))), "uvx")
    return f'if it is a package, let {runner} download it: "command": "{runner}", "args": ["{name}", …]'


def _which_elsewhere(name: str) -> tuple[str, ...]:
    return (f"command -v {shell(name)}  # in the shell where it works: write the output into `command`",)


def _no_program(case: Case, command: str) -> Finding:
    script = Path(_path(case))
    runner = RUNNERS.get(script.suffix, "sh")
    text = f"`{command}` is not a program: its first line is not like #!/bin/sh"
    edits = (case.edit("command", runner), case.edit("args", [str(script), *case.spec.args]))
    return finding("HF-COMMAND-FORMAT", text, f"if it is a script, run it with `{runner}`", edits=edits)


# Finding programs


def _is_on_path(case: Case, name: str) -> bool:
    return shutil.which(name, path=_search_path(case)) is not None


def _path(case: Case) -> str:
    """The file of the command: its own path, or its path on PATH."""
    command = case.spec.command
    if os.sep in command:
        return str((case.spec.cwd or Path()) / Path(command).expanduser())
    return shutil.which(command, path=_search_path(case)) or command


def _search_path(case: Case) -> str:
    return environment_of(case.spec).get("PATH", os.defpath)


def _first_line(file: Path) -> str:
    """The text after ``#!``; empty if the file does not start with it."""
    try:
        with file.open("rb") as stream:
            line = stream.read(256).partition(b"\n")[0]
    except OSError:
        return ""
    return line[2:].decode("utf-8", "replace").strip() if line.startswith(b"#!") else ""


def _nearest(name: str, names: Iterator[str]) -> str:
    return next(iter(get_close_matches(name, set(names), n=1, cutoff=0.75)), "")


def _programs(path: str) -> Iterator[str]:
    for folder in path.split(os.pathsep):
        yield from _files_in(Path(folder or "."))


def _files_in(folder: Path) -> Iterator[str]:
    try:
        yield from (entry.name for entry in os.scandir(folder) if entry.is_file() and os.access(entry, os.X_OK))
    except OSError:
        return
