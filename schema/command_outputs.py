"""The shape of every ``--json`` output; ``generate.py`` publishes a JSON Schema of each.

The version of an output increases when a field is renamed, removed or changes its meaning; new fields may come at any
time, so a reader ignores what it does not know.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

from holdfast.control import Approval, HubView, Server, WaitingCall

__all__ = ["OUTPUTS"]

Status = Literal["available", "transient", "permanent", "denied"]


class Versioned(TypedDict):
    """Every output has the version of its shape."""

    version: int


class TriedServer(TypedDict):
    """A server that was just added, tried once."""

    status: Status
    error: str | None
    tools: int


class AddOutput(Versioned):
    """`holdfast add`."""

    file: str
    written: bool
    server: str
    definition: dict[str, Any]
    needs: list[str]
    check: TriedServer | None


class UndoneOutput(Versioned):
    """`holdfast add --undo` and `holdfast remove --undo`."""

    file: str
    undone: list[str]


class RemoveOutput(Versioned):
    """`holdfast remove`."""

    file: str
    written: bool
    removed: list[str]


class ListedServer(TypedDict):
    """A server of an mcp.json."""

    id: str
    transport: Literal["stdio", "http", "sse"] | None
    target: str | None
    state: Literal["enabled", "disabled", "not usable"]
    problem: str | None


class ListOutput(Versioned):
    """`holdfast list`."""

    file: str
    servers: list[ListedServer]


class ApprovalsOutput(Versioned):
    """`holdfast approve` without a server."""

    approvals: list[Approval]


class ApprovedTool(TypedDict):
    """A change that was approved."""

    server: str
    tool: str
    kind: str


class RefusedTool(ApprovedTool):
    """A change that was not approved, and why."""

    error: str
    hint: str | None


class ApprovedOutput(Versioned):
    """`holdfast approve SERVER`."""

    approved: list[ApprovedTool]
    refused: list[RefusedTool]


class AccessDecided(TypedDict):
    """What the access rules decide."""

    effect: Literal["allow", "ask", "deny"]
    rule: str
    reason: str
    approver: Literal["caller", "operator"] | None
    listed: bool
    service: str | None


class AccessQuestion(TypedDict):
    """Who asks for what."""

    user: str
    kind: Literal["tool", "prompt", "resource"]
    server: str
    name: str


class ExplainOutput(Versioned, AccessQuestion, AccessDecided):
    """`holdfast access explain`."""

    possible: list[Literal["allow", "ask", "deny"]]


class AccessTested(AccessQuestion, AccessDecided):
    """One test of a table."""

    number: int
    passed: bool
    expected: dict[str, Any]


class AccessTestOutput(Versioned):
    """`holdfast access test`."""

    passed: int
    failed: int
    tests: list[AccessTested]


class ReplayedCalls(TypedDict):
    """Recorded calls with the same change."""

    change: Literal["refused", "asks", "allowed", "unknown"]
    user: str
    server: str
    name: str
    effect: str
    rule: str
    reason: str
    calls: int


class ReplayOutput(Versioned):
    """`holdfast access replay`."""

    judged: int
    counts: dict[str, int]
    calls: list[ReplayedCalls]


class CallsOutput(Versioned):
    """`holdfast approve --calls`."""

    calls: list[WaitingCall]


class DecidedOutput(Versioned):
    """`holdfast approve --call ID`."""

    call: WaitingCall
    approved: bool


class LadderRung(TypedDict):
    """One source of a user's credentials, and whether she can have one by it."""

    rung: Literal["assertion", "exchange", "login", "shared"]
    open: bool
    words: str


class LoginRow(TypedDict):
    """The credentials of a server. Only a login has more than its kind."""

    id: str
    credentials: str
    usable: NotRequired[bool]
    expired: NotRequired[bool]
    expires_at: NotRequired[float | None]
    refreshable: NotRequired[bool]
    refused: NotRequired[str | None]
    scope: NotRequired[str]
    issuer: NotRequired[str]
    resource: NotRequired[str]
    client_id: NotRequired[str]
    source: NotRequired[str]
    place: NotRequired[str]
    ladder: NotRequired[list[LadderRung]]


class AuthOutput(Versioned):
    """`holdfast auth`."""

    servers: list[LoginRow]


class CallOutput(Versioned):
    """`holdfast call`: the result of the tool, with MCP's own names."""

    content: list[dict[str, Any]]
    isError: bool
    structuredContent: NotRequired[Any]


class CheckedRequirement(TypedDict):
    """A server or a tool that is required, and what became of it."""

    require: str
    server: str
    tool: str | None
    verdict: Literal["ready", "missing", "denied", "held", "permanent", "not_ready"]
    reason: str | None
    hint: str | None
    retry_in: float | None
    tools: int
    login: bool


class CheckOutput(Versioned):
    """`holdfast check`."""

    ok: bool
    code: Literal[0, 10, 11, 12]
    hub: str | None
    requirements: list[CheckedRequirement]


class ImportedServer(TypedDict):
    """A server of a client, and what the import does with it."""

    name: str
    client: str
    file: str
    outcome: Literal["new", "there", "renamed", "conflict", "unusable"]
    renamed: str | None
    reason: str | None
    needs: list[str]
    dropped: list[str]


class PointedClient(TypedDict):
    """A client that uses the hub."""

    client: str
    file: str
    moved: list[str]
    backup: str | None


class ImportProblem(TypedDict):
    """A file that could not be read."""

    message: str
    hint: str


