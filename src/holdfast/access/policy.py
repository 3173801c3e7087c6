"""Who may see and call what: the rules of the configuration, and what they decide. No I/O, no clock (SEC-14).

A rule has subjects (principals, groups, scopes), a range (servers; tools, prompts, resources), perhaps a condition over
the arguments, and an effect. Every key that it has must match; of the values of one key, one must. A rule without
tools, prompts and resources covers all three of its servers. ``ask`` covers tools only: only a call can wait for a
person. A rule with a condition covers tools and prompts only: a resource has no arguments.

- Deny comes before ask, ask before allow. ``ask`` grants nothing: it needs an allow beside it.
- Without rules everything is open. With rules, ``default`` decides what none of them covers: ``deny`` if left out.
- ``local``, the user of this machine, stays open unless a rule names it. Rules without subjects bind it too.
- A condition that cannot be evaluated counts as true for ``deny`` and ``ask``, and as false for ``allow``: of two
  readings of a request the stricter one holds. Arguments over the bound are refused where a condition is asked.
- A resource's URI can be written in several ways, and each server has its own way to read it. A deny holds for all of
  them; an allow does not hold for dots that lead out of what it allows (``other_readings``). A URI that is encoded more
  often than any server decodes, or is longer than ``LONGEST_URI``, is allowed by no rule for some resources, and
  denied by each rule that denies some of its server.
- **Listed** is what an allow may permit, with its condition or without, and no deny without a condition forbids. A
  completion needs no more than that: it suggests values for arguments, so there are no arguments yet for a condition.
  Values for a template name resources: those that are not listed are not suggested.

How it is fast. A rule is a bit. ``Grants`` has the bits of the rules for one subject, ``_Rules`` those for an item; a
decision is their common bits. What was found is kept, within a bound, and never for a principal *and* an item: a
thousand principals with ten thousand tools would not fit. A subject is a name *with* its groups and scopes: two tokens
of one principal are two subjects. A new configuration is a new ``Policy``, so nothing kept outlives its rules.

A request that another hub makes for its clients (``source`` is ``hub``) was judged there, by the credential that came
in there. It is not judged again: an approval would be asked for twice, and the groups are not known here.

Two more are here. ``roles_of`` says what a principal may do with the control API and the status page: read, operate,
approve. ``PossiblePolicy`` says what the rules can come to where the arguments of a call are not known: a person asks
without them, and the audit has their hash. Then a condition may be true or false. It only matters together with the
effect of its rule, so it is enough to judge with all conditional rules of an effect in force, or with none of them, for
each of the three effects.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from fnmatch import translate
from functools import lru_cache, partial
from itertools import product
from posixpath import normpath
from re import compile as compiled
from typing import Any, Final, Literal, NamedTuple, TypeAlias
from urllib.parse import unquote

from pydantic import AnyUrl

from holdfast.access.principals import LOCAL, Principal
from holdfast.config import AccessRule, AccessSettings, CallFacts, Condition, RoleHolders, RoleSettings, Unjudged

__all__ = [
    "ALL_ROLES",
    "LONGEST_URI",
    "AccessDecision",
    "AccessItem",
    "Grants",
    "ItemKind",
    "Policy",
    "PossiblePolicy",
    "Role",
    "principal_named",
    "roles_of",
]

Effect: TypeAlias = Literal["allow", "deny", "ask"]

ItemKind: TypeAlias = Literal["tool", "prompt", "resource"]
"""What a server has. A resource template is a resource, by the text of its template."""

MOST_SUBJECTS: Final = 4096
"""Principals, with their groups and scopes, that are kept: more than the sessions of most hubs."""

MOST_ITEMS: Final = 131_072
"""Items that are kept: more than the servers of a hub list."""


LONGEST_KEPT: Final = 512
"""Characters of the name of an item that is kept. A caller may write a URI of megabytes."""


class AccessItem(NamedTuple):
    """One thing that a rule may cover: the server's name in the configuration, and its own name for the thing."""

    kind: ItemKind
    server: str
    name: str


@dataclass(frozen=True, slots=True)
class AccessDecision:
    """What holds for one request, and the rule that decided: ``rules[2]``, or ``default`` where none did."""

    effect: Effect
    rule: str
    reason: str
    approver: Literal["caller", "operator"] = "caller"
    """Who is asked, where the effect is ``ask``."""


