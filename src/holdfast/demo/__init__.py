"""A small fleet of real servers to try Holdfast on: each fails in its own way, and can be broken and healed.

They are the scripted servers of ``holdfast.testing``. ``demo_servers.py`` starts them, writes their ``mcp.json``, and
lets a second terminal break and heal them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast._exports import lazy_exports

if TYPE_CHECKING:
    from holdfast.demo.demo_servers import (
        FAULTS as FAULTS,
        DemoControl as DemoControl,
        demo_fleet as demo_fleet,
        running_demo as running_demo,
    )

__getattr__, __dir__ = lazy_exports(__name__)
