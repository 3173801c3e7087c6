"""The command line: one file a command, each thin."""

from __future__ import annotations

from holdfast._exports import lazy_exports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.cli.entry import main as main

__getattr__, __dir__ = lazy_exports(__name__)
