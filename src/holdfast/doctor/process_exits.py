"""Findings for a command that cannot be started, and for a process that ended.

Theory of operation. Most servers are packages that ``npx`` or ``uvx`` install and start, so a process that ends at once
has ended for one of a dozen reasons, and says which in words of npm, uv, pip, Python, Node or Docker.
``core.process_output`` recognises these words and names what the process needed (``Need``); here each kind of need has
a function that makes the advice (``_ADVICE``), with what only this machine knows: the arguments of the definition, the
PATH that servers get, the versions that are installed. What no recogniser knows is ``HF-EXITED``, with the end of the
output.

The output decides only which advice is given. Whether and how a process failed depends on its exit code: a signal that
comes from outside (``STOPPED_FROM_OUTSIDE``) is reported as such, also where the output before it says something else.

What must never happen: text of a process reaches a shell unquoted, chooses a file to remove beyond a folder of npx's
cache, or is written by ``--fix`` without a question, but for the name of a variable; an argument that came from a
variable is written back with its value; a program that is asked for its version gets more of the environment than a
server does.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Awaitable, Callable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path

import anyio
import anyio.to_thread

from holdfast.core import (
    STOPPED_FROM_OUTSIDE,
    CommandFault,
    CommandUnusable,
    Need,
    NeedKind,
    ProcessExit,
    command_line,
    hint_for,
    need_of,
    quoted,
    quoted_name,
    says_nothing,
    telling_line,
)
from holdfast.doctor.case import SAME_ENVIRONMENT, Case
from holdfast.doctor.network_faults import LISTENERS
from holdfast.doctor.report import Edit, Finding, ask_for, finding, shell
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
    "pnpm": ("pnpm", "https://pnpm.io/installation"),
    "yarn": ("Yarn", "https://yarnpkg.com/getting-started/install"),
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
        case CommandFault.IS_FOLDER:
            return finding(
                "HF-COMMAND-RUN-BIT",
                f"`{seen.command}` is a folder, not a program",
                "write the path of the program into `command`; this command shows what is in the folder",
                shell("ls", "-l", "--", _path(case)),
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
    first = _first_line(script)
    words = first.split()
    if not words:
        return None
    if first.endswith("\r"):
        return finding(
            "HF-COMMAND-INTERPRETER",
            f"the lines of the script {script} end as on Windows, so the system looks for a program whose name ends "
            "with a carriage return",
            "write its lines with the ends of this system",
            shell("perl", "-pi", "-e", r"s/\r$//", str(script)),
        )
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
    text, command = _getting(name, f"install `{name}`, or correct the first line of the script")
    return finding("HF-COMMAND-INTERPRETER", words, text, command)


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
        return finding(
            "HF-COMMAND-MISSING",
            where,
            f"if `{near}` is the right name, write it",
            edits=(case.edit("command", value),),
        )
    otherwise = _package_runner(case, name) or f"install `{name}`, or write its full path into `command`"
    return finding("HF-COMMAND-MISSING", where, *_getting(name, otherwise))


def _instead(case: Case, name: str) -> str:
    """A command with a similar name; empty if there is none."""
    other = STANDS_FOR.get(name, "")
    if other and _is_on_path(case, other):
        return other
    return "" if name in PACKAGES else _nearest(name, _programs(_search_path(case)))


def _getting(name: str, otherwise: str) -> tuple[str, str]:
    """What to do to have a program, and a command for that."""
    package, address = PACKAGES.get(name, ("", ""))
    text = f"`{name}` is part of {package}: install it ({address})" if package else otherwise
    elsewhere = f"command -v -- {shell(name)}  # in the shell where it works: write the output into `command`"
    return text, INSTALLERS.get(package, elsewhere)


def _package_runner(case: Case, name: str) -> str:
    """Many servers are packages that a runner such as uvx downloads."""
    if not name.startswith(("mcp-", "server-")) and "mcp" not in name:
        return ""
    runner = next((runner for runner in ("uvx", "npx") if shutil.which(runner, path=_search_path(case))), "uvx")
    return f'if it is a package, let {runner} download it: "command": "{runner}", "args": ["{name}", …]'


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
    return line[2:].decode("utf-8", "replace").strip(" \t") if line.startswith(b"#!") else ""


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
    need = need_of(seen.stderr) or need_of(seen.noise)
    end = _End(case, seen)
    if -seen.code in STOPPED_FROM_OUTSIDE:
        return finding(
            "HF-KILLED",
            f"its process {end.how}",
            "try again; if it happens again, look in the system's log for the cause, such as no free memory",
            case.again,
            detail=end.tail,
        )
    return await _ADVICE[need.kind](end, need) if need is not None else _plain(end)


class _End:
    """How a process ended, and the findings about that."""

    def __init__(self, case: Case, seen: ProcessExit) -> None:
        self.case = case
        self.stderr = seen.stderr
        when = "after the handshake" if seen.stood else "before it was ready"
        self.how = (
            f"was killed by signal {-seen.code} {when}" if seen.code < 0 else f"exited with code {seen.code} {when}"
        )
        self.tail = _tail(seen)
        self.runner = Path(case.spec.command).name
        self.args = list(case.spec.args)

    def finding(self, code: str, words: str, text: str, *commands: str, edits: tuple[Edit, ...] = ()) -> Finding:
        """The finding: ``words`` follow how the process ended."""
        return finding(code, f"its process {self.how}{words}", text, *commands, edits=edits, detail=self.tail)

    def with_arg(self, code: str, words: str, text: str, at: int, value: str) -> Finding:
        """The finding whose remedy is another value of one argument."""
        return self.finding(code, words, text, edits=(self.case.edit(("args", at), value, certain=False),))

    def with_args(self, code: str, words: str, text: str, args: list[str]) -> Finding:
        """The finding whose remedy is another list of arguments."""
        path = (*self.case.definition.path, "args")
        # Arguments that hold references are not written back with their values.
        if any(self.case.definition.expansion.sources((*path, at)) for at in range(len(self.args))):
            return self.by_hand(code, words, f"{text}; this command runs it again")
        return self.finding(code, words, text, edits=(self.case.edit("args", args, certain=False),))

    def by_hand(self, code: str, words: str, text: str, *more: str) -> Finding:
        """The finding whose remedy is a command of ``Case.by_hand``."""
        return self.finding(code, words, f"{text}, {SAME_ENVIRONMENT}", *self.case.by_hand(*more))

    def place_of(self, *names: str) -> int | None:
        """The argument that names one of these packages."""
        wanted = {_normal(name) for name in names}
        return next((at for at, one in enumerate(self.args) if _normal(_package_in(one)) in wanted), None)

    @property
    def package(self) -> str:
        """The package that the arguments name; empty if they name none."""
        return next((_package_in(one) for one in self.args if not one.startswith("-")), "")


def _plain(end: _End) -> Finding:
    is_silent = says_nothing(end.stderr)
    if is_silent and end.runner == "npx" and (unfinished := _unfinished(end)):
        return unfinished
    text = "it printed no error" if is_silent else "its output says what it needs"
    return end.by_hand("HF-EXITED", "", f"{text}; this command runs it again")


def _unfinished(end: _End) -> Finding | None:
    """An installation that npx did not finish: it exits with 1 and prints nothing, also if an install script failed."""
    wanted = next((one for one in end.args if not one.startswith("-")), "")
    folder = hashlib.sha512(wanted.encode()).hexdigest()[:16]  # as npx names it
    given = environment_of(end.case.spec)
    cache = Path(given.get("npm_config_cache") or Path(given.get("HOME", "~"), ".npm").expanduser())
    installed = cache / "_npx" / folder
    if not installed.is_dir() or (installed / "package.json").exists():  # npx writes that file at the end
        return None
    text = "it was cut off, or failed: remove it, and install the package elsewhere, where npm shows its errors"
    install = f'cd "$(mktemp -d)" && {shell("npm", "install", wanted)}'
    return end.finding(
        "HF-EXIT-MODULE", ": npx did not finish the installation of its package", text, _removing(folder), install
    )


async def _variable(end: _End, need: Need) -> Finding:
    """Environment variables that it asked for and did not get. If it got all of them, its output says more."""
    given = environment_of(end.case.spec)
    wanted = [name for name in need.names if not given.get(name)]
    if not wanted:
        return _plain(end)
    first = " and ".join(f"`{name}`" for name in wanted[:3])
    exported = [name for name in wanted if os.environ.get(name)]
    where = "exported here, but servers get only the variables in `env`" if exported else "not set"
    if all(name in given for name in wanted):
        where = "empty"
    words = f". It needs {first}, which {'is' if len(wanted) == 1 else 'are'} {where}"
    if others := [f"`{name}`" for name in need.others if not given.get(name)]:
        words += f"; {' or '.join(others)} would do instead"
    edits = tuple(end.case.edit(("env", name), f"${{env:{name}}}") for name in wanted[:3])
    commands = tuple(ask_for(name) for name in wanted[:3] if name not in exported)
    it = "it" if len(wanted[:3]) == 1 else "them"
    asks, pasted = ("this command waits", "it") if len(commands) == 1 else ("these commands wait", "them")
    waits = f", and export {it} ({asks} for you to paste {pasted})" if commands else ""
    text = f"add {it} to the definition{waits}"
    return end.finding("HF-EXIT-VARIABLE", words, text, *commands, edits=edits)


async def _argument(end: _End, need: Need) -> Finding:
    named = " and ".join(quoted_name(name, ticks=True) for name in need.names)
    plural = len(need.names) > 1
    return end.by_hand(
        "HF-EXIT-ARGUMENT",
        f". It needs the argument{'s' if plural else ''} {named}",
        f"add {'them' if plural else 'it'} to `args`; this command shows what it accepts",
        "--help",
    )


async def _python_module(end: _End, need: Need) -> Finding:
    module = need.names[0]
    return _installing(
        end,
        "HF-EXIT-MODULE",
        f": Python has no module {quoted_name(module, ticks=True)}",
        f"install it for the Python that runs the server ({end.case.learned.program or end.case.spec.command})",
        module,
    )


async def _node_module(end: _End, need: Need) -> Finding:
    module = need.names[0]
    words = f": Node has no module {quoted_name(module, ticks=True)}"
    if module.startswith(("/", ".")):
        return end.finding(
            "HF-EXIT-MODULE",
            words,
            "that file does not exist: build the server, or correct its path in `args`",
            shell("ls", "-l", module),
        )
    install = f"cd {shell(str(end.case.spec.cwd or '.'))} && {shell('npm', 'install', module)}"
    return end.finding("HF-EXIT-MODULE", words, "install it in the server's folder", install)


async def _npx_folder(end: _End, need: Need) -> Finding:
    """An installation of npx that lacks a file: npx uses it again, and fails again."""
    text = (
        "an installation that was cut off stays incomplete: remove it, and allow more time; if that does not help, the "
        "package itself is incomplete"
    )
    return end.finding(
        "HF-EXIT-MODULE", ": a file is missing in what npx installed", text, _removing(need.names[0]), end.case.again
    )


def _removing(folder: str) -> str:
    # Only the folder's name is from the output: what a process prints must not choose what is removed.
    return f'rm -rf -- "$(npm config get cache)"/_npx/{shell(folder)}'


async def _python_package(end: _End, need: Need) -> Finding:
    """A package of another version than the one that the server was written for."""
    package, version = need.names[0], need.version
    has = await anyio.to_thread.run_sync(_version_beside, need.place, package)
    than = f" than {has}" if has else ""
    words = f": it was written for another version of the Python package {quoted_name(package, ticks=True)}{than}"
    if not version and has:
        version = f"<{_release(has)}"
    if version:
        return _installing(end, "HF-EXIT-VERSION", words, f"install {package}{version} for it", package + version)
    return end.by_hand(
        "HF-EXIT-VERSION", words, "install the version that it was written for; this command runs it again"
    )


_DIST_INFO = re.compile(r"([A-Za-z0-9._]+)-(\d+(?:\.\d+)*)[\w.+!]*\.dist-info")


def _version_beside(file: str, package: str) -> str:
    """The version of a package in the environment that holds ``file``; empty if it cannot be seen."""
    folder, found, _ = file.partition("/site-packages/")
    if not found:
        return ""
    try:
        read = [_DIST_INFO.fullmatch(entry.name) for entry in os.scandir(f"{folder}/site-packages")]
    except OSError:
        return ""
    return next((one[2] for one in read if one is not None and _normal(one[1]) == _normal(package)), "")


def _release(version: str) -> str:
    """The first release of the line that a version belongs to, where a change may have come: `5.2` for `5.2.1`."""
    major, _, rest = version.partition(".")
    minor = rest.partition(".")[0]
    return f"{major}.{minor}" if minor not in ("", "0") else major


def _installing(end: _End, code: str, words: str, text: str, wanted: str) -> Finding:
    """The finding whose remedy installs a Python package beside the server."""
    if _uv_options(end) is not None:
        return _with_uvx(end, code, words, "let uvx install it beside the server", "--with", wanted)
    python = _python_of(end.case)
    commands = (shell(python, "-m", "pip", "install", wanted),) if python else end.case.by_hand()
    return end.finding(code, words, text, *commands)


def _uv_options(end: _End) -> int | None:
    """Where the options of uv begin in the arguments; None if uv does not make the environment of the server."""
    match end.runner, *end.args[:2]:
        case ["uvx" | "uvx.exe", *_]:
            return 0
        case ["uv" | "uv.exe", "tool", "run"]:
            return 2
        case ["uv" | "uv.exe", "run", *_]:
            return 1
    return None


def _with_uvx(end: _End, code: str, words: str, text: str, option: str, value: str) -> Finding:
    """The finding whose remedy is an option of uvx. One that is there for the same package gets the new value."""
    args = end.args
    same = (at for at, one in enumerate(args[:-1]) if one == option and _same_package(args[at + 1], value))
    at = next(same, None) if option == "--with" else next((at for at, one in enumerate(args) if one == option), None)
    if at is not None:
        return end.with_arg(code, words, f"{text}: replace the value of `{option}`", at + 1, value)
    first = _uv_options(end) or 0
    where = "first in `args`" if not first else f"after `{args[first - 1]}` in `args`"
    put = f'{text}: put "{option}", "{value}" {where}'
    return end.with_args(code, words, put, [*args[:first], option, value, *args[first:]])


def _python_of(case: Case) -> str:
    """The Python that runs the server: its command, or the one beside it in a virtual environment; empty if unknown."""
    program = case.learned.program or case.spec.command
    if "python" in Path(program).name:
        return program
    beside = Path(program).with_name("python")
    return str(beside) if os.sep in program and os.access(beside, os.X_OK) else ""


async def _address(end: _End, need: Need) -> Finding:
    here = need.names[0].startswith(("127.", "localhost", "[::1]"))
    cure = "start the service that should listen there" if here else "check that this machine can reach it"
    return end.finding(
        "HF-EXIT-ADDRESS",
        f": it could not reach {quoted_name(need.names[0])}",
        f"{cure}, or correct its address in `env` or `args`; then try again",
        end.case.again,
    )


async def _port(end: _End, need: Need) -> Finding:
    which = f" {need.names[0]}" if need.names else ""
    hub = end.case.tools.hub
    server = await hub.server(end.case.id) if hub is not None else None
    if server is not None and server.status == "available":
        return finding(
            "HF-HUB-ALONE",
            f"the hub runs it, and a second process of it cannot run: the first has its port{which}",
            "nothing is wrong; to examine it alone, disable it in the hub, and enable it again afterwards",
            command_line("disable", server=server.id),
            detail=end.tail,
        )
    return end.finding(
        "HF-EXIT-PORT",
        f": another process has its port{which}",
        "end that process, or give this server another port; this command lists the open ports on this machine",
        LISTENERS,
    )


async def _package(end: _End, need: Need) -> Finding:
    runner, name = end.runner, need.names[0]
    npm = runner.startswith(("npx", "npm", "bun", "pnpm", "yarn", "deno"))
    version = f"version {quoted_name(need.version, ticks=True)} of the " if need.version else ""
    words = f": {runner} found no {version}package {quoted_name(name, ticks=True)}"
    named = {_normal(_package_in(argument)) for argument in end.args if not argument.startswith("-")}
    if npm and named and _normal(name) not in named:
        words += ", which the package of the server needs"
        text = "its package cannot be installed from this registry; name another version of it in `args`: "
        look = shell("npm", "view", end.package, "versions")
        return end.finding("HF-EXIT-PACKAGE", words, f"{text}this command lists them", look)
    if version and not npm and (at := end.place_of(name)) is not None:
        return end.with_arg("HF-EXIT-PACKAGE", words, "use the current version", at, _package_in(end.args[at]))
    if version:
        text = "name a version that exists in `args`; this command lists them"
        look = shell("npm", "view", name, "versions")
    elif npm:
        text = "correct the name of the package in `args`; this command searches the registry"
        look = shell("npm", "search", name)
    else:
        text = "correct the name of the package in `args`; this command shows whether uvx finds it"
        look = shell("uvx", name, "--help")
    return end.finding("HF-EXIT-PACKAGE", words, text, look)


async def _executable(end: _End, need: Need) -> Finding:
    """A package that has no executable of the wanted name."""
    code, args = "HF-EXIT-EXECUTABLE", end.args
    if not need.names:  # npx finds nothing to run in it, or too much
        text = (
            "if this lists executables, write `-p`, the package, and the name of one into `args`; "
            "else it is not a server"
        )
        return end.finding(
            code,
            f": {end.runner} does not know which executable of {quoted_name(end.package, ticks=True)} to run",
            text,
            shell("npm", "view", end.package, "bin"),
        )
    package, wanted = need.names[0], need.names[-1]
    named = quoted_name(package, ticks=True)
    if not need.others:
        return end.by_hand(
            code,
            f": the package {named} has no executable, so it is not a server",
            "write the name of the server's package into `args`; this command runs it again",
        )
    name = next(iter(get_close_matches(wanted, need.others, n=1)), need.others[0])
    has = ", ".join(quoted_name(one, ticks=True) for one in need.others[:4])
    words = f": the package {named} has no executable {quoted_name(wanted, ticks=True)}, but {has}"
    option = "--spec" if end.runner.startswith("pipx") else "--from"
    if option in args and (place := args.index(option)) + 2 < len(args):
        later = next((at for at in range(place + 2, len(args)) if _normal(args[at]) == _normal(wanted)), place + 2)
        return end.with_arg(code, words, "write its name", later, name)
    at = end.place_of(wanted, package)
    if at is None:
        return end.finding(code, words, "name it", shell("uvx", "--from", package, name, "--help"))
    source = args[at] if _same_package(args[at], package) else package
    return end.with_args(
        code,
        words,
        f'name the package and the executable: "{option}", "{source}", "{name}"',
        [*args[:at], option, source, name, *args[at + 1 :]],
    )


async def _withdrawn(end: _End, need: Need) -> Finding:
    """A package that its authors took back."""
    at = end.place_of(need.names[0])
    only = f"version {need.version.lstrip('=')} of " if need.version else ""
    why = f": {quoted(need.why, most=200)}" if need.why else ""
    words = f": its authors have withdrawn {only}the package {quoted_name(need.names[0], ticks=True)}{why}"
    if need.others and at is not None:
        return end.with_arg("HF-EXIT-WITHDRAWN", words, "use its successor", at, need.others[0])
    if need.version and at is not None:
        return end.with_arg("HF-EXIT-WITHDRAWN", words, "use the current version", at, _package_in(end.args[at]))
    return end.finding(
        "HF-EXIT-WITHDRAWN",
        words,
        "use another server for this; this command removes this one from the file",
        command_line("remove", server=end.case.id),
    )


async def _broken(end: _End, need: Need) -> Finding:
    """A release that imports what does not exist. To install it again does not help."""
    package, at = need.names[0], end.place_of(need.names[0])
    version = await anyio.to_thread.run_sync(_version_of_npm, need.place, package)
    words = (
        f": {f'version {version}' if version else 'the installed version'} of the package "
        f"{quoted_name(package, ticks=True)} is broken: it imports what the packages that it depends on do not have"
    )
    earlier = at is not None and "@<" in end.args[at]
    if at is not None and version and not earlier:
        return end.with_arg(
            "HF-EXIT-BROKEN",
            words,
            "this is a fault of that release: report it to its authors, and use an earlier one until it is fixed",
            at,
            f"{package}@<{version}",
        )
    it = "this release too, as the one after it" if earlier else "that release"
    text = f"this is a fault of {it}: report it to its authors, and name another version in `args`"
    look = shell("npm", "view", end.package or package, "versions")
    return end.finding("HF-EXIT-BROKEN", words, f"{text}; this command lists them", look)


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


def _package_in(argument: str) -> str:
    """The name of a package, without the version that an argument asks for."""
    return argument[:1] + re.split(r"@|[<>=~!]=?|\[", argument[1:], maxsplit=1)[0]


def _normal(name: str) -> str:
    """A name as registries compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _same_package(one: str, other: str) -> bool:
    return _normal(_package_in(one)) == _normal(_package_in(other))


