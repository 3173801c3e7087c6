"""The models of the control API: the hub writes them; the page, `holdfast status` and `doctor` read them.

The OpenAPI document is generated from them. Times are seconds since the epoch (``at``, ``since``) or seconds from
now (``retry_in``). They contain no secret: the hub masks every text first.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from holdfast.core import ApprovalKind, ServerStatus

__all__ = [
    "Activity",
    "ApiError",
    "ApiModel",
    "Approval",
    "ApprovalList",
    "Approve",
    "ApprovedTexts",
    "BreakerView",
    "CatalogItem",
    "CatalogView",
    "Change",
    "Clash",
    "DecideCall",
    "FleetView",
    "HubView",
    "LastError",
    "LogLine",
    "LoginAnswer",
    "LoginEnded",
    "LoginLink",
    "LoginPage",
    "Logs",
    "OwnLogin",
    "OwnLogins",
    "Replica",
    "Server",
    "Servers",
    "Session",
    "SignIn",
    "SignInCode",
    "Status",
    "TargetView",
    "TargetsView",
    "WaitingCall",
    "WaitingCalls",
]

Status: TypeAlias = ServerStatus


class ApiModel(BaseModel):
    """The base of all models: immutable; unknown keys are ignored, so that an older reader understands a newer hub."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class ApiError(ApiModel):
    """Why a request was refused, and what to do."""

    error: str
    hint: str = ""


class BreakerView(ApiModel):
    """The circuit breaker of one server."""

    state: Literal["closed", "open", "half_open"]
    retry_in: float | None = Field(default=None, description="Seconds until a call may try again, while it is open")


class Change(ApiModel):
    """One transition in the timeline of a server."""

    at: float
    old: str
    new: str
    cause: str
    reason: str = ""
    generation: int = 0


class LastError(ApiModel):
    """The last error of a server."""

    at: float
    text: str


class Activity(ApiModel):
    """Calls of the last minutes, in steps of ``step`` seconds; the last number is the current step."""

    step: float
    until: float = Field(description="When the last step ends")
    calls: tuple[int, ...] = ()
    errors: tuple[int, ...] = Field(default=(), description="Calls that failed in transport, timed out or were refused")
    milliseconds: tuple[float | None, ...] = Field(default=(), description="Median duration of the completed calls")


class Server(ApiModel):
    """One server at one moment."""

    id: str
    transport: str = Field(description="stdio, http or sse; empty if the definition is not valid")
    target: str = Field(default="", description="Its command or URL, masked")
    state: str = Field(
        description="connecting, connected, reconnecting, denied, parked, idle, disabling, disabled or disconnected"
    )
    status: Status = Field(
        description="Whether it can be used: the class of its failure, or that it is available, idle or disabled"
    )
    summary: str = Field(description="The state in one or two sentences")
    action: str = Field(default="", description="What a person can do; empty if nothing is needed")
    command: str = Field(default="", description="A command that does it, if there is one")
    login: bool = Field(default=False, description="Whether a login would help; see the operation `login`")
    reason: str = ""
    cause: str = Field(default="", description="The reason without durations; servers that fail alike have it equal")
    since: float = Field(description="When its state began")
    generation: int | None = Field(
        default=None, description="The generation of the current connection, if there is one"
    )
    failures: int = 0
    attempts: int = 0
    attempts_allowed: int = 0
    breaker: BreakerView
    retry_in: float | None = Field(default=None, description="Seconds until the next try, by the hub or by a call")
    in_flight: int = 0
    tools: int = 0
    prompts: int = 0
    resources: int = 0
    templates: int = 0
    verified: bool = Field(default=False, description="Whether its listing is from this run of the hub")
    held: tuple[str, ...] = Field(default=(), description="Tools that are held until their change is approved")
    finding: str = Field(default="", description="What is wrong although the server is up, such as a list that failed")
    calls_total: int = 0
    errors_total: int = 0
    reconnects_total: int = 0
    last_error: LastError | None = None
    timeline: tuple[Change, ...] = Field(default=(), description="Recent transitions, oldest first")
    activity: Activity | None = Field(default=None, description="None if there were no recent calls")
    probed_by: str = Field(
        default="", description="The replica of a fleet that tries this server next; empty if it is not down"
    )
    scope: str = Field(
        default="", description="Where a switch or an approval holds in a fleet; only in the answer to it"
    )


class Servers(ApiModel):
    """All servers."""

    now: float
    servers: tuple[Server, ...]


