"""Short labels: what tells servers apart that start with the same words."""

from __future__ import annotations

import shlex

import pytest

from holdfast.core.labels import cause_of, place_of, script_of

pytestmark = pytest.mark.requirement("DX-5")

COMMANDS = {
    "npx -y @modelcontextprotocol/server-filesystem /srv": "@modelcontextprotocol/server-filesystem",
    "npx --yes --package=@acme/x acme-mcp": "acme-mcp",
    "npx -p @acme/x acme-mcp": "acme-mcp",
    "cmd /c npx -y @acme/x": "@acme/x",
    "uvx mcp-server-git --repository .": "mcp-server-git",
    "uvx --from git+https://git.example/x mcp-x": "mcp-x",
    "uvx --python 3.12 --with httpx mcp-x": "mcp-x",
    "/usr/bin/python3 /srv/mcp/inventory.py --port 0": "inventory.py",
    "python3.12 -u -m acme.server": "acme.server",
    "python -X dev server.py": "server.py",
    "python -c 'import x'": "python",
    "node --require ./hook.js dist/index.js": "index.js",
    "uv run --directory /srv/app server.py": "server.py",
    "uv --directory /srv/app run python -m acme": "acme",
    "uv run acme-mcp --stdio": "acme-mcp",
    "pipx run --spec acme acme-mcp": "acme-mcp",
    "docker run -i --rm -e TOKEN -v /a:/b ghcr.io/acme/ledger:2.4 --stdio": "ghcr.io/acme/ledger:2.4",
    "docker exec -i box mcp": "box",
    "deno run -A main.ts": "main.ts",
    "bun server.ts": "server.ts",
    "java -jar /opt/x/server.jar": "server.jar",
    "env -u HOME KEY=1 node index.js": "index.js",
    "/opt/acme/bin/acme-mcp --stdio": "acme-mcp",
    "bash -c 'exec x'": "bash",
    "npx -y -- @acme/x": "@acme/x",
    "npx --yes": "npx",
    "uvx --from https://git.example/x.git": "uvx",
    "npx https://git.example/acme/x": "https://git.example/acme/x",
    "npx": "npx",
    "uv": "uv",
}


@pytest.mark.parametrize(("command", "script"), COMMANDS.items())
def test_a_command_is_known_by_what_it_runs_not_by_its_interpreter(command: str, script: str) -> None:
    assert script_of(shlex.split(command)) == script


def test_an_address_is_known_by_its_host_and_path() -> None:
    assert place_of("https://user:***@mcp.example.com:8443/v1/mcp/?key=***") == "mcp.example.com:8443/v1/mcp"
    assert place_of("no address") == "no address"
    assert place_of("http://[::1/") == "http://[::1/"


def test_a_cause_has_no_duration() -> None:
    assert cause_of("not ready for 3 min") == cause_of("not ready for 12 min") == "not ready"
    assert cause_of("no answer within 30 s to `initialize`") == cause_of("no answer within 2.5 s to `initialize`")
    assert cause_of("it answered 503") == "it answered 503"
    assert cause_of("its process exited with code 3") == "its process exited with code 3"


def test_an_address_without_a_host_is_shown_as_it_is() -> None:
    assert place_of("file:///srv/x/") == "file:///srv/x/"
