"""The fixtures of the commands' tests."""

from __future__ import annotations

from tests.cli.command import cli
from tests.cli.in_process import inside

__all__ = ["cli", "inside"]
