"""For tests of programs that use Holdfast: a clock that a test moves, and servers that fail on command.

Nothing here needs a test framework. The how-to is in ``docs/how-to/test-with-holdfast.md``.
"""

from __future__ import annotations

from holdfast.testing.fake_clock import FakeClock
from holdfast.testing.http_server import Answer, HttpServer
from holdfast.testing.script import Fault
from holdfast.testing.stdio_server import StdioServer

__all__ = ["Answer", "FakeClock", "Fault", "HttpServer", "StdioServer"]
