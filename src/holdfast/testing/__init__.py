"""For tests of programs that use Holdfast: a clock that a test moves, and servers that fail on command.

Nothing here needs a test framework. The how-to is in ``docs/how-to/test-with-holdfast.md``.
"""

from __future__ import annotations

from holdfast.testing.fake_clock import FakeClock
from holdfast.testing.script import Fault
from holdfast.testing.scripted_servers import Answer, HttpServer, StdioServer

__all__ = ["Answer", "FakeClock", "Fault", "HttpServer", "StdioServer"]
