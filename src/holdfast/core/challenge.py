"""Reads ``WWW-Authenticate``: where a server's metadata is, and which scope it asks for.

The header may be hostile, and people paste the commands that Holdfast prints. So a scope is
accepted only if it has the characters that RFC 6749 allows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["Challenge", "read_challenge", "scopes_in"]

_SCHEME = re.compile(r"(?i)(?:^|[,\s])bearer(?:\s++|$)")
_NEXT_SCHEME = re.compile(r",\s*+[A-Za-z][\w-]*+\s++[\w-]++\s*+=|,\s*+[A-Za-z][\w-]*+\s*+$")
_FIELD = re.compile(r"([A-Za-z_][\w-]*+)\s*+=\s*+(?:\"((?:[^\"\\]|\\.)*+)\"|([^\s,\"]++))")
_SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,200}")

MOST_SCOPES = 50


@dataclass(frozen=True, kw_only=True)
class Challenge:
    """A Bearer challenge; empty where the server made none."""

    made: bool = False
    """Whether there is one."""
    error: str = ""
    scope: tuple[str, ...] = ()
    resource_metadata: str = ""

    @property
    def wants_scope(self) -> bool:
        """Whether the token is valid but lacks a scope."""
        return self.error == "insufficient_scope"


def read_challenge(header: str) -> Challenge:
    """The Bearer challenge in a ``WWW-Authenticate`` header that may hold others too."""
    bare = _without_quotes(header)
    begin = _SCHEME.search(bare)
    if begin is None:
        return Challenge()
    end = _NEXT_SCHEME.search(bare, begin.end())
    own = header[begin.end() : end.start() if end else None]
    fields = {name.lower(): quoted or bare for name, quoted, bare in _FIELD.findall(own)}
    return Challenge(
        made=True,
        error=fields.get("error", ""),
        scope=scopes_in(fields.get("scope", "")),
        resource_metadata=fields.get("resource_metadata", ""),
    )


def scopes_in(text: str) -> tuple[str, ...]:
    """The scopes in a text separated by blanks, each once; invalid ones are left out."""
    return tuple(dict.fromkeys(part for part in text.split() if _SCOPE.fullmatch(part)))[:MOST_SCOPES]


def _without_quotes(text: str) -> str:
    """The same text with quoted parts replaced by as many ``x``: they may look like a scheme."""
    return re.sub(r"\"(?:[^\"\\]|\\.)*+\"", lambda found: '"' + "x" * (len(found[0]) - 2) + '"', text)
