"""Findings for a command that cannot be started, and for a process that ended.

A process's output decides only which advice is given. Whether and how it failed depends on its exit code.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path

import anyio

from holdfast.core import (
    STOPPED_FROM_OUTSIDE,
    CommandFault,
    CommandUnusable,
    Need,
    ProcessExit,
    hint_for,
    need_of,
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
        case "package":
            return _package(case, seen, need)
        case "npx_folder":
            return _incomplete(case, seen, need.names[0])
        case "certificate":
            return _untrusted(case, seen, need)
        case "runtime":
            return await _runtime(case, seen, need)
        case "python_module" | "node_module":
            return _module(case, seen, need)
        case "python_package":
            return _other_version(case, seen, need)
        case "address":
            return _address(case, seen, need)
        case "docker" | "image":
            return _docker(seen, need)
        case "variable":
            return _variable(case, seen, need) or _plain(case, seen)


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


def _other_version(case: Case, seen: ProcessExit, need: Need) -> Finding:
    package, wanted = need.names[0], need.names[0] + need.version
    words = (
        f"its process {how(seen)}: it was written for another version of the Python package "
        f"{quoted_name(package, ticks=True)}"
    )
    if need.version:
        return _installing(case, seen, "HF-EXIT-VERSION", words, f"install {wanted} for it", wanted)
    text = f"install the version that it was written for; this command runs it again, {SAME_ENVIRONMENT}"
    return finding("HF-EXIT-VERSION", words, text, *case.by_hand(), detail=_tail(seen))


def _installing(case: Case, seen: ProcessExit, code: str, words: str, text: str, wanted: str) -> Finding:
    """The finding whose remedy installs a Python package beside the server."""
    if _is_uvx(case):
        return _with_uvx(case, seen, code, words, "let uvx install it beside the server", "--with", wanted)
    python = _python_of(case)
    commands = (shell(python, "-m", "pip", "install", wanted),) if python else case.by_hand()
    return finding(code, words, text, *commands, detail=_tail(seen))


def _is_uvx(case: Case) -> bool:
    return Path(case.spec.command).name in ("uvx", "uvx.exe")


def _with_uvx(case: Case, seen: ProcessExit, code: str, words: str, text: str, *first: str) -> Finding:
    """The finding whose remedy is an option of uvx."""
    written = f"{text}: put " + ", ".join(f'"{one}"' for one in first)
    path = (*case.definition.path, "args")
    # Arguments that hold references are not written back with their values.
    held = any(case.definition.expansion.sources((*path, at)) for at in range(len(case.spec.args)))
    if held:
        again = f"{written} first in `args`; this command runs it again, {SAME_ENVIRONMENT}"
        return finding(code, words, again, *case.by_hand(), detail=_tail(seen))
    edit = case.edit("args", [*first, *case.spec.args], certain=False)
    return finding(code, words, f"{written} first in `args`", edits=(edit,), detail=_tail(seen))


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
    npm = runner.startswith(("npx", "npm", "bun"))
    version = f"version {quoted_name(need.version, ticks=True)} of the " if need.version else ""
    words = f"its process {how(seen)}: {runner} found no {version}package {quoted_name(name, ticks=True)}"
    named = [_package_in(argument) for argument in case.spec.args if not argument.startswith("-")]
    if _normal(name) not in map(_normal, named) and npm and named:
        words += ", which the package of the server needs"
        text = "its package cannot be installed from this registry; name another version of it in `args`: "
        look = shell("npm", "view", named[0], "versions")
        return finding("HF-EXIT-PACKAGE", words, f"{text}this command lists them", look, detail=_tail(seen))
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
    has = await _version_of(program)
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


async def _version_of(program: str) -> str:
    try:
        with anyio.fail_after(ASKING_SECONDS):
            ran = await anyio.run_process([program, "--version"], check=False, stderr=subprocess.STDOUT)
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
