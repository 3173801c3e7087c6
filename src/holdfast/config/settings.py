"""Holdfast's own settings: the ``holdfast`` section of the file, and what it means, in one description.

Each setting is a field of a frozen dataclass with its default, the kind of its value in the file and the sentence that
editors show (``in_file``). ``file_models.py`` makes the model of the file, and so the JSON Schema,
from these classes; so a setting is written once. Times are in seconds here; in the file they have a unit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from holdfast.core import NAME_LENGTH, BreakerPolicy

if TYPE_CHECKING:
    from holdfast.config.spec import ServerSpec

__all__ = [
    "AccessRule",
    "AccessSettings",
    "ApprovalMode",
    "ApprovalSettings",
    "AuditSettings",
    "BreakerSettings",
    "CallPolicy",
    "ExtAuthzSettings",
    "LargeResultSettings",
    "Limits",
    "LoadPolicy",
    "PerClientSettings",
    "PerUserSettings",
    "QuotaSettings",
    "ReconnectSettings",
    "RoleHolders",
    "RoleSettings",
    "Settings",
    "ToolsMode",
]

ToolsMode: TypeAlias = Literal["all", "find"]
"""Whether an endpoint lists all tools, or a few that find the others."""

ApprovalMode: TypeAlias = Literal["off", "warn", "hold"]
"""What happens with a changed or new tool: nothing, a report, or it waits for a person."""


def in_file(kind: str | type[object], description: str) -> Mapping[str, object]:
    """How the file has a value: its type, and what editors show.

    A type is named as in ``fields.py``. An object of the file, or each one of a list, has the class that describes it.
    """
    return {"kind": kind, "description": description}


def one_of(description: str, *, hint: str, false_means: str | None = None) -> Mapping[str, object]:
    """The same for one of some names: the field's own ``Literal`` has them; ``false`` may stand for one of them."""
    return {"hint": hint, "false_means": false_means, "description": description}


@dataclass(frozen=True, kw_only=True)
class LoadPolicy:
    """Attempts, waits and deadlines of a load."""

    attempts: int = field(
        default=3,
        metadata=in_file(
            "Count",
            "How many attempts a server gets that fails transiently.",
        ),
    )
    backoff: float = field(
        default=0.25,
        metadata=in_file(
            "Duration",
            "The wait before the second attempt; it doubles with each further attempt.",
        ),
    )
    attempt_timeout: float = field(default=15.0, metadata=in_file("Timeout", "How long one attempt may take."))
    total_timeout: float = field(
        default=45.0,
        metadata=in_file(
            "Timeout",
            "How long all attempts at a server may take together.",
        ),
    )
    concurrency: int = field(
        default=16,
        metadata=in_file(
            "Count",
            "How many servers are loaded at the same time. Each worker and each replica loads so many.",
        ),
    )


HUB_SECONDS = 10.0
"""How much longer a call through another hub may take than the same call there: it may wait there for its server."""

STDIO_PROCESS_SECONDS = 30.0
"""How long a call waits for the process that runs the stdio servers of all workers. It is replaced after an upgrade of
the program, and the next one takes seconds to start, more on a busy machine: no call may fail for that (FLEET-8)."""


