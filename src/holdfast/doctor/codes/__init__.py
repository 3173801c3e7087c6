"""Every code of a finding: what it means, what causes it, how to fix it.

A code is stable: its text may improve, its meaning does not change, and a retired code is not used again.
``doctor explain`` and the reference page are generated from this table.
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
    "The network": NETWORK,
    "TLS": TLS,
    "Authorization": ACCESS,
    "The server's answer": ANSWER,
    "Its tools": TOOLS,
    "Other": OTHER,
}
"""Every code, in the order of the checks, under headings."""

CODES = {code.id: code for group in GROUPS.values() for code in group}
