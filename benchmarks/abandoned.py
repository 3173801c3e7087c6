"""Clients that open a session, use it, and never come back: their memory is free again when the sessions idled out.

The hub is the ordinary one, except that a session is idle after seconds instead of minutes.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks.clients import LegacyClient
from benchmarks.processes import ROOT, Tree, started, upstream, wait_until
from benchmarks.report import Check, Report, Row

__all__ = ["QUICK", "REQUIREMENTS", "measure"]

REQUIREMENTS = ("PERF-8",)

SESSIONS = 10_000
WARM_UP = 200
IDLE_SECONDS = 20.0
GROWTH = 1.1

QUICK: dict[str, Any] = {"rounds": 1, "sessions": 5, "warm_up": 2, "idle": 0.2}

_IMPATIENT = """
import sys
from holdfast.front import session_store as sessions
sessions.SESSION_IDLE_SECONDS = float(sys.argv.pop(1))
sessions.SWEEP_SECONDS = 0.5
from holdfast.cli.entry import main
main()
"""


def measure(*, rounds: int = 1, sessions: int = SESSIONS, warm_up: int = WARM_UP, idle: float = IDLE_SECONDS) -> Report:
    """Open this many sessions, leave them, and wait until they idled out; in each round on the same hub."""
    after: list[float] = []
    kept, opened = "", 0
    with upstream("--eras", "legacy") as (_, ports), tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "mcp.json"
        server = {"type": "http", "url": f"http://127.0.0.1:{ports[0]}/mcp"}
        file.write_text(json.dumps({"mcpServers": {"s": server}}))
        command = [sys.executable, "-c", _IMPATIENT, str(idle), "serve", "--no-watch", "--port", "0", "--config"]
        env = {"HOME": folder, "XDG_STATE_HOME": folder, "PYTHONPATH": str(ROOT / "src")}
        with started([*command, str(file)], env=env, pipe=True) as process:
            assert process.stdout is not None
            found = re.search(r"(http://\S+)/mcp", process.stdout.readline())
            assert found is not None
            wait_until(f"{found[1]}/readyz", process)
            tree, url = Tree(process.pid), f"{found[1]}/mcp"
            _abandon(url, warm_up)
            time.sleep(idle + 1.5)
            before = tree.memory()
            for _ in range(rounds):
                kept = _abandon(url, sessions)
                opened = tree.memory()
                time.sleep(idle + 1.5)
                after.append(tree.memory())
            comes_back = _is_served(url, kept)
    share = after[-1] / before
    return Report(
        name="abandoned",
        title=f"{sessions:,} abandoned sessions, after they idled out",
        requirements=REQUIREMENTS,
        about="Each client shakes hands, lists the tools now and then, and leaves without ending its session.",
        rows=(
            Row(label="before", memory=before),
            Row(label="all opened", memory=opened),
            Row(label="idled out", memory=after[-1], note=f"{share:.2f} of before"),
        ),
        checks=(
            Check(
                demand=f"PERF-8 memory is within {GROWTH - 1:.0%} of the start",
                found=f"{share - 1:+.1%}",
                met=share <= GROWTH,
            ),
            Check(demand="a session that comes back is served", found=str(comes_back), met=comes_back),
        ),
    )


def _abandon(url: str, sessions: int) -> str:
    """Open sessions and leave them; returns the id of the first."""
    first = ""
    with closing(LegacyClient(url)) as client:
        for number in range(sessions):
            client.open()
            first = first or str(client.session)
            if number % 10 == 0:
                client.tools()
    return first


def _is_served(url: str, session: str) -> bool:
    with closing(LegacyClient(url)) as client:
        client.session = session
        return bool(client.tools())
