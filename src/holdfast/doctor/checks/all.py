"""Every check, in the order in which it runs. A new check is a class and a line here."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.doctor.checks.answer import HandshakeCheck, ToolsCheck
from holdfast.doctor.checks.base import Check, GlobalCheck
from holdfast.doctor.checks.files import FilesCheck, StateCheck, TokensCheck
from holdfast.doctor.checks.hub import HubCheck
from holdfast.doctor.checks.local import CommandCheck, DefinitionCheck
from holdfast.doctor.checks.login import LoginCheck
from holdfast.doctor.checks.way import NameCheck, PortCheck, TlsCheck

__all__ = ["CHECKS", "WHOLE_CHECKS"]

CHECKS: Sequence[Check] = (
    DefinitionCheck(),
    CommandCheck(),
    NameCheck(),
    PortCheck(),
    TlsCheck(),
    LoginCheck(),
    HandshakeCheck(),
    ToolsCheck(),
    HubCheck(),
)
"""Checks of each server."""

WHOLE_CHECKS: Sequence[GlobalCheck] = (FilesCheck(), TokensCheck(), StateCheck())
"""Checks that concern no single server."""
