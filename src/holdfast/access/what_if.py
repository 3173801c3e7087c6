"""What a policy would decide: for one question, a table of expectations, and calls of the past. No I/O (SEC-14).

Arguments are not always known: a person asks without them, and the audit has their hash. Then a condition may be true
or false, and more than one effect is possible. ``PossiblePolicy`` finds all of them: a condition only matters together
with the effect of its rule, so it is enough to judge with all conditional rules of an effect in force, or with none of
them, for each of the three effects.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import product
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from holdfast.access.audit_files import AuditRecord
from holdfast.access.policy import AccessItem, ItemKind, Policy
from holdfast.access.principals import LOCAL, Principal
from holdfast.config import AccessRule, AccessSettings
from holdfast.core import MASK

__all__ = ["PossiblePolicy", "ReplayChange", "Replayed", "principal_named", "replayed"]

_METHODS: Final[Mapping[str, ItemKind]] = {
    "tools/call": "tool",
    "prompts/get": "prompt",
    "resources/read": "resource",
}

_EFFECTS = ("allow", "ask", "deny")


def principal_named(name: str, groups: Iterable[str] = (), scopes: Iterable[str] = ()) -> Principal:
    """A principal by its full name, as the rules see it."""
    if name == LOCAL.name:
        return LOCAL
    return Principal(name=name, groups=frozenset(groups), scopes=frozenset(scopes), source="token")


class PossiblePolicy:
    """What the rules can come to where the arguments of a call are not known."""

    def __init__(self, settings: AccessSettings) -> None:
        default = settings.default or ("deny" if settings.rules else "allow")
        conditional = {rule.effect for rule in settings.rules if rule.when}
        choices = [(True, False) if effect in conditional else (True,) for effect in _EFFECTS]
        self._policies = []
        for chosen in product(*choices):
            holds = dict(zip(_EFFECTS, chosen, strict=True))
            rules = [_decided(rule, holds=holds[rule.effect]) for rule in settings.rules]
            self._policies.append(Policy(replace(settings, rules=tuple(rules), default=default)))

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

ReplayChange: TypeAlias = Literal["refused", "asks", "allowed", "same", "unknown"]
"""What changes for a recorded call: it was made and would be refused, or would wait for a person; it was denied and
would be allowed; nothing; or it cannot be said, because the arguments are not known.
"""


class Replayed(NamedTuple):
    """A recorded call under another policy."""

    change: ReplayChange
    effect: str
    """``allow``, ``ask`` or ``deny``; all that are possible, where it is not known."""
    rule: str
    reason: str


def replayed(record: AuditRecord, policy: Policy, possible: PossiblePolicy) -> Replayed | None:
    """What a policy would have decided about a recorded call; None for a record that is none."""
    kind = _METHODS.get(record.method)
    if record.event != "call" or kind is None or not record.server:
        return None
    principal = principal_named(record.principal, record.groups, record.scopes)
    item = AccessItem(kind, record.server, record.tool)
    known, arguments = _arguments(record)
    was_denied = record.outcome == "denied" and bool(record.rule)
    was_made = record.outcome not in ("denied", "refused")
    if not known and len(effects := possible.effects(principal, item)) > 1:
        return Replayed("unknown", " or ".join(sorted(effects)), "", "a condition needs arguments that were hashed")
    decision = policy.decide(principal, item, arguments)
    change: ReplayChange = "same"
    if decision.effect == "deny" and was_made:
        change = "refused"
    elif decision.effect == "ask" and was_made and not record.approval:
        change = "asks"
    elif decision.effect == "allow" and was_denied:
        change = "allowed"
    return Replayed(change, decision.effect, decision.rule, decision.reason)


def _arguments(record: AuditRecord) -> tuple[bool, bytes | Mapping[str, Any] | None]:
    """Whether the arguments of a call are known, and what they are. A masked part makes them unknown."""
    if not record.argument_bytes:
        return True, None
    shown = bytes(record.arguments)
    return bool(shown) and MASK.encode() not in shown, shown or None