@dataclass(frozen=True, kw_only=True)
class CallPolicy:
    """How long a call may take, and how many calls may run at the same time."""

    timeout: float = field(
        default=60.0,
        metadata=in_file(
            "Timeout",
            "How long a call may go without an answer or progress.",
        ),
    )
    hard_timeout: float = field(default=600.0, metadata=in_file("Timeout", "How long a call may take in total."))
    ready_timeout: float = field(
        default=2.0,
        metadata=in_file(
            "Timeout",
            "How long a call waits for a server that is starting or reconnecting.",
        ),
    )
    concurrency: int = field(
        default=64,
        metadata=in_file(
            "Count",
            "How many calls to one server may run at the same time. It holds for each worker and each replica.",
        ),
    )
    queue: int = field(
        default=256,
        metadata=in_file(
            "WholeNumber",
            "How many more calls to one server may wait for their turn, at each worker and each replica.",
        ),
    )

    def of(self, server: ServerSpec) -> CallPolicy:
        """The policy of one server: its own timeout counts, and raises a hard limit that is shorter."""
        own = server.timeout
        policy = self if own is None else replace(self, timeout=own, hard_timeout=max(self.hard_timeout, own))
        if not server.hub:
            return policy
        # A command that a hub has is one of the stdio servers that a process runs for all workers (``behind``).
        ready = max(policy.ready_timeout, STDIO_PROCESS_SECONDS) if server.command else policy.ready_timeout
        # The hub that has the server ends its call first, and says why.
        timeout, hard_timeout = policy.timeout + HUB_SECONDS, policy.hard_timeout + HUB_SECONDS
        return replace(policy, timeout=timeout, hard_timeout=hard_timeout, ready_timeout=ready)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits on what a server sends. A server that exceeds one fails with a message that names the limit."""

    message_bytes: int = field(default=16 * 1024 * 1024, metadata=in_file("Size", "The largest single message."))
    catalog_items: int = field(default=20_000, metadata=in_file("Count", "The most tools, prompts or resources."))
    catalog_bytes: int = field(default=64 * 1024 * 1024, metadata=in_file("Size", "The largest whole listing."))
    pages: int = field(default=1_000, metadata=in_file("Count", "The most pages of one listing."))
    stderr_bytes: int = field(default=16 * 1024, metadata=in_file("Size", "How much of a process's stderr is kept."))
    notifications_per_second: int = field(
        default=1_000,
        metadata=in_file(
            "Count",
            "The most notifications in one second.",
        ),
    )


@dataclass(frozen=True, kw_only=True)
class BreakerSettings(BreakerPolicy):
    """When calls to a failing server stop, and for how long."""

    threshold: int = field(
        default=3,
        metadata=in_file(
            "Count",
            "How many failures in a row, all within `window`, open the breaker.",
        ),
    )
    window: float = field(default=30.0, metadata=in_file("Timeout", "The time within which those failures count."))
    cooldown: float = field(
        default=60.0,
        metadata=in_file(
            "Timeout",
            "How long calls are refused before one of them may try again.",
        ),
    )
    growth: float = field(
        default=1.0,
        metadata=in_file(
            "Factor",
            "What each time in a row that the breaker opens multiplies the cooldown by; 1 keeps it as it is.",
        ),
    )
    max_cooldown: float = field(
        default=600.0,
        metadata=in_file(
            "Timeout",
            "The longest that a growing cooldown becomes.",
        ),
    )


@dataclass(frozen=True, kw_only=True)
class ReconnectSettings:
    """How a lost connection is restored."""

    failures: int = field(
        default=3,
        metadata=in_file(
            "Count",
            "How many consecutive failures on a live connection cause a reconnect.",
        ),
    )
    backoff: tuple[float, ...] = field(
        default=(1.0, 2.0, 4.0, 8.0, 16.0),
        metadata=in_file(
            "Pauses",
            "The wait before each attempt. The number of waits is the number of attempts.",
        ),
    )
    self_probe: float | None = field(
        default=300.0,
        metadata=in_file(
            "Period",
            "How often a server is tried again after all attempts failed; `off` for never.",
        ),
    )
    standing: float = field(
        default=30.0,
        metadata=in_file(
            "Timeout",
            "How long a new connection must last before earlier failures no longer count.",
        ),
    )


@dataclass(frozen=True, kw_only=True)
class PerClientSettings:
    """Connections of a server with `sharing: per-client`: one for each client."""

    connections: int = field(
        default=64,
        metadata=in_file(
            "Count",
            "How many clients may have their own connection to the same server at the same time. It holds "
            "for each worker and each replica.",
        ),
    )
    idle: float = field(
        default=600.0,
        metadata=in_file(
            "Timeout",
            "How long such a connection may be idle if its client has no session (2026-07-28 over HTTP).",
        ),
    )


@dataclass(frozen=True, kw_only=True)
class PerUserSettings:
    """Connections of a server with `sharing: per-user`: one for each user of the hub, with her own login."""

    connections: int = field(
        default=256,
        metadata=in_file(
            "Count",
            "How many users may be connected to the same server at the same time, at each worker and each replica.",
        ),
    )
    processes: int = field(
        default=16,
        metadata=in_file("Count", "The same for a server that is a command: each user has a process of her own."),
    )
    idle: float = field(
        default=600.0,
        metadata=in_file(
            "Timeout",
            "How long a user's connection may be idle before it is closed; her next call opens it again.",
        ),
    )


@dataclass(frozen=True, kw_only=True)
class QuotaSettings:
    """What one principal may use at a time. A hub that asks for no credentials has one principal, `local`."""

    sessions: int = field(
        default=2_000,
        metadata=in_file(
            "Count",
            "The most sessions of one principal in memory, of all workers and replicas together; idle ones give way.",
        ),
    )
    connections: int = field(
        default=1_000,
        metadata=in_file(
            "Count",
            "The most connections of one principal, at each worker and each replica.",
        ),
    )
    body_bytes: int = field(
        default=32 * 1024 * 1024,
        metadata=in_file(
            "Size",
            "How much the bodies of one principal's requests may hold while they are under way, at all "
            "workers of a replica together; a single one always has room.",
        ),
    )
    calls_in_flight: int = field(
        default=1_000,
        metadata=in_file(
            "Count",
            "The most requests of one principal that run at the same time, at all workers and replicas together.",
        ),
    )
    calls_per_minute: int = field(
        default=12_000,
        metadata=in_file(
            "Count",
            "The most requests of one principal in a minute, at all workers and replicas together; not for `local`.",
        ),
    )
    client_connections: int = field(
        default=16,
        metadata=in_file(
            "Count",
            "The most connections of one principal to one `per-client` server, at each worker and each "
            "replica; not for `local`.",
        ),
    )


@dataclass(frozen=True, kw_only=True)
class LargeResultSettings:
    """Results that are too large for a model: their beginning goes out, and the tool `read_result` reads on."""

    over: int = field(
        default=0,
        metadata=in_file(
            "WholeNumber",
            "How many characters of text a result may have before it is kept and shortened; 0 keeps none. Results of "
            "tools with an `outputSchema` always stay whole.",
        ),
    )
    lifetime: float = field(default=600.0, metadata=in_file("Timeout", "How long such a result is kept."))


@dataclass(frozen=True, kw_only=True)
class AuditSettings:
    """Who did what: a file of records that shows whether it was changed."""

    path: str | None = field(
        default=None,
        metadata=in_file(
            "Text",
            "The folder of its files. Default: `audit` in the state folder. A path that is not absolute starts at the "
            "folder of this file.",
        ),
    )
    enabled: bool | None = field(
        default=None,
        metadata=in_file(
            "Flag",
            "Whether it is written. Left out, it is for a hub beyond loopback, and where `path` is set.",
        ),
    )
    arguments: Literal["hash", "masked"] = field(
        default="hash",
        metadata=one_of(
            "What a record has of the arguments of a call: a keyed `hash`, or with `masked` also the arguments "
            "without what looks like a secret.",
            hint='write "masked" to have the arguments without their secrets',
        ),
    )
    required: bool = field(
        default=False,
        metadata=in_file("Flag", "Whether calls are refused while the audit cannot be written."),
    )
    key_file: str | None = field(
        default=None,
        metadata=in_file(
            "Text",
            "The file with the secret of its chain, which only the hub's user may read. Default: `audit.key` in the "
            "state folder, which is made where there is none.",
        ),
    )
    keep: float | None = field(
        default=90 * 86400.0,
        metadata=in_file("Period", "How long an old file is kept; `off` for always."),
    )
    max_bytes: int = field(
        default=1024 * 1024 * 1024,
        metadata=in_file("Size", "How much all its files may have together; the oldest are removed first."),
    )
    syslog: str | None = field(
        default=None,
        metadata=in_file(
            "Text",
            "Where its checkpoints go: a socket such as `/dev/log`, or `HOST:PORT` for UDP; `off` for nowhere. "
            "Default: `/dev/log`, where there is one.",
        ),
    )


@dataclass(frozen=True, kw_only=True)
class AccessRule:
    """One rule of the policy: whom it means, what it covers, and what it does. What is left out matches all."""

    effect: Literal["allow", "deny", "ask"] = field(
        metadata=one_of(
            "`allow`, `deny`, or `ask`: a call that another rule allows waits for a person. Deny comes before ask, and "
            "ask before allow.",
            hint='write "allow" to let a caller see and call it',
        )
    )
    principals: tuple[str, ...] = field(
        default=(),
        metadata=in_file(
            "Names",
            "Full names of principals: `ci` of a named token, `https://issuer#sub` of a JWT, `gateway#user`, `local`.",
        ),
    )
    groups: tuple[str, ...] = field(default=(), metadata=in_file("Names", "Groups; a principal needs one of them."))
    scopes: tuple[str, ...] = field(
        default=(), metadata=in_file("Names", "Scopes of the token; a principal needs one of them.")
    )
    servers: tuple[str, ...] = field(
        default=(), metadata=in_file("Patterns", "Shell patterns of the names of servers in this file.")
    )
    tools: tuple[str, ...] = field(
        default=(),
        metadata=in_file("Patterns", "Shell patterns of tools, by the names that their servers give them."),
    )
    prompts: tuple[str, ...] = field(default=(), metadata=in_file("Patterns", "Shell patterns of prompts."))
    resources: tuple[str, ...] = field(
        default=(), metadata=in_file("Patterns", "Shell patterns of the URIs of resources and of templates.")
    )
    when: str = field(
        default="",
        metadata=in_file(
            "ConditionText",
            "A condition in CEL over `arguments`, as in `arguments.n < 100`. One that cannot be evaluated counts as "
            "true for `deny` and `ask`, and as false for `allow`.",
        ),
    )
    approver: Literal["caller", "operator"] = field(
        default="caller",
        metadata=one_of(
            "Who is asked, for `ask`: the `caller` herself, or an `operator`.",
            hint='"caller" asks the person who calls',
        ),
    )


@dataclass(frozen=True, kw_only=True)
class RoleHolders:
    """Who has a role: it takes one of these names, groups or scopes."""

    principals: tuple[str, ...] = field(
        default=(),
        metadata=in_file(
            "Names",
            "Full names of principals: `ci` for a named token, `https://idp.example#ada` for a user of an issuer, "
            "`gateway#ada` for a user that a gateway names.",
        ),
    )
    groups: tuple[str, ...] = field(default=(), metadata=in_file("Names", "Groups of principals."))
    scopes: tuple[str, ...] = field(default=(), metadata=in_file("Names", "Scopes of a caller's token."))


@dataclass(frozen=True, kw_only=True)
class RoleSettings:
    """Who may use the control API and the status page. The control token has every role."""

    read: RoleHolders = RoleHolders()
    operate: RoleHolders = RoleHolders()
    approve: RoleHolders = RoleHolders()


@dataclass(frozen=True, kw_only=True)
class ApprovalSettings:
    """How long a call waits for a person, where a rule says `ask`."""

    wait: float = field(
        default=50.0,
        metadata=in_file(
            "Timeout",
            "How long a call waits for an operator. Then its result says that it waits still, and the same call may be "
            "made again. Many clients give up after 60 s.",
        ),
    )
    lifetime: float = field(
        default=600.0,
        metadata=in_file(
            "Timeout", "How long a person may take, and how long an approval may be used, from the first call on."
        ),
    )


@dataclass(frozen=True, kw_only=True)
class ExtAuthzSettings:
    """A service that decides about each call, after the rules: Envoy's ext_authz over gRPC (extra `authz`).

    A call is refused if the service cannot be asked; no setting changes that.
    """

    address: str | None = field(
        default=None,
        metadata=in_file(
            "HubAddress", "Where it is: `HOST:PORT`, or `unix:` and the path of a socket of the hub's user."
        ),
    )
    timeout: float = field(
        default=1.0,
        metadata=in_file("Timeout", "How long one question may take, with the connection. Then the call is refused."),
    )
    tls: bool | None = field(
        default=None,
        metadata=in_file("Flag", "Whether it speaks TLS. Left out, it does, unless it is on this machine."),
    )
    ca: str | None = field(
        default=None,
        metadata=in_file(
            "Text",
            "The file with the authority of its certificate. Default: the authorities of this machine. A path that is "
            "not absolute starts at the folder of this file.",
        ),
    )
    certificate: str | None = field(
        default=None, metadata=in_file("Text", "The file with the hub's own certificate, where the service wants one.")
    )
    key: str | None = field(
        default=None, metadata=in_file("Text", "The file with the key of that certificate, if it is not in it.")
    )


@dataclass(frozen=True, kw_only=True)
class AccessSettings:
    """Who may see and call what. Without rules everyone who is let in may do everything."""

    rules: tuple[AccessRule, ...] = field(default=(), metadata=in_file(AccessRule, "The rules, in any order."))
    default: Literal["allow", "deny"] | None = field(
        default=None,
        metadata=one_of(
            "What holds where no rule matches. Left out, it is `allow` without rules and `deny` with rules; rules "
            "without an `allow` among them need it. `local` stays open unless a rule names it.",
            hint='"deny" refuses what no rule allows',
        ),
    )
    roles: RoleSettings = RoleSettings()
    approvals: ApprovalSettings = ApprovalSettings()
    ext_authz: ExtAuthzSettings = ExtAuthzSettings()


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Holdfast's own settings; all optional."""

    load: LoadPolicy = LoadPolicy()
    call: CallPolicy = CallPolicy()
    limits: Limits = Limits()
    breaker: BreakerSettings = BreakerSettings()
    reconnect: ReconnectSettings = ReconnectSettings()
    per_client: PerClientSettings = PerClientSettings()
    per_user: PerUserSettings = PerUserSettings()
    quotas: QuotaSettings = QuotaSettings()
    large_results: LargeResultSettings = LargeResultSettings()
    audit: AuditSettings = AuditSettings()
    access: AccessSettings = AccessSettings()
    refresh: float | None = field(
        default=60.0,
        metadata=in_file(
            "Period",
            "How often each server is listed again; `off` for only when it announces a change.",
        ),
    )
    approvals: ApprovalMode | None = field(
        default=None,
        metadata=in_file(
            "ApprovalName",
            "What happens when a server changes what a model reads: `off`, `warn` or `hold`. A server's own "
            "`approvals` wins. Left out, it is `warn` for a hub on loopback and `hold` for one beyond it.",
        ),
    )
    idle: float = field(
        default=300.0,
        metadata=in_file(
            "Timeout",
            "How long a `lazy` server may be idle before it is stopped.",
        ),
    )
    name_length: int = field(
        default=NAME_LENGTH,
        metadata=in_file(
            "NameLength",
            "The most characters of a tool's or a prompt's name at `/mcp`. A longer name is shortened and "
            "gets a hash. The default leaves room for the prefix that a client puts before it. Names given "
            "out at another length stay callable.",
        ),
    )
    tools: ToolsMode = field(
        default="all",
        metadata=one_of(
            "What an endpoint lists whose address does not say it: `all` tools, or with `find` a few that find, "
            "describe and call the others.",
            hint='write "find" to list a few tools that find the others',
        ),
    )
    doctor_tool: Literal["auto", "on", "off"] = field(
        default="auto",
        metadata=one_of(
            "Whether clients have the tool `holdfast_doctor`, which says why a server fails. `auto`: only if the hub "
            "listens on this machine alone.",
            hint='"auto" means: where only this machine reaches the hub',
            false_means="off",
        ),
    )
    pin: tuple[str, ...] = field(
        default=(),
        metadata=in_file(
            "ToolPatterns",
            "The tools that are listed with `find` too, as `server/tool`; `*` stands for any text.",
        ),
    )
    profiles: tuple[tuple[str, tuple[str, ...]], ...] = field(
        default=(),
        metadata=in_file(
            "Profiles",
            "Named parts of the servers and tools, which an address chooses by `?profile=NAME`: patterns of "
            "`server/tool`, where `*` stands for any text.",
        ),
    )
