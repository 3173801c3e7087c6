"""Default values that this command, the Helm chart and the compose files share.

The chart and the compose files cannot import Python. A test compares their values with these.
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
"""How long the gateway waits for the authorization service. The default of the gateway, 200 ms, is too short for a
cold start of that service. Ten seconds is longer than a healthy answer, and shorter than one attempt of a load."""

OUTAGE_STATUS = 503
"""The status for clients when the authorization service does not answer. No policy decision uses it."""

EXT_AUTH_PORT = 9100

BODY_BYTES = 8192
"""How many bytes of a request's body the authorization service gets: enough for the method and the tool name."""

GATEWAY_VERSION = "1.4.1"
"""The gateway that the chart and the compose files run."""

LISTEN_PORT = 8080

LISTENER_NAME = "mcp"

PATH_PREFIX = "/mcp"
"""The path of a server's route is this prefix and its id."""

CHECK_ROUTE, CHECK_PATH = "holdfast-check", "/holdfast/check"
"""A route without a server. A request to it shows only whether the caller is authorized."""

ADMIN_ADDRESS = "127.0.0.1:15000"
"""Only loopback, because the admin address can stop the gateway."""

HEALTH_ADDRESS = "127.0.0.1:9180"
"""Where the bridge serves its health."""
