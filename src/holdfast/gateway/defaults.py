"""The values that every render shares: this command, the Helm chart and the compose files.

The chart and the compose files cannot import Python; a test compares theirs with these.
"""

from __future__ import annotations

__all__ = [
    "ADMIN_ADDRESS",
    "BODY_BYTES",
    "CHECK_PATH",
    "CHECK_ROUTE",
    "EXT_AUTH_PORT",
    "EXT_AUTH_TIMEOUT",
    "GATEWAY_VERSION",
    "HEALTH_ADDRESS",
    "LISTENER_NAME",
    "LISTEN_PORT",
    "OUTAGE_STATUS",
    "PATH_PREFIX",
]

EXT_AUTH_TIMEOUT = "10s"
"""How long the gateway waits for a verdict. The gateway's own default, 200 ms, is shorter than a cold
authorization path takes; ten seconds is longer than any healthy one, and shorter than a load's attempt."""

OUTAGE_STATUS = 503
"""What a client gets when there is no verdict: a status that no policy decision has."""

EXT_AUTH_PORT = 9100

BODY_BYTES = 8192
"""How much of a request's body the authorization service is shown: enough for a method and a tool's name."""

GATEWAY_VERSION = "1.4.1"
"""The gateway that the chart and the compose files run."""

LISTEN_PORT = 8080

LISTENER_NAME = "mcp"

PATH_PREFIX = "/mcp"
"""A server's route is this and its id."""

CHECK_ROUTE, CHECK_PATH = "holdfast-check", "/holdfast/check"
"""A route with no server behind it: whoever asks there learns what authorization says of them, and nothing else."""

ADMIN_ADDRESS = "127.0.0.1:15000"
"""Loopback alone: whoever reaches the admin address can stop the gateway."""

HEALTH_ADDRESS = "127.0.0.1:9180"
"""Where the bridge tells how it is."""