class Policy:
    """The rules of one configuration."""

    def __init__(self, settings: AccessSettings | None = None) -> None:
        settings = settings or AccessSettings()
        self.settings = settings
        self._rules = _Rules(settings)
        # Of this object alone: a cache of the class would keep the rules of configurations from before.
        self._subject = lru_cache(MOST_SUBJECTS)(self._rules.subject)
        self._grants = lru_cache(MOST_SUBJECTS)(partial(Grants, self._rules))
        self.is_open = not settings.rules and self._rules.default == "allow"
        """Whether no rule limits anything for anyone."""
        self.passes_all = self.is_open and settings.ext_authz.address is None
        """Whether every call passes: the rules are open, and no service is asked. One test on the path of a call."""
        self.version = _digest(asdict(settings))
        """The same for the same rules, in every process of a fleet."""
        self.scopes = frozenset(scope for rule in settings.rules if rule.effect == "allow" for scope in rule.scopes)
        """The scopes that rules ask for, of all rules that allow something."""

    def grants(self, principal: Principal) -> Grants:
        """What holds for a principal with these groups and scopes. Those for whom the same rules hold share it."""
        # The name alone would let a wide token decide for a narrow one of the same principal.
        bits, is_open = self._subject(principal.name, principal.groups, principal.scopes, principal.source == "hub")
        return self._grants(bits, is_open)

    def decide(
        self, principal: Principal, item: AccessItem, arguments: bytes | Mapping[str, Any] | None = None
    ) -> AccessDecision:
        """What holds for a call of this item. Arguments are the JSON that the server will get, or a mapping."""
        return self.grants(principal).decide(item, arguments)

    def may_list(self, principal: Principal, item: AccessItem) -> bool:
        """Whether the item is there at all for this principal: listed, found, completed, suggested."""
        return self.grants(principal).may_list(item)

    def missing_scopes(self, principal: Principal) -> frozenset[str]:
        """The scopes without which no rule allows this principal anything; none if one does, or no scope would help."""
        if not self.scopes or self._rules.default == "allow":
            return frozenset()
        return self._rules.missing_scopes(principal)

    def learn(self, item: AccessItem) -> None:
        """Find the rules of an item beforehand. A list of thousands would be too long for one step of the loop."""
        self._rules.item(item)

    def __repr__(self) -> str:
        return f"<Policy {self.version} {len(self.settings.rules)} rules, default {self._rules.default}>"


class Grants:
    """What the rules say to one subject: a principal with its groups and scopes, or several with the same rules."""

    __slots__ = ("_bits", "_is_open", "_rules", "is_unlimited", "key")

    def __init__(self, rules: _Rules, bits: int, is_open: bool) -> None:
        self._rules = rules
        self._bits = bits
        self._is_open = is_open
        limits = bits & (rules.effects["deny"] | rules.effects["ask"])
        self.is_unlimited = is_open and not limits
        """Whether everything is open to this subject."""
        self.key = "" if self.is_unlimited else _digest([is_open, *(asdict(rules.all[at]) for at in _positions(bits))])
        """Equal for subjects of any policy for whom the same rules hold; empty if everything is open."""

    def decide(self, item: AccessItem, arguments: bytes | Mapping[str, Any] | None = None) -> AccessDecision:
        """What holds for a call of this item."""
        matching = self._bits & self._rules.item(item)
        facts = CallFacts(arguments)
        if found := self._rules.first("deny", matching, facts):
            return found
        asked = self._rules.first("ask", matching, facts)
        if asked is not None and asked.effect == "deny":
            return asked
        allowed = self._rules.first("allow", matching, facts) or (_NOT_DENIED if self._is_open else _NOT_ALLOWED)
        return asked if asked is not None and allowed.effect == "allow" else allowed

    def may_list(self, item: AccessItem) -> bool:
        """Whether the item is there at all."""
        matching = self._bits & self._rules.item(item)
        return self._may_see(matching, matching)

    def hidden_by(self, item: AccessItem) -> str:
        """The rule for which an item is not there: a deny without a condition, or ``default`` if no rule allows it."""
        denying = self._bits & self._rules.item(item) & self._rules.effects["deny"] & ~self._rules.conditional
        return _named(next(_positions(denying))) if denying else _NOT_ALLOWED.rule

    def may_see_server(self, server: str) -> bool:
        """Whether the server is there at all: in instructions, status and directory."""
        rules = self._rules
        return self._may_see(self._bits & rules.server(server), self._bits & rules.whole(server))

    def has_all_of(self, server: str) -> bool:
        """Whether nothing of the server is limited: then methods pass that the protocol does not define."""
        rules, matching = self._rules, self._bits & self._rules.server(server)
        if matching & (rules.effects["deny"] | rules.effects["ask"]):
            return False
        plain = matching & rules.whole(server) & rules.effects["allow"] & ~rules.conditional
        return self._is_open or bool(plain)

    def _may_see(self, matching: int, denying: int) -> bool:
        if denying & self._rules.effects["deny"] & ~self._rules.conditional:
            return False
        return self._is_open or bool(matching & self._rules.effects["allow"])

    def __repr__(self) -> str:
        rules = ", ".join(_named(at) for at in _positions(self._bits))
        return f"<Grants {'open' if self._is_open else 'closed'} {rules}>"


