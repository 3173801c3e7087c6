"""What people write: the file's models, frozen and strict about their keys.

``definition.py`` turns a ``ServerFile`` into what it means (``spec.ServerSpec``); the published JSON
Schema is generated from here. Descriptions are shown by editors, so they are whole sentences.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic.alias_generators import to_camel

from holdfast.config.durations import Unfit
from holdfast.config.fields import (
    Count,
    Duration,
    EnvName,
    Factor,
    Flag,
    HeaderName,
    HeaderValue,
    Pauses,
    Period,
    Prefix,
    Scalar,
    SharingName,
    Size,
    Text,
    Timeout,
    TransportName,
    Url,
    WholeNumber,
    kind_of,
)
from holdfast.config.oauth import OAuth, OAuthFile
from holdfast.config.spec import Settings

__all__ = [
    "BreakerFile",
    "CallSettings",
    "ConfigFile",
    "HoldfastSettings",
    "LimitSettings",
    "LoadSettings",
    "PerClientFile",
    "ReconnectFile",
    "ServerFile",
    "ToolsFile",
]

_DEFAULTS = Settings()
_LOAD, _CALL, _LIMITS = _DEFAULTS.load, _DEFAULTS.call, _DEFAULTS.limits
_BREAKER, _RECONNECT = _DEFAULTS.breaker, _DEFAULTS.reconnect
_PER_CLIENT = _DEFAULTS.per_client


def _listed(value: object) -> object:
    if isinstance(value, str):
        raise Unfit("must be a list of texts, not a text", hint='write ["first", "second"]: one text for each word')
    return value


def _filter(value: object) -> object:
    return {"include": value} if isinstance(value, list) else value


def _without_nulls(value: object) -> object:
    """VS Code writes null for a variable that is to be left unset."""
    if isinstance(value, dict):
        return {key: item for key, item in value.items() if item is not None}
    if isinstance(value, list):
        raise Unfit(f"must be an object, not {kind_of(value)}", hint='write {"NAME": "value"}')
    return value


_Words = Annotated[tuple[Scalar, ...], BeforeValidator(_listed)]
_Names = Annotated[tuple[Text, ...], BeforeValidator(_listed)]
_Environment = Annotated[
    dict[EnvName, Scalar],
    BeforeValidator(_without_nulls),
    WithJsonSchema({"type": "object", "additionalProperties": {"type": ["string", "number", "boolean", "null"]}}),
]


class _File(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel)


class ToolsFile(_File):
    """Which of a server's tools are shown. A list is read as `include`."""

    include: _Names = Field(default=("*",), description="Shell patterns (`read_*`) of the tools that are shown.")
    exclude: _Names = Field(
        default=(), description="Shell patterns of the tools that are not; they win over `include`."
    )
    hold_changed: Flag = Field(
        default=False,
        description="Hold a tool whose description or schema is not what it was when it was first seen, "
        "until the change is approved. Otherwise the change is only reported.",
    )


class ServerFile(_File):
    """One server: a command that is started here, or a URL that is dialed."""

    type: TransportName | None = Field(
        default=None, description="How the server is reached. Left out, it is inferred from `command` or `url`."
    )
    transport: TransportName | None = Field(default=None, description="Another spelling of `type`.")
    transport_type: TransportName | None = Field(default=None, description="Another spelling of `type` (Cline).")
    command: Text | None = Field(default=None, description="The program to start: a name on PATH, or a path.")
    args: _Words = Field(default=(), description="Its arguments, one text for each.")
    env: _Environment = Field(
        default={},
        description="Environment variables for it; it gets these and a minimal environment, never Holdfast's own.",
    )
    env_file: Text | None = Field(
        default=None, description="A file of `NAME=value` lines with more variables; `env` wins over it."
    )
    cwd: Text | None = Field(default=None, description="The folder that it runs in. Default: the project's folder.")
    url: Url | None = Field(default=None, description="The address of a server that is already running.")
    server_url: Url | None = Field(default=None, description="Another spelling of `url` (Windsurf).")
    http_url: Url | None = Field(
        default=None, description="Another spelling of `url`, always streamable HTTP (Gemini CLI)."
    )
    headers: dict[HeaderName, HeaderValue] = Field(default={}, description="Headers for every request to `url`.")
    enabled: Flag | None = Field(default=None, description="Whether the server is used. Default: true.")
    disabled: Flag | None = Field(default=None, description="The opposite of `enabled` (Cline, Windsurf, Roo Code).")
    lazy: Flag = Field(
        default=False,
        description="Start the server at its first use, and stop it when it was unused for `holdfast.idle`.",
    )
    sharing: SharingName = Field(
        default="shared",
        description="Whether all clients of the hub use one connection to it, or each has one of its own: "
        "for browsers, shells and anything else that keeps state (`per-client`).",
    )
    prefix: Prefix | None = Field(
        default=None,
        description="What stands before its tools' names. Default: the server's id; an empty text for nothing.",
    )
    tools: Annotated[ToolsFile, BeforeValidator(_filter)] = Field(
        default=ToolsFile(), description="Which of its tools are shown."
    )
    include_tools: _Names = Field(default=(), description="Names of the only tools that are shown (Gemini CLI).")
    exclude_tools: _Names = Field(default=(), description="Names of tools that are not shown (Gemini CLI).")
    disabled_tools: _Names = Field(default=(), description="Names of tools that are not shown (Windsurf, Roo Code).")
    allow_plain_http: Flag = Field(
        default=False, description="Allow credentials to go over plain http to a host that is not this machine."
    )
    oauth: OAuth = Field(
        default=OAuthFile(), description="How to log in to it, where that cannot be found out by asking it."
    )


