"""How a server's items are named in a catalog that holds many servers.

Tools and prompts become ``server__tool``. A client puts a prefix of its own before that name, and its model accepts
letters, digits, ``_`` and ``-`` up to a length. So a name is made for the longest prefix of the known clients
(``CLIENT_NAMINGS``): within ``NAME_LENGTH`` characters, unless the configuration says another length. A name that does
not fit is shortened and gets a hash; both parts of it stay readable. Resources and templates use their URI, unchanged
unless two servers use the same one.

The name of a tool or a prompt depends on the configuration alone, never on the order in which servers answer. So every
replica of a hub gives the same names, and so does the same hub after a restart.

A name stays callable when the length changes: the whole ``server__tool`` up to ``LONGEST_NAME``, and what it was
shortened to before, which the hash at its end leads back to its item.

Some names are the hub's own (SEC-21): no server can take one, so that what bears one is said by the hub.

Case does not count: a model, and some clients, read ``Holdfast_Status`` as the same name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from hashlib import blake2s
from heapq import nsmallest
from itertools import count
from typing import Any, Final

__all__ = [
    "CLIENT_NAMINGS",
    "HUB_NAME",
    "LONGEST_NAME",
    "NAME_LENGTH",
    "SHORTEST_NAME",
    "ClientNaming",
    "Kind",
    "assign_prefixes",
    "base_name",
    "claiming_prefix",
    "cutting_clients",
    "distinct_name",
    "hash_in",
    "is_own_key",
    "is_own_name",
    "is_own_uri",
    "is_shortened",
    "lead_of",
    "name_leads",
    "named_server",
    "near",
    "nearest",
    "shortened_tails",
    "uri_lead",
    "uri_leads",
    "without_own_keys",
]


class Kind(Enum):
    """What a server can offer; the value is the field of a listing."""

    TOOL = "tools"
    PROMPT = "prompts"
    RESOURCE = "resources"
    TEMPLATE = "templates"

    __hash__ = object.__hash__  # a member is one object; Enum's own hash is a call in Python for each lookup


@dataclass(frozen=True, slots=True)
class ClientNaming:
    """How a client names a tool for its model."""

    client: str
    prefix: str
    """What it puts before the tool's name; ``{server}`` is the name of the server in its own file."""
    longest: int
    """The most characters of the whole name; a longer one is cut, renamed, left out or refused."""
    source: str

    def length(self, server: str, tool: str) -> int:
        """How long the name of a tool becomes."""
        return len(self.prefix.format(server=server)) + len(tool)


_MODEL = 64
"""The most characters of a function's name at the models' own interfaces; some accept 128 by now."""

CLIENT_NAMINGS = (
    ClientNaming("Claude Code", "mcp__{server}__", _MODEL, "its documentation of MCP tools in permission rules"),
    ClientNaming("Cline", "c12345" + "0mcp0", _MODEL, "shared/mcp.ts: a key of six characters, and 0mcp0"),
    ClientNaming("Codex", "mcp__{server}__", _MODEL, "codex-rs, mcp_connection_manager.rs: MAX_TOOL_NAME_LENGTH"),
    ClientNaming("Continue", "{server}_", _MODEL, "core/tools/mcpToolName.ts"),
    ClientNaming("Copilot CLI", "{server}-", _MODEL, "seen: the names that its model is sent"),
    ClientNaming("Cursor", "{server}:", 60, "its settings page: server and tool together beyond 60 are left out"),
    ClientNaming("fast-agent", "{server}__", _MODEL, "mcp_aggregator.py: SEP"),
    ClientNaming("Gemini CLI", "mcp_{server}_", 63, "packages/core/src/tools/mcp-tool.ts: generateValidName"),
    ClientNaming("Goose", "{server}__", _MODEL, "crates/goose, extension_manager.rs"),
    ClientNaming("opencode", "{server}_", _MODEL, "packages/opencode/src/mcp/index.ts"),
    ClientNaming("Qwen Code", "mcp__{server}__", 63, "packages/core/src/tools/mcp-tool.ts: generateValidName"),
    ClientNaming("Roo Code", "mcp--{server}--", _MODEL, "src/utils/mcp-name.ts: buildMcpToolName"),
    ClientNaming("VS Code", "mcp_{server}_", _MODEL, "mcpTypes.ts: McpToolName.MaxLength"),
)
"""The known clients, by their names. The hub is called ``holdfast`` in their files (``holdfast import``)."""

HUB_NAME = "holdfast"

NAME_LENGTH = min(one.longest - one.length(HUB_NAME, "") for one in CLIENT_NAMINGS)
"""How long a name may be so that no known client cuts it: 48, by ``mcp__holdfast__`` before it and a limit of 63."""

