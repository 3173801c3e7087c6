"""Which AgentGateway takes which form of configuration.

An unknown field makes the gateway refuse its whole configuration, so a form is never guessed:
a version is of a known family, or newer than all of them, or refused.
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
    """Releases that take the same configuration."""

    minors: tuple[Minor, ...]
    """The releases, as far as they are known."""
    timeout: tuple[str, ...]
    """Where, inside an ``extAuthz`` block, the timeout stands."""

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
    """A gateway version that somebody named, and how to render for it."""

    minor: Minor
    """The release whose form is used."""
    family: Family
    warning: str = ""
    """What is uncertain about it."""


def family_of(version: str) -> Release:
    """The family of a version such as ``1.4.1``, ``v1.4`` or ``0.12.0``; refused if there is none."""
    match = _VERSION.fullmatch(version.strip())
    if match is None:
        raise UsageError(f"`{version}` is not an AgentGateway version", hint=f"write it as in 1.4.1; known: {_known()}")
    minor = (int(match.group(1)), int(match.group(2)))
    newest = FAMILIES[-1]
    if minor > newest.minors[-1]:
        latest = ".".join(map(str, newest.minors[-1]))
        warning = f"AgentGateway {version} is newer than any that is known: rendered as for {latest}"
        return Release(minor=newest.minors[-1], family=newest, warning=warning)
    for family in FAMILIES:
        if minor in family.minors:
            early = f"AgentGateway {version} is a pre-release: rendered as for its release" if match.group(3) else ""
            return Release(minor=minor, family=family, warning=early)
    raise UsageError(
        f"AgentGateway {version} is not supported",
        hint=f"known are {_known()}; others take other fields, and refuse those that they do not know",
    )


def _known() -> str:
    return ", ".join(map(str, FAMILIES))
