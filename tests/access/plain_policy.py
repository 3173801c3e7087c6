"""A plain reading of access rules, to compare the policy and every door with: slow, and without any table.

It shares no code with ``access/policy.py``: conditions are the few that the tests use, as Python functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from holdfast.config import AccessRule, AccessSettings

__all__ = ["CONDITIONS", "Caller", "PlainPolicy"]

Arguments = Mapping[str, Any]

CONDITIONS: Mapping[str, Callable[[Arguments], bool | None]] = {
    "arguments.n < 10": lambda given: given["n"] < 10 if isinstance(given.get("n"), int) else None,
    "arguments.n >= 10": lambda given: given["n"] >= 10 if isinstance(given.get("n"), int) else None,
    "has(arguments.n)": lambda given: "n" in given,
}
"""Conditions, and what each says of some arguments; None for: it cannot be evaluated."""


@dataclass(frozen=True, kw_only=True)
class Caller:
    """Who asks."""

    name: str
    groups: frozenset[str] = field(default=frozenset())
    scopes: frozenset[str] = field(default=frozenset())


class PlainPolicy:
    """What the rules say, one after the other."""

    def __init__(self, settings: AccessSettings) -> None:
        self._rules = settings.rules
        self._default = settings.default or ("deny" if settings.rules else "allow")

    def effect(self, caller: Caller, kind: str, server: str, name: str, arguments: Arguments) -> str:
        """``allow``, ``ask`` or ``deny``."""
        covering = self._covering(caller, kind, server, name)
        if any(rule.effect == "deny" and self._holds(rule, arguments, unclear=True) for rule in covering):
            return "deny"
        allowed = any(rule.effect == "allow" and self._holds(rule, arguments, unclear=False) for rule in covering)
        if not allowed and not self._is_open(caller):
            return "deny"
        asks = any(rule.effect == "ask" and self._holds(rule, arguments, unclear=True) for rule in covering)
        return "ask" if asks else "allow"

    def lists(self, caller: Caller, kind: str, server: str, name: str) -> bool:
        """Whether the item is there at all."""
        covering = self._covering(caller, kind, server, name)
        if any(rule.effect == "deny" and not rule.when for rule in covering):
            return False
        return any(rule.effect == "allow" for rule in covering) or self._is_open(caller)

    def _is_open(self, caller: Caller) -> bool:
        named = any("local" in rule.principals for rule in self._rules)
        return self._default == "allow" or (caller.name == "local" and not named)

    def _covering(self, caller: Caller, kind: str, server: str, name: str) -> Sequence[AccessRule]:
        return [
            rule
            for rule in self._rules
            if (not rule.principals or caller.name in rule.principals)
            and (not rule.groups or caller.groups & set(rule.groups))
            and (not rule.scopes or caller.scopes & set(rule.scopes))
            and (not rule.servers or any(fnmatchcase(server, one) for one in rule.servers))
            and self._names(rule, kind, name)
        ]

    def _names(self, rule: AccessRule, kind: str, name: str) -> bool:
        if (kind == "resource" and rule.when) or (kind != "tool" and rule.effect == "ask"):
            return False
        lists = {"tool": rule.tools, "prompt": rule.prompts, "resource": rule.resources}
        if not any(lists.values()):
            return True
        return any(fnmatchcase(name, one) for one in lists[kind])

    def _holds(self, rule: AccessRule, arguments: Arguments, *, unclear: bool) -> bool:
        if not rule.when:
            return True
        said = CONDITIONS[rule.when](arguments)
        return unclear if said is None else said
