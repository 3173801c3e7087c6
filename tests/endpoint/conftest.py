"""Each test of a pair of eras runs for both; Ada and Bob are the users of its clients."""

from __future__ import annotations

from tests.harness.eras import ada, bob, client_era, server_era

__all__ = ["ada", "bob", "client_era", "server_era"]
