"""A lock of approvals: what a hub approved and disabled, as a file that another hub is started with.

A hub with a lock uses nothing that differs from it: a tool, a prompt or instructions that changed, or that the lock
does not have, are held, and nothing can be approved there. A new lock is made where changes can be reviewed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.core import command_line
from holdfast.errors import HoldfastError, UsageError

__all__ = ["ApprovalsLock", "write_lock"]

KIND = "holdfast approvals lock"
FORMAT = 1
LARGEST = 64 * 1024 * 1024


def write_lock() -> str:
    """The command that writes a lock."""
    return command_line("approve", "--export", "FILE")


def _hint() -> str:
    return f"write one with `{write_lock()}`"


@dataclass(frozen=True)
class ApprovalsLock:
    """The approved texts by server, and the servers that are disabled."""

    servers: Mapping[str, Mapping[str, Mapping[str, Any]]]
    disabled: frozenset[str] = frozenset()
    source: Path | None = field(default=None, compare=False)

    def text(self) -> str:
        """The content of the file. It is sorted, so that a difference between two locks can be read."""
        content = {
            "kind": KIND,
            "format": FORMAT,
            "disabled": sorted(self.disabled),
            "servers": self.servers,
        }
        return json.dumps(content, indent=1, sort_keys=True) + "\n"

    @classmethod
    def read(cls, file: Path) -> ApprovalsLock:
        """Read a file; raises ``HoldfastError``. A lock that cannot be used must not become no lock."""
        try:
            with file.open("rb") as opened:
                content = opened.read(LARGEST + 1)
        except OSError as exc:
            raise HoldfastError(f"cannot read the approvals lock {file}: {exc.strerror}", hint=_hint()) from exc
        if len(content) > LARGEST:
            raise UsageError(
                f"the approvals lock {file} is larger than {LARGEST // 1024**2} MiB",
                hint=_hint(),
            )
        try:
            read = json.loads(content)
        except (ValueError, RecursionError) as exc:
            raise UsageError(f"the approvals lock {file} is no JSON", hint=_hint()) from exc
        return cls._checked(read, file)

    @classmethod
    def _checked(cls, read: object, file: Path) -> ApprovalsLock:
        if not isinstance(read, dict) or read.get("kind") != KIND:
            raise UsageError(f"{file} is no approvals lock", hint=_hint())
        if read.get("format") != FORMAT:
            raise UsageError(
                f"the approvals lock {file} has format {read.get('format')!r}, and this version reads {FORMAT}",
                hint="write it with this version of Holdfast",
            )
        servers, disabled = read.get("servers"), read.get("disabled")
        whole = (
            isinstance(servers, dict)
            and all(isinstance(texts, dict) for texts in servers.values())
            and all(isinstance(text, dict) for texts in servers.values() for text in texts.values())
            and isinstance(disabled, list)
            and all(isinstance(one, str) for one in disabled)
        )
        if not whole:
            raise UsageError(f"the approvals lock {file} is damaged", hint=_hint())
        assert isinstance(servers, dict)  # noqa: S101 - see above
        assert isinstance(disabled, list)  # noqa: S101 - see above
        return cls(servers, frozenset(disabled), file)
