"""What a check is: an id, what it looks at, which checks it needs, which codes it can find, and the look itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

from holdfast.auth.store import TokenStore
from holdfast.config.reading import Reading
from holdfast.doctor.case import Case
from holdfast.doctor.findings import Finding

__all__ = ["Check", "Seen", "Whole", "WholeCheck", "found"]


class Seen(NamedTuple):
    """What a check saw, in a few words, and what it found amiss."""

    words: str = ""
    findings: tuple[Finding, ...] = ()


def found(*findings: Finding) -> Seen:
    """Something is amiss."""
    return Seen("; ".join(one.words for one in findings), findings)


class _Described(ABC):
    id: ClassVar[str]
    looks_at: ClassVar[str]
    finds: ClassVar[tuple[str, ...]]
    """The codes that it can find."""


class Check(_Described):
    """One look at one server."""

    needs: ClassVar[tuple[str, ...]] = ()
    """Checks that must not have failed; else this one is skipped, and says so."""
    transports: ClassVar[tuple[str, ...]] = ("stdio", "http", "sse", "")
    within: ClassVar[float | None] = None
    """Seconds that it may take at the most; None for as long as the server has left."""

    def applies(self, case: Case) -> bool:
        """Whether there is anything to look at."""
        return case.transport in self.transports

    @abstractmethod
    async def look(self, case: Case) -> Seen:
        """Look. Whatever is raised is a finding of its own."""


@dataclass(frozen=True, kw_only=True)
class Whole:
    """What concerns no single server."""

    reading: Reading
    store: TokenStore
    state_file: Path | None


class WholeCheck(_Described):
    """One look at what concerns no single server."""

    @abstractmethod
    async def look(self, whole: Whole) -> Seen:
        """Look. Whatever is raised is a finding of its own."""
