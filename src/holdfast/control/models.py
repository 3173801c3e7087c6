"""The shapes of the control API: what the hub answers, and what its page, `holdfast status` and `doctor` read.

One source for both sides; the OpenAPI document is made from it. Times are seconds since the epoch (``at``,
``since``) or seconds from now (``retry_in``). Nothing in here is a secret: whoever fills it masks first.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

__all__ = [
    "Activity",
    "ApiError",
    "Approval",
    "Approvals",
    "Approve",
    "Breaker",
    "CatalogItem",
    "CatalogView",
    "Change",
    "Clash",
    "Code",
    "HubView",
    "LastError",
    "LogLine",
    "Logs",
    "Server",
    "Servers",
    "Session",
    "Shape",
    "SignIn",
    "Status",
    "TargetView",
    "TargetsView",
]

Status: TypeAlias = Literal["available", "transient", "permanent", "denied", "idle", "disabled"]
"""A server in one word: as loads are classified, or at rest on purpose."""


class Shape(BaseModel):
    """Every shape: fixed once made; unknown keys pass, so that an older reader understands a newer hub."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class ApiError(Shape):
    """Why a request was refused, and what to do."""

    error: str
    hint: str = ""


class Breaker(Shape):
    """The circuit breaker of one server."""

    state: Literal["closed", "open", "half_open"]
    retry_in: float | None = Field(default=None, description="Seconds until a call may try again, while it is open")


class Change(Shape):
    """One transition: a step of the server's timeline."""

    at: float
    old: str
    new: str
    cause: str
    reason: str = ""
    generation: int = 0


class LastError(Shape):
    """The last thing that went wrong."""

    at: float
    text: str


class Activity(Shape):
    """Calls of the last minutes, in steps of ``step`` seconds; the last number is the step that runs now."""

    step: float
    until: float = Field(description="When the last step ends")
    calls: tuple[int, ...] = ()
    errors: tuple[int, ...] = Field(default=(), description="Calls that failed in transport, timed out or were refused")
    milliseconds: tuple[float | None, ...] = Field(default=(), description="The median of the completed calls")


class Server(Shape):
    """One server, at one moment."""

    id: str
    transport: str = Field(description="stdio, http or sse; empty for a definition that could not be read")
    target: str = Field(default="", description="Its command or URL, masked")
    state: str
    status: Status
    summary: str = Field(description="What a person needs to know, in a sentence or two")
    action: str = Field(default="", description="What a person can do about it; empty if nothing is needed")
    command: str = Field(default="", description="A command to paste that does it, if there is one")
    reason: str = ""
    since: float = Field(description="When it came into its state")
    generation: int | None = Field(default=None, description="The connection that stands, if one does")
    failures: int = 0
    attempts: int = 0
    attempts_allowed: int = 0
    breaker: Breaker
    retry_in: float | None = Field(default=None, description="Seconds until the hub itself tries or looks again")
    in_flight: int = 0
    tools: int = 0
    prompts: int = 0
    resources: int = 0
    templates: int = 0
    verified: bool = Field(default=False, description="Whether what is listed was listed in this run of the hub")
    held: tuple[str, ...] = Field(default=(), description="Tools that are held until their change is approved")
    calls_total: int = 0
    errors_total: int = 0
    reconnects_total: int = 0
    last_error: LastError | None = None
    timeline: tuple[Change, ...] = Field(default=(), description="Recent transitions, oldest first")
    activity: Activity | None = Field(default=None, description="None where no call was made lately")


class Servers(Shape):
    """The whole fleet."""

    now: float
    servers: tuple[Server, ...]


class HubView(Shape):
    """The hub itself."""

    name: str = "holdfast"
    version: str
    pid: int
    now: float
    started: float
    endpoint: str = Field(description="The MCP endpoint for clients")
    config: str = Field(default="", description="The file that is served; empty if there is none")
    config_problem: str = Field(default="", description="Why the last edit of that file was not taken; empty if it was")
    demo: bool = False
    program: str = Field(default="holdfast", description="How a person starts Holdfast on the hub's machine")
    draining: bool = False
    ready: bool = False
    catalog_version: int = 0
    identity: str = Field(default="", description="Whose credentials the hub uses towards its servers")


class CatalogItem(Shape):
    """A tool, a prompt, a resource or a template as clients see it."""

    name: str
    server: str
    original: str
    description: str = ""
    verified: bool = True
    held: bool = False


class Clash(Shape):
    """A name that two servers wanted, and what became of it."""

    name: str
    server: str
    original: str
    shown: str


class CatalogView(Shape):
    """What is published now."""

    version: int
    tools: tuple[CatalogItem, ...] = ()
    prompts: tuple[CatalogItem, ...] = ()
    resources: tuple[CatalogItem, ...] = ()
    templates: tuple[CatalogItem, ...] = ()
    clashes: tuple[Clash, ...] = ()


class Approval(Shape):
    """A tool that says something else than when it was first seen."""

    server: str
    tool: str
    held: bool
    changes: tuple[str, ...] = Field(default=(), description="What changed, line by line, as a diff")
    mark: str = Field(default="", description="Stands for what the tool says now; see `Approve`")


class Approvals(Shape):
    """All tools that changed."""

    approvals: tuple[Approval, ...]


class Approve(Shape):
    """Which change is approved."""

    tool: str | None = Field(default=None, description="One tool; all of the server's if left out")
    mark: str | None = Field(default=None, description="That of the change that was looked at: nothing newer is taken")


class LogLine(Shape):
    """One line about a server: what its process wrote, or what the hub noted of it."""

    at: float
    source: Literal["stderr", "hub"]
    level: str = ""
    text: str


class Logs(Shape):
    """The last lines about a server, oldest first."""

    server: str
    lines: tuple[LogLine, ...]


class Code(Shape):
    """A code that signs one browser in, once."""

    code: str
    expires_in: float


class SignIn(Shape):
    """What a browser shows to sign in."""

    code: str


class Session(Shape):
    """A token for the page; it ends with the hub."""

    token: str


class TargetView(Shape):
    """One server as a gateway's target."""

    id: str
    url: str
    transport: Literal["http", "sse"]


class TargetsView(Shape):
    """The hub's registry, for `holdfast gateway bridge`."""

    targets: tuple[TargetView, ...]
    left_out: dict[str, str] = Field(default_factory=dict)
