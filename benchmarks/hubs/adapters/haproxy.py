"""HAProxy as a plain proxy: it passes requests on and knows nothing of MCP."""

from __future__ import annotations

import shutil
from urllib.parse import urlsplit

from benchmarks.hubs.adapter import Adapter, HubFailed, Launch, Setting, Setup

__all__ = ["HaProxy"]

MANUAL = "https://docs.haproxy.org/2.6/configuration.html"

CONFIG = """\
global
  maxconn 4096
defaults
  mode http
  option http-no-delay
  timeout connect 5s
  timeout client 300s
  timeout server 300s
frontend in
  bind 127.0.0.1:{port}
  monitor-uri /ready
  default_backend server
backend server
  server one 127.0.0.1:{server} check inter 2s
"""


class HaProxy(Adapter):
    """From the system's packages."""

    name = "HAProxy"
    version = "2.6"
    kind = "proxy"
    documentation = (MANUAL,)
    settings = (
        Setting(
            "option http-no-delay", "small writes on a stream are not held back", f"{MANUAL}#option%20http-no-delay"
        ),
        Setting("timeout client and server 300s", "streams are quiet for long", f"{MANUAL}#timeout%20server"),
        Setting("check inter 2s", "its own health checks", f"{MANUAL}#check"),
    )

    def install(self) -> None:
        """It comes with the system."""
        if shutil.which("haproxy") is None:
            raise HubFailed("haproxy is not installed: `apt-get install haproxy`")

    def launch(self, setup: Setup) -> Launch:
        """One backend."""
        (server,) = setup.servers.values()
        file = setup.folder / "haproxy.cfg"
        file.write_text(CONFIG.format(server=urlsplit(server.url).port, port=setup.port))
        return Launch(["haproxy", "-q", "-db", "-f", str(file)], ready="/ready")
