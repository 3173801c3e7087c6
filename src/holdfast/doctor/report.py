"""What an examination found, of the whole and of each server: the shape of ``doctor --json``, versioned."""

from __future__ import annotations

from typing import Literal, TypeAlias

from pydantic import Field

from holdfast.doctor.findings import Finding, Shape

__all__ = ["VERSION", "CheckResult", "Health", "HubSeen", "LiveState", "Repaired", "Report", "ServerReport", "worst"]

VERSION = 1
"""Raised when a field is renamed, removed or means something else; not when one is added."""

Health: TypeAlias = Literal["healthy", "warned", "failed", "disabled"]
CheckStatus: TypeAlias = Literal["passed", "warned", "failed", "skipped"]


class CheckResult(Shape):
    """What one check saw."""

    check: str = Field(description="The check's id; `holdfast doctor --list-checks` lists them")
    status: CheckStatus
    seen: str = Field(default="", description="What was seen, in a few words; for a skipped check, why")
    findings: tuple[Finding, ...] = ()
    elapsed_ms: float = 0.0


class LiveState(Shape):
    """The same server in a hub that runs on this machine."""

    state: str
    status: str
    breaker: str
    reason: str = ""
    retry_in: float | None = Field(default=None, description="Seconds until the hub tries again by itself")
    agrees: bool = Field(description="Whether the hub and this examination say the same of the server")
    difference: str = Field(default="", description="Where they differ: how, and why that can be")


class ServerReport(Shape):
    """One server."""

    id: str
    transport: str = Field(description="stdio, http or sse; empty where the definition cannot be read")
    target: str = Field(default="", description="Its command or URL, masked")
    health: Health
    tools: int | None = Field(
        default=None, description="How many tools it listed that its definition shows; null if it did not"
    )
    checks: tuple[CheckResult, ...] = ()
    hub: LiveState | None = Field(default=None, description="Its state in a running hub; null where none has it")
    elapsed_ms: float = 0.0

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Everything that was found, in the order of the checks."""
        return tuple(found for result in self.checks for found in result.findings)


class Repaired(Shape):
    """What ``--fix`` did, or could not do."""

    code: str
    server: str = Field(default="", description="Whose; empty where it concerns the whole")
    done: bool
    words: str


class HubSeen(Shape):
    """A hub that runs on this machine with this configuration."""

    url: str
    version: str
    pid: int


class Report(Shape):
    """A whole examination."""

    version: int = VERSION
    holdfast: str = Field(description="The version of Holdfast that made it")
    ok: bool = Field(description="Whether nothing failed; the exit code is 0 then, else 1")
    file: str | None = Field(default=None, description="The configuration; null if none was found")
    searched: tuple[str, ...] = Field(default=(), description="Where a configuration was looked for")
    served: tuple[str, ...] = Field(
        default=(), description="Where none was found: the files that hubs on this machine serve"
    )
    hub: HubSeen | None = Field(default=None, description="The running hub beside which the servers were seen")
    checks: tuple[CheckResult, ...] = Field(default=(), description="What concerns the whole, not one server")
    servers: tuple[ServerReport, ...] = ()
    repairs: tuple[Repaired, ...] = ()
    elapsed_ms: float = 0.0

    def count(self, health: Health) -> int:
        """How many servers are in that state."""
        return sum(server.health == health for server in self.servers)


def worst(findings: tuple[Finding, ...]) -> Literal["passed", "warned", "failed"]:
    """What a check's findings make of it."""
    severities = {found.severity for found in findings}
    if "error" in severities:
        return "failed"
    return "warned" if "warning" in severities else "passed"
