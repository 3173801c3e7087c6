"""A small fleet of real servers to try Holdfast on: each fails in its own way, and can be broken and healed.

``server.py`` is the program of every server, ``fleet.py`` starts them and writes their ``mcp.json``, and
``control.py`` lets a second terminal break and heal them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast._exports import lazy_exports

if TYPE_CHECKING:
    from holdfast.demo.control import (
        FAULTS as FAULTS,
        DemoControl as DemoControl,
        forget_running as forget_running,
        note_running as note_running,
        running_demo as running_demo,
    )
    from holdfast.demo.fleet import demo_fleet as demo_fleet

__getattr__, __dir__ = lazy_exports(__name__)
