"""The lifecycle of a server's connection: decisions as data, no I/O, no clock, no randomness.

``events`` is what can happen, ``table`` which state follows, ``effects`` what the slot must do,
``policy`` the numbers and timers, ``machine`` the object that a slot holds.
"""
