"""Finds the hubs that this user runs: each hub writes its address and control token into a private file.

There is one file for each hub, ``hubs/<pid>.json`` in the user's state folder. A hub removes its file when it ends;
the file of a killed hub is ignored and removed by the next lookup. This module is cheap to import: a wrong usage of a
command must not wait for the client of the API.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from urllib.parse import urlsplit

from holdfast.config import state_folder
from holdfast.core import command_line, mask_url
from holdfast.errors import NoHub
from holdfast.files import PRIVATE_FOLDER, private_folder, replace_file

__all__ = [
    "TOKEN_VARIABLE",
    "URL_VARIABLE",
    "RunningHub",
    "find_hub",
    "is_named",
    "is_running",
    "registered",
    "running_hubs",
]

URL_VARIABLE = "HOLDFAST_URL"
TOKEN_VARIABLE = "HOLDFAST_CONTROL_TOKEN"  # noqa: S105 - the name of a variable


@dataclass(frozen=True, kw_only=True)
class RunningHub:
    """A running hub: its address and control token."""

    url: str
    """Its address without a path: ``http://127.0.0.1:4653``."""
    token: str = field(repr=False)
    pid: int = 0
    started: float = 0.0
    """Seconds since the epoch."""
    config: str = ""
    """The file that it serves; empty for a hub that is known only by its address."""
    version: str = ""
    certificate: str = ""
    """The file with the certificate that it serves TLS with; empty without TLS."""
    handover: str = ""
    """The Unix socket at which a successor gets its listening socket; empty if it offers none."""
    wants_certificate: bool = False
    """Whether its MCP endpoints want a certificate of each client."""
    background: bool = False
    """Whether a client started it in the background; a hub that a person starts takes its place."""
    demo: bool = False
    """Whether it serves the demo servers; then its file is in their folder."""


def find_hub(
    *,
    url: str | None = None,
    config: Path | None = None,
    name: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> RunningHub:
    """Return the hub at ``url`` or ``$HOLDFAST_URL``, else the one that runs on this machine.

    ``name`` chooses one of those: see ``is_named``. If several run, return the one that serves ``config``; if none
    does, the error lists them all.
    """
    env = os.environ if environ is None else environ
    wanted = url or (env.get(URL_VARIABLE) if name is None else None)
    hubs = running_hubs(env)
    if wanted:
        return _named(wanted, env.get(TOKEN_VARIABLE), hubs)
    return _chosen(hubs, name, config)


def is_named(hub: RunningHub, name: str) -> bool:
    """Whether a name means this hub: its process id, its port, its address, its file or folder, or ``demo``."""
    parts = urlsplit(hub.url)
    if name in (str(hub.pid), str(parts.port), hub.url, f"{hub.url}/mcp", parts.netloc):
        return True
    if hub.demo or not hub.config:
        return hub.demo and name == "demo"
    file = Path(hub.config)
    given = Path(name).expanduser().absolute()
    return given in (file, file.parent) or name in (file.name, file.stem, file.parent.name)


def _chosen(hubs: list[RunningHub], name: str | None, config: Path | None) -> RunningHub:
    if not hubs:
        hint = f"start one with `{command_line('serve')}`, or give the address of another one with --url"
        raise NoHub("no hub is running here", hint=hint)
    if name is None:
        # The file only chooses among several: a command in any folder reaches the one hub that runs.
        matching = [hub for hub in hubs if config is not None and hub.config == str(config.absolute())] or hubs
        several = "several hubs are running here"
    else:
        matching = [hub for hub in hubs if is_named(hub, name)]
        several = f"several hubs are meant by `{name}`"
    if not matching:
        raise NoHub(f"no running hub is meant by `{name}`", hint=f"choose one:{_listed(hubs)}")
    if len(matching) > 1:
        raise NoHub(several, hint=f"choose one:{_listed(matching)}")
    return matching[0]


def _listed(hubs: list[RunningHub]) -> str:
    return "".join(
        f"\n  --hub {hub.pid}   {hub.url}   {'the demo servers' if hub.demo else hub.config}" for hub in hubs
    )


def running_hubs(environ: Mapping[str, str] | None = None) -> list[RunningHub]:
    """Return every hub that this user runs on this machine, oldest first."""
    folder = _folder(os.environ if environ is None else environ)
    try:
        files = sorted(folder.glob("*.json"))
    except OSError:
        return []
    return sorted((hub for file in files if (hub := _alive(file)) is not None), key=lambda hub: hub.started)


@contextmanager
def registered(hub: RunningHub, *, environ: Mapping[str, str] | None = None) -> Iterator[Path]:
    """Register a hub of this process for the length of the block."""
    folder = _folder(os.environ if environ is None else environ)
    private_folder(folder).chmod(PRIVATE_FOLDER)
    file = folder / f"{hub.pid}.json"
    replace_file(file, json.dumps(asdict(hub)))
    try:
        yield file
    finally:
        # The number of a process that ended is given again: the file may be that of a later hub by now.
        if (found := _read(file)) is None or found.started == hub.started:
            file.unlink(missing_ok=True)


def _folder(environ: Mapping[str, str]) -> Path:
    return state_folder(environ) / "hubs"


def _alive(file: Path) -> RunningHub | None:
    hub = _read(file)
    if hub is not None and is_running(hub.pid):
        return hub
    if hub is not None:
        with suppress(OSError):
            file.unlink()
    return None


def _read(file: Path) -> RunningHub | None:
    """Read a file; None if it is not valid or belongs to another user, who could send our token to another address."""
    try:
        if file.stat().st_uid != os.getuid():
            return None
        read = json.loads(file.read_text(encoding="utf-8"))
        known = {one.name for one in fields(RunningHub)}  # a hub of another version may have written more
        return RunningHub(**{name: read[name] for name in read if name in known} | {"pid": int(read["pid"])})
    except (OSError, ValueError, KeyError, TypeError):
        return None


def is_running(pid: int) -> bool:
    """Whether a process of this user has this id."""
    try:
        os.kill(pid, 0)
    except (OSError, OverflowError):  # the process ended, or the id belongs to another user now
        return False
    return pid > 0 and not _has_ended(pid)


def _has_ended(pid: int) -> bool:
    """Whether nothing but the exit code is left of a process: it was killed, and its parent has not looked yet."""
    try:
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except (OSError, IndexError):  # no such files on this system
        return False
    return state in (b"Z", b"X")


def _named(url: str, token: str | None, hubs: list[RunningHub]) -> RunningHub:
    base = url.rstrip("/").removesuffix("/mcp").rstrip("/")
    known = next((hub for hub in hubs if hub.url == base), None)
    if token:
        return replace(known, token=token) if known is not None else RunningHub(url=base, token=token)
    if known is None:
        raise NoHub(
            f"there is no control token for the hub at {mask_url(base)}",
            hint=f"set {TOKEN_VARIABLE} to the value that the hub was started with",
        )
    return known
