"""Whether the replicas of a fleet run the same configuration.

Each replica tells the others digests of what it runs, one for each key that it has: while a key is replaced, two
replicas have one in common. Replicas may differ for a while: a roll replaces one after the other, and a file reaches
machines at different times. So a difference is reported when it stays.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

__all__ = ["LONGEST_ROLL_SECONDS", "SETTLED_SECONDS", "ConfigAgreement"]

SETTLED_SECONDS = 180.0
"""How long no replica may come, go or change before a difference counts.

The next step of a roll comes sooner: a pod of the chart drains for 30 s and starts in seconds, a kubelet brings a
changed ConfigMap within two minutes, and a hub reads a changed file within a second.
"""
LONGEST_ROLL_SECONDS = 900.0
"""A difference that is older counts, also if replicas still come and go: one of them may start again and again."""


class ConfigAgreement:
    """What the replicas that are present run, and since when they differ."""

    def __init__(self) -> None:
        self.groups: tuple[tuple[str, ...], ...] = ()
        """The replicas by configuration, largest group first, if they differ for long; else empty."""
        self._seen: dict[str, frozenset[str]] = {}
        self._changed_at = 0.0
        self._differ_since: float | None = None

    def note(self, told: Mapping[str, Collection[str]], now: float) -> bool:
        """Take what the replicas tell; those without a digest do not count. True if a difference counts from now on."""
        seen = {name: frozenset(digests) for name, digests in told.items() if digests}
        if seen != self._seen:
            self._seen, self._changed_at = seen, now
        groups = _grouped(seen)
        if len(groups) < 2:
            self.groups, self._differ_since = (), None
            return False
        if self._differ_since is None:
            self._differ_since = now
        settled = now - self._changed_at >= SETTLED_SECONDS or now - self._differ_since >= LONGEST_ROLL_SECONDS
        if not settled and not self.groups:
            return False
        begins, self.groups = not self.groups, groups
        return begins


def _grouped(seen: Mapping[str, frozenset[str]]) -> tuple[tuple[str, ...], ...]:
    """The replicas that have a digest in common, also through others."""
    groups: list[tuple[frozenset[str], list[str]]] = []
    for name in sorted(seen):
        digests, names = seen[name], [name]
        apart = []
        for known, members in groups:
            if known & digests:
                digests, names = known | digests, [*members, *names]
            else:
                apart.append((known, members))
        groups = [*apart, (digests, names)]
    return tuple(sorted((tuple(sorted(names)) for _, names in groups), key=lambda names: (-len(names), names)))