class Replica(ApiModel):
    """One replica of a fleet."""

    id: str
    here: bool = Field(default=False, description="Whether it gave this answer")
    host: str = ""
    pid: int = 0
    version: str = ""
    started: float = 0.0
    address: str = ""
    worker: int | None = Field(default=None, description="Its number, if a supervisor runs several on one machine")


class FleetView(ApiModel):
    """The replicas of the hub, and what they share."""

    store: str = Field(description="The store, without its password")
    shared: bool = Field(description="Whether the store answers")
    not_shared_since: float | None = None
    problem: str = Field(default="", description="Why the store does not answer, or what makes the sharing unsafe")
    not_shared: tuple[str, ...] = Field(
        default=(), description="Servers whose switch or approvals hold on this replica only until the store answers"
    )
    different_configs: tuple[tuple[str, ...], ...] = Field(
        default=(),
        description="The replicas by configuration, if they differ for longer than a roll takes; else empty",
    )
    wrong_clocks: dict[str, int] = Field(
        default_factory=dict,
        description="Replicas whose clock differs by more than 30 s, and how many seconds it is ahead of the fleet's",
    )
    events_lost: int = Field(default=0, description="Events of sessions that other replicas cannot resume")
    refused: int = Field(default=0, description="Messages of the store with a wrong signature")
    replicas: tuple[Replica, ...] = ()


class JoinedClientView(ApiModel):
    """A client that joined the hub by `serve --stdio`."""

    program: str = Field(description="What it calls itself; empty before its handshake")
    folder: str = Field(description="Where it works; empty if it did not say")
    pid: int


class HubView(ApiModel):
    """The hub itself."""

    name: str = "holdfast"
    version: str
    pid: int
    now: float
    started: float
    endpoint: str = Field(description="The MCP endpoint for clients")
    config: str = Field(default="", description="The configuration file; empty if there is none")
    config_problem: str = Field(
        default="", description="Why the last edit of that file was not applied; empty if it was"
    )
    demo: bool = False
    program: str = Field(default="holdfast", description="How a person starts Holdfast on the machine of the hub")
    draining: bool = False
    ready: bool = False
    catalog_version: int = 0
    identity: str = Field(default="", description="Whose credentials the hub uses for its servers")
    fleet: FleetView | None = Field(default=None, description="None for a hub that is alone")
    notice: str = Field(default="", description="What users should know about the hub itself; empty if nothing")
    calls_waiting: int = Field(default=0, description="Calls that wait for a person; see the operation `list_calls`")
    clients: tuple[JoinedClientView, ...] = Field(default=(), description="The clients that joined by `serve --stdio`")
    loop_lag: float | None = Field(
        default=None,
        description="The largest delay of the hub's event loop in the last minute, in seconds; null if not measured",
    )


class CatalogItem(ApiModel):
    """A tool, a prompt, a resource or a template as clients see it."""

    name: str
    server: str
    original: str
    description: str = ""
    verified: bool = True
    held: bool = False


class Clash(ApiModel):
    """A name that two servers use, and the name that the hub shows instead."""

    name: str
    server: str
    original: str
    shown: str


class CatalogView(ApiModel):
    """The published catalog."""

    version: int
    tools: tuple[CatalogItem, ...] = ()
    prompts: tuple[CatalogItem, ...] = ()
    resources: tuple[CatalogItem, ...] = ()
    templates: tuple[CatalogItem, ...] = ()
    clashes: tuple[Clash, ...] = ()


class Approval(ApiModel):
    """A tool, a prompt or the instructions of a server that changed since they were first seen, or are new."""

    server: str
    tool: str = Field(description="The name of the tool or the prompt; empty for the instructions")
    kind: ApprovalKind = "tool"
    new: bool = Field(default=False, description="Whether it appeared after the server was first listed")
    held: bool
    changes: tuple[str, ...] = Field(default=(), description="The change as the lines of a diff")
    mark: str = Field(default="", description="Identifies the current version of the tool; see `Approve`")


class ApprovalList(ApiModel):
    """All changes that wait."""

    approvals: tuple[Approval, ...]


class ApprovedTexts(ApiModel):
    """What is approved and what is disabled; `holdfast approve --export` makes a lock of it."""

    servers: dict[str, dict[str, dict[str, Any]]] = Field(description="By server and key, the approved text")
    disabled: tuple[str, ...] = ()


class Approve(ApiModel):
    """Which change is approved."""

    tool: str | None = Field(default=None, description="One tool or prompt; all changes of the server if left out")
    kind: ApprovalKind = Field(default="tool", description="What `tool` names; `instructions` have no name")
    mark: str | None = Field(
        default=None, description="The mark of the reviewed change: a newer change is not approved"
    )