class LoadSettings(_File):
    """How loading tries, waits and gives up."""

    attempts: Count = Field(
        default=_LOAD.attempts, description="How often a server that fails transiently is tried in all."
    )
    backoff: Duration = Field(
        default=_LOAD.backoff, description="The wait before the second attempt; it doubles with each further one."
    )
    attempt_timeout: Timeout = Field(default=_LOAD.attempt_timeout, description="How long one attempt may take.")
    total_timeout: Timeout = Field(
        default=_LOAD.total_timeout, description="How long all attempts at a server may take."
    )
    concurrency: Count = Field(default=_LOAD.concurrency, description="How many servers are loaded at the same time.")


class CallSettings(_File):
    """How long one call may take, and how many may be under way."""

    timeout: Timeout = Field(default=_CALL.timeout, description="How long a call may go without an answer or progress.")
    hard_timeout: Timeout = Field(default=_CALL.hard_timeout, description="How long a call may take in all.")
    ready_timeout: Timeout = Field(
        default=_CALL.ready_timeout, description="How long a call waits for a server that is coming up."
    )
    concurrency: Count = Field(
        default=_CALL.concurrency, description="How many calls to one server are under way at the same time."
    )
    queue: WholeNumber = Field(
        default=_CALL.queue, description="How many more calls to one server may wait for their turn."
    )


class BreakerFile(_File):
    """When a server that keeps failing is left alone, and for how long."""

    threshold: Count = Field(
        default=_BREAKER.threshold, description="How many failures in a row, all within `window`, open the breaker."
    )
    window: Timeout = Field(default=_BREAKER.window, description="The time within which those failures count.")
    cooldown: Timeout = Field(
        default=_BREAKER.cooldown, description="How long calls are refused before one of them may try again."
    )
    growth: Factor = Field(
        default=_BREAKER.growth,
        description="What each time in a row that the breaker opens multiplies the cooldown by; 1 keeps it as it is.",
    )
    max_cooldown: Timeout = Field(
        default=_BREAKER.max_cooldown, description="The longest that a growing cooldown becomes."
    )


class ReconnectFile(_File):
    """How a lost connection is made anew."""

    failures: Count = Field(
        default=_RECONNECT.failures,
        description="How many failures in a row of a connection that still stands give it up.",
    )
    backoff: Pauses = Field(
        default=_RECONNECT.backoff,
        description="The wait before each attempt; as many attempts may fail as there are waits.",
    )
    self_probe: Period = Field(
        default=_RECONNECT.self_probe,
        description="How often a server whose attempts all failed is tried again; `off` for never.",
    )
    standing: Timeout = Field(
        default=_RECONNECT.standing,
        description="How long a new connection must stand before earlier failures are forgotten.",
    )


class PerClientFile(_File):
    """Connections that clients have to themselves, of a server with `sharing: per-client`."""

    connections: Count = Field(
        default=_PER_CLIENT.connections,
        description="How many clients may have a connection of their own to the same server at a time.",
    )
    idle: Timeout = Field(
        default=_PER_CLIENT.idle,
        description="How long such a connection may be unused if its client has no session (2026-07-28 over HTTP).",
    )


class LimitSettings(_File):
    """Bounds on what comes from a server. Over one, that server alone fails, and says so."""

    message_bytes: Size = Field(default=_LIMITS.message_bytes, description="The largest single message.")
    catalog_items: Count = Field(default=_LIMITS.catalog_items, description="The most tools, prompts or resources.")
    catalog_bytes: Size = Field(default=_LIMITS.catalog_bytes, description="The largest whole listing.")
    pages: Count = Field(default=_LIMITS.pages, description="The most pages of one listing.")
    stderr_bytes: Size = Field(default=_LIMITS.stderr_bytes, description="How much of a process's stderr is kept.")
    notifications_per_second: Count = Field(
        default=_LIMITS.notifications_per_second, description="The most notifications in one second."
    )


class HoldfastSettings(_File):
    """Holdfast's own settings; all optional."""

    load: LoadSettings = Field(default=LoadSettings(), description="How loading tries, waits and gives up.")
    call: CallSettings = Field(
        default=CallSettings(), description="How long one call may take, and how many may be under way."
    )
    limits: LimitSettings = Field(default=LimitSettings(), description="Bounds on what comes from a server.")
    breaker: BreakerFile = Field(default=BreakerFile(), description="When a server that keeps failing is left alone.")
    reconnect: ReconnectFile = Field(default=ReconnectFile(), description="How a lost connection is made anew.")
    per_client: PerClientFile = Field(
        default=PerClientFile(), description="Connections that clients have to themselves."
    )
    refresh: Period = Field(
        default=_DEFAULTS.refresh,
        description="How often each server is asked again for what it offers; `off` for only when it says so.",
    )
    idle: Timeout = Field(
        default=_DEFAULTS.idle, description="How long a `lazy` server may be unused before it is stopped."
    )


class ConfigFile(_File):
    """A Holdfast configuration: an mcp.json, with Holdfast's own settings beside the servers."""

    mcp_servers: dict[str, ServerFile] = Field(default={}, description="The servers, by their names.")
    servers: dict[str, ServerFile] = Field(default={}, description="Another spelling of `mcpServers` (VS Code).")
    holdfast: HoldfastSettings = Field(default=HoldfastSettings(), description="Holdfast's own settings.")
