"""Finds out why a server cannot be used and what to do about it. Checks make findings; the command line shows them.

``checks`` has one function for each check, ``diagnose`` turns the evidence of a dial into a finding, ``examine``
runs all checks of all servers concurrently, ``codes`` says what each code means, ``report`` holds the findings and does
what ``--fix`` may.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast._exports import lazy_exports

if TYPE_CHECKING:
    from holdfast.doctor.codes import CODES as CODES, Code as Code, Severity as Severity
    from holdfast.doctor.examine import Doctor as Doctor
    from holdfast.doctor.report import (
        Edit as Edit,
        EditPlan as EditPlan,
        Finding as Finding,
        Health as Health,
        Repaired as Repaired,
        Report as Report,
        ServerReport as ServerReport,
        SharedCause as SharedCause,
        check_names as check_names,
        code_named as code_named,
        own_findings as own_findings,
        plan_edits as plan_edits,
        read_or_report as read_or_report,
        undo_edits as undo_edits,
    )

__getattr__, __dir__ = lazy_exports(__name__)
