"""Every command that README and the documentation print is run as printed, or has a stated reason why not.

The commands run in a home and a network of their own, so that the default port is free and nothing is left behind. The
programs that they need and that a test cannot have (npx, systemctl) are replaced by small ones.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trustme

from holdfast.access import AuditFiles, read_key
from holdfast.config import TrustStore
from tests.access.test_audit import called
from tests.docs.documented import ROOT, commands_of, documented_pages

FRESH = "it installs from the network: tests/field/test_fresh_debian.py runs it in a fresh Debian"
FRAMEWORK = "it installs a framework: tests/integrations runs the page's program in its environment, with -m field"
CLUSTER = "it needs a cluster; tests/deploy renders what is printed, and runs the hub's arguments and those of its test"
DOCKER = "it needs Docker; tests/deploy checks the files that it uses"
GATEWAY = "it needs a gateway that runs"
REPLICAS = "it needs Redis, or addresses of other machines: tests/docs/test_replicas_page.py walks through the page"
DOTS = "the reader puts a value for the dots"
OPENFGA = "it needs OpenFGA; tests/access/test_ext_authz.py asks real services of Envoy's protocol"

CANNOT: dict[str, str] = {
    "pipx install holdfast-mcp": FRESH,
    "pipx install 'holdfast-mcp[otel]'": FRESH,
    "pipx upgrade holdfast-mcp": FRESH,
    "pipx uninstall holdfast-mcp": FRESH,
    "uv tool install holdfast-mcp": FRESH,
    "uvx holdfast-mcp serve --demo": FRESH,
    "sudo apt install ./holdfast-mcp_0.2.0_python3.11_amd64.deb": FRESH,
    "pip install 'holdfast-mcp[google-adk]'": FRAMEWORK,
    "pip install 'holdfast-mcp[langchain]'": FRAMEWORK,
    "pip install 'holdfast-mcp[openai-agents]'": FRAMEWORK,
    "pip install 'holdfast-mcp[pydantic-ai]'": FRAMEWORK,
    "make serve": "it installs into the clone, from the network",
    "make test": "it runs this test",
    ".venv/bin/pre-commit install": "it changes the hooks of the clone",
    "HOLDFAST_SESSION_KEY=… holdfast serve": DOTS,
    "export HOLDFAST_URL=https://hub.example.com HOLDFAST_CONTROL_TOKEN=…": DOTS,
    "holdfast serve --fleet rediss://redis.internal:6380 --advertise tcp://10.0.0.7:8766": REPLICAS,
    "holdfast serve --config mcp.json --only db --listen-hubs 10.0.0.6:4654 --session-key-file keys": REPLICAS,
    "pip install grpcio xds-protos": OPENFGA,
}
"""Commands that a test cannot run as printed, and why."""

CANNOT_BEGIN = {
    "helm install ": CLUSTER,
    "helm test ": CLUSTER,
    "kubectl ": CLUSTER,
    "docker ": DOCKER,
    "HOLDFAST_MCP_JSON=$PWD/mcp.json docker ": DOCKER,
    "curl ": GATEWAY,
    "fga ": OPENFGA,
    "OPENFGA_URL=": OPENFGA,
    "holdfast gateway bridge ": "it writes into /etc; tests/gateway run it with another file",
}

SERVES = re.compile(r"\bholdfast serve\b")
NEEDS_HUB = ("holdfast demo tour", "holdfast status --watch", "holdfast status --open", "holdfast serve --takeover")
FOLLOWS = ("holdfast audit --follow",)
"""Commands that run until they are ended."""

SAYS: dict[str, str] = {
    "holdfast import": "cursor",
    "holdfast import cursor": "words",
    "holdfast import cursor --apply": "Cursor uses the hub now",
    "holdfast import cursor --undo": "restored",
    "holdfast list": "files",
    "holdfast remove files": "removed files",
    "holdfast remove --undo": "undone",
    "holdfast add files -- npx -y @modelcontextprotocol/server-filesystem .": "It works: 2 tools.",
    'holdfast add github https://api.example.com/mcp --header "Authorization: Bearer $TOKEN"': "added github",
    "holdfast doctor --json": '"version"',
    "holdfast login github": "did not say how to log in",
    "holdfast service logs -f": "journalctl",
    "holdfast demo tour": "notes",
    "holdfast status --open": "opening the status page",
}
"""What a command prints, where an example in the documentation does not already say it."""


def reason(command: str) -> str:
    """Why a command cannot be run; empty if it can."""
    begins = next((why for begin, why in CANNOT_BEGIN.items() if command.startswith(begin)), "")
    return CANNOT.get(command, begins)


class Sandbox:
    """A home, a project folder and a network."""

    def __init__(self, folder: Path, namespace: str) -> None:
        self.home = folder / "home"
        self.project = folder / "project"
        self._namespace = namespace
        self.environ = {
            "PATH": f"{folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(self.home),
            "TERM": "dumb",
            "BROWSER": "a-browser",
            "COLUMNS": "80",
            "LANG": "C.UTF-8",
            "TOKEN": "a-token-of-this-test-0123456789",
            "HOLDFAST_TOKEN_STORE": "file",
        }

    def start(self, script: str) -> subprocess.Popen[str]:
        command = ["nsenter", f"--net={self._namespace}", "bash", "-c", script]
        return subprocess.Popen(
            command,
            cwd=self.project,
            env=self.environ,
            text=True,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def run(self, script: str, *, within: float = 60) -> tuple[int, str]:
        process = self.start(script)
        try:
            said, _ = process.communicate(timeout=within)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGTERM)
            said, _ = process.communicate(timeout=30)
        return process.returncode, said

    @contextmanager
    def serving(self, script: str) -> Iterator[str]:
        """Run until it listens, and end it after the block; gives what it printed."""
        process = self.start(script)
        assert process.stdout is not None
        said = ""
        try:
            for line in process.stdout:
                said += line
                if "ready when:" in line:
                    break
            yield said
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.communicate(timeout=30)


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    if os.geteuid() != 0 or shutil.which("unshare") is None or shutil.which("ip") is None:
        pytest.skip("needs root, unshare and ip: the commands use the default port")
    (tmp_path / "home" / ".cursor").mkdir(parents=True)
    server = {"command": sys.executable, "args": [str(ROOT / "docs/examples/files_server.py")]}
    (tmp_path / "home/.cursor/mcp.json").write_text(f'{{"mcpServers": {{"words": {json.dumps(server)}}}}}')
    project = tmp_path / "project"
    project.mkdir()
    for name in ("docs", "deploy", "schema"):
        (project / name).symlink_to(ROOT / name)
    github = {"url": "http://127.0.0.1:9/mcp"}
    own = f'{{"mcpServers": {{"files": {json.dumps(server)}, "github": {json.dumps(github)}}}}}'
    (project / "mcp.json").write_text(own)
    (project / "FILE").write_text(own)
    (tmp_path / "home/.config/holdfast").mkdir(parents=True)
    (tmp_path / "home/.config/holdfast/mcp.json").write_text('{"mcpServers": {}}')
    (project / "token").write_text("a-token-of-this-test-0123456789abcdef")
    (project / "keys").write_text("a-key-of-this-test-0123456789abcdefghijk\n")
    authority = trustme.CA()
    issued = authority.issue_cert("hub.example.com")
    issued.private_key_pem.write_to_path(str(project / "key.pem"))
    issued.cert_chain_pems[0].write_to_path(str(project / "cert.pem"))
    for name, of in (("hub.key", "key.pem"), ("hub.pem", "cert.pem"), ("client-secret", "token")):
        shutil.copy(project / of, project / name)
    authority.cert_pem.write_to_path(str(project / "ca.pem"))
    state = tmp_path / "home/.local/state/holdfast"
    audit = AuditFiles(state / "audit", read_key(state / "audit.key", make=True))
    audit.write([called("read_file")])
    audit.close()
    (project / "expectations.json").write_text(
        '{"tests": [{"user": "bob", "tool": "files/read_file", "expect": "allow"}]}'
    )
    for secret in ("token", "keys", "key.pem", "hub.key", "client-secret"):
        (project / secret).chmod(0o600)
    _programs(tmp_path / "bin")
    hold = ["unshare", "--net", "bash", "-c", "ip link set lo up; echo up; exec sleep 600"]
    with subprocess.Popen(hold, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "up\n"
            made = Sandbox(tmp_path, f"/proc/{holder.pid}/ns/net")
            TrustStore(made.environ).trust(project / "mcp.json", (project / "mcp.json").read_bytes())
            yield made
        finally:
            holder.kill()


def _programs(folder: Path) -> None:
    """Programs in the place of those that a test cannot have."""
    folder.mkdir()
    server = f'exec "{sys.executable}" "{ROOT / "docs/examples/files_server.py"}"'
    texts = {
        "npx": server,
        "a-browser": "exit 0",
        **dict.fromkeys(("systemctl", "loginctl", "journalctl"), 'echo "$0" "$@"'),
    }
    for name, text in texts.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)


PAGES = [page for page in documented_pages() if any(not reason(command) for command in commands_of(page))]


@pytest.mark.requirement("DX-1")
def test_a_reason_is_given_for_commands_that_exist() -> None:
    printed = {command for page in documented_pages() for command in commands_of(page)}
    assert set(CANNOT) <= printed
    assert set(SAYS) <= printed
    assert set(FOLLOWS) <= printed
    assert all(any(one.startswith(begin) for one in printed) for begin in CANNOT_BEGIN)


@pytest.mark.long
@pytest.mark.requirement("DX-1")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_a_page_runs_as_printed(page: str, sandbox: Sandbox) -> None:
    for command in commands_of(page):
        if reason(command):
            continue
        said = ran_as_printed(sandbox, command)
        assert "Traceback" not in said, f"{command}\n{said}"
        assert "command not found" not in said, f"{command}\n{said}"
        assert SAYS.get(command, "") in said, f"{command}\n{said}"


def ran_as_printed(sandbox: Sandbox, command: str) -> str:
    if command in NEEDS_HUB:
        running = "holdfast serve" if "takeover" in command else "holdfast serve --demo"
        with sandbox.serving(running):
            if SERVES.search(command):
                with sandbox.serving(command) as said:
                    return said
            return sandbox.run(command, within=8 if "--watch" in command else 90)[1]
    if SERVES.search(command):
        with sandbox.serving(command) as said:
            assert "MCP endpoint: http" in said, f"{command}\n{said}"
            return said
    if command in FOLLOWS:
        code, said = sandbox.run(command, within=8)
        assert code == -signal.SIGTERM, f"{command}\nexit code {code}\n{said}"
        return said
    code, said = sandbox.run(command)
    # 1 is an answer too: a server of the example is down, or no hub runs. 2 would be wrong usage. `check` has its own.
    answers = (0, 10, 11, 12) if command.startswith("holdfast check") else (0, 1)
    assert code in answers, f"{command}\nexit code {code}\n{said}"
    return said
