"""The default address of the hub."""

from __future__ import annotations

__all__ = ["DEFAULT_HOST", "DEFAULT_PORT", "DEFAULT_URL", "endpoint"]

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 4653
"""HOLD on a telephone keypad."""


def endpoint(host: str, port: int, path: str = "/mcp") -> str:
    """The URL of a hub that listens on this host and port."""
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - nothing is bound here
    return f"http://{f'[{reachable}]' if ':' in reachable else reachable}:{port}{path}"


DEFAULT_URL = endpoint(DEFAULT_HOST, DEFAULT_PORT)
