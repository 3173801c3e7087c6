"""The fixtures of the commands' tests."""

from __future__ import annotations

from tests.cli.inside import inside
from tests.cli.running import cli

__all__ = ["cli", "inside"]
