"""Findings for a command that cannot be started, and for a process that ended.

A process's output decides only which advice is given. Whether and how it failed depends on its exit code.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path

import anyio
import anyio.to_thread

from holdfast.core import (
    STOPPED_FROM_OUTSIDE,
    CommandFault,
    CommandUnusable,
    Need,
    ProcessExit,
    hint_for,
    need_of,
    quoted,
    quoted_name,
    telling_line,
)
from holdfast.doctor.case import SAME_ENVIRONMENT, Case
from holdfast.doctor.report import Edit, Finding, ask_for, finding, on_server, shell
from holdfast.wire import environment_of

__all__ = ["ended", "missing_interpreter", "unusable"]

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
                shell("chmod", "+x", "--", _path(case)),
            )
        case CommandFault.BAD_DIRECTORY:
            return finding(
                "HF-COMMAND-FOLDER",
                f"the working folder of `{seen.command}` does not exist: {case.spec.cwd}",
                "create it, or correct `cwd` in the definition",
                shell("mkdir", "-p", "--", str(case.spec.cwd)),
            )
        case CommandFault.BAD_FORMAT:
            return _no_program(case, seen.command)
        case CommandFault.OTHER:
            return finding(
                "HF-COMMAND-START",
                f"`{seen.command}` could not be started: {seen.detail or 'the system does not say why'}",
                f"start it by hand to see the error, {SAME_ENVIRONMENT}",
                *case.by_hand(),
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
    return (f"command -v -- {shell(name)}  # in the shell where it works: write the output into `command`",)


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


LINES = 12
"""How many lines of its output are shown."""

ASKING_SECONDS = 5.0
"""How long ``--version`` of a runtime may take."""


async def ended(case: Case, seen: ProcessExit) -> Finding:
    """The finding for a process that ended while it was needed."""
    if -seen.code in STOPPED_FROM_OUTSIDE:
        return _killed(case, seen)
    need = need_of(seen.stderr) or need_of(seen.noise)
    if need is None:
        return _plain(case, seen)
    match need.kind:
        case "variable":
            return _variable(case, seen, need) or _plain(case, seen)
        case "argument":
            return _argument(case, seen, need)
        case "certificate":
            return _untrusted(case, seen, need)
        case "runtime":
            return await _runtime(case, seen, need)
        case "address":
            return _address(case, seen, need)
        case "docker" | "image":
            return _docker(seen, need)
        case _:
            return await _of_package(case, seen, need)


async def _of_package(case: Case, seen: ProcessExit, need: Need) -> Finding:
    match need.kind:
        case "executable":
            return _executable(case, seen, need)
        case "withdrawn":
            return _withdrawn(case, seen, need)
        case "broken_package":
            return await _broken(case, seen, need)
        case "npx_folder":
            return _incomplete(case, seen, need.names[0])
        case "python_module" | "node_module":
            return _module(case, seen, need)
        case "python_package":
            return await _other_version(case, seen, need)
        case _:
            return _package(case, seen, need)


def how(seen: ProcessExit) -> str:
    """How it ended, as text."""
    when = "after the handshake" if seen.stood else "before it was ready"
    return f"killed by signal {-seen.code} {when}" if seen.code < 0 else f"exited with code {seen.code} {when}"


def _killed(case: Case, seen: ProcessExit) -> Finding:
    text = "try again; if it happens again, look in the system's log for the cause, such as no free memory"
    words = f"its process was {how(seen)}"
    return finding("HF-KILLED", words, text, on_server("doctor", case.id), detail=_tail(seen))


def _plain(case: Case, seen: ProcessExit) -> Finding:
    text = "its output says what it needs" if _tail(seen) else "it printed no error"
    text = f"{text}; this command runs it again, {SAME_ENVIRONMENT}"
    return finding("HF-EXITED", f"its process {how(seen)}", text, *case.by_hand(), detail=_tail(seen))


def _variable(case: Case, seen: ProcessExit, need: Need) -> Finding | None:
    """The finding for environment variables that it asked for and did not get; None if it got all of them."""
    given = environment_of(case.spec)
    wanted = [name for name in need.names if name not in given]
    if not wanted:
        return None
    first = " and ".join(f"`{name}`" for name in wanted[:3])
    exported = [name for name in wanted if name in os.environ]
    where = "exported here, but servers get only the variables in `env`" if exported else "not set"
    edits: tuple[Edit, ...] = tuple(case.edit(("env", name), f"${{env:{name}}}") for name in wanted[:3])
    commands = tuple(ask_for(name) for name in wanted[:3] if name not in exported)
    words = f"its process {how(seen)}. It needs {first}, which {'is' if len(wanted) == 1 else 'are'} {where}"
    if others := [f"`{name}`" for name in need.others if name not in given]:
        words += f"; {' or '.join(others)} would do instead"
    it = "it" if len(wanted[:3]) == 1 else "them"
    asks = "this command waits" if len(commands) == 1 else "these commands wait"
    text = f"add {it} to the definition" + (f", and export {it} ({asks} for you to paste it)" if commands else "")
    return finding("HF-EXIT-VARIABLE", words, text, *commands, edits=edits, detail=_tail(seen))


def _module(case: Case, seen: ProcessExit, need: Need) -> Finding:
    module = need.names[0]
    if need.kind == "python_module":
        words = f"its process {how(seen)}: Python has no module {quoted_name(module, ticks=True)}"
        text = f"install it for the Python that runs the server ({case.learned.program or case.spec.command})"
        return _installing(case, seen, "HF-EXIT-MODULE", words, text, module)
    words = f"its process {how(seen)}: Node has no module {quoted_name(module, ticks=True)}"
    if module.startswith(("/", ".")):
        text = "that file does not exist: build the server, or correct its path in `args`"
        return finding("HF-EXIT-MODULE", words, text, shell("ls", "-l", module), detail=_tail(seen))
    folder = str(case.spec.cwd or ".")
    install = f"cd {shell(folder)} && {shell('npm', 'install', module)}"
    return finding("HF-EXIT-MODULE", words, "install it in the server's folder", install, detail=_tail(seen))


async def _other_version(case: Case, seen: ProcessExit, need: Need) -> Finding:
    package, version = need.names[0], need.version
    has = await anyio.to_thread.run_sync(_version_beside, need.place, package)
    words = (
        f"its process {how(seen)}: it was written for another version of the Python package "
        f"{quoted_name(package, ticks=True)}" + (f" than {has}" if has else "")
    )
    if not version and has:
        version = f"<{_release(has)}"
    if version:
        wanted = package + version
        return _installing(case, seen, "HF-EXIT-VERSION", words, f"install {wanted} for it", wanted)
    text = f"install the version that it was written for; this command runs it again, {SAME_ENVIRONMENT}"
    return finding("HF-EXIT-VERSION", words, text, *case.by_hand(), detail=_tail(seen))


_DIST_INFO = re.compile(r"([A-Za-z0-9._]+)-(\d+(?:\.\d+)*)[\w.+!]*\.dist-info")


def _version_beside(file: str, package: str) -> str:
    """The version of a package in the environment that holds ``file``; empty if it cannot be seen."""
    folder, found, _ = file.partition("/site-packages/")
    if not found:
        return ""
    try:
        names = [entry.name for entry in os.scandir(f"{folder}/site-packages")]
    except OSError:
        return ""
    read = (_DIST_INFO.fullmatch(name) for name in names)
    return next((one[2] for one in read if one is not None and _normal(one[1]) == _normal(package)), "")


def _release(version: str) -> str:
    """The first release of the line that a version belongs to, where a change may have come: `5.2` for `5.2.1`."""
    major, _, rest = version.partition(".")
    minor = rest.partition(".")[0]
    return f"{major}.{minor}" if minor not in ("", "0") else major


def _installing(case: Case, seen: ProcessExit, code: str, words: str, text: str, wanted: str) -> Finding:
    """The finding whose remedy installs a Python package beside the server."""
    if _is_uvx(case):
        return _with_uvx(case, seen, code, words, "let uvx install it beside the server", "--with", wanted)
    python = _python_of(case)
    commands = (shell(python, "-m", "pip", "install", wanted),) if python else case.by_hand()
    return finding(code, words, text, *commands, detail=_tail(seen))


def _is_uvx(case: Case) -> bool:
    """Whether uv makes the environment of the server: `uvx`, `uv tool run`, `uv run`."""
    return _uv_options(case) is not None


def _uv_options(case: Case) -> int | None:
    """Where the options of uv begin in the arguments; None if it is another program."""
    match Path(case.spec.command).name, *case.spec.args[:2]:
        case ["uvx" | "uvx.exe", *_]:
            return 0
        case ["uv" | "uv.exe", "tool", "run"]:
            return 2
        case ["uv" | "uv.exe", "run", *_]:
            return 1
    return None


def _with_uvx(case: Case, seen: ProcessExit, code: str, words: str, text: str, option: str, value: str) -> Finding:
    """The finding whose remedy is an option of uvx. One that is there for the same package gets the new value."""
    written = f'{text}: put "{option}", "{value}"'
    args = case.spec.args
    same = (at for at, one in enumerate(args[:-1]) if one == option and _same_package(args[at + 1], value))
    at = next(same, None) if option == "--with" else next((at for at, one in enumerate(args) if one == option), None)
    if at is not None:
        edit = case.edit(("args", at + 1), value, certain=False)
        return finding(code, words, f"{text}: replace the value of `{option}`", edits=(edit,), detail=_tail(seen))
    first = _uv_options(case) or 0
    where = "first in `args`" if not first else f"after `{args[first - 1]}` in `args`"
    return _with_args(case, seen, code, words, f"{written} {where}", [*args[:first], option, value, *args[first:]])


def _same_package(one: str, other: str) -> bool:
    return _normal(_package_in(one)) == _normal(_package_in(other))


def _with_args(case: Case, seen: ProcessExit, code: str, words: str, text: str, args: list[str]) -> Finding:
    """The finding whose remedy is another list of arguments."""
    path = (*case.definition.path, "args")
    # Arguments that hold references are not written back with their values.
    if any(case.definition.expansion.sources((*path, at)) for at in range(len(case.spec.args))):
        again = f"{text}; this command runs it again, {SAME_ENVIRONMENT}"
        return finding(code, words, again, *case.by_hand(), detail=_tail(seen))
    edit = case.edit("args", args, certain=False)
    return finding(code, words, text, edits=(edit,), detail=_tail(seen))


def _python_of(case: Case) -> str:
    """The Python that runs the server: its command, or the one beside it in a virtual environment; empty if unknown."""
    program = case.learned.program or case.spec.command
    if "python" in Path(program).name:
        return program
    beside = Path(program).with_name("python")
    return str(beside) if os.sep in program and os.access(beside, os.X_OK) else ""


def _address(case: Case, seen: ProcessExit, need: Need) -> Finding:
    words = f"its process {how(seen)}: it could not reach {quoted_name(need.names[0])}"
    here = need.names[0].startswith(("127.", "localhost", "[::1]"))
    cure = "start the service that should listen there" if here else "check that this machine can reach it"
    text = f"{cure}, or correct its address in `env` or `args`; then try again"
    return finding("HF-EXIT-ADDRESS", words, text, on_server("doctor", case.id), detail=_tail(seen))


def _package(case: Case, seen: ProcessExit, need: Need) -> Finding:
    runner, name = Path(case.spec.command).name, need.names[0]
    npm = runner.startswith(("npx", "npm", "bun", "pnpm", "yarn", "deno"))
    version = f"version {quoted_name(need.version, ticks=True)} of the " if need.version else ""
    words = f"its process {how(seen)}: {runner} found no {version}package {quoted_name(name, ticks=True)}"
    named = [_package_in(argument) for argument in case.spec.args if not argument.startswith("-")]
    if _normal(name) not in map(_normal, named) and npm and named:
        words += ", which the package of the server needs"
        text = "its package cannot be installed from this registry; name another version of it in `args`: "
        look = shell("npm", "view", named[0], "versions")
        return finding("HF-EXIT-PACKAGE", words, f"{text}this command lists them", look, detail=_tail(seen))
    if version and not npm and (at := _place_of(case, name)) is not None:
        edit = case.edit(("args", at), _package_in(case.spec.args[at]), certain=False)
        return finding("HF-EXIT-PACKAGE", words, "use the current version", edits=(edit,), detail=_tail(seen))
    if version:
        text = "name a version that exists in `args`; this command lists them"
        look = shell("npm", "view", name, "versions")
    elif npm:
        text = "correct the name of the package in `args`; this command searches the registry"
        look = shell("npm", "search", name)
    else:
        text = "correct the name of the package in `args`; this command shows whether uvx finds it"
        look = shell("uvx", name, "--help")
    return finding("HF-EXIT-PACKAGE", words, text, look, detail=_tail(seen))


def _place_of(case: Case, *names: str) -> int | None:
    """The argument that names one of these packages."""
    wanted = {_normal(name) for name in names}
    places = (at for at, one in enumerate(case.spec.args) if _normal(_package_in(one)) in wanted)
    return next(places, None)


def _executable(case: Case, seen: ProcessExit, need: Need) -> Finding:
    """The finding for a package that has no executable of the wanted name."""
    runner = Path(case.spec.command).name
    if not need.names:
        return _no_executable(case, seen, runner)
    package, wanted = need.names[0], need.names[-1]
    named = quoted_name(package, ticks=True)
    if not need.others:
        words = f"its process {how(seen)}: the package {named} has no executable, so it is not a server"
        text = "write the name of the server's package into `args`; this command runs it again"
        return finding("HF-EXIT-EXECUTABLE", words, f"{text}, {SAME_ENVIRONMENT}", *case.by_hand(), detail=_tail(seen))
    name = next(iter(get_close_matches(wanted, need.others, n=1)), need.others[0])
    has = ", ".join(quoted_name(one, ticks=True) for one in need.others[:4])
    words = (
        f"its process {how(seen)}: the package {named} has no executable {quoted_name(wanted, ticks=True)}, but {has}"
    )
    args, at = [*case.spec.args], _place_of(case, wanted, package)
    option = "--spec" if runner.startswith("pipx") else "--from"
    if option in args and (place := args.index(option)) + 2 < len(args):
        later = next((at for at in range(place + 2, len(args)) if _normal(args[at]) == _normal(wanted)), place + 2)
        edit = case.edit(("args", later), name, certain=False)
        return finding("HF-EXIT-EXECUTABLE", words, "write its name", edits=(edit,), detail=_tail(seen))
    if at is None:
        return finding(
            "HF-EXIT-EXECUTABLE", words, "name it", shell("uvx", "--from", package, name, "--help"), detail=_tail(seen)
        )
    source = args[at] if _same_package(args[at], package) else package
    text = f'name the package and the executable: "{option}", "{source}", "{name}"'
    return _with_args(
        case, seen, "HF-EXIT-EXECUTABLE", words, text, [*args[:at], option, source, name, *args[at + 1 :]]
    )


def _no_executable(case: Case, seen: ProcessExit, runner: str) -> Finding:
    """The finding for a package in which npx finds nothing to run, or too much."""
    package = next((_package_in(one) for one in case.spec.args if not one.startswith("-")), "")
    words = (
        f"its process {how(seen)}: {runner} does not know which executable of {quoted_name(package, ticks=True)} to run"
    )
    text = (
        "if this lists executables, write `-p`, the package, and the name of one into `args`; else it is not a server"
    )
    return finding("HF-EXIT-EXECUTABLE", words, text, shell("npm", "view", package, "bin"), detail=_tail(seen))


def _withdrawn(case: Case, seen: ProcessExit, need: Need) -> Finding:
    """The finding for a package that its authors took back."""
    package, at = need.names[0], _place_of(case, need.names[0])
    only = f"version {need.version.lstrip('=')} of " if need.version else ""
    why = f": {quoted(need.why, most=200)}" if need.why else ""
    words = (
        f"its process {how(seen)}: its authors have withdrawn {only}the package {quoted_name(package, ticks=True)}{why}"
    )
    if need.others and at is not None:
        edit = case.edit(("args", at), need.others[0], certain=False)
        return finding("HF-EXIT-WITHDRAWN", words, "use its successor", edits=(edit,), detail=_tail(seen))
    if need.version and at is not None:
        edit = case.edit(("args", at), _package_in(case.spec.args[at]), certain=False)
        return finding("HF-EXIT-WITHDRAWN", words, "use the current version", edits=(edit,), detail=_tail(seen))
    text = "use another server for this; this command removes this one from the file"
    return finding("HF-EXIT-WITHDRAWN", words, text, on_server("remove", case.id), detail=_tail(seen))


async def _broken(case: Case, seen: ProcessExit, need: Need) -> Finding:
    """The finding for a release that imports what does not exist. To install it again does not help."""
    package, at = need.names[0], _place_of(case, need.names[0])
    version = await anyio.to_thread.run_sync(_version_of_npm, need.place, package)
    release = f"version {version}" if version else "the installed version"
    words = (
        f"its process {how(seen)}: {release} of the package {quoted_name(package, ticks=True)} is broken: it imports "
        "what the packages that it depends on do not have"
    )
    if at is not None and version and "@<" not in case.spec.args[at]:
        edit = case.edit(("args", at), f"{package}@<{version}", certain=False)
        text = "this is a fault of that release: report it to its authors, and use an earlier one until it is fixed"
        return finding("HF-EXIT-BROKEN", words, text, edits=(edit,), detail=_tail(seen))
    server = next((_package_in(one) for one in case.spec.args if not one.startswith("-")), package)
    earlier = at is not None and "@<" in case.spec.args[at]
    it = "this release too, as the one after it" if earlier else "that release"
    text = f"this is a fault of {it}: report it to its authors, and name another version in `args`"
    look = shell("npm", "view", server, "versions")
    return finding("HF-EXIT-BROKEN", words, f"{text}; this command lists them", look, detail=_tail(seen))


LARGEST_PACKAGE = 256 * 1024
"""Bytes of a package.json that are read."""


def _version_of_npm(file: str, package: str) -> str:
    """The version of the package that ``file`` belongs to. The path is from a foreign output: only this is read."""
    folder, found, _ = file.partition(f"/node_modules/{package}/")
    if not found:
        return ""
    try:
        with Path(folder, "node_modules", package, "package.json").open("rb") as stream:
            version = json.loads(stream.read(LARGEST_PACKAGE))["version"]
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return version if isinstance(version, str) and re.fullmatch(r"\d+\.\d+\.\d+(?:-[\w.]+)?", version) else ""


def _argument(case: Case, seen: ProcessExit, need: Need) -> Finding:
    """The finding for an argument that the server needs."""
    named = " and ".join(quoted_name(name, ticks=True) for name in need.names)
    plural = len(need.names) > 1
    words = f"its process {how(seen)}. It needs the argument{'s' if plural else ''} {named}"
    text = f"add {'them' if plural else 'it'} to `args`; this command shows what it accepts, {SAME_ENVIRONMENT}"
    return finding("HF-EXIT-ARGUMENT", words, text, *case.by_hand("--help"), detail=_tail(seen))


def _package_in(argument: str) -> str:
    """The name of a package, without the version that an argument asks for."""
    return argument[:1] + re.split(r"@|[<>=~!]=?|\[", argument[1:], maxsplit=1)[0]


def _normal(name: str) -> str:
    """A name as registries compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _incomplete(case: Case, seen: ProcessExit, folder: str) -> Finding:
    """The finding for an installation of npx that lacks a file: npx uses it again, and fails again."""
    words = f"its process {how(seen)}: a file is missing in what npx installed"
    text = (
        "an installation that was cut off stays incomplete: remove it, and allow more time; if that does not help, the "
        "package itself is incomplete"
    )
    # Only the folder's name is from the output: what a process prints must not choose what is removed.
    remove = f'rm -rf -- "$(npm config get cache)"/_npx/{shell(folder)}'
    return finding("HF-EXIT-MODULE", words, text, remove, on_server("doctor", case.id), detail=_tail(seen))


