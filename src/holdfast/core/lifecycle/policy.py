"""How long, how often and how many times: every number that the lifecycle goes by. Times in seconds."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["LifecyclePolicy", "shortened"]


@dataclass(frozen=True, kw_only=True)
class LifecyclePolicy:
    """One server's policy; the defaults are the documented ones."""

    failures: int = 3
    """Consecutive failures of a connection that still stands, before it is given up."""
    backoff: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0, 16.0)
    """The wait before each reconnect; as many reconnects may fail as there are waits."""
    jitter: float = 0.2
    """The share of a wait that chance may take away; no wait is ever longer than written."""
    after_loss: float = 0.3
    """The share of the first wait that is waited after a connection died which may not be replaced without any wait:
    a server that can be reached at once is then back within a second, on a busy machine too."""
    standing: float = 30.0
    """How long a connection stands before the past is forgotten; also the least time between
    two reconnects that are made without any wait."""
    self_probe: float | None = 300.0
    """How often a parked server is tried by itself; None for never."""
    parked: float = 60.0
    """How long a parked server answers calls with its reason before a call may try again."""
    refresh: float | None = 60.0
    """How often a connected server is listed again; None for only when it says so."""
    refresh_spacing: float = 1.0
    """The least time between two listings, however often a server says that its list changed."""
    lazy: bool = False
    """Dialed at first use and stopped when idle."""
    idle_after: float = 300.0
    """How long a lazy server may be unused before it is stopped."""
    watchable: bool = False
    """Whether a bare TCP connect shows that the server listens: it has a host and a port."""
    look_every: float = 1.0
    """The least time between two looks at a server that refused the connection and never was up in this run."""
    look_again_every: float = 0.25
    """The same for one that was up, and is most likely restarting; twice that after ``restart``."""
    restart: float = 10.0
    """How long a quick restart takes at the most."""
    look_briskly_for: float = 60.0
    """How long looks stay that frequent; from then on each wait is about twice the one before. For as long, a server
    that listens again but is not well yet is tried at half that pace."""
    look_at_least_every: float = 30.0
    """The longest wait between two looks."""
    close_patience: float = 10.0
    """How long disabling waits for a close before the server counts as disabled all the same."""


def shortened(delay: float, policy: LifecyclePolicy, chance: float) -> float:
    """A delay with its jitter: ``chance`` is in [0, 1), and 0 leaves the delay as it is."""
    return delay * (1.0 - policy.jitter * chance)