_NOT_DENIED: Final = AccessDecision("allow", "default", "no rule denies it")
_NOT_ALLOWED: Final = AccessDecision("deny", "default", "no rule allows it")


class _Rules:
    """The rules with their conditions, and which of them match what. A set of rules is the bits of an integer."""

    def __init__(self, settings: AccessSettings) -> None:
        self.all = settings.rules
        self.default = settings.default or ("deny" if settings.rules else "allow")
        made = {text: Condition(text) for text in {rule.when for rule in self.all} if text}
        self._conditions = {at: made[rule.when] for at, rule in enumerate(self.all) if rule.when}
        self.effects = {effect: _bits(rule.effect == effect for rule in self.all) for effect in _EFFECTS}
        self.conditional = _bits(bool(rule.when) for rule in self.all)
        self._whole = _bits(not (rule.tools or rule.prompts or rule.resources) for rule in self.all)
        self._local_is_named = any(LOCAL.name in rule.principals for rule in self.all)
        self._subjects = tuple(_Names(self.all, key) for key in ("principals", "groups", "scopes"))
        self._servers = _Patterns([rule.servers or _ALL for rule in self.all])
        self._kinds: Mapping[ItemKind, _Patterns] = {
            kind: _Patterns([_covered(rule, kind) for rule in self.all]) for kind in ("tool", "prompt", "resource")
        }
        self._of_resources = _bits(bool(_covered(rule, "resource")) for rule in self.all)
        self._every_resource = _bits(_covered(rule, "resource") == _ALL for rule in self.all)
        self.server = lru_cache(MOST_ITEMS)(partial(self._servers.of, among=-1))
        """The rules for a server."""
        self._kept_item = lru_cache(MOST_ITEMS)(self._item)

    def subject(
        self,
        name: str,
        groups: frozenset[str],
        scopes: frozenset[str],
        by_hub: bool,
    ) -> tuple[int, bool]:
        """The rules for a principal, and whether what none of them covers is open.

        Another hub has asked its own rules before it sends a request on, so here its requests are open.
        """
        if by_hub:
            return 0, True
        by_name, by_group, by_scope = self._subjects
        bits = by_name.of((name,)) & by_group.of(groups) & by_scope.of(scopes)
        local = name == LOCAL.name and not self._local_is_named
        return bits, self.default == "allow" or local

    def missing_scopes(self, principal: Principal) -> frozenset[str]:
        """The scopes of the rules that would allow a principal something, if no rule does by the scopes that it has."""
        by_name, by_group, by_scope = self._subjects
        meant = by_name.of((principal.name,)) & by_group.of(principal.groups) & self.effects["allow"]
        if meant & by_scope.of(principal.scopes):
            return frozenset()
        return frozenset(scope for at in _positions(meant) for scope in self.all[at].scopes)

    def whole(self, name: str) -> int:
        """The rules that cover everything of a server."""
        return self.server(name) & self._whole

    def item(self, item: AccessItem) -> int:
        """The rules for an item."""
        return self._kept_item(item) if len(item.name) <= LONGEST_KEPT else self._item(item)

    def _item(self, item: AccessItem) -> int:
        server = self.server(item.server)
        found = self._kinds[item.kind].of(item.name, among=server) & server
        if item.kind == "resource" and server:
            found = self._by_all_readings(item.name, found, server)
        return found

    def _by_all_readings(self, uri: str, found: int, server: int) -> int:
        read = other_readings(uri)
        if read is None:
            # What a server makes of it cannot be said: no allow of some resources holds, and each deny of some does.
            return server & (self._every_resource | (self.effects["deny"] & self._of_resources))
        readings, has_dots = read
        for reading in readings:
            also = self._kinds["resource"].of(reading, among=server) & server
            found = (found & also if has_dots else found) | ((found | also) & self.effects["deny"])
        return found

    def first(self, effect: Effect, matching: int, facts: CallFacts) -> AccessDecision | None:
        """The first rule of this effect that holds: those without a condition first, since they cost nothing."""
        bits = matching & self.effects[effect]
        if plain := bits & ~self.conditional:
            return self._by(next(_positions(plain)), f"a rule {_EFFECTS[effect]} it")
        for at in _positions(bits):
            if facts.is_too_large:
                return AccessDecision("deny", _named(at), "its arguments are too large for the condition of a rule")
            try:
                if self._conditions[at].holds(facts):
                    return self._by(at, f"a rule {_EFFECTS[effect]} it with these arguments")
            except Unjudged as exc:
                if effect != "allow":
                    return self._by(at, f"a rule {_EFFECTS[effect]} it: {exc}")
        return None

    def _by(self, at: int, reason: str) -> AccessDecision:
        rule = self.all[at]
        return AccessDecision(rule.effect, _named(at), reason, rule.approver)


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


