"""How this program was started, how a person starts it again, its terminal, and the configuration that it serves.

``pipx`` and ``uv tool`` put a symbolic link on the PATH, so real paths are compared.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import stat
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import holdfast.config  # every command imports this module: what reads a configuration waits until it is used
from holdfast.core import Invocation, typed_as
from holdfast.errors import ConfigNotFound

if TYPE_CHECKING:
    from holdfast.config import Config
    from holdfast.serve.options import Serving

__all__ = [
    "END_SIGNALS",
    "anywhere",
    "config_in",
    "found_config",
    "here",
    "leave_terminal",
    "on_terminal",
    "own_command",
    "program_stamp",
    "typed_command",
]

END_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def own_command() -> tuple[str, ...]:
    """The command that starts this program from another one, independent of PATH."""
    beside = Path(sys.executable).with_name("holdfast")
    return (str(beside),) if os.access(beside, os.X_OK) else (sys.executable, "-m", "holdfast")


def program_stamp() -> tuple[object, ...]:
    """Equal as long as the same program is installed: an upgrade writes these files again."""
    found: list[object] = []
    for file in (own_command()[0], sys.executable, __file__):
        try:
            seen = os.stat(file)  # noqa: PTH116 - a link is followed
            found.append((os.path.realpath(file), seen.st_mtime_ns, seen.st_ino))
        except OSError:
            found.append((file, None))
    return tuple(found)


def typed_command(*, anywhere: bool = False) -> str:
    """The command as a person types it: the name, or a path where the name does not find this program.

    A path that was typed stays as it was typed, unless it must work ``anywhere``: a page is read in any folder.
    """
    own = own_command()
    found = shutil.which("holdfast", path=_path_of_shell(os.environ))
    if found is not None and _is_same(found, own[0]):
        return "holdfast"
    typed = sys.argv[0] if sys.argv else ""
    if os.sep in typed and _is_same(typed, own[0]):
        return shlex.quote(os.path.abspath(typed) if anywhere else typed)  # noqa: PTH100 - a link stays a link
    return shlex.join(own)


def _is_same(one: str, other: str) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def _path_of_shell(environ: Mapping[str, str]) -> str:
    """The PATH of the shell that a person types into. ``uv run`` and ``uvx`` put a folder before it, for us alone."""
    folders = environ.get("PATH", os.defpath).split(os.pathsep)
    if "UV" in environ and folders and _is_same(folders[0], str(Path(sys.prefix) / "bin")):
        folders = folders[1:]
    return os.pathsep.join(folders)


def on_terminal() -> bool:
    """Whether this runs on a terminal. There SIGHUP means that the terminal closed; elsewhere it means: reload."""
    return os.isatty(2)


def leave_terminal() -> None:
    """If the terminal was closed, what is still printed goes nowhere: Python exits with 120 if its last write fails."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        if stat.S_ISCHR(os.fstat(stream).st_mode) and not os.isatty(stream):  # a closed one is none any more
            os.dup2(nowhere, stream)
    os.close(nowhere)


def here(arguments: Sequence[str], environ: Mapping[str, str]) -> Invocation:
    """How commands are typed in this terminal, in this folder: with the file that this command uses."""
    typed = config_in(arguments) or environ.get("HOLDFAST_CONFIG", "")
    return Invocation(typed_command(), "" if not typed or _finds(typed, environ) else typed)


def anywhere(config: Path | None, environ: Mapping[str, str]) -> Invocation:
    """How commands are typed in any terminal, for the hub that serves this file."""
    own = next(
        (file for folder in holdfast.config.user_folders(environ) if (file := folder / "mcp.json").is_file()), None
    )
    named = "" if config is None or (own is not None and _is_same(str(own), str(config))) else str(config.absolute())
    return Invocation(typed_command(anywhere=True), named)


def _finds(file: str, environ: Mapping[str, str]) -> bool:
    """Whether a command without ``--config`` uses this file, also in a shell without our variable.

    A project's file is found too, but it is used only if it is trusted: a named file needs no trust, so it stays named.
    """
    unset = {name: value for name, value in environ.items() if name != "HOLDFAST_CONFIG"}
    try:
        found = holdfast.config.find_config(None, environ=unset, cwd=Path.cwd())
        return _is_same(str(found), file) and found.parent in holdfast.config.user_folders(environ)
    except (ConfigNotFound, OSError):  # or there is no working folder any more
        return False


def config_in(arguments: Sequence[str]) -> str:
    """The value of ``--config`` on a command line."""
    ours = arguments[: arguments.index("--")] if "--" in arguments else arguments
    for at, word in enumerate(ours):
        name, given, value = word.partition("=")
        if name in ("--config", "--file"):
            return value if given else next(iter(ours[at + 1 : at + 2]), "")
    return ""


@asynccontextmanager
async def found_config(serving: Serving) -> AsyncIterator[Config]:
    """What is served. Without a configuration that of the demo servers, which run during the block.

    Hints name that file: they are read in any folder.
    """
    if serving.config is not None:
        with typed_as(anywhere(serving.config.source, os.environ)):
            yield serving.config
        return
    from holdfast.demo_servers import demo_fleet  # noqa: PLC0415 - of the demo alone

    async with AsyncExitStack() as stack:
        control = await stack.enter_async_context(demo_fleet())
        stack.enter_context(typed_as(anywhere(control.config_file, os.environ)))
        yield holdfast.config.load_config(control.config_file)
