"""The base classes of checks: an id, a description, the checks it needs, the codes it finds, the check itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

from holdfast.auth import TokenStore
from holdfast.config import ConfigReading
from holdfast.doctor.case import Case
from holdfast.doctor.report import Finding

__all__ = ["Check", "GlobalCheck", "GlobalContext", "Observation", "found"]


class Observation(NamedTuple):
    """What a check saw, in short, and its findings."""

    words: str = ""
    findings: tuple[Finding, ...] = ()


def found(*findings: Finding) -> Observation:
    """The observation of a check with findings."""
    return Observation("; ".join(one.words for one in findings), findings)


class _Described(ABC):
    id: ClassVar[str]
    looks_at: ClassVar[str]
    finds: ClassVar[tuple[str, ...]]
    """The codes of its findings."""


class Check(_Described):
    """A check of one server."""

    needs: ClassVar[tuple[str, ...]] = ()
    """Checks that must have passed. Otherwise this one is skipped."""
    transports: ClassVar[tuple[str, ...]] = ("stdio", "http", "sse", "hub", "")
    within: ClassVar[float | None] = None
    """The longest time in seconds; None for the time that is left for the server."""

    def applies(self, case: Case) -> bool:
        """Whether the check applies to this server."""
        return case.transport in self.transports

    @abstractmethod
    async def look(self, case: Case) -> Observation:
        """Run the check. An exception becomes a finding."""


@dataclass(frozen=True, kw_only=True)
class GlobalContext:
    """What checks use that concern no single server."""

    reading: ConfigReading
    store: TokenStore
    state_file: Path | None


class GlobalCheck(_Described):
    """A check that concerns no single server."""

    @abstractmethod
    async def look(self, whole: GlobalContext) -> Observation:
        """Run the check. An exception becomes a finding."""
