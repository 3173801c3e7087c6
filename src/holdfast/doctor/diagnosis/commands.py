"""A command that cannot be started: what is missing, and what has it."""

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
"""Commands that servers are often started with: what has each, and where that is had."""

INSTALLERS: Mapping[str, str] = {"uv": "python3 -m pip install --user uv", "pipx": "python3 -m pip install --user pipx"}
"""What installs a package with what is mostly there already."""

STANDS_FOR = {"python": "python3", "python3": "python", "pip": "pip3", "nodejs": "node"}
"""Programs that go by another name on some systems."""


RUNNERS = {".py": "python3", ".js": "node", ".mjs": "node", ".cjs": "node", ".rb": "ruby", ".pl": "perl"}
"""Which program runs a script of that kind; a shell runs all others."""


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
                f"`{seen.command}` is there, but may not be executed",
                "give it the run bit",
                shell("chmod", "+x", _path(case)),
            )
        case CommandFault.BAD_DIRECTORY:
            return finding(
                "HF-COMMAND-FOLDER",
                f"the folder that `{seen.command}` is to run in does not exist: {case.spec.cwd}",
                "make it, or correct `cwd` in the definition",
                shell("mkdir", "-p", str(case.spec.cwd)),
            )
        case CommandFault.BAD_FORMAT:
            return _no_program(case, seen.command)
        case CommandFault.OTHER:
            return finding(
                "HF-COMMAND-START",
                f"`{seen.command}` could not be started: {seen.detail or 'the system does not say why'}",
                "start it by hand to see the same",
                shell(seen.command, *case.spec.args),
            )


def missing_interpreter(case: Case) -> Finding | None:
    """The finding for a script whose first line names a program that is not here."""
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
    words = f"the script {script} asks for `{wanted}` in its first line, and there is no such program"
    name = Path(wanted).name
    here = next((one for one in (name, STANDS_FOR.get(name, "")) if one and _is_on_path(case, one)), "")
    if here:
        edits = (case.edit("command", here), case.edit("args", [str(script), *case.spec.args]))
        return finding("HF-COMMAND-INTERPRETER", words, f"let the `{here}` that is on PATH run it", edits=edits)
    text = _install(name) or f"install `{name}`, or correct the first line of the script"
    return finding("HF-COMMAND-INTERPRETER", words, text, *(_installer(name) or _which_elsewhere(name)))


def _missing(case: Case, command: str) -> Finding:
    name = Path(command).name
    if os.sep in command:
        where = f"there is no file {_path(case)}"
        near = _nearest(name, _files_in(Path(_path(case)).parent))
        value = str(Path(_path(case)).with_name(near)) if near else ""
    else:
        where = f"there is no command `{command}` on the PATH that servers get"
        near = value = _instead(case, name)
    if near:
        text = f"if `{near}` is meant, write that"
        return finding("HF-COMMAND-MISSING", where, text, edits=(case.edit("command", value),))
    text = _install(name) or _package_runner(case, name) or f"install `{name}`, or write its full path into `command`"
    return finding("HF-COMMAND-MISSING", where, text, *(_installer(name) or _which_elsewhere(name)))


def _instead(case: Case, name: str) -> str:
    """Another command that may be meant; empty if none is near."""
    other = STANDS_FOR.get(name, "")
    if other and _is_on_path(case, other):
        return other
    return "" if name in PACKAGES else _nearest(name, _programs(_search_path(case)))


def _install(name: str) -> str:
    if name not in PACKAGES:
        return ""
    package, address = PACKAGES[name]
    return f"`{name}` comes with {package}: install that ({address})"


def _installer(name: str) -> tuple[str, ...]:
    package = PACKAGES.get(name, ("", ""))[0]
    return (INSTALLERS[package],) if package in INSTALLERS else ()


def _package_runner(case: Case, name: str) -> str:
    """Servers are often packages that a runner fetches; their documentation names both."""
    if not name.startswith(("mcp-", "server-")) and "mcp" not in name:
        return ""
    runner = next((runner for runner in ("uvx", "npx") if shutil.which(runner, path=_search_path(case))), "uvx")
    return f'if it is a package, let {runner} fetch it: "command": "{runner}", "args": ["{name}", …]'


def _which_elsewhere(name: str) -> tuple[str, ...]:
    return (f"command -v {name}  # in the shell where it works: write what this prints into `command`",)


def _no_program(case: Case, command: str) -> Finding:
    script = Path(_path(case))
    runner = RUNNERS.get(script.suffix, "sh")
    text = f"`{command}` is not a program: it has no first line such as #!/bin/sh"
    edits = (case.edit("command", runner), case.edit("args", [str(script), *case.spec.args]))
    return finding("HF-COMMAND-FORMAT", text, f"if it is a script, let `{runner}` run it", edits=edits)


# Where programs are


def _is_on_path(case: Case, name: str) -> bool:
    return shutil.which(name, path=_search_path(case)) is not None


def _path(case: Case) -> str:
    """The file that the command names: as it stands, or where PATH has it."""
    command = case.spec.command
    if os.sep in command:
        return str((case.spec.cwd or Path()) / Path(command).expanduser())
    return shutil.which(command, path=_search_path(case)) or command


def _search_path(case: Case) -> str:
    return environment_of(case.spec).get("PATH", os.defpath)


def _first_line(file: Path) -> str:
    """What stands after ``#!``; empty for anything else."""
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