class ImportOutput(Versioned):
    """`holdfast import`."""

    config: str
    written: bool
    servers: list[ImportedServer]
    pointed: list[PointedClient]
    problems: list[ImportProblem]


class SetupService(TypedDict):
    """Whether the hub runs in the background, and why not."""

    running: bool
    reason: str | None


class SetupOutput(ImportOutput):
    """`holdfast setup`."""

    service: SetupService
    checks: list[CheckedRequirement]


class UninstallOutput(Versioned):
    """`holdfast uninstall`."""

    done: list[str]
    problems: list[str]
    left: dict[str, str]


class RestoredClient(TypedDict):
    """A client's file that was restored."""

    client: str
    file: str
    restored: list[str]
    exact: bool


class ImportUndoneOutput(Versioned):
    """`holdfast import --undo`."""

    written: bool
    undone: list[RestoredClient]


class ActedServer(TypedDict):
    """A server after an action, or the reason why the action failed."""

    id: str
    ok: bool
    server: NotRequired[Server]
    error: NotRequired[str]
    hint: NotRequired[str | None]


class ActedOutput(Versioned):
    """`holdfast reconnect`, `enable` and `disable`."""

    servers: list[ActedServer]


class ServiceState(Versioned):
    """`holdfast service status`."""

    manager: str
    installed: list[str]
    running: bool
    socket: NotRequired[str]
    service: NotRequired[str]
    enabled: NotRequired[str]
    lingering: NotRequired[str]


class ServiceInstalled(ServiceState):
    """`holdfast service install`."""

    files: list[str]


class ServiceFiles(Versioned):
    """`holdfast service install --dry-run`."""

    files: dict[str, str]


class ServiceRemoved(Versioned):
    """`holdfast service uninstall`."""

    removed: list[str]


class StatusOutput(Versioned):
    """`holdfast status`."""

    hub: HubView
    servers: list[Server]


class StatusEvent(Versioned):
    """`holdfast status --watch`: one object a line."""

    event: str
    data: Any


class LogOutput(Versioned):
    """`holdfast logs`: one object a line."""

    at: float
    source: Literal["stderr", "hub"]
    level: str
    text: str


class ListedTool(TypedDict):
    """A tool, with MCP's own names."""

    name: str
    title: NotRequired[str]
    description: NotRequired[str]
    inputSchema: dict[str, Any]
    outputSchema: NotRequired[dict[str, Any]]
    annotations: NotRequired[dict[str, Any]]


class LoadedServer(TypedDict):
    """A server, its tools, or why it has none."""

    id: str
    status: Status
    attempts: int
    error: str | None
    hint: str | None
    tools: list[ListedTool]
    elapsed_ms: float


class ToolsOutput(Versioned):
    """`holdfast tools`."""

    servers: list[LoadedServer]


class FoundToolRow(TypedDict):
    """A tool that was found, and whether it can be called now."""

    name: str
    server: str
    signature: str
    summary: str
    available: bool
    state: str
    reason: str | None
    retryIn: float | None


class FindOutput(Versioned):
    """`holdfast find`."""

    tools: list[FoundToolRow]


class TrustOutput(Versioned):
    """`holdfast trust`."""

    file: str
    trusted: bool
    changed: bool


class TrustedFiles(Versioned):
    """`holdfast trust --list`."""

    files: list[str]


class AuditOutput(Versioned):
    """One record of `holdfast audit`, on a line of its own. What does not apply is left out."""

    n: int
    time: str
    event: str
    principal: NotRequired[str]
    groups: NotRequired[list[str]]
    scopes: NotRequired[list[str]]
    program: NotRequired[str]
    source: NotRequired[str]
    server: NotRequired[str]
    method: NotRequired[str]
    tool: NotRequired[str]
    outcome: NotRequired[str]
    ms: NotRequired[float]
    trace: NotRequired[str]
    rule: NotRequired[str]
    approval: NotRequired[str]
    authz: NotRequired[str]
    reason: NotRequired[str]
    argument_bytes: NotRequired[int]
    result_bytes: NotRequired[int]
    argument_hash: NotRequired[str]
    arguments: NotRequired[Any]
    count: NotRequired[int]


class AuditVerified(Versioned):
    """`holdfast audit verify`."""

    path: str
    intact: bool
    files: int
    records: int
    problems: list[str]
    warnings: list[str]
    unproven: list[str]


OUTPUTS: Mapping[str, Any] = {
    "access explain": ExplainOutput,
    "access replay": ReplayOutput,
    "access test": AccessTestOutput,
    "add": AddOutput | UndoneOutput,
    "approve": ApprovalsOutput | ApprovedOutput | CallsOutput | DecidedOutput,
    "audit": AuditOutput,
    "audit verify": AuditVerified,
    "auth status": AuthOutput,
    "call": CallOutput,
    "check": CheckOutput,
    "disable": ActedOutput,
    "doctor": None,
    "enable": ActedOutput,
    "find": FindOutput,
    "import": ImportOutput | ImportUndoneOutput,
    "list": ListOutput,
    "logs": LogOutput,
    "reconnect": ActedOutput,
    "remove": RemoveOutput | UndoneOutput,
    "service install": ServiceInstalled | ServiceFiles,
    "service status": ServiceState,
    "service uninstall": ServiceRemoved,
    "setup": SetupOutput,
    "status": StatusOutput | StatusEvent,
    "tools": ToolsOutput,
    "trust": TrustOutput | TrustedFiles,
    "uninstall": UninstallOutput,
}
"""The output of each command that has ``--json``. The doctor has a model, and a schema, of its own."""
