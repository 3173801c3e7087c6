"""What the tests of fleets share with those of the hub: no event may ever meet a state that forbids it."""

from __future__ import annotations

from tests.endpoint.conftest import ada, bob
from tests.hub.conftest import no_illegal_transition

__all__ = ["ada", "bob", "no_illegal_transition"]