LONGEST_NAME, SHORTEST_NAME = 64, 24
"""What the length can be set to. Below 24, little of a name is left beside its hash."""

HASH_DIGITS = 8
_HASHED = re.compile(rf".*_([0-9a-f]{{{HASH_DIGITS}}})", re.DOTALL)
_FITS = re.compile(r"[A-Za-z0-9_-]+")
_ODD = re.compile(r"[^A-Za-z0-9_-]")
_NOT_SCHEME = re.compile(r"[^A-Za-z0-9.-]")


def cutting_clients(server: str, tool: str) -> tuple[str, ...]:
    """The clients that cut, rename or leave out a tool of a server with this name in their file."""
    return tuple(one.client for one in CLIENT_NAMINGS if one.length(server, tool) > one.longest)


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
        # The id is taken too: an earlier server wrote it as its prefix. The hash of the id is the same on every
        # replica.
        while wanted in taken:
            wanted = f"{_cut(wanted, LONGEST_NAME)}_{_digest(server)}"
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
        # To `at + 1`: in `a___b` the next pair of underscores overlaps this one.
        at = name.rfind("__", 0, at + 1)
    return None


def base_name(server: str, original: str, prefix: str | None, longest: int = NAME_LENGTH) -> str:
    """The name of a tool or a prompt, unless another one has it already."""
    lead = server if prefix is None else prefix
    joined = lead_of(lead) + original
    if len(joined) <= longest and _FITS.fullmatch(joined):
        return joined
    return f"{_shortened(lead, original, longest)}_{_digest(server, original)}"


def lead_of(prefix: str) -> str:
    """What a name under this prefix begins with, if it is not shortened; nothing without a prefix."""
    return f"{prefix}__" if prefix else ""


def distinct_name(server: str, original: str, wanted: str, turn: int, longest: int = NAME_LENGTH) -> str:
    """Another name for a tool or a prompt when its own is taken; ``turn`` counts up until one is free."""
    return f"{_cut(wanted, longest)}_{_digest(server, original, str(turn) if turn else '')}"


def name_leads(server: str, prefix: str | None, longest: int = NAME_LENGTH) -> tuple[str, ...]:
    """What the names of a server's tools and prompts begin with; empty for a server without a prefix.

    The first is what a name begins with as a rule. The others begin names that were shortened, at this length or at
    the one of earlier versions.
    """
    lead = server if prefix is None else prefix
    if not lead:
        return ("",)
    whole = _ODD.sub("_", f"{lead}__")
    return tuple(dict.fromkeys((whole, f"{_short_lead(lead, longest)}__", whole[: _room(LONGEST_NAME)])))


def hash_in(name: str) -> str | None:
    """The hash at the end of a name that was shortened; None if it has none."""
    found = _HASHED.fullmatch(name) if len(name) <= LONGEST_NAME else None
    return found[1] if found is not None else None


def shortened_tails(name: str, server: str, prefix: str | None) -> tuple[str, ...]:
    """What the tool's part of a shortened name of this server begins with, at each length; empty if it is none.

    Earlier versions cut the end of the whole name, at 64.
    """
    lead = server if prefix is None else prefix
    head, clean = name[: -1 - HASH_DIGITS], _ODD.sub("_", lead)
    if not lead:
        return (head,)
    if not head.startswith(clean[: _LEAD_CUTS[0]]):
        return ()
    leads = {f"{clean[:cut]}__" for cut in _LEAD_CUTS} | {f"{clean}__"}
    tails = tuple(head.removeprefix(one) for one in leads if head.startswith(one))
    return (*tails, "") if f"{clean}__".startswith(head) else tails


def is_shortened(server: str, original: str, found: str, tails: tuple[str, ...]) -> bool:
    """Whether a shortened name with this hash and one of these parts is that of an item.

    A name that was taken got a second hash, of its own: then one follows the whole of the item's name.
    """
    clean = _ODD.sub("_", original)
    fits = clean.startswith(tails) or any(tail.startswith(f"{clean}_") for tail in tails)
    return fits and found in (_digest(server, original), _digest(server, original, ""))


def uri_lead(server: str, turn: int = 0) -> str:
    """The prefix that names the server of a URI, where two servers use the same one."""
    return f"from-{_NOT_SCHEME.sub('-', server)}{f'.{turn}' if turn else ''}+"


