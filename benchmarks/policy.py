"""What access rules add to a call: CPU time of hubs with 0, 10 and 1,000 rules, with an audit and without (SEC-14).

``python -m benchmarks.policy`` prints two tables. All hubs run at the same time and are called in turns, so that what
else the machine does is the same for all. Then a policy of 1,000 rules decides for 1,000 principals in this process:
the memory that it keeps for them is shown.
"""

from __future__ import annotations

import statistics
import time
import tracemalloc
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from benchmarks.calls import Load, Subject, generator
from benchmarks.processes import Tree, hub, upstream
from holdfast.access import AccessItem, Policy, Principal
from holdfast.config import AccessRule, AccessSettings

__all__ = ["main"]

ROUNDS, REQUESTS, CALLERS = 9, 480, 16
RULES = (0, 10, 1_000)
PRINCIPALS = 1_000
SETTLE_SECONDS = 0.3
"""Until the last records of a round are written."""


def main(rounds: int = ROUNDS) -> None:
    """Measure, and print the tables."""
    load = Load(callers=CALLERS, requests=REQUESTS)
    kinds = [(rules, audit) for audit in (False, True) for rules in RULES]
    with upstream("--eras", "both") as (_, (port,)), ExitStack() as stack:
        servers = {"up": {"type": "http", "url": f"http://127.0.0.1:{port}/mcp"}}
        pids, generators = [], []
        for rules, audit in kinds:
            settings = {"access": {"rules": _rules(rules)}, "audit": {"enabled": audit}}
            pid, base = stack.enter_context(hub(servers, settings=settings))
            pids.append(pid)
            generators.append(stack.enter_context(generator(Subject("Holdfast", f"{base}/mcp", pid, "up__echo"), load)))
        used: list[list[float]] = [[] for _ in kinds]
        for _ in range(rounds):
            for which, one in enumerate(generators):
                used[which].append(_measured(pids[which], one.run))
    print("| CPU time of a call, µs | without an audit | with one |\n|---|---|---|")
    for at, rules in enumerate(RULES):
        plain, audited = (statistics.median(used[at + shift]) for shift in (0, len(RULES)))
        print(f"| {rules} rules | {plain:.1f} | {audited:.1f} |")
    print(f"\n{PRINCIPALS} principals, each with other rules of {RULES[-1]}: {_kept_bytes() / 1024:.0f} KiB")


def _rules(number: int) -> list[dict[str, Any]]:
    """Rules that name `local`, so that its calls are judged; the last one allows the call."""
    if not number:
        return []
    others = [{"effect": "allow", "groups": [f"group-{at}"], "tools": [f"tool_{at}*"]} for at in range(number - 1)]
    return [*others, {"effect": "allow", "principals": ["local"], "servers": ["up"], "tools": ["ec*"]}]


def _kept_bytes() -> int:
    """What a policy keeps of so many principals."""
    rules = tuple(AccessRule(effect="allow", groups=(f"group-{at}",)) for at in range(RULES[-1]))
    policy, item = Policy(AccessSettings(rules=rules)), AccessItem("tool", "up", "echo")
    people = [
        Principal(name=f"https://idp.example#{at}", groups=frozenset({f"group-{at}"})) for at in range(PRINCIPALS)
    ]
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for one in people:
        policy.decide(one, item)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return after - before


def _measured(pid: int, run: Callable[[], object]) -> float:
    """Microseconds of CPU for each call of a round, of all threads."""
    before = Tree(pid).cpu()
    run()
    time.sleep(SETTLE_SECONDS)
    return sum(now - before.get(thread, 0) for thread, now in Tree(pid).cpu().items()) / REQUESTS / 1e3


if __name__ == "__main__":
    main()