AUTHORITIES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
"""Where systems keep the certificates of the authorities that they trust."""


_NODE_SAYS = re.compile(
    r"^npm (?:error|ERR!)|^Node\.js v\d|\b(?:SELF_SIGNED_CERT_IN_CHAIN|DEPTH_ZERO_SELF_SIGNED_CERT"
    r"|UNABLE_TO_GET_ISSUER_CERT(?:_LOCALLY)?|UNABLE_TO_VERIFY_LEAF_SIGNATURE)\b",
    re.MULTILINE,
)
"""What Node and npm print beside such an error, also where a script or a shell started them."""


async def _certificate(end: _End, need: Need) -> Finding:
    """A program that does not know who signed a certificate, often that of a company's proxy."""
    of = f" of {quoted_name(need.names[0])}" if need.names else ""
    words = f": it does not trust the certificate{of}"
    is_node = end.runner.startswith(("npx", "npm", "node", "bun")) or _NODE_SAYS.search(end.stderr)
    name = "NODE_EXTRA_CA_CERTS" if is_node else "SSL_CERT_FILE"
    if name in environment_of(end.case.spec):
        return end.by_hand(
            "HF-EXIT-CERTIFICATE",
            words,
            f"add the certificate of its authority to the file in `{name}`; this command runs it again",
        )
    if name in os.environ:
        words += f". `{name}` is exported here, but servers get only the variables in `env`"
        value, text, certain = f"${{env:{name}}}", "add it to the definition", True
    else:
        value = _certificates_here()
        text, certain = "if this system trusts it, let the server use the certificates of the system", False
    edits = (end.case.edit(("env", name), value, certain=certain),)
    return end.finding("HF-EXIT-CERTIFICATE", words, text, edits=edits)


