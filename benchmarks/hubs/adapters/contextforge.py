"""ContextForge (IBM): a gateway with a database, to which servers are registered over its API."""

from __future__ import annotations

import json
import secrets
import subprocess
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.hubs.adapter import Launch, PypiAdapter, Setting, Setup

__all__ = ["ContextForge"]

CONFIGURATION = "https://ibm.github.io/mcp-context-forge/manage/configuration/"
USER = "admin@example.com"
REGISTER_SECONDS = 90.0


class ContextForge(PypiAdapter):
    """One worker on SQLite, as its quick start on PyPI has it."""

    name = "ContextForge"
    version = "1.0.7.post20260921"
    kind = "hub"
    packages = ("mcp-contextforge-gateway==1.0.7.post20260921",)
    python = ("3.12", "3.13")
    registers = True
    documentation = (
        "https://pypi.org/project/mcp-contextforge-gateway/1.0.7.post20260921/",
        CONFIGURATION,
        "https://ibm.github.io/mcp-context-forge/architecture/adr/009-built-in-health-checks",
    )
    settings = (
        Setting("SQLite, CACHE_TYPE=memory", "the quick start without containers", CONFIGURATION),
        Setting("SSRF_ALLOW_LOCALHOST, SSRF_ALLOW_PRIVATE_NETWORKS", "the servers listen on loopback", CONFIGURATION),
        Setting("RATE_LIMITING_ENABLED=false, TOOL_RATE_LIMIT", "no hub is measured by its quota", CONFIGURATION),
        Setting(
            "USE_STATEFUL_SESSIONS=true, JSON_RESPONSE_ENABLED=false", "sessions and notices need them", CONFIGURATION
        ),
        Setting("AUTO_REFRESH_SERVERS=true", "changed lists are looked for", CONFIGURATION),
        Setting("LOG_LEVEL=ERROR", "logs are off for all", CONFIGURATION),
    )

    def launch(self, setup: Setup) -> Launch:
        """Secrets are made once and kept in the folder, so that a restart finds its database."""
        options = ["mcpgateway.main:app", "--host", "127.0.0.1", "--port", str(setup.port), "--log-level", "error"]
        return Launch([self.program("mcpgateway"), *options], self._environment(setup), "/health")

    def _environment(self, setup: Setup) -> Mapping[str, str]:
        file = setup.folder / "secrets.json"
        if not file.exists():
            made = {
                "jwt": secrets.token_hex(48),
                "key": secrets.token_hex(48),
                "word": secrets.token_hex(16),
            }
            file.write_text(json.dumps(made))
        made = json.loads(file.read_text())
        return {
            "JWT_SECRET_KEY": made["jwt"],
            "AUTH_ENCRYPTION_SECRET": made["key"],
            "PLATFORM_ADMIN_EMAIL": USER,
            "PLATFORM_ADMIN_PASSWORD": f"{made['word']}aA1!",
            "PASSWORD_CHANGE_ENFORCEMENT_ENABLED": "false",
            "DATABASE_URL": f"sqlite:///{setup.folder}/gateway.db",
            "CACHE_TYPE": "memory",
            "SSRF_ALLOW_LOCALHOST": "true",
            "SSRF_ALLOW_PRIVATE_NETWORKS": "true",
            "RATE_LIMITING_ENABLED": "false",
            "TOOL_RATE_LIMIT": "1000000",
            "USE_STATEFUL_SESSIONS": "true",
            "JSON_RESPONSE_ENABLED": "false",
            "AUTO_REFRESH_SERVERS": "true",
            "DEV_MODE": "true",
            "LOG_LEVEL": "ERROR",
        }

    def headers(self, setup: Setup) -> Mapping[str, str]:
        """A token of its own tool, made once."""
        file = setup.folder / "token"
        if not file.exists():
            environment = {**self._environment(setup), "HOME": str(setup.folder), "PATH": "/usr/bin:/bin"}
            command = [self.program("python"), "-m", "mcpgateway.utils.create_jwt_token", "--username", USER]
            command += ["--exp", "600", "--secret", environment["JWT_SECRET_KEY"]]
            made = subprocess.run(
                command, env=environment, cwd=setup.folder, check=True, capture_output=True, text=True, timeout=60
            )
            file.write_text(made.stdout.split()[-1])
        return {"authorization": f"Bearer {file.read_text()}"}

    def prepared(self, setup: Setup) -> None:
        """Register the servers that are not in its database yet. One that it refuses stays unregistered."""
        for name, server in setup.servers.items():
            done = setup.folder / f"registered-{name}"
            if done.exists():
                continue
            body: dict[str, Any] = {"name": name, "url": server.url, "transport": "STREAMABLEHTTP"}
            if server.token is not None:
                body |= {"auth_type": "bearer", "auth_token": server.token}
            refused = self._post(f"{setup.base}/gateways", body, setup)
            if refused is None:
                done.touch()
            else:
                _append(setup.folder / "refused.txt", f"{name}: {refused}")

    def _post(self, url: str, body: Mapping[str, Any], setup: Setup) -> str | None:
        request = urllib.request.Request(
            url, json.dumps(body).encode(), {"content-type": "application/json", **self.headers(setup)}
        )
        try:
            urllib.request.urlopen(request, timeout=REGISTER_SECONDS).close()
        except urllib.error.HTTPError as exc:
            return f"{exc.code} {exc.read()[:300]!r}"
        return None

    def tool(self, setup: Setup, server: str, tool: str) -> str:
        """Server and tool with a hyphen between them."""
        del setup
        return f"{server}-{tool}"


def _append(file: Path, line: str) -> None:
    with file.open("a") as log:
        log.write(f"{line}\n")
