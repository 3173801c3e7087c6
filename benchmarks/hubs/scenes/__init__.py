"""The scenes: what is done, what a user wants of it, and for whom it does not apply."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from benchmarks.hubs.adapter import Adapter
from benchmarks.hubs.scenes import hub_itself, messages, outages
from benchmarks.hubs.scenes.stage import Outcome, Stage

__all__ = ["SCENES", "Scene"]

HTTP_ONLY = "it takes servers over stdio alone"


@dataclass(frozen=True)
class Scene:
    """One scene."""

    title: str
    about: str
    """What is done."""
    wanted: str
    """What is called good, and what bad; the rest is part."""
    play: Callable[[Stage], Awaitable[Outcome]]
    minutes: float = 8.0
    """After this it is ended, which is its result."""
    http: bool = False
    """It needs a server over HTTP."""
    many: bool = False
    """It needs more than one server."""
    alone: bool = False
    """It measures speed: nothing else runs meanwhile."""

    def missing(self, adapter: Adapter, name: str) -> str | None:
        """Why it does not apply to a hub."""
        if name in adapter.missing:
            return adapter.missing[name]
        if self.http and adapter.behind == "stdio":
            return HTTP_ONLY
        if self.many and adapter.kind == "proxy":
            return "a plain proxy has one server and reads no messages"
        return None


OUTAGE = (
    "Good: no call lost, wrong or doubled, the reason told, the tools listed meanwhile, the session goes on. "
    "Bad: a wrong or doubled call, or not back within 30 s."
)

SCENES: Mapping[str, Scene] = {
    "killed": Scene(
        "Server killed and back",
        "`kill -9` for the server under two calls a second; it runs again after 6 s. A stdio server is the hub's "
        "child: to start it is the hub's task, and the time counts from the kill.",
        OUTAGE,
        outages.killed,
    ),
    "slow_start": Scene(
        "Slow start",
        "Hub and server start together; the server needs 20 s, as a cold `npx` does.",
        "Good: clients connect meanwhile, no call is lost, nothing false is told, a result within 5 s of the server's "
        "readiness. Bad: no result within 30 s.",
        outages.slow_start,
    ),
    "hung": Scene(
        "Hung call",
        "One tool never answers, and the client waits 90 s; two other calls a second go on in its session.",
        "Good: an answer within 90 s that says so, and the other calls go on. Bad: other calls fail, or the call ran "
        "twice.",
        outages.hung,
    ),
    "unavailable": Scene(
        "503 for a minute",
        "The server answers 503 to everything for 60 s.",
        OUTAGE,
        outages.unavailable,
        http=True,
    ),
    "flapping": Scene(
        "Flapping server",
        "The server is killed seven times, down for 3 s and up for 3 s each time.",
        OUTAGE,
        outages.flapping,
    ),
    "one_dead": Scene(
        "One of twenty dead at start",
        "Twenty servers; one is dead when the hub starts and comes to life later.",
        "Good: the nineteen answer, the reason for the twentieth is told, and it is back in the same session. "
        "Bad: not all nineteen answer within 120 s.",
        outages.one_dead,
        many=True,
    ),
    "denied": Scene(
        "Denied",
        "A server answers 403 with its decision from the start; another one is well.",
        "Good: callers are told that they are refused. Bad: they are told something false or nothing, or the other "
        "server suffers.",
        outages.denied,
        http=True,
    ),
    "expired": Scene(
        "Expired token",
        "The token that the hub sends expires (401); after 12 s the server takes it again.",
        OUTAGE,
        outages.expired,
        http=True,
    ),
    "changed_list": Scene(
        "Changed list",
        "The server has a new tool, lacks an old one, and announces it.",
        "Good: the client is notified, lists the new tool and calls it. Bad: neither listed nor callable within 90 s.",
        messages.changed_list,
    ),
    "big_result": Scene(
        "10 MB result",
        "A result of 10 MB.",
        "Good: it comes whole and the next call too. Bad: anything else.",
        messages.big_result,
    ),
    "progress": Scene(
        "100 progress notices",
        "A call reports its progress a hundred times.",
        "Good: all hundred in order before the result. Bad: none, or no result.",
        messages.progress,
    ),
    "questions": Scene(
        "Elicitation and sampling",
        "A tool asks the user, another the model; the client can answer both.",
        "Good: both work. Bad: neither.",
        messages.questions,
    ),
    "eras": Scene(
        "Both eras",
        "Clients of 2025-11-25 and 2026-07-28 with servers of each.",
        "Good: all four pairs. Bad: none.",
        messages.eras,
    ),
    "restarted": Scene(
        "Hub restarted",
        "The hub gets SIGTERM under calls, one of them in flight, and is started again.",
        "Good: the same session goes on, and the call in flight is answered. Bad: wrong or doubled calls, children "
        "left behind, or not back within 30 s.",
        hub_itself.restarted,
    ),
    "hub_killed": Scene(
        "Hub killed",
        "The hub's main process is killed with `kill -9` under calls. After 3 s, what is left of its process group is "
        "ended, as a supervisor does, and it is started again.",
        "Good: the same session goes on and no child is left behind. Bad: wrong or doubled calls, children left "
        "behind, or not back within 30 s.",
        hub_itself.hub_killed,
    ),
    "sessions": Scene(
        "1,000 sessions",
        "A thousand clients open a session, twenty at a time, and each calls once. A hub that takes more than 4 GB is "
        "stopped there.",
        "Good: all are opened and answered. Bad: under nine in ten.",
        hub_itself.sessions,
    ),
    "hostile": Scene(
        "Hostile server",
        "Servers with endless pages of tools, bytes that are no JSON, 20,000 notices before a result, and answers "
        "under the id of another call, beside one that is well. A bridge has them one after the other.",
        "Good: the calls beside them are answered, no foreign answer passes, under 300 MB more memory. "
        "Bad: a lost call, a foreign answer, or a dead hub.",
        hub_itself.hostile,
        many=True,
    ),
    "cost": Scene(
        "What a call costs",
        "The echo tool from one caller and from sixteen, beside the bare server in the same rounds.",
        "Not graded.",
        hub_itself.cost,
        alone=True,
    ),
}