AUTHORITIES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
"""Where systems keep the certificates of the authorities that they trust."""


def _untrusted(case: Case, seen: ProcessExit, need: Need) -> Finding:
    """The finding for a program that does not know who signed a certificate, often that of a company's proxy."""
    of = f" of {quoted_name(need.names[0])}" if need.names else ""
    words = f"its process {how(seen)}: it does not trust the certificate{of}"
    runner = Path(case.spec.command).name
    name = "NODE_EXTRA_CA_CERTS" if runner.startswith(("npx", "npm", "node", "bun")) else "SSL_CERT_FILE"
    if name in environment_of(case.spec):
        text = f"add the certificate of its authority to the file in `{name}`; this command runs it again"
        return finding("HF-EXIT-CERTIFICATE", words, f"{text}, {SAME_ENVIRONMENT}", *case.by_hand(), detail=_tail(seen))
    if name in os.environ:
        words += f". `{name}` is exported here, but servers get only the variables in `env`"
        value, text, certain = f"${{env:{name}}}", "add it to the definition", True
    else:
        value = next((file for file in AUTHORITIES if Path(file).is_file()), AUTHORITIES[0])
        text, certain = "if this system trusts it, let the server use the certificates of the system", False
    edit = case.edit(("env", name), value, certain=certain)
    return finding("HF-EXIT-CERTIFICATE", words, text, edits=(edit,), detail=_tail(seen))


