"""The report of an examination: the versioned format of ``doctor --json``."""

from __future__ import annotations

from typing import Literal, TypeAlias

from pydantic import Field

from holdfast.doctor.findings import Finding, ReportModel

__all__ = ["VERSION", "CheckResult", "Health", "HubSeen", "LiveState", "Repaired", "Report", "ServerReport", "worst"]

VERSION = 1
"""Incremented when a field is renamed, removed or changes its meaning; not when one is added."""

Health: TypeAlias = Literal["healthy", "warned", "failed", "disabled"]
CheckStatus: TypeAlias = Literal["passed", "warned", "failed", "skipped"]


class CheckResult(ReportModel):
    """The result of one check."""

    check: str = Field(description="The check's id; `holdfast doctor --list-checks` lists them")
    status: CheckStatus
    seen: str = Field(default="", description="What the check saw, in short; for a skipped check, the reason")
    findings: tuple[Finding, ...] = ()
    elapsed_ms: float = 0.0


class LiveState(ReportModel):
    """The same server in a running hub on this machine."""

    state: str
    status: str
    breaker: str
    reason: str = ""
    retry_in: float | None = Field(default=None, description="Seconds until the hub tries again without being asked")
    agrees: bool = Field(description="Whether the hub and this examination agree about the server")
    difference: str = Field(default="", description="How they differ, and possible reasons")


class ServerReport(ReportModel):
    """One server."""

    id: str
    transport: str = Field(description="stdio, http or sse; empty if the definition cannot be read")
    target: str = Field(default="", description="Its command or URL, masked")
    health: Health
    tools: int | None = Field(
        default=None, description="The number of listed tools that its definition does not hide; null if it listed none"
    )
    checks: tuple[CheckResult, ...] = ()
    hub: LiveState | None = Field(default=None, description="Its state in a running hub; null if there is no such hub")
    elapsed_ms: float = 0.0

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All findings, in the order of the checks."""
        return tuple(found for result in self.checks for found in result.findings)


class Repaired(ReportModel):
    """A repair by ``--fix``, done or failed."""

    code: str
    server: str = Field(default="", description="The server; empty if the repair concerns no single server")
    done: bool
    words: str


class HubSeen(ReportModel):
    """A running hub on this machine that serves this configuration."""

    url: str
    version: str
    pid: int


class Report(ReportModel):
    """A whole examination."""

    version: int = VERSION
    holdfast: str = Field(description="The version of Holdfast that made it")
    ok: bool = Field(description="Whether no check failed; the exit code is 0 if so, else 1")
    file: str | None = Field(default=None, description="The configuration; null if none was found")
    searched: tuple[str, ...] = Field(default=(), description="The paths that were searched for a configuration")
    served: tuple[str, ...] = Field(
        default=(), description="If none was found: the files that hubs on this machine serve"
    )
    hub: HubSeen | None = Field(default=None, description="The running hub that the servers were compared with")
    checks: tuple[CheckResult, ...] = Field(default=(), description="Checks that concern no single server")
    servers: tuple[ServerReport, ...] = ()
    repairs: tuple[Repaired, ...] = ()
    elapsed_ms: float = 0.0

    def count(self, health: Health) -> int:
        """The number of servers with that health."""
        return sum(server.health == health for server in self.servers)


def worst(findings: tuple[Finding, ...]) -> Literal["passed", "warned", "failed"]:
    """The status of a check with these findings."""
    severities = {found.severity for found in findings}
    if "error" in severities:
        return "failed"
    return "warned" if "warning" in severities else "passed"
