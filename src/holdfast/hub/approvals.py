"""Approvals: what a model reads is pinned when it is first seen; a change is reported, and can be held (SEC-5, SEC-9).

Two modules share the work. review.py keeps the pinned versions and compares each listing with them; this one answers
what changed and what is held, and takes the decisions of people. A change waits until a person approves it, here or at
another hub of the same configuration, or until the server takes it back. Changes that wait are stored with the pins, so
that they can be reviewed while their server is down.

A lock of approvals (``ApprovalsLock``) is what a hub approved and disabled, as a file that another hub is started with.
That hub uses the lock as its pins: it has no file of its own and pins nothing. A tool, a prompt or instructions that
changed, or that the lock does not have, are held, and nothing can be approved there. A new lock is made where changes
can be reviewed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.config import ApprovalMode, Config
from holdfast.core import ApprovalKind, CatalogEntry, ChangedTool, command_line, key_of, kind_of
from holdfast.errors import HoldfastError, ToolHeld, UnknownTool, UsageError
from holdfast.hub.journal import Journal, ToolApproved
from holdfast.hub.review import ALONE, INSTRUCTIONS, ListingReview, Pins, SharedPins, beside, beside_mark

__all__ = ["UNVERIFIED", "Approvals", "ApprovalsLock", "approval_mode", "shown", "write_lock"]

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
        match read:
            case {"servers": dict(servers), "disabled": list(disabled)} if (
                all(isinstance(texts, dict) for texts in servers.values())
                and all(isinstance(text, dict) for texts in servers.values() for text in texts.values())
                and all(isinstance(one, str) for one in disabled)
            ):
                return cls(servers, frozenset(disabled), file)
        raise UsageError(f"the approvals lock {file} is damaged", hint=_hint())


UNVERIFIED = "holdfast/unverified"
"""The key in ``_meta`` of an entry from before a restart that its server has not listed since (LIFE-21)."""


def shown(entry: CatalogEntry) -> Mapping[str, Any]:
    """The server's description; marked if the server has not listed the entry in this run."""
    raw = entry.item.raw
    if entry.verified:
        return raw
    meta = raw.get("_meta")
    return {**raw, "_meta": {**(meta if isinstance(meta, Mapping) else {}), UNVERIFIED: True}}


def approval_mode(config: Config, server: str, default: ApprovalMode) -> ApprovalMode:
    """What happens with a server's changes: its own setting wins, then that of all servers, then ``default``."""
    spec = config.servers.get(server)
    own = spec.approvals if spec is not None else None
    return own or config.settings.approvals or default


