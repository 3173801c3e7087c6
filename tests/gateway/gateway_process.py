"""A gateway as far as its config goes, as a program of its own: it reads strictly, and keeps what it last took.

Like AgentGateway it refuses a config with a field that its version does not know: at the start it
ends, later it goes on with the old one. ``/config_dump`` shows what is loaded; ``/config``, just as
there, shows the file whether it was taken or not. It routes nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal

import yaml
from jsonschema import Draft202012Validator
from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

LOOK = 0.02
"""Seconds between looks at the file."""


class Strict(BaseModel):
    """Every key has to be known."""

    model_config = ConfigDict(extra="forbid", alias_generator=to_camel)


class DenyWithStatus(Strict):
    deny_with_status: int


class BodyOptions(Strict):
    max_request_bytes: int = 0
    allow_partial_message: bool = False
    pack_as_bytes: bool = False


class ExtAuthz(Strict):
    host: str
    failure_mode: Literal["allow", "deny"] | DenyWithStatus = "deny"
    protocol: dict[str, Any] = {}
    include_request_body: BodyOptions | None = None


class OldExtAuthz(ExtAuthz):
    timeout: str | None = None


class HttpPolicies(Strict):
    request_timeout: str | None = None


class BackendPolicies(Strict):
    http: HttpPolicies | None = None


class NewExtAuthz(ExtAuthz):
    policies: BackendPolicies | None = None


class Policies(Strict):
    cors: dict[str, Any] | None = None
    ext_authz: dict[str, Any] | None = None
    direct_response: dict[str, Any] | None = None


class Route(Strict):
    name: str | None = None
    matches: list[dict[str, Any]] = []
    policies: Policies | None = None
    backends: list[dict[str, Any]] = []


class Listener(Strict):
    name: str | None = None
    protocol: Literal["HTTP", "HTTPS", "TLS", "TCP", "HBONE"] = "HTTP"
    policies: dict[str, Any] | None = None
    routes: list[Route] = []


class Bind(Strict):
    port: int
    listeners: list[Listener]


class Backend(Strict):
    name: str
    host: str


class Config(Strict):
    config: dict[str, Any] = {}
    binds: list[Bind] = []
    backends: list[Backend] = []


class Gateway:
    """The config that is loaded, and the way to load another."""

    def __init__(self, file: Path, version: str, schemas: Path | None) -> None:
        self.file = file
        self._ext_authz = OldExtAuthz if version.startswith("0.") else NewExtAuthz
        minor = ".".join(version.split(".")[:2])
        found = sorted(schemas.glob(f"v{minor}.*.json")) if schemas else []
        self._schema = Draft202012Validator(json.loads(found[0].read_text())) if found else None
        self._loaded: dict[str, Any] = {}

    def load(self) -> None:
        """Load the file, or raise and keep the old config."""
        document = yaml.safe_load(self.file.read_text())
        for bind in Config.model_validate(document).binds:
            for route in (route for listener in bind.listeners for route in listener.routes):
                if route.policies is not None and route.policies.ext_authz is not None:
                    self._ext_authz.model_validate(route.policies.ext_authz)
        if self._schema is not None:
            self._schema.validate(document)
        self._loaded = document

    def dump(self) -> dict[str, Any]:
        """What is loaded, in about the shape in which AgentGateway shows it."""
        backends = [
            {"backend": {"host": {"name": one["name"], "namespace": "", "target": one["host"]}}}
            for one in self._loaded.get("backends", [])
        ]
        return {"binds": self._loaded.get("binds", []), "policies": [], "backends": backends}

    def on_disk(self) -> object:
        """The file, taken or not."""
        return yaml.safe_load(self.file.read_text())


def serve(gateway: Gateway, port: int, address: Path) -> None:
    """Answer at the admin address, for ever."""

    class AdminHandler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            shown: dict[str, Callable[[], object]] = {"/config_dump": gateway.dump, "/config": gateway.on_disk}
            if self.path not in shown:
                self.send_error(404)
                return
            body = json.dumps(shown[self.path](), default=str).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
            """Requests are not worth a line."""

    server = ThreadingHTTPServer(("127.0.0.1", port), AdminHandler)
    address.write_text(f"127.0.0.1:{server.server_address[1]}")
    threading.Thread(target=server.serve_forever, daemon=True).start()


def watch(gateway: Gateway) -> None:
    """Load the file whenever it is another one."""
    seen = _identity(gateway.file)
    while True:
        time.sleep(LOOK)
        now = _identity(gateway.file)
        if now == seen:
            continue
        seen = now
        try:
            gateway.load()
        except Exception as exc:  # noqa: BLE001 - after any error the old one stays
            say(f"Failed to reload config: {exc}")
        else:
            say("Config reloaded successfully")


def say(text: str) -> None:
    """For the log."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _identity(file: Path) -> tuple[int, int] | None:
    try:
        stat = os.stat(file)  # noqa: PTH116 - one call, and its errors are all of a kind
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns


def main() -> None:
    """Run until killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--version", required=True)
    parser.add_argument("--schemas", type=Path)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--address", type=Path, required=True)
    options = parser.parse_args()
    gateway = Gateway(options.config, options.version, options.schemas)
    try:
        gateway.load()
    except Exception as exc:  # noqa: BLE001 - after any error it cannot start
        sys.exit(f"Error: {exc}")
    serve(gateway, options.port, options.address)
    watch(gateway)


if __name__ == "__main__":
    main()
