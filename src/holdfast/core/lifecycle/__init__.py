"""The lifecycle of a server's connection: decisions as data, no I/O, no clock, no randomness.

``events`` is what can happen, ``table`` which state follows, ``effects`` what the slot must do, ``lifecycle_state``
what is remembered, with the numbers and timers, ``lifecycle`` what an event amounts to and what follows from it.
``core.machine`` asks it.
"""