class Approvals:
    """What changed, what is held, and what people decided. Without a state file it lasts for this run.

    ``mode`` tells what happens with a server's changes; with a ``lock`` everything that differs from it is held.
    """

    def __init__(
        self,
        state_file: Path | None,
        *,
        mode: Callable[[str], ApprovalMode],
        journal: Journal,
        lock: ApprovalsLock | None = None,
        shared: SharedPins = ALONE,
        is_per_user: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self.lock = lock
        """What alone may be used; None if changes can be approved here."""
        self._written_mode = mode
        self._is_per_user = is_per_user
        file = state_file.with_suffix(".tools.json") if state_file is not None and lock is None else None
        self.pins = Pins(file, lock.servers if lock is not None else None)
        self._journal = journal
        self._shared = shared
        self.listings = ListingReview(
            self.pins, mode=self._mode, journal=journal, shared=shared, locked=lock is not None
        )

    def _mode(self, server: str) -> ApprovalMode:
        return "hold" if self.lock is not None else self._written_mode(server)

    def __repr__(self) -> str:
        return f"<Approvals {self.pins!r}{', locked' if self.lock is not None else ''}>"

    # What changed.

    @property
    def changed(self) -> Mapping[str, frozenset[str]]:
        """By server, what changed since it was first seen: tools by their names, ``prompt x``, ``instructions``."""
        return {server: frozenset(map(_label, keys)) for server, keys in self.pins.changed.items() if keys}

    def pending(self, server: str | None = None) -> tuple[ChangedTool, ...]:
        """Every change that waits for approval, of one server or of all, sorted by name."""
        changed = self.pins.changed
        servers = sorted(changed) if server is None else [server]
        return tuple(
            self._change(one, key, now) for one in servers for key, now in sorted(changed.get(one, {}).items())
        )

    def _change(self, server: str, key: str, now: Mapping[str, Any]) -> ChangedTool:
        (kind, name), seen, held = kind_of(key), self.pins.of(server), self._mode(server) == "hold"
        was = seen.get(key, {})
        return ChangedTool(server=server, tool=name, kind=kind, new=key not in seen, held=held, was=was, now=now)

    # What is held.

    def held(self, server: str) -> tuple[str, ...]:
        """What of a server is held, sorted, by the words of ``changed``."""
        return tuple(sorted(map(_label, self.pins.changed.get(server, ())))) if self._mode(server) == "hold" else ()

    def is_held(self, server: str, tool: str, kind: ApprovalKind = "tool") -> bool:
        """Whether a tool or a prompt cannot be used until its change is approved."""
        changed = self.pins.changed.get(server, {})
        return key_of(kind, tool) in changed and self._mode(server) == "hold"

    def refuse_held(self, server: str, name: str, kind: ApprovalKind) -> None:
        """Raise ``ToolHeld`` for a tool or a prompt that waits for approval."""
        if self.is_held(server, name, kind):
            command = command_line("approve", server, name, *([] if kind == "tool" else ["--kind", kind]))
            raise ToolHeld(
                f"the {kind} `{name}` of `{server}` is held: it is not known to be unchanged since it was first seen",
                hint=f"A person must review the change and approve it first: `{command}`",
            )

    def instructions(self, server: str, said_now: str) -> str:
        """The server's instructions as they may be shown: held ones as first seen, none where nothing was seen."""
        if self._mode(server) != "hold":
            return said_now
        pinned = self.pins.of(server).get(INSTRUCTIONS)
        return str(pinned.get("instructions", "")) if pinned is not None else ""

    def forget(self, server: str) -> None:
        """Drop everything about a removed server; a lock keeps what it has."""
        self.listings.forget(server)
        if self.lock is None:
            self.pins.forget(server)
        else:
            self.pins.changed.pop(server, None)

    # Decisions of people, here and elsewhere.

    def approve(
        self, server: str, tool: str | None = None, *, mark: str | None = None, kind: ApprovalKind = "tool"
    ) -> tuple[str, ...]:
        """Approve the pending changes of a server, one or all; returns the names of what was approved.

        With the ``mark`` of the change that was reviewed, a newer change is not approved.
        """
        if self.lock is not None:
            raise ToolHeld(
                f"nothing can be approved here: this hub uses what {self.lock.source or 'its lock'} has",
                hint=f"approve it at a hub without a lock, and make a new lock there: `{write_lock()}`",
            )
        pending = {key_of(change.kind, change.tool): change for change in self.pending(server)}
        one = key_of(kind, tool or "") if tool is not None or kind != "tool" else None
        if one is not None and one not in pending and one not in self.pins.of(server):
            waiting = f"waiting for approval: {', '.join(map(_label, pending)) or 'none'}"
            raise UnknownTool(f"`{server}` has no {kind} named `{tool}`", hint=waiting)
        wanted = {key: change for key, change in pending.items() if one in (None, key)}
        if mark is not None and any(change.mark != mark for change in wanted.values()):
            raise ToolHeld(
                f"the {_label(one or '')} of `{server}` changed again since it was reviewed",
                hint="review the current change, and approve it",
            )
        for key, change in wanted.items():
            # One user's text does not take the place of another's.
            adds = self._is_per_user(server) and key in self.pins.of(server)
            pinned, text = (beside(key, change.now), beside_mark(key)) if adds else (key, change.now)
            self.pins.pin(server, pinned, text, approved=True)
            self._shared.note_pin(server, pinned, text, True)
            self._approved(server, key)
        return tuple(change.tool for change in wanted.values())

    def take_pin(self, server: str, key: str, text: Mapping[str, Any]) -> bool:
        """Use the version of a text that the fleet agreed on; whether it is another one."""
        if self.pins.of(server).get(key) == text or self.lock is not None:
            return False
        self.pins.pin(server, key, text, approved=True)
        for changed, now in list(self.pins.changed.get(server, {}).items()):
            if key in (changed, beside(changed, now)) and self.pins.has(server, changed, now):
                self._approved(server, changed)
        return True

    def follow(self) -> tuple[str, ...]:
        """Read what another hub wrote; returns the servers whose listing must be published again."""
        before = {server: dict(texts) for server, texts in self.pins.changed.items()}
        self.pins.load()
        for server, texts in before.items():
            for key, text in texts.items():
                if self.pins.has(server, key, text):
                    self._approved(server, key)
        return tuple(self.listings.latest)

    def _approved(self, server: str, key: str) -> None:
        self.pins.changed.get(server, {}).pop(key, None)
        kind, name = kind_of(key)
        self._journal.write(ToolApproved(server=server, tool=name, kind=kind, at=self._journal.clock.now()))


def _label(key: str) -> str:
    """A key in words: a tool's name, ``prompt x``, ``instructions``."""
    kind, name = kind_of(key)
    return name if kind == "tool" else f"{kind} {name}".strip()
