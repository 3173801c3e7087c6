"""A hub that is installed and cannot start."""

from __future__ import annotations

import sys

from benchmarks.hubs.adapter import Adapter, Launch, Setup

__all__ = ["BrokenHub"]


class BrokenHub(Adapter):
    name = "Broken"
    version = "0.0.1"
    kind = "hub"
    documentation = ("https://example.com/broken",)

    def install(self) -> None:
        pass

    def launch(self, setup: Setup) -> Launch:
        return Launch([sys.executable, "-c", "raise SystemExit('it needs a licence')"])
