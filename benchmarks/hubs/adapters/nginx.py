"""nginx as a plain proxy: it passes requests on and knows nothing of MCP."""

from __future__ import annotations

import shutil
from urllib.parse import urlsplit

from benchmarks.hubs.adapter import Adapter, HubFailed, Launch, Setting, Setup

__all__ = ["Nginx"]

MODULE = "https://nginx.org/en/docs/http/ngx_http_proxy_module.html"

CONFIG = """\
daemon off; pid nginx.pid; error_log stderr crit; worker_processes 1;
events {{ worker_connections 4096; }}
http {{
  access_log off;
  client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path f; uwsgi_temp_path u; scgi_temp_path s;
  upstream server {{ server 127.0.0.1:{server}; keepalive 64; }}
  server {{
    listen 127.0.0.1:{port};
    client_max_body_size 64m;
    location /ready {{ return 204; }}
    location / {{
      proxy_pass http://server; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_buffering off; proxy_read_timeout 300s;
    }}
  }}
}}
"""


class Nginx(Adapter):
    """From the system's packages."""

    name = "nginx"
    version = "1.22"
    kind = "proxy"
    documentation = (MODULE, "https://nginx.org/en/docs/http/ngx_http_upstream_module.html")
    settings = (
        Setting("proxy_buffering off", "event streams", f"{MODULE}#proxy_buffering"),
        Setting("proxy_http_version 1.1, keepalive 64", "connections are kept", f"{MODULE}#proxy_http_version"),
        Setting("proxy_read_timeout 300s", "streams are quiet for long", f"{MODULE}#proxy_read_timeout"),
    )

    def install(self) -> None:
        """It comes with the system."""
        if shutil.which("nginx") is None:
            raise HubFailed("nginx is not installed: `apt-get install nginx-light`")

    def launch(self, setup: Setup) -> Launch:
        """One upstream."""
        (server,) = setup.servers.values()
        file = setup.folder / "nginx.conf"
        file.write_text(CONFIG.format(server=urlsplit(server.url).port, port=setup.port))
        return Launch(["nginx", "-p", str(setup.folder), "-c", str(file)], ready="/ready")
