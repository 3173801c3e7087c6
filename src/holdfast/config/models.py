"""Pydantic models of the file, frozen, with unknown keys forbidden.

``definition.py`` turns a ``ServerFile`` into a ``spec.ServerSpec``. The published JSON Schema is
generated from these models. Editors show the descriptions, so they are whole sentences.
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
    """VS Code writes null for a variable that is not to be set."""
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


class _FileModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel)


class ToolsFile(_FileModel):
    """Which of a server's tools are shown. A list is read as `include`."""

    include: _Names = Field(default=("*",), description="Shell patterns (`read_*`) of the tools that are shown.")
    exclude: _Names = Field(
        default=(), description="Shell patterns of the tools that are hidden; they override `include`."
    )
    hold_changed: Flag = Field(
        default=False,
        description="Hold a tool whose description or schema changed since it was first seen, "
        "until the change is approved. Otherwise the change is only reported.",
    )


class ServerFile(_FileModel):
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
        default=None, description="A file of `NAME=value` lines with more variables; `env` overrides it."
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
        description="Start the server at its first use, and stop it after `holdfast.idle` without use.",
    )
    sharing: SharingName = Field(
        default="shared",
        description="Whether all clients of the hub share one connection, or each client has its own (`per-client`): "
        "for browsers, shells and other servers that keep state.",
    )
    prefix: Prefix | None = Field(
        default=None,
        description="The prefix of its tools' names. Default: the server's id; an empty text for no prefix.",
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
    oauth: OAuth = Field(default=OAuthFile(), description="How to log in to it, if the server does not announce it.")


class LoadSettings(_FileModel):
    """Attempts, waits and deadlines of a load."""

    attempts: Count = Field(
        default=_LOAD.attempts, description="How many attempts a server gets that fails transiently."
    )
    backoff: Duration = Field(
        default=_LOAD.backoff, description="The wait before the second attempt; it doubles with each further attempt."
    )
    attempt_timeout: Timeout = Field(default=_LOAD.attempt_timeout, description="How long one attempt may take.")
    total_timeout: Timeout = Field(
        default=_LOAD.total_timeout, description="How long all attempts at a server may take together."
    )
    concurrency: Count = Field(default=_LOAD.concurrency, description="How many servers are loaded at the same time.")


class CallSettings(_FileModel):
    """How long a call may take, and how many calls may run at the same time."""

    timeout: Timeout = Field(default=_CALL.timeout, description="How long a call may go without an answer or progress.")
    hard_timeout: Timeout = Field(default=_CALL.hard_timeout, description="How long a call may take in total.")
    ready_timeout: Timeout = Field(
        default=_CALL.ready_timeout, description="How long a call waits for a server that is starting or reconnecting."
    )
    concurrency: Count = Field(
        default=_CALL.concurrency, description="How many calls to one server may run at the same time."
    )
    queue: WholeNumber = Field(
        default=_CALL.queue, description="How many more calls to one server may wait for their turn."
    )


class BreakerFile(_FileModel):
    """When calls to a failing server stop, and for how long."""

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


class ReconnectFile(_FileModel):
    """How a lost connection is restored."""

    failures: Count = Field(
        default=_RECONNECT.failures,
        description="How many consecutive failures on a live connection cause a reconnect.",
    )
    backoff: Pauses = Field(
        default=_RECONNECT.backoff,
        description="The wait before each attempt. The number of waits is the number of attempts.",
    )
    self_probe: Period = Field(
        default=_RECONNECT.self_probe,
        description="How often a server is tried again after all attempts failed; `off` for never.",
    )
    standing: Timeout = Field(
        default=_RECONNECT.standing,
        description="How long a new connection must last before earlier failures no longer count.",
    )


class PerClientFile(_FileModel):
    """Connections of a server with `sharing: per-client`: one for each client."""

    connections: Count = Field(
        default=_PER_CLIENT.connections,
        description="How many clients may have their own connection to the same server at the same time.",
    )
    idle: Timeout = Field(
        default=_PER_CLIENT.idle,
        description="How long such a connection may be idle if its client has no session (2026-07-28 over HTTP).",
    )


class LimitSettings(_FileModel):
    """Limits on what a server sends. A server that exceeds one fails with a message that names the limit."""

    message_bytes: Size = Field(default=_LIMITS.message_bytes, description="The largest single message.")
    catalog_items: Count = Field(default=_LIMITS.catalog_items, description="The most tools, prompts or resources.")
    catalog_bytes: Size = Field(default=_LIMITS.catalog_bytes, description="The largest whole listing.")
    pages: Count = Field(default=_LIMITS.pages, description="The most pages of one listing.")
    stderr_bytes: Size = Field(default=_LIMITS.stderr_bytes, description="How much of a process's stderr is kept.")
    notifications_per_second: Count = Field(
        default=_LIMITS.notifications_per_second, description="The most notifications in one second."
    )


class HoldfastSettings(_FileModel):
    """Holdfast's own settings; all optional."""

    load: LoadSettings = Field(default=LoadSettings(), description="Attempts, waits and deadlines of a load.")
    call: CallSettings = Field(
        default=CallSettings(), description="How long a call may take, and how many calls may run at the same time."
    )
    limits: LimitSettings = Field(default=LimitSettings(), description="Limits on what a server sends.")
    breaker: BreakerFile = Field(default=BreakerFile(), description="When calls to a failing server stop.")
    reconnect: ReconnectFile = Field(default=ReconnectFile(), description="How a lost connection is restored.")
    per_client: PerClientFile = Field(default=PerClientFile(), description="Connections that belong to one client.")
    refresh: Period = Field(
        default=_DEFAULTS.refresh,
        description="How often each server is listed again; `off` for only when it announces a change.",
    )
    idle: Timeout = Field(
        default=_DEFAULTS.idle, description="How long a `lazy` server may be idle before it is stopped."
    )


class ConfigFile(_FileModel):
    """A Holdfast configuration: an mcp.json, with Holdfast's own settings in addition to the servers."""

    mcp_servers: dict[str, ServerFile] = Field(default={}, description="The servers, by their names.")
    servers: dict[str, ServerFile] = Field(default={}, description="Another spelling of `mcpServers` (VS Code).")
    holdfast: HoldfastSettings = Field(default=HoldfastSettings(), description="Holdfast's own settings.")
