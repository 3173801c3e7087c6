"""How a server's items are named in a catalog that holds many servers.

Tools and prompts become ``server__tool`` within the letters and the length that every client
accepts; a name that does not fit is shortened and gets a hash that is stable across runs.
Resources and templates use their URI, unchanged unless two servers use the same one.

The name of a tool or a prompt depends on the configuration alone, never on the order in which servers
answer. So every replica of a hub gives the same names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from enum import Enum
from functools import partial
from hashlib import blake2s
from heapq import nsmallest

__all__ = [
    "Kind",
    "assign_prefixes",
    "base_name",
    "claiming_prefix",
    "distinct_name",
    "name_lead",
    "nearest",
    "uri_lead",
]


class Kind(Enum):
    """What a server can offer; the value is the field of a listing."""

    TOOL = "tools"
    PROMPT = "prompts"
    RESOURCE = "resources"
    TEMPLATE = "templates"

    __hash__ = object.__hash__  # a member is one object; Enum's own hash is a call in Python for each lookup


LONGEST = 64
HASH_DIGITS = 8
_FITS = re.compile(r"[A-Za-z0-9_-]{1,64}")
_ODD = re.compile(r"[^A-Za-z0-9_-]")
_NOT_SCHEME = re.compile(r"[^A-Za-z0-9.-]")
_BY_URI = frozenset({Kind.RESOURCE, Kind.TEMPLATE})


def assign_prefixes(written: Mapping[str, str | None]) -> dict[str, str]:
    """The prefix that each server uses, in the order of the configuration: no two servers use the same one.

    The first server that writes a prefix keeps it; another one is named by its id.
    """
    given: dict[str, str] = {}
    taken: set[str] = set()
    for server, prefix in written.items():
        wanted = server if prefix is None else prefix
        if wanted in taken:
            wanted = server
        while wanted in taken:
            wanted = _hashed(wanted, server)
        given[server] = wanted
        taken.add(wanted)
    return given


def claiming_prefix(name: str, own: str, prefixes: Mapping[str, str]) -> str | None:
    """The longer prefix of another server under which this name falls; ``prefixes`` has servers by prefix.

    The longest prefix owns a name: ``a__b__c`` is tool ``c`` of server ``a__b``, not ``b__c`` of server ``a``.
    """
    at = name.rfind("__")
    while at > len(own):
        if name[:at] in prefixes and at + 2 < len(name):
            return name[:at]
        at = name.rfind("__", 0, at + 1)
    return None


def base_name(kind: Kind, server: str, original: str, prefix: str | None) -> str:
    """The name of an item, unless another item has it already."""
    if kind in _BY_URI:
        return original
    lead = server if prefix is None else prefix
    joined = f"{lead}__{original}" if lead else original
    return joined if _FITS.fullmatch(joined) else _hashed(joined, server, original)


def name_lead(server: str, prefix: str | None) -> str:
    """What every name of a server's tools and prompts begins with; empty for a server without a prefix."""
    lead = server if prefix is None else prefix
    return _ODD.sub("_", f"{lead}__")[: LONGEST - 1 - HASH_DIGITS] if lead else ""


def distinct_name(kind: Kind, server: str, original: str, wanted: str, turn: int) -> str:
    """Another name for an item when its own is taken; ``turn`` counts up until one is free."""
    if kind in _BY_URI:
        return uri_lead(server, turn) + original
    return _hashed(wanted, server, original, str(turn) if turn else "")


def uri_lead(server: str, turn: int = 0) -> str:
    """The prefix that names the server of a URI, where two servers use the same one."""
    return f"from-{_NOT_SCHEME.sub('-', server)}{f'.{turn}' if turn else ''}+"


LONGEST_COMPARED = 128
MOST_COMPARED = 300
"""With how many names an unknown one is compared; each comparison takes microseconds."""


def nearest(name: str, names: Iterable[str], most: int = 3) -> tuple[str, ...]:
    """The listed names that are most like an unknown one. A long name is like none."""
    if not name or len(name) > LONGEST_COMPARED:
        return ()
    shortest, longest = 0.4 * len(name), 2.4 * len(name)
    similar = (one for one in names if shortest <= len(one) <= longest)
    head, tail = name[:4], name[-4:]
    like: list[str] = []
    rest: list[str] = []
    for one in similar:
        (like if one.startswith(head) or one.endswith(tail) else rest).append(one)
    by_length = partial(_difference, len(name))
    chosen = nsmallest(MOST_COMPARED, like, by_length)
    chosen += nsmallest(MOST_COMPARED - len(chosen), rest, by_length)
    return tuple(get_close_matches(name, chosen, n=most))


def _difference(length: int, name: str) -> int:
    return abs(len(name) - length)


def _hashed(text: str, *identity: str) -> str:
    digest = blake2s("\0".join(identity).encode("utf-8", "surrogatepass"), digest_size=HASH_DIGITS // 2).hexdigest()
    return f"{_ODD.sub('_', text)[: LONGEST - 1 - HASH_DIGITS]}_{digest}"
