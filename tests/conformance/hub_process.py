"""The hub and its HTTP face as a process, with nothing of the command line around them."""

from __future__ import annotations

import argparse
import socket
from pathlib import Path

import anyio
import uvicorn

from holdfast.config.load import load_config
from holdfast.config.spec import Config
from holdfast.front.app import create_app
from holdfast.hub.hub import Hub

# A cold start of every server behind the hub; those that take longer are seen as what they are.
_READY = 20.0


async def _serve(config: Config, announce: Path) -> None:
    hub = Hub(config)
    app = create_app(hub)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        async with hub:
            await hub.ready(_READY)
            await anyio.Path(announce).write_text(f"http://127.0.0.1:{listening.getsockname()[1]}\n")
            server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))
            await server.serve(sockets=[listening])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--announce", type=Path, required=True)
    asked = parser.parse_args()
    anyio.run(_serve, load_config(asked.config), asked.announce)
