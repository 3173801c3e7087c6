"""Runs the protocol's conformance suite against a URL, or a client's command, and reads its verdict by scenario.

``make .tools/node/.ready`` installs the suite. It prints a summary and saves every check that it made.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import anyio

from tests.peers.everything import node
from tests.peers.process import foreign_process

__all__ = ["REQUIRED", "REQUIRED_OF_CLIENTS", "Requirements", "Score", "run_client_suite", "run_suite"]

Requirements = Literal["2025-11-25", "2026-07-28"]

REQUIRED: Mapping[Requirements, int] = {"2025-11-25": 30, "2026-07-28": 37}
"""How many scenarios each revision of the protocol requires of a server."""

REQUIRED_OF_CLIENTS: Mapping[Requirements, int] = {"2025-11-25": 18, "2026-07-28": 32}
"""How many it requires of a client."""

_ROOT = Path(__file__).parents[2]
_SUITE = _ROOT / ".tools/node/node_modules/@modelcontextprotocol/conformance/dist/index.js"
# A run takes 7 s on an idle machine.
_RUN = 90.0
_SCENARIO = re.compile(r"^(?P<mark>[✓✗]) (?P<name>[\w/-]+): (?P<passed>\d+) passed", re.MULTILINE)
_UNSCORED = re.compile(r"^  [✓✗] (?P<name>[\w/-]+) \([\w-]+\)$", re.MULTILINE)


@dataclass(frozen=True)
class Score:
    """What the suite found: checks passed per scenario, those that failed, and why."""

    passed: Mapping[str, int]
    failed: frozenset[str]
    unscored: frozenset[str]
    reasons: Mapping[str, tuple[str, ...]]

    @property
    def required(self) -> frozenset[str]:
        """The scenarios that count."""
        return frozenset(self.passed) - self.unscored

    @property
    def fulfilled(self) -> frozenset[str]:
        """The scenarios that count and that passed."""
        return self.required - self.failed

    @property
    def remarks(self) -> frozenset[tuple[str, str]]:
        """The checks that failed or were remarked upon, also where nothing counts, each with its scenario."""
        return frozenset(
            (name, reason.partition(":")[0]) for name, reasons in self.reasons.items() for reason in reasons
        )

    def __str__(self) -> str:
        head = f"{len(self.fulfilled)}/{len(self.required)}"
        lines = [
            f"{name}: {reason}"
            for name in sorted(self.failed - self.unscored)
            for reason in self.reasons.get(name, ("?",))
        ]
        return "\n  ".join([head, *lines])


async def run_suite(url: str, requirements: Requirements, *, folder: Path) -> Score:
    """Run every scenario that the revision requires of a server, and those that it only reports."""
    return await _run(("server", "--url", url), requirements, folder)


async def run_client_suite(command: str, requirements: Requirements, *, folder: Path) -> Score:
    """Run every scenario that the revision requires of a client, and those that it only reports."""
    # All scenarios run at once, so on a busy machine each takes as long as all of them.
    return await _run(("client", "--command", command, "--timeout", "60000"), requirements, folder)


async def _run(what: tuple[str, ...], requirements: Requirements, folder: Path) -> Score:
    assert _SUITE.exists(), f"{_SUITE.relative_to(_ROOT)} is missing: run `make .tools/node/.ready`"
    saved, log = folder / f"checks-{requirements}", folder / f"suite-{requirements}.log"
    saved.mkdir(parents=True, exist_ok=True)
    command = (node(), _SUITE, *what, "--requirements", requirements, "--output-dir", saved)
    async with foreign_process(command, log=log) as suite:
        with anyio.fail_after(_RUN):
            await suite.ended()
    return _read(await asyncio.to_thread(log.read_text), saved)


def _read(printed: str, saved: Path) -> Score:
    summary = printed.partition("SUMMARY ===")[2]
    assert summary, f"the suite gave no verdict; it said:\n{printed}"
    scenarios = list(_SCENARIO.finditer(summary))
    return Score(
        passed={match["name"]: int(match["passed"]) for match in scenarios},
        failed=frozenset(match["name"] for match in scenarios if match["mark"] == "✗"),
        unscored=frozenset(match["name"] for match in _UNSCORED.finditer(summary)),
        reasons={match["name"]: tuple(_reasons(saved, match["name"])) for match in scenarios},
    )


def _reasons(saved: Path, scenario: str) -> list[str]:
    files = [*saved.glob(f"server-{scenario}-2*/checks.json"), *saved.glob(f"{scenario}-2*/checks.json")]
    checks = [check for file in files for check in json.loads(file.read_text())]
    return [f"{check['id']}: {check.get('errorMessage')}" for check in checks if check["status"] in _BAD]


_BAD = ("FAILURE", "WARNING")
