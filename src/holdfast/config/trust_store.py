"""Which found project files the user trusts.

A project's own file can name commands and send variables to addresses. If the search finds such a file, it is
used only after the user trusted its content once. Trust belongs to a path and a content: a changed file, the same
file at another path, and a link to a trusted file each need their own. A file that is named with ``--config``,
``HOLDFAST_CONFIG`` or a path in a program needs no trust.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from holdfast.config.json_edit import write_whole
from holdfast.config.jsonc import parse
from holdfast.config.own_folders import state_folder
from holdfast.core import command_line
from holdfast.errors import ConfigError, HoldfastError, UntrustedConfig
from holdfast.files import locked, private_folder, replace_file, set_aside

__all__ = [
    "ServerSummary",
    "TrustStore",
    "require_trust",
    "rewrite_config",
    "settings_in",
    "summarize",
]

VERSION = 1

_REFERENCE = re.compile(r"(?<!\$)\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(?::-[^}]*)?\}")
_URL_KEYS = ("url", "serverUrl", "httpUrl")
_GROUPS = ("mcpServers", "servers")


@dataclass(frozen=True, kw_only=True)
class ServerSummary:
    """What one server of a file would do: all that decides what runs, what is contacted, and what is sent to it."""

    name: str
    command: tuple[str, ...] = field(default=(), repr=False)
    cwd: str = field(default="", repr=False)
    env: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    env_file: str = field(default="", repr=False)
    address: str = field(default="", repr=False)
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    login: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """The settings of its login: addresses that secrets are sent to."""
    variables: tuple[str, ...] = ()
    """Environment variables that the file sends to it."""
    others: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Every other key, as JSON."""


class TrustStore:
    """The trusted files of one user: a hash of the content for each path."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.file = state_folder(environ) / "trusted.json"

    def is_trusted(self, file: Path, data: bytes) -> bool:
        """Whether the user trusted this content at this path."""
        return self.files().get(_key(file)) == _hash(data)

    def files(self) -> dict[str, str]:
        """The trusted paths, and the hash of each; none if the store is damaged or another user could write it."""
        try:
            with self.file.open("rb") as stream:
                status = os.fstat(stream.fileno())
                if status.st_uid != os.geteuid() or status.st_mode & 0o022:
                    return {}
                document = json.load(stream)
            return {str(path): str(entry["sha256"]) for path, entry in document["files"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}

    def trust(self, file: Path, data: bytes) -> None:
        """Trust this content at this path; raises ``OSError``."""
        entry = {"sha256": _hash(data), "at": datetime.now(UTC).isoformat(timespec="seconds")}
        self._change(lambda files: files.update({_key(file): entry}))

    def forget(self, file: Path) -> bool:
        """Trust this path no longer; False if it was not trusted. Raises ``OSError``."""
        known = _key(file) in self.files()
        if known:
            self._change(lambda files: files.pop(_key(file), None))
        return known

    def _change(self, change: Any) -> None:
        private_folder(self.file.parent)
        with locked(self.file.with_suffix(".lock")):
            document: dict[str, Any] = {"version": VERSION, "files": {}}
            if self.files() or not self.file.exists():
                with suppress(OSError, ValueError):
                    document = json.loads(self.file.read_text(encoding="utf-8"))
            else:
                set_aside(self.file)
            change(document["files"])
            replace_file(self.file, json.dumps(document, indent=2))


def require_trust(file: Path, data: bytes, *, environ: Mapping[str, str]) -> None:
    """Raise ``UntrustedConfig`` unless the user trusted this content at this path."""
    if not TrustStore(environ).is_trusted(file, data):
        raise UntrustedConfig(file.absolute(), data)


def rewrite_config(file: Path, text: str, *, environ: Mapping[str, str]) -> None:
    """Write an edit of Holdfast's own. A file that was trusted stays trusted; one that was not does not become so.

    The user asked for the edit and saw it. What other programs write needs trust again.
    """
    store = TrustStore(environ)
    was_trusted = file.exists() and store.is_trusted(file, file.read_bytes())
    write_whole(file, text)
    if not was_trusted:
        return
    try:
        store.trust(file, file.read_bytes())
    except OSError as exc:
        why = exc.strerror or type(exc).__name__
        raise HoldfastError(
            f"{file} was written, but {store.file} cannot be: {why}",
            hint=f"trust it again: {command_line('trust', str(file))}",
        ) from exc


def summarize(data: bytes) -> tuple[ServerSummary, ...]:
    """What the servers of a file would do. The texts come from the file: mask them before they are shown."""
    try:
        value = parse(data).value
    except ConfigError:
        return ()
    groups = [value.get(group) for group in _GROUPS] if isinstance(value, dict) else []
    return tuple(
        _summary(name, raw)
        for group in groups
        if isinstance(group, dict)
        for name, raw in group.items()
        if isinstance(raw, dict)
    )


def settings_in(data: bytes) -> tuple[tuple[str, str], ...]:
    """The settings of Holdfast itself that a file makes, each as JSON."""
    try:
        value = parse(data).value
    except ConfigError:
        return ()
    own = value.get("holdfast") if isinstance(value, dict) else None
    return tuple((key, _json(one)) for key, one in own.items()) if isinstance(own, dict) else ()


_SHOWN_APART = frozenset({"command", "args", "cwd", "env", "envFile", "headers", "oauth", *_URL_KEYS})


def _summary(name: str, raw: Mapping[str, Any]) -> ServerSummary:
    args = raw.get("args")
    words = args if isinstance(args, list) else [] if args is None else [args]
    command = (_text(raw.get("command")), *map(_text, words)) if raw.get("command") or words else ()
    return ServerSummary(
        name=name,
        command=command,
        cwd=_text(raw.get("cwd")),
        env=_pairs(raw.get("env")),
        env_file=_text(raw.get("envFile")),
        address=", ".join(_text(raw[key]) for key in _URL_KEYS if raw.get(key)),
        headers=_pairs(raw.get("headers")),
        login=_pairs(raw.get("oauth")),
        variables=tuple(dict.fromkeys(_variables(raw))),
        others=tuple((key, _json(one)) for key, one in raw.items() if key not in _SHOWN_APART and one is not None),
    )


def _pairs(value: object) -> tuple[tuple[str, str], ...]:
    """The members of an object; what is none is shown as it is."""
    if isinstance(value, Mapping):
        return tuple((str(key), _text(one)) for key, one in value.items())
    return () if value is None else (("", _json(value)),)


def _text(value: object) -> str:
    return value if isinstance(value, str) else "" if value is None else _json(value)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _variables(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield from _REFERENCE.findall(value)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _variables(item)
    elif isinstance(value, list):
        for item in value:
            yield from _variables(item)


def _key(file: Path) -> str:
    """The path as it was found. A link is not followed: relative paths in the file start where the link is."""
    return str(file.absolute())


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