def _certificates_here() -> str:
    return next((file for file in AUTHORITIES if Path(file).is_file()), AUTHORITIES[0])


async def _docker(end: _End, need: Need) -> Finding:
    words, look = ": Docker does not answer", "docker info"
    if need.kind == "image":
        words = f": Docker has no image {quoted_name(need.names[0], ticks=True)}"
        look = shell("docker", "pull", need.names[0])
    return end.finding("HF-EXIT-DOCKER", words, f"{hint_for(need)}; this command shows whether it works", look)


_UV_PYTHON = re.compile(r"the current Python version \(([\d.]+)\) does not satisfy Python")


async def _runtime(end: _End, need: Need) -> Finding:
    kind, version = need.names[0], need.version
    if (current := _UV_PYTHON.search(end.stderr)) is not None and version and _uv_options(end) is not None:
        return _with_uvx(
            end,
            "HF-EXIT-RUNTIME",
            f": it needs Python {version}, and uvx uses {current[1]}",
            "let uvx find or install that Python",
            "--python",
            version,
        )
    program = _runtime_program(end.case, kind)
    has = await _version_of(program, environment_of(end.case.spec))
    is_now = quoted_name(has, 40) if has else "of another version"
    asked = f"{kind.title()} {version}" if version else f"a newer {kind.title()}"
    return end.finding(
        "HF-EXIT-RUNTIME",
        f": it needs {asked}, and {program} is {is_now}",
        f"install {asked} and write its full path into `command`, or put it first on PATH",
        shell(program, "--version"),
    )


