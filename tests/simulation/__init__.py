"""A deterministic simulation of a fleet: replicas, servers and the store in virtual time, with seeded faults.

The decisions are those of production: the machine, the breaker, the catalog, the naming and the fleet protocol are
imported from ``holdfast.core``. Everything else (network, store latency, processes, clocks) is played here. The same
seed gives the same run. ``python -m tests.simulation --seed N`` plays one again.
"""
