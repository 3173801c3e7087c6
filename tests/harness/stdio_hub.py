"""A hub that serves the client who started it over stdio; the configuration is the one argument, as JSON."""

from __future__ import annotations

import json
import sys

import anyio

from holdfast.endpoint.broker import Broker
from holdfast.front.stdio import serve_stdio
from holdfast.hub.hub import Hub


async def main(config: str) -> None:
    hub = Hub.from_config(json.loads(config))
    broker = Broker(hub)
    async with hub:
        await hub.ready(20)
        await serve_stdio(hub, broker=broker)


if __name__ == "__main__":
    anyio.run(main, sys.argv[1])