_EFFECTS: Mapping[Effect, str] = {"allow": "allows", "deny": "denies", "ask": "asks for"}


def _named(at: int) -> str:
    """A rule by its place in ``holdfast.access``."""
    return f"rules[{at}]"


def _bits(flags: Iterable[bool]) -> int:
    """One bit for each rule."""
    return sum(1 << at for at, flag in enumerate(flags) if flag)


def _positions(bits: int) -> Iterator[int]:
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest


_ALL = ("*",)


def _covered(rule: AccessRule, kind: ItemKind) -> tuple[str, ...]:
    """The patterns of a rule for a kind of item; empty if it does not cover the kind."""
    if (rule.effect == "ask" and kind != "tool") or (rule.when and kind == "resource"):
        return ()
    given: tuple[str, ...] = getattr(rule, f"{kind}s")
    return given or (() if rule.tools or rule.prompts or rule.resources else _ALL)


_DROPPED = str.maketrans("", "", "\t\r\n")
"""What parsers of URLs leave out, wherever it stands."""


MOST_DECODINGS: Final = 4
"""How often a URI is decoded at most, the time included that changes nothing. A proxy, a framework and a server decode
once each. Without a bound a URI of megabytes could ask for as many rounds as it has characters."""

LONGEST_URI: Final = 64 * 1024
"""Characters. The readings of a longer one would hold the event loop: 0.1 s for a megabyte of escapes (SEC-7)."""

_DOTS: Final = frozenset({".", ".."})


def other_readings(uri: str) -> tuple[frozenset[str], bool] | None:
    """What servers may read for a URI, beside its own text; and whether one of these has segments of dots.

    ``file:///a/../b`` is ``file:///b`` to most libraries, and so is ``FILE:///b``. Many servers decode the path, some
    twice (``%252e`` is a dot then), and many use the path alone, without query and fragment. Each of these steps may
    follow another, so each is done to the results of those before it. None for a URI that is encoded too often, or is
    too long.
    """
    if len(uri) > LONGEST_URI:
        return None
    found: set[str] = set()
    text = uri
    for _ in range(MOST_DECODINGS):
        found.add(text.replace("\\", "/"))
        with suppress(ValueError):  # what is no URL can only be compared
            found.add(str(AnyUrl(text)))  # as the libraries of most servers do
        decoded = unquote(text.translate(_DROPPED))
        if decoded == text:
            break
        text = decoded
    else:
        return None
    found |= {one.partition(mark)[0] for one in found for mark in "#?"}
    dotted = [one for one in found if not _DOTS.isdisjoint(one.split("/"))]
    for one in dotted:
        scheme, mark, rest = one.partition("://") if "://" in one else one.partition(":")
        host, _, path = rest.partition("/")
        found.add(f"{scheme}{mark}{host}{_resolved(path)}")
        if host:  # it is the first folder to some servers
            found.add(f"{scheme}{mark}{_resolved(rest).removeprefix('/')}")
    return frozenset(found - {uri}), bool(dotted)