class WaitingCall(ApiModel):
    """A call that waits for a person, because a rule of the policy says `ask`."""

    id: str
    principal: str = Field(description="Who calls")
    program: str = Field(default="", description="What the client calls itself")
    server: str
    tool: str = Field(description="Its original name at the server")
    arguments: str = Field(default="", description="Without secrets, and cut")
    approver: Literal["caller", "operator"]
    rule: str = Field(description="The rule that asks, such as `rules[2]`")
    asked: float
    expires: float = Field(description="When it can no longer be decided, and an approval no longer be used")


class WaitingCalls(ApiModel):
    """All calls that wait; with the token of a caller, her own."""

    now: float
    calls: tuple[WaitingCall, ...]


class DecideCall(ApiModel):
    """What a person decides about a call."""

    approve: bool
    reason: str = Field(default="", max_length=300, description="What the caller reads about a refusal")


class LoginPage(ApiModel):
    """Where a person logs in."""

    address: str = Field(description="The page of the authorization server; it leads back to the machine of the hub")
    issuer: str
    scope: tuple[str, ...] = ()
    expires_in: float


class LoginAnswer(ApiModel):
    """The address that a browser on another machine ended up at."""

    address: str = Field(max_length=8_000)


class OwnLogin(ApiModel):
    """The login of the one who asks to one server that is per user."""

    server: str
    state: Literal["valid", "ended", "missing", "not_needed"] = Field(
        description="`ended`: it expired, or was refused; `not_needed`: she has another credential there, or needs none"
    )
    issuer: str = Field(default="", description="The authorization server that she logged in to")
    scope: str = ""
    expires_at: float | None = Field(default=None, description="When her token expires, if that is known")
    refreshable: bool = Field(default=False, description="Whether the hub renews it")
    command: str = Field(
        default="", description="What an operator runs to log her in, where the hub cannot know her by a browser"
    )


class OwnLogins(ApiModel):
    """The logins of the one who asks, to the servers that are per user and that she may see."""

    principal: str = Field(description="Empty for the control token: it is no user")
    logins: tuple[OwnLogin, ...]


class LoginLink(ApiModel):
    """Where a user logs in to a server. The page asks her browser who she is."""

    address: str = Field(description="A page of the hub")
    expires_in: float


class LoginEnded(ApiModel):
    """A login that its user removed."""

    server: str
    revoked: bool = Field(description="Whether the authorization server revoked its tokens")
    also: tuple[str, ...] = Field(default=(), description="Her other servers that used the same login")


class LogLine(ApiModel):
    """One log line of a server: the stderr of its process, or the hub's own line about it."""

    at: float
    source: Literal["stderr", "hub"]
    level: str = ""
    text: str


class Logs(ApiModel):
    """The last log lines of a server, oldest first."""

    server: str
    lines: tuple[LogLine, ...]


class ActivityRecord(ApiModel):
    """What one principal did: a record of the audit."""

    at: float
    event: str
    principal: str
    program: str
    source: str
    server: str
    method: str
    tool: str
    outcome: str
    ms: float
    reason: str


class ActivityView(ApiModel):
    """The latest records of the audit, newest first."""

    audit: bool
    """Whether the hub writes an audit."""
    principal: str
    """Whose they are; empty for those of all principals."""
    records: tuple[ActivityRecord, ...]


class Me(ApiModel):
    """Who asks, and what she may do."""

    principal: str = Field(description="The name of the principal; empty for the control token")
    groups: tuple[str, ...] = ()
    roles: tuple[str, ...] = Field(description="Of `read`, `operate` and `approve`")
    signed_in: bool = Field(description="Whether a cookie of this browser says so: it can be signed out")
    expires_in: float | None = Field(default=None, description="Seconds until the session ends, if it does")


class SignInCode(ApiModel):
    """A code that signs in one browser, once."""

    code: str
    expires_in: float


class SignIn(ApiModel):
    """The body of a sign-in."""

    code: str


class Session(ApiModel):
    """A token of the page; it ends with the hub."""

    token: str


class TargetView(ApiModel):
    """One server as a target of a gateway."""

    id: str
    url: str
    transport: Literal["http", "sse"]


class TargetsView(ApiModel):
    """The hub's servers for `holdfast gateway bridge`."""

    targets: tuple[TargetView, ...]
    left_out: dict[str, str] = Field(default_factory=dict)
