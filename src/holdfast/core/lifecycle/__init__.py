"""The lifecycle of a server's connection: decisions as data, no I/O, no clock, no randomness.

``events`` is what can happen, ``table`` which state follows, ``effects`` what the slot must do, ``timing`` the numbers
and timers, ``lifecycle_state`` what is remembered, ``actions`` what follows from an event, ``lifecycle`` the object
that ``core.machine`` asks.
"""