def _docker(seen: ProcessExit, need: Need) -> Finding:
    if need.kind == "docker":
        words, look = "Docker does not answer", "docker info"
    else:
        words, look = (
            f"Docker has no image {quoted_name(need.names[0], ticks=True)}",
            shell("docker", "pull", need.names[0]),
        )
    text = f"{hint_for(need)}; this command shows whether it works"
    return finding("HF-EXIT-DOCKER", f"its process {how(seen)}: {words}", text, look, detail=_tail(seen))


_UV_PYTHON = re.compile(r"the current Python version \(([\d.]+)\) does not satisfy Python")


async def _runtime(case: Case, seen: ProcessExit, need: Need) -> Finding:
    kind = need.names[0]
    if (current := _UV_PYTHON.search(seen.stderr)) is not None and need.version and _is_uvx(case):
        words = f"its process {how(seen)}: it needs Python {need.version}, and uvx uses {current[1]}"
        text = "let uvx find or install that Python"
        return _with_uvx(case, seen, "HF-EXIT-RUNTIME", words, text, "--python", need.version)
    program = _runtime_program(case, kind)
    has = await _version_of(program, environment_of(case.spec))
    is_now = quoted_name(has, 40) if has else "of another version"
    asked = f"{kind.title()} {need.version}" if need.version else f"a newer {kind.title()}"
    words = f"its process {how(seen)}: it needs {asked}, and {program} is {is_now}"
    text = f"install {asked} and write its full path into `command`, or put it first on PATH"
    return finding("HF-EXIT-RUNTIME", words, text, shell(program, "--version"), detail=_tail(seen))


