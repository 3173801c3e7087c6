"""Pinned examples: for each mutant of the property tests, a short list of steps that shows what it does wrong.

The search that finds a mutant takes up to hundreds of runs, and belongs to ``make test-long``. The ordinary run plays
these steps: the mutant must fail, and the real thing must not. They were found by that search; then every step was left
out that was not needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from hypothesis.stateful import RuleBasedStateMachine

from holdfast.core.breaker import Outcome

__all__ = ["BREAKER", "CATALOG", "MACHINE", "Step", "play"]

Step: TypeAlias = tuple[str, Mapping[str, Any]]
"""A rule of the state machine, and the values that it gets."""


def play(kind: type[RuleBasedStateMachine], steps: Sequence[Step]) -> None:
    """Take the steps, and look after each at what must hold."""
    machine = kind()
    for name, values in steps:
        getattr(machine, name)(**values)
        for each in machine.invariants:
            each.function(machine)


MACHINE: Mapping[str, Sequence[Step]] = {
    "OneDialAtATime-DialsForEveryProbe": (
        ("begin", {"watchable": True, "lazy": False, "listed": False}),
        ("calls_ask", {"count": 1}),
        ("an_outage", {"answers": False, "times": 130, "unreachable": True}),
        ("the_timer_rings", {"chance": 0.0}),
        ("calls_ask", {"count": 1}),
    ),
    "NoConnectionIsLeaked-ForgetsLateConnections": (
        ("begin", {"watchable": False, "listed": False, "lazy": False}),
        ("an_outage", {"answers": False, "times": 2, "unreachable": False}),
        ("something_of_an_older_one", {"back": 1, "first": False, "news": "dialed"}),
    ),
    "CatalogNeverShrinks-WithdrawsWhatIsDown": (
        ("begin", {"listed": False, "watchable": False, "lazy": False}),
        ("it_comes_up_and_perhaps_dies", {"deaths": 1, "tools": ["read"]}),
    ),
    "StaleChangesNothing-TrustsOldConnections": (
        ("begin", {"listed": False, "lazy": False, "watchable": False}),
        ("another_definition", {"lazy": False, "watchable": False}),
        ("it_comes_up_and_perhaps_dies", {"deaths": 0, "tools": []}),
        ("something_of_an_older_one", {"back": 1, "first": False, "news": "refresh failed"}),
    ),
    "LateResultsChangeNoBreaker-TrustsLateResults": (
        ("begin", {"listed": False, "lazy": False, "watchable": False}),
        ("a_dial_succeeds", {"tools": []}),
        ("calls_trip_the_breaker_and_others_ask_after_the_cooldown", {"callers": 1, "slower": 1}),
        ("every_call_fails", {}),
    ),
    "BudgetIsFive-HasABudgetOfSix": (
        ("begin", {"watchable": False, "listed": False, "lazy": False}),
        ("an_outage", {"answers": False, "times": 6, "unreachable": False}),
    ),
    "BudgetIsFive-ChargesManualReconnects": (
        ("begin", {"watchable": False, "listed": False, "lazy": False}),
        ("a_command", {"command": "reconnect"}),
        ("an_outage", {"answers": False, "times": 1, "unreachable": False}),
    ),
    "BudgetIsFive-ForgivesEveryHandshake": (
        ("begin", {"listed": False, "watchable": False, "lazy": False}),
        ("an_outage", {"answers": False, "times": 2, "unreachable": False}),
        ("it_comes_up_and_perhaps_dies", {"deaths": 0, "tools": []}),
    ),
    "AddressChecksKeepTheirRate-ChecksAddressesTooSoon": (
        ("begin", {"watchable": True, "listed": False, "lazy": False}),
        ("an_outage", {"answers": False, "times": 3, "unreachable": True}),
    ),
    "AddressChecksKeepTheirRate-NeverChecksMoreSlowly": (
        ("begin", {"watchable": True, "listed": False, "lazy": False}),
        ("an_outage", {"answers": False, "times": 130, "unreachable": True}),
    ),
    "ReconnectsAtOnceOnceInThirtySeconds-AlwaysReconnectsAtOnce": (
        ("begin", {"listed": False, "watchable": False, "lazy": False}),
        ("it_comes_up_and_perhaps_dies", {"deaths": 1, "tools": []}),
    ),
    "NeverStuck-ForgetsToRetry": (
        ("begin", {"watchable": False, "listed": False, "lazy": False}),
        ("an_outage", {"answers": False, "times": 1, "unreachable": False}),
    ),
    "EveryStateCanBeLeft-DropsTheEnableThatCameTooSoon": (
        ("begin", {"watchable": False, "listed": False, "lazy": False}),
        ("a_command", {"command": "disable"}),
    ),
    "StoppedStaysStopped-RevivesAfterTheEnd": (
        ("begin", {"watchable": False, "lazy": False, "listed": False}),
        ("the_end", {"command": "remove", "really": 12}),
        ("a_command", {"command": "reconnect"}),
    ),
    "OpenAdmitsNoCall-HasNoCooldown": (
        ("begin", {"listed": False, "watchable": False, "lazy": False}),
        ("it_comes_up_and_perhaps_dies", {"deaths": 0, "tools": []}),
        ("an_outage", {"answers": False, "times": 3, "unreachable": False}),
        ("calls_ask", {"count": 1}),
    ),
    "OneEventIsOneFailure-CountsTheCallAndItsConnection": (
        ("begin", {"listed": False, "watchable": False, "lazy": False}),
        ("a_dial_succeeds", {"tools": []}),
        ("calls_ask", {"count": 1}),
        ("a_call_ends", {"outcome": Outcome.TRANSPORT_FAILURE, "which": 0}),
        ("something_of_the_connection", {"chance": 0.0, "news": "lost"}),
    ),
    "OneEventIsOneFailure-CountsTheDialAfterALoss": (
        ("begin", {"listed": False, "watchable": False, "lazy": False}),
        ("a_dial_succeeds", {"tools": []}),
        ("an_outage", {"answers": False, "times": 1, "unreachable": False}),
    ),
    "OneProbeAtATime-LetsEveryCallerProbe": (
        ("begin", {"watchable": True, "lazy": False, "listed": False}),
        ("calls_ask", {"count": 1}),
        ("an_outage", {"answers": False, "times": 130, "unreachable": True}),
        ("calls_ask", {"count": 2}),
    ),
    "TransientIsRetriedSoon-ParksTransientSlowly": (
        ("begin", {"watchable": False, "listed": False, "lazy": False}),
        ("an_outage", {"answers": False, "times": 6, "unreachable": False}),
    ),
    "DenialsAreNotHammered-AsksTheDeniedEverySecond": (
        ("begin", {"lazy": False, "watchable": False, "listed": False}),
        ("a_denial", {"times": 5, "unconfirmed": False}),
    ),
}
"""For the mutants of breaker and lifecycle together, by property and mutant."""

BREAKER: Mapping[str, Sequence[Step]] = {
    "LetsEveryCallerProbe": (
        ("begin", {}),
        ("it_trips_cools_down_and_is_probed", {"outcome": Outcome.TIMED_OUT}),
        ("it_trips_cools_down_and_is_probed", {"outcome": Outcome.NEUTRAL}),
    ),
    "HasNoCooldown": (
        ("begin", {}),
        ("the_connection_dies_under_all_its_calls", {}),
        ("the_connection_dies_under_all_its_calls", {}),
        ("a_dial_fails", {}),
        ("a_dial_fails", {}),
        ("a_call_asks", {}),
    ),
    "TrustsLateResults": (
        ("begin", {}),
        ("it_trips_cools_down_and_is_probed", {"outcome": Outcome.DENIED}),
        ("a_dial_succeeds", {}),
        ("a_call_ends", {"outcome": Outcome.COMPLETED, "which": 0}),
    ),
    "CountsEveryVictim": (
        ("begin", {}),
        ("a_call_asks", {}),
        ("the_connection_dies_under_all_its_calls", {}),
    ),
    "CountsTheCallAndItsConnection": (
        ("begin", {}),
        ("a_call_asks", {}),
        ("a_call_ends", {"outcome": Outcome.TRANSPORT_FAILURE, "which": 0}),
        ("the_connection_dies_under_all_its_calls", {}),
    ),
    "CountsTheDialAfterALoss": (
        ("begin", {}),
        ("the_connection_dies_under_all_its_calls", {}),
        ("a_dial_fails", {}),
    ),
    "ExcusesEveryDial": (
        ("begin", {}),
        ("the_connection_dies_under_all_its_calls", {}),
        ("a_dial_fails", {}),
        ("a_dial_fails", {}),
    ),
    "DoubtsForEver": (
        ("begin", {}),
        ("the_connection_does_not_answer", {}),
        ("the_connection_answers", {}),
        ("the_connection_dies_under_all_its_calls", {}),
    ),
    "CountsCancellations": (
        ("begin", {}),
        ("a_call_asks", {}),
        ("a_call_asks", {}),
        ("a_call_asks", {}),
        ("a_call_ends", {"outcome": Outcome.NEUTRAL, "which": 0}),
    ),
    "KeepsTheProbesPlace": (
        ("begin", {}),
        ("it_trips_cools_down_and_is_probed", {"outcome": Outcome.NEUTRAL}),
    ),
    "ForgetsAtEveryHandshake": (
        ("begin", {}),
        ("the_connection_dies_under_all_its_calls", {}),
        ("a_dial_succeeds", {}),
        ("the_connection_dies_under_all_its_calls", {}),
        ("the_connection_dies_under_all_its_calls", {}),
    ),
    "NeedsFourFailures": (
        ("begin", {}),
        ("a_dial_fails", {}),
        ("a_dial_fails", {}),
        ("a_dial_fails", {}),
    ),
    "NeverForgets": (
        ("begin", {}),
        ("a_dial_fails", {}),
        ("the_connection_has_stood", {}),
        ("a_dial_fails", {}),
        ("a_dial_fails", {}),
    ),
    "ClosesAtEveryHandshake": (
        ("begin", {}),
        ("it_trips_cools_down_and_is_probed", {"outcome": Outcome.TRANSPORT_FAILURE}),
        ("a_dial_succeeds", {}),
    ),
}
"""For the mutants of the breaker alone."""

CATALOG: Mapping[str, Sequence[Step]] = {
    "TakesLateListings": (
        ("begin", {}),
        ("publish", {"names": [], "server": "a"}),
        ("publish", {"names": [], "server": "a"}),
        ("publish_late", {"back": 1, "names": ["c"], "server": "a"}),
    ),
    "ForgetsWithdrawnNames": (
        ("begin", {}),
        ("publish", {"names": ["c"], "server": "a"}),
        ("withdraw", {"server": "a"}),
    ),
    "ShrinksWithoutAReason": (
        ("begin", {}),
        ("publish", {"names": ["c"], "server": "a"}),
    ),
}
"""For the mutants of the catalog."""
