"""Authorization servers of the field, as processes: those of the SDKs, FastMCP's, and ``oidc-provider``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from holdfast.auth.token_endpoint import new_key, public_key
from tests.integrations.environments import python_of_fastmcp
from tests.peers import everything
from tests.peers.guarded import PLANTED
from tests.peers.leaks import RUN_MARK
from tests.peers.tls import Certificates

__all__ = [
    "KEY",
    "METHODS",
    "NODE_MODULES",
    "NODE_PROGRAMS",
    "SECRET",
    "RealServers",
    "node",
    "node_program",
    "node_servers",
    "people_on_node",
    "people_on_python",
    "python",
    "python_servers",
    "running_issuer",
    "running_ladder",
]

NODE_PROGRAMS = Path(__file__).with_name("servers")
NODE_MODULES = Path(__file__).parents[2] / ".tools/node/node_modules"

METHODS = ("none", "client_secret_basic", "client_secret_post", "client_secret_jwt", "private_key_jwt")
"""The client authentication methods that ``oidc-provider`` offers by default."""

SECRET = f"{PLANTED}a+b/c:d%e&f=0123456789012345678901234567890123456789"
"""With characters that HTTP Basic and a form encode."""

KEY, _ = new_key([])


@dataclass(frozen=True)
class RealServers:
    """The MCP endpoint of each, by name."""

    endpoints: Mapping[str, str]

    def __getitem__(self, name: str) -> str:
        return self.endpoints[name]


@pytest.fixture(scope="session")
def python() -> Iterator[RealServers]:
    """The SDK's authorization server, FastMCP's, and FastMCP's proxy."""
    with python_servers(python_of_fastmcp(), "sdk", "fastmcp", "proxy") as running:
        yield running


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServers]:
    """The TypeScript SDK's authorization server, and ``oidc-provider``."""
    with node_servers(tmp_path_factory.mktemp("node")) as running:
        yield running


@contextmanager
def python_servers(python: Path, *names: str) -> Iterator[RealServers]:
    """The servers of ``servers/python.py``, in the environment of this Python."""
    with _running((python, NODE_PROGRAMS / "python.py", *names), {"FASTMCP_CHECK_FOR_UPDATES": "off"}) as servers:
        yield servers


@contextmanager
def node_servers(folder: Path, modules: Path = NODE_MODULES) -> Iterator[RealServers]:
    """The servers of ``servers/node.cjs``; the folder is for the certificate of its document."""
    folder.mkdir(parents=True, exist_ok=True)
    _, _, authority = Certificates().write_server(folder)
    environment = {
        "NODE_PATH": str(modules),
        "NODE_EXTRA_CA_CERTS": str(authority),
        "PATH_TLS": str(folder),
        "CLIENT_SECRET": SECRET,
        "CLIENT_JWK": json.dumps(public_key(KEY)),
        "SERVER_JWK": new_key([])[0],
    }
    with _running((everything.node(), NODE_PROGRAMS / "node.cjs"), environment) as servers:
        yield servers


@contextmanager
def running_issuer(hub: str) -> Iterator[RealServers]:
    """The issuer of ``servers/issuer.cjs`` for the hub at an address."""
    environment = {
        "NODE_PATH": str(NODE_MODULES),
        "HUB": hub,
        "CLIENT_SECRET": SECRET,
        "SERVER_JWK": new_key([])[0],
    }
    with _running((everything.node(), NODE_PROGRAMS / "issuer.cjs"), environment) as servers:
        yield servers


@contextmanager
def running_ladder(hub: str) -> Iterator[RealServers]:
    """The providers and the MCP server of ``servers/ladder.cjs`` for the hub at an address."""
    environment = {
        "NODE_PATH": str(NODE_MODULES),
        "HUB": hub,
        "CLIENT_SECRET": SECRET,
        "SERVER_JWK": new_key([])[0],
    }
    with _running((everything.node(), NODE_PROGRAMS / "ladder.cjs"), environment) as servers:
        yield servers


@contextmanager
def people_on_node() -> Iterator[str]:
    """The server of people before ``oidc-provider``, in ``servers/people.cjs``; gives its MCP endpoint."""
    environment = {"NODE_PATH": str(NODE_MODULES), "SERVER_JWK": new_key([])[0]}
    with _running((everything.node(), NODE_PROGRAMS / "people.cjs"), environment) as servers:
        yield servers["people"]


@contextmanager
def people_on_python() -> Iterator[str]:
    """The server of people before the SDK's authorization server, in ``servers/people.py``; gives its MCP endpoint."""
    with _running((sys.executable, NODE_PROGRAMS / "people.py"), {}) as servers:
        yield servers["people"]


@contextmanager
def node_program(name: str, modules: Path) -> Iterator[RealServers]:
    """The servers of another program in ``servers``, with the packages of this folder."""
    with _running((everything.node(), NODE_PROGRAMS / name), {"NODE_PATH": str(modules)}) as servers:
        yield servers


@contextmanager
def _running(command: Sequence[str | Path], environment: Mapping[str, str]) -> Iterator[RealServers]:
    whole = {"PATH": os.environ["PATH"], "HOLDFAST_TEST_RUN": RUN_MARK, **environment}
    # A file takes all that the servers log; a pipe that is not read would stop them.
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env=whole, text=True) as process,
    ):
        assert process.stdout is not None
        try:
            said = process.stdout.readline()
            assert said, (log.seek(0), log.read())
            yield RealServers(json.loads(said))
        finally:
            process.kill()