def _resolved(path: str) -> str:
    return normpath(f"/{path.lstrip('/')}")


class _Names:
    """The rules by one key of their subjects: full names."""

    def __init__(self, rules: Sequence[AccessRule], key: str) -> None:
        self._without = 0
        self._named: dict[str, int] = {}
        for at, rule in enumerate(rules):
            names: tuple[str, ...] = getattr(rule, key)
            if not names:
                self._without |= 1 << at
            for name in names:
                self._named[name] = self._named.get(name, 0) | 1 << at

    def of(self, names: tuple[str, ...] | frozenset[str]) -> int:
        bits = self._without
        for name in names:
            bits |= self._named.get(name, 0)
        return bits


class _Patterns:
    """The rules by shell patterns of a name. Most patterns are a name, or the beginning of one: these are looked up."""

    def __init__(self, patterns: Sequence[tuple[str, ...]]) -> None:
        self._names: dict[str, int] = {}
        self._beginnings: dict[str, int] = {}
        shapes: dict[str, int] = {}
        for at, given in enumerate(patterns):
            for pattern in given:
                stem, is_star = pattern.removesuffix("*"), pattern.endswith("*")
                is_plain = not any(char in stem for char in "*?[")
                table = shapes if not is_plain else self._beginnings if is_star else self._names
                key = pattern if not is_plain else stem
                table[key] = table.get(key, 0) | 1 << at
        self._lengths = sorted({len(stem) for stem in self._beginnings})
        self._shapes = [(compiled(translate(one)), bits) for one, bits in shapes.items()]

    def of(self, name: str, *, among: int) -> int:
        """The rules that match, ``among`` these at least."""
        bits = self._names.get(name, 0)
        for length in self._lengths:
            if length > len(name):
                break
            bits |= self._beginnings.get(name[:length], 0)
        for shape, rules in self._shapes:
            if rules & among & ~bits and shape.match(name):
                bits |= rules
        return bits


Role: TypeAlias = Literal["read", "operate", "approve"]

ALL_ROLES: Final[frozenset[Role]] = frozenset({"read", "operate", "approve"})


def roles_of(principal: Principal, settings: RoleSettings) -> frozenset[Role]:
    """The roles of a principal. Who may operate or approve may also read: both act on what they see."""
    by_role: Mapping[Role, RoleHolders] = {
        "read": settings.read,
        "operate": settings.operate,
        "approve": settings.approve,
    }
    held: set[Role] = {
        role
        for role, holders in by_role.items()
        if principal.name in holders.principals
        or not principal.groups.isdisjoint(holders.groups)
        or not principal.scopes.isdisjoint(holders.scopes)
    }
    return frozenset(held | {"read"} if held else held)


def principal_named(name: str, groups: Iterable[str] = (), scopes: Iterable[str] = ()) -> Principal:
    """A principal by its full name, as the rules see it."""
    if name == LOCAL.name:
        return LOCAL
    return Principal(name=name, groups=frozenset(groups), scopes=frozenset(scopes), source="token")


class PossiblePolicy:
    """What the rules can come to where the arguments of a call are not known."""

    def __init__(self, settings: AccessSettings) -> None:
        conditional = {rule.effect for rule in settings.rules if rule.when}
        choices = [(True, False) if effect in conditional else (True,) for effect in _EFFECTS]
        self._policies = []
        for chosen in product(*choices):
            holds = dict(zip(_EFFECTS, chosen, strict=True))
            rules = [_decided(rule, holds=holds[rule.effect]) for rule in settings.rules]
            self._policies.append(Policy(replace(settings, rules=tuple(rules))))

    def effects(self, principal: Principal, item: AccessItem) -> frozenset[str]:
        """The effects that some arguments have. No condition covers a resource, so the last variant is for these."""
        fitting = self._policies[-1:] if item.kind == "resource" else self._policies
        return frozenset(policy.decide(principal, item).effect for policy in fitting)

    def __repr__(self) -> str:
        return f"<PossiblePolicy of {len(self._policies)} variants>"


def _decided(rule: AccessRule, *, holds: bool) -> AccessRule:
    """A rule whose condition is true, or false. A rule that does not hold stays: it may name ``local``."""
    if not rule.when:
        return rule
    return replace(rule, when="") if holds else replace(rule, when="", tools=_NOTHING, prompts=(), resources=())


_NOTHING = ("\0",)
"""No tool has this name."""
