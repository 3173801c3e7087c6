"""Decisions only. No I/O, no clock, no randomness, no tasks: time and chance are arguments."""
