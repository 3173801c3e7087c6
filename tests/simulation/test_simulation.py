"""The fleet protocol under seeded faults, and the mutants that the simulation must find."""

from __future__ import annotations

import pytest

from holdfast.core import FleetMember, Machine
from tests.simulation import mutants
from tests.simulation.capacity import dials_of_a_dead_server, measure, most_in_step, seconds_until_back
from tests.simulation.replica import Replica
from tests.simulation.run import Action, Failure, Plan, make_client_plan, make_plan, play, search, shrunk
from tests.simulation.world import Broken

ORDINARY = range(4)
LONG = range(4, 404)


def told(failure: Failure) -> str:
    short = shrunk(failure.plan, tries=60)
    lines = "\n".join(f"  {action}" for action in short.actions)
    return f"{failure.message}\nplay it again: python -m tests.simulation --seed {failure.plan.seed}\n{lines}"


@pytest.mark.requirement("FLEET-9")
@pytest.mark.parametrize("seed", ORDINARY)
def test_every_invariant_holds_under_the_faults_of_a_seed(seed: int) -> None:
    failure = search([seed])
    assert failure is None, told(failure)


@pytest.mark.long
@pytest.mark.requirement("FLEET-9")
@pytest.mark.parametrize("first", LONG[::8])
@pytest.mark.timeout(600)
def test_every_invariant_holds_under_the_faults_of_many_seeds(first: int) -> None:
    failure = search(range(first, first + 8))
    assert failure is None, told(failure)


@pytest.mark.requirement("FLEET-5", "FLEET-9")
@pytest.mark.parametrize("seed", [*range(2), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 102))])
def test_a_client_has_one_home_and_no_call_runs_twice_under_the_faults_of_a_seed(seed: int) -> None:
    play(make_client_plan(seed))


@pytest.mark.requirement("FLEET-5")
def test_a_replica_that_serves_clients_of_another_home_is_found() -> None:
    play(make_client_plan(0))
    with pytest.raises(Broken, match="is served by"):
        play(make_client_plan(0), mutants.ServesEveryClient)


@pytest.mark.requirement("FLEET-9")
def test_a_seed_is_played_again_step_by_step() -> None:
    assert play(make_plan(3)) == play(make_plan(3))


@pytest.mark.requirement("FLEET-9", "FLEET-1")
def test_a_session_that_serves_another_principal_is_caught() -> None:
    plan = directed(Action(5.0, "open", 0, text="ada"), Action(6.0, "use", 1, text="bob"))
    play(plan)
    with pytest.raises(Broken, match="opens a session of ada for bob"):
        play(plan, type("Mutated", (Replica,), {"ring_type": mutants.AnyPrincipal}))


@pytest.mark.requirement("FLEET-9", "FLEET-1")
def test_the_end_of_a_session_is_known_everywhere_also_after_the_store_was_emptied() -> None:
    ends = (Action(5.0, "open", 0, text="ada"), Action(10.0, "end", 1), Action(14.0, "emptied"))
    later = Action(15.0, "crash", 0, value=0.2)
    play(directed(*ends, later))
    with pytest.raises(Broken, match="does not know ended/"):
        play(directed(*ends, later), mutants.replica_with(mutants.ForgetsItsCopy))


@pytest.mark.requirement("FLEET-9", "FLEET-3")
@pytest.mark.parametrize("after", [0.02, 0.06])
def test_a_store_that_just_began_does_not_know_every_replica_yet(after: float) -> None:
    """A decision in that moment is not acknowledged before each replica that was present has seen it."""
    for who in range(3):
        play(directed(Action(40.0, "emptied"), Action(40.0 + after, "switch", who, "files", 1.0)))


@pytest.mark.requirement("FLEET-4")
@pytest.mark.parametrize("mode", ["not_ready", "refuses", "hangs", "denies"])
def test_a_dead_server_sees_as_many_dials_from_many_replicas_as_from_one(mode: str) -> None:
    one = dials_of_a_dead_server(1, mode)
    for replicas in (3, 6, 20) if mode == "not_ready" else (3, 6):
        assert 0.8 * one <= dials_of_a_dead_server(replicas, mode) <= 1.2 * one


