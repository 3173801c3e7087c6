"""Each test of a pair of eras runs for both; Ada and Bob are the users of its clients.

``peer`` and ``tokens`` are for tests of servers that are per user: a server with logins, and where the hub keeps them.
"""

from __future__ import annotations

from tests.harness.eras import ada, bob, client_era, server_era
from tests.harness.users import peer, tokens

__all__ = ["ada", "bob", "client_era", "peer", "server_era", "tokens"]
