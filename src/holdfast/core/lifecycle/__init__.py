"""The lifecycle of a server's connection: decisions as data, no I/O, no clock, no randomness.

``events`` is what can happen and what the slot must do (effects), ``table`` which state follows, ``backoff`` when the
hub tries again, ``lifecycle`` what is remembered, what an event amounts to and what follows from it, ``lease_state``
the same for the connection that stands. ``core.machine`` asks it.
"""
