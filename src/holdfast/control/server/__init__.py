"""The operator's side of a running hub: the control API, its event stream, the status page, logs and metrics.

A name is imported when it is first used: a supervisor needs the log and the sign-ins, and no API.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast._exports import lazy_exports

if TYPE_CHECKING:
    from holdfast.control.server.control_server import ControlServer as ControlServer

__getattr__, __dir__ = lazy_exports(__name__)
