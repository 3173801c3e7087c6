"""Where the hub listens unless it is told otherwise; a client is pointed at the same address."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path

__all__ = ["DEFAULT_HOST", "DEFAULT_PORT", "DEFAULT_URL", "endpoint", "own_command", "typed_command"]

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 4653
"""H-O-L-D on a telephone."""


def endpoint(host: str, port: int, path: str = "/mcp") -> str:
    """The address of a hub that listens there."""
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - nothing is bound here
    return f"http://{f'[{reachable}]' if ':' in reachable else reachable}:{port}{path}"


DEFAULT_URL = endpoint(DEFAULT_HOST, DEFAULT_PORT)


def own_command() -> tuple[str, ...]:
    """How another program starts this one, whatever its PATH."""
    beside = Path(sys.executable).with_name("holdfast")
    return (str(beside),) if os.access(beside, os.X_OK) else (sys.executable, "-m", "holdfast")


def typed_command() -> str:
    """How a person starts this program from here: by its name, or by its path where the name is not found."""
    own = own_command()
    return "holdfast" if shutil.which("holdfast") == own[0] else shlex.join(own)