def uri_leads(servers: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """What the URIs of each server begin with where they name it: its own prefix first, then all that may name it.

    Names that differ only in what no scheme may have would have equal prefixes: they get a number. It depends on the
    names alone: the order of the listings must not decide which server a URI leads to.
    """
    own: dict[str, str] = {}
    for server in sorted(servers):
        taken = own.values()
        own[server] = next(lead for turn in count() if (lead := uri_lead(server, turn)) not in taken)
    return {one: (lead, uri_lead(one), f"{uri_lead(one)[:-1]}.") for one, lead in own.items()}


def named_server(uri: str, leads: Mapping[str, tuple[str, ...]], *, but: str) -> str:
    """The server whose prefix a URI begins with, by ``uri_leads``; empty if it is that of none, or of ``but`` alone."""
    if not uri.startswith("from-"):
        return ""
    return next((one for one, lead in leads.items() if one != but and uri.startswith(lead)), "")


LONGEST_COMPARED = 128
MOST_COMPARED = 100
"""With how many names an unknown one is compared; a comparison of one letter repeated takes half a millisecond."""


def nearest(name: str, names: Iterable[str], most: int = 3) -> tuple[str, ...]:
    """The listed names that are most like an unknown one. A long name is like none."""
    if not name or len(name) > LONGEST_COMPARED:
        return ()
    shortest, longest = 0.4 * len(name), 2.4 * len(name)
    similar = (one for one in names if shortest <= len(one) <= longest)
    # Most mistakes leave the beginning or the end as it is. A comparison is costly, so these are compared first.
    head, tail = name[:4], name[-4:]
    like: list[str] = []
    rest: list[str] = []
    for one in similar:
        (like if one.startswith(head) or one.endswith(tail) else rest).append(one)

    def by_length(one: str) -> int:
        return abs(len(one) - len(name))

    chosen = nsmallest(MOST_COMPARED, like, by_length)
    chosen += nsmallest(MOST_COMPARED - len(chosen), rest, by_length)
    return tuple(get_close_matches(name, chosen, n=most))


MOST_NAMED = 10
"""How many names a hint lists. A fleet may have hundreds of servers."""


def near(name: str, known: Sequence[str], otherwise: str) -> str:
    """A hint for an unknown name: the nearest known one, else some that exist; ``otherwise`` if there is none."""
    by_lower = {one.lower(): one for one in known}
    for found in nearest(name.lower(), by_lower, 1):
        return f"did you mean `{by_lower[found]}`?"
    more = f" and {len(known) - MOST_NAMED} more" if len(known) > MOST_NAMED else ""
    return f"known: {', '.join(known[:MOST_NAMED])}{more}" if known else otherwise


def _room(longest: int) -> int:
    """How much of a name is left when its hash is added."""
    return longest - 1 - HASH_DIGITS


def _lead_room(longest: int) -> int:
    """The server's part of a shortened name: at most two thirds of it, so that the tool can be told too."""
    return _room(longest) * 2 // 3 - 2


_LEAD_CUTS = sorted({_lead_room(longest) for longest in range(SHORTEST_NAME, LONGEST_NAME + 1)})
"""Where a server's part can have been cut, at each length."""


def _cut(text: str, longest: int) -> str:
    return _ODD.sub("_", text)[: _room(longest)]


def _short_lead(lead: str, longest: int) -> str:
    return _ODD.sub("_", lead)[: _lead_room(longest)]


def _shortened(lead: str, original: str, longest: int) -> str:
    return _cut(f"{_short_lead(lead, longest)}__{original}" if lead else original, longest)


def _digest(*identity: str) -> str:
    return blake2s("\0".join(identity).encode("utf-8", "surrogatepass"), digest_size=HASH_DIGITS // 2).hexdigest()


_TOOLS: Final = frozenset({"find_tools", "describe_tools", "call_tool", "call_readonly_tool", "read_result"})
_LEAD: Final = "holdfast_"
_SCHEME: Final = "holdfast:"
_KEYS: Final = "holdfast/"


def is_own_name(name: str) -> bool:
    """Whether a listed name of a tool or a prompt is the hub's own."""
    lowered = name.lower()
    return lowered.startswith(_LEAD) or lowered in _TOOLS


def is_own_uri(uri: str) -> bool:
    """Whether a URI, or a template of URIs, is the hub's own."""
    return uri[:LONGEST_SPACE].lstrip()[: len(_SCHEME)].lower() == _SCHEME


LONGEST_SPACE: Final = 256
"""How much of a URI is looked at: readers of URIs drop spaces at their beginning."""


def is_own_key(key: str) -> bool:
    """Whether a key of ``_meta`` is the hub's own."""
    return key[: len(_KEYS)].lower() == _KEYS


def without_own_keys(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """An object of a server, without the hub's keys in its ``_meta``; the same object if it has none."""
    meta = value.get("_meta")
    if not isinstance(meta, dict) or not any(map(is_own_key, meta)):
        return value
    return {**value, "_meta": {key: one for key, one in meta.items() if not is_own_key(key)}}