def _runtime_program(case: Case, kind: str) -> str:
    program = case.learned.program or case.spec.command
    if kind in Path(program).name:
        return program
    path = environment_of(case.spec).get("PATH")
    names = ("node",) if kind == "node" else ("python3", "python")
    return next((found for name in names if (found := shutil.which(name, path=path))), names[0])


async def _version_of(program: str, environment: Mapping[str, str]) -> str:
    """What a program says about its version. It gets no more than it gets as a server (SEC-1)."""
    try:
        with anyio.fail_after(ASKING_SECONDS):
            ran = await anyio.run_process(
                [program, "--version"], check=False, stderr=subprocess.STDOUT, env=environment
            )
    except (OSError, TimeoutError):
        return ""
    return ran.stdout.decode("utf-8", "replace").strip().splitlines()[0][:40] if ran.stdout.strip() else ""


def _tail(seen: ProcessExit) -> str:
    """The end of its output, and the line that says most if that is before the end: a usage text may follow it."""
    said = seen.stderr or seen.noise
    lines = [line.rstrip() for line in said.splitlines() if line.strip()]
    shown, telling = lines[-LINES:], telling_line(said)
    if len(lines) > LINES and not any(" ".join(line.split()) in telling for line in shown):
        shown = [telling, "…", *shown[2:]]
    return "\n".join(shown)
