"""The form of the configuration for each AgentGateway version.

The gateway refuses a config with an unknown field, so the form is never guessed: a version belongs to a known
family, is newer than all of them, or is refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias

from holdfast.errors import UsageError

__all__ = ["FAMILIES", "Family", "Release", "family_of"]

Minor: TypeAlias = tuple[int, int]

_VERSION = re.compile(r"v?(\d{1,4})\.(\d{1,4})(?:\.\d{1,4})?(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Family:
    """Releases with the same form of configuration."""

    minors: tuple[Minor, ...]
    """The known releases."""
    timeout: tuple[str, ...]
    """The path of the timeout inside an ``extAuthz`` block."""

    def __str__(self) -> str:
        first, last = (f"{major}.{minor}" for major, minor in (self.minors[0], self.minors[-1]))
        return first if first == last else f"{first} to {last}"


FAMILIES = (
    Family(minors=((0, 12),), timeout=("timeout",)),
    Family(
        minors=((1, 0), (1, 1), (1, 2), (1, 3), (1, 4)),
        timeout=("policies", "http", "requestTimeout"),
    ),
)
"""Oldest first."""


@dataclass(frozen=True, kw_only=True)
class Release:
    """A gateway version, and how to render for it."""

    minor: Minor
    """The release whose form is used."""
    family: Family
    warning: str = ""
    """A warning if the version is uncertain."""


def family_of(version: str) -> Release:
    """The release for a version such as ``1.4.1``, ``v1.4`` or ``0.12.0``; ``UsageError`` if it is unknown."""
    match = _VERSION.fullmatch(version.strip())
    if match is None:
        raise UsageError(f"`{version}` is not an AgentGateway version", hint=f"for example 1.4.1; known: {_known()}")
    minor = (int(match.group(1)), int(match.group(2)))
    newest = FAMILIES[-1]
    if minor > newest.minors[-1]:
        latest = ".".join(map(str, newest.minors[-1]))
        warning = f"AgentGateway {version} is newer than all known versions: rendered for {latest}"
        return Release(minor=newest.minors[-1], family=newest, warning=warning)
    for family in FAMILIES:
        if minor in family.minors:
            early = f"AgentGateway {version} is a pre-release: rendered for its release" if match.group(3) else ""
            return Release(minor=minor, family=family, warning=early)
    raise UsageError(
        f"AgentGateway {version} is not supported",
        hint=f"known: {_known()}; other versions use other fields, and refuse unknown ones",
    )


def _known() -> str:
    return ", ".join(map(str, FAMILIES))
