"""Every code that a finding can have: what it means, what causes it, what cures it.

A code is for ever: its words may be bettered, its meaning may not change, and one that is no longer found is
not given to something else. ``doctor explain`` and the reference page are made from here.
"""

from __future__ import annotations

from holdfast.doctor.codes.answer import ACCESS, ANSWER, OTHER, TOOLS
from holdfast.doctor.codes.code import Code, Severity
from holdfast.doctor.codes.local import COMMAND, CONFIGURATION
from holdfast.doctor.codes.way import NETWORK, TLS

__all__ = ["CODES", "GROUPS", "Code", "Severity"]

GROUPS = {
    "The configuration": CONFIGURATION,
    "A command and its process": COMMAND,
    "The way there": NETWORK,
    "TLS": TLS,
    "Who may use it": ACCESS,
    "What answers": ANSWER,
    "Its tools": TOOLS,
    "Anything else": OTHER,
}
"""Every code, in the order in which a server is looked at, under headings for people."""

CODES = {code.id: code for group in GROUPS.values() for code in group}