@pytest.mark.requirement("FLEET-4", "LIFE-22")
@pytest.mark.parametrize("replicas", [1, 3, 6])
@pytest.mark.parametrize("down", [3.0, 7.0, 20.0, 55.0])
def test_a_server_that_listens_again_is_back_at_every_replica_within_a_second(replicas: int, down: float) -> None:
    assert seconds_until_back(replicas, down) <= 1.0


def test_replicas_without_the_right_to_probe_are_caught() -> None:
    alone = mutants.replica_with(machine=mutants.NoClaims)
    assert dials_of_a_dead_server(3, "not_ready", replica_type=alone) > 2 * dials_of_a_dead_server(1, "not_ready")


@pytest.mark.requirement("FLEET-9")
def test_replicas_that_start_together_do_not_stay_in_step() -> None:
    assert most_in_step(20) <= 6


def test_replicas_without_jitter_are_caught() -> None:
    assert most_in_step(20, mutants.NoJitter) > 6


def directed(*actions: Action, replicas: int = 3) -> Plan:
    return Plan(0, replicas, tuple(sorted(actions, key=lambda one: one.at)))


OLDER_COPY = directed(
    Action(10.0, "switch", 1, "files", 1.0),
    Action(20.0, "save"),
    Action(30.0, "switch", 0, "files", 0.0),
    Action(40.0, "older"),
)
EMPTIED = directed(
    Action(30.0, "switch", 0, "files", 1.0), Action(40.0, "flush"), Action(50.0, "crash", 1), Action(60.0, "crash", 0)
)
MANY_SWITCHES = directed(*(Action(10.0 + 1.7 * n, "switch", n % 3, "files", float(n % 2)) for n in range(50)))
GIVEN_UP_DIALS = directed(
    *(Action(10.0 + 9 * n, "restart", server="files") for n in range(12)),
    *(Action(10.01 + 9 * n, "switch", n % 3, "files", 1.0) for n in range(12)),
    *(Action(13.0 + 9 * n, "switch", n % 3, "files", 0.0) for n in range(12)),
)


@pytest.mark.requirement("FLEET-9")
@pytest.mark.parametrize(
    ("plan", "member", "machine"),
    [
        pytest.param(OLDER_COPY, mutants.NoVersion, Machine, id="no version"),
        pytest.param(EMPTIED, mutants.ForgetsItsCopy, Machine, id="a copy is not sent again"),
        pytest.param(MANY_SWITCHES, mutants.TrustsTheStoreAlone, Machine, id="acknowledged by the store alone"),
        pytest.param(GIVEN_UP_DIALS, FleetMember, mutants.StaleGeneration, id="stale generation"),
    ],
)
def test_a_plan_holds_and_its_mutant_is_caught(plan: Plan, member: type[FleetMember], machine: type[Machine]) -> None:
    play(plan)
    with pytest.raises(Broken):
        play(plan, mutants.replica_with(member, machine))


def test_a_first_sight_that_the_latest_replica_decides_is_caught() -> None:
    failure = search(range(3), mutants.replica_with(mutants.LatestWins))
    assert failure is not None
    assert "approved" in failure.message


def test_a_failing_run_is_shrunk_to_what_it_needs() -> None:
    mutant = mutants.replica_with(mutants.NoVersion)
    noise = tuple(Action(70.0 + n, "call", n % 3, text="search") for n in range(6))
    short = shrunk(directed(*OLDER_COPY.actions, *noise), mutant, tries=12)
    assert {action.what for action in short.actions} <= {"save", "switch", "older", "crash"}


@pytest.mark.requirement("FLEET-9")
def test_the_simulation_measures_a_fleet_of_any_size() -> None:
    small = measure(3, 10, simulated=2)
    assert small.first_dials == 30
    assert small.recovery_seconds < 60