def _runtime_program(case: Case, kind: str) -> str:
    program = case.learned.program or case.spec.command
    if kind in Path(program).name:
        return program
    names = ("node",) if kind == "node" else ("python3", "python")
    path = environment_of(case.spec).get("PATH")
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


_ADVICE: Mapping[NeedKind, Callable[[_End, Need], Awaitable[Finding]]] = {
    "variable": _variable,
    "argument": _argument,
    "package": _package,
    "executable": _executable,
    "withdrawn": _withdrawn,
    "broken_package": _broken,
    "runtime": _runtime,
    "python_module": _python_module,
    "python_package": _python_package,
    "node_module": _node_module,
    "npx_folder": _npx_folder,
    "docker": _docker,
    "image": _docker,
    "address": _address,
    "port": _port,
    "certificate": _certificate,
}
"""What makes the finding, by what the process needed. What it needed is read in ``core.process_output``."""


def _tail(seen: ProcessExit) -> str:
    """The end of its output, and the line that says most if that is before the end: a usage text may follow it."""
    said = seen.stderr or seen.noise
    lines = [line.rstrip() for line in said.splitlines() if line.strip()]
    shown, telling = lines[-LINES:], telling_line(said)
    if len(lines) > LINES and not any(" ".join(line.split()) in telling for line in shown):
        shown = [telling, "…", *shown[2:]]
    return "\n".join(shown)
