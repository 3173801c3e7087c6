"""supergateway: a bridge from one stdio server to HTTP."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import ClassVar

from benchmarks.hubs.adapter import Launch, NpmAdapter, Setting, Setup
from benchmarks.processes import node

__all__ = ["Supergateway"]

README = "https://github.com/supercorp-ai/supergateway/blob/main/README.md"


class Supergateway(NpmAdapter):
    """One child for each session."""

    name = "supergateway"
    version = "4.0.0"
    kind = "bridge"
    package = "supergateway"
    documentation = (README, "https://www.npmjs.com/package/supergateway")
    behind = "stdio"
    settings = (
        Setting("--outputTransport streamableHttp", "its default is the older HTTP+SSE", README),
        Setting("--stateful", "sessions, as all other hubs have them", README),
        Setting("--logLevel none", "logs are off for all", README),
    )
    missing: ClassVar[Mapping[str, str]] = {"one_dead": "it takes one server"}

    def launch(self, setup: Setup) -> Launch:
        """The command of the server is one argument."""
        (server,) = setup.servers.values()
        options = ["--stdio", shlex.join(server.command), "--outputTransport", "streamableHttp", "--stateful"]
        options += ["--logLevel", "none", "--port", str(setup.port)]
        return Launch([node(), f"{self.script()}/dist/index.js", *options])
