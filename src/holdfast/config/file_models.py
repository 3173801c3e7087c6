"""Pydantic models of the file, frozen, with unknown keys forbidden, and the keys of other clients that are ignored.

``definition.py`` turns a ``ServerFile`` into a ``spec.ServerSpec``. The model of the ``holdfast`` section is made from
the classes of ``settings.py``, which say what it means. The published JSON Schema is
generated from these models. Editors show the descriptions, so they are whole sentences.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, TypeVar, cast
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, create_model
from pydantic.alias_generators import to_camel

from holdfast.config import fields
from holdfast.config.fields import (
    ApprovalName,
    CallTimeout,
    EnvName,
    EraName,
    ExchangeFormName,
    Flag,
    HeaderName,
    HeaderValue,
    HubAddress,
    IdentityName,
    InvalidValue,
    PlacementField,
    Port,
    Prefix,
    Resource,
    Scalar,
    Scopes,
    ServerScopeName,
    SharingName,
    Text,
    Timeout,
    TransportName,
    Url,
    kind_of,
)
from holdfast.config.settings import Settings
from holdfast.config.spec import CredentialLadder, ExchangeForm, OAuthSettings, ServerSpec, TokenService

__all__ = [
    "CONNECTION_KEYS",
    "SERVER_KEYS",
    "TOP_KEYS",
    "ConfigFile",
    "CredentialsFile",
    "OAuth",
    "OAuthFile",
    "ServerFile",
    "SettingsFile",
    "ToolsFile",
    "credential_ladder",
    "meaning",
    "oauth_settings",
]

_FOREIGN = frozenset(
    {
        "audiences",
        "authServerMetadataUrl",
        "codeChallengeMethodsSupported",
        "grantTypesSupported",
        "forwardAudienceOnRefresh",
        "registrationUrl",
        "responseTypesSupported",
        "revocationEndpoint",
        "revocationEndpointAuthMethodsSupported",
        "skipCodeChallengeCheck",
        "tokenEndpointAuthMethodsSupported",
        "tokenExchangeMethod",
        "tokenParamName",
        "xaa",
    }
)
"""Keys of Claude Code, Gemini CLI and LibreChat."""


class _FileModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel)


def _section(name: str, settings: type[Any]) -> type[BaseModel]:
    """The model of one section: every setting of the class that is described for the file, and its sections."""
    made: dict[str, Any] = {}
    for one in dataclasses.fields(settings):
        if "items" in one.metadata:
            item = _section(one.metadata["name"], one.metadata["items"])
            made[one.name] = tuple[item, ...], Field(default=one.default, description=one.metadata["description"])  # type: ignore[valid-type]  # made above
        elif one.metadata:
            kind = getattr(fields, one.metadata["kind"])
            written = kind | None if one.default is None else kind
            default = ... if one.default is dataclasses.MISSING else one.default
            made[one.name] = written, Field(default=default, description=one.metadata["description"])
        elif dataclasses.is_dataclass(one.default):
            section = _section(to_camel(one.name), type(one.default))
            words = (section.__doc__ or "").partition(". ")[0].removesuffix(".")
            made[one.name] = section, Field(default=section(), description=f"{words}.")
    model: type[BaseModel] = create_model(name, __base__=_FileModel, __doc__=settings.__doc__, **made)
    return model


_Meaning = TypeVar("_Meaning")


def meaning(kind: type[_Meaning], section: BaseModel) -> _Meaning:
    """The settings that a section of the file means."""
    values: dict[str, Any] = {}
    for one in dataclasses.fields(cast("Any", kind)):
        if not hasattr(section, one.name):
            continue
        value = getattr(section, one.name)
        if isinstance(value, BaseModel):
            value = meaning(type(one.default), value)
        elif "items" in one.metadata:
            value = tuple(meaning(one.metadata["items"], item) for item in value)
        values[one.name] = value
    return kind(**values)


class OAuthFile(_section("oauth", OAuthSettings)):  # type: ignore[misc]  # made above
    """How Holdfast logs in to a server, if the server does not announce it. `false` turns logins off."""

    scopes: Scopes = Field(default=(), description="Another spelling of `scope`.")
    callback_port: Port | None = Field(
        default=None, description="Short for a `redirectUri` of http://localhost:PORT/callback (Claude Code)."
    )


class TokenServiceFile(_FileModel):
    """The authorization server of a rung, and the hub as its client."""

    token_url: Url = Field(
        description="The token endpoint. A user's credential is sent there and nowhere else: https, or this machine."
    )
    client_id: Text = Field(description="The hub's client id there.")
    client_secret: Text | None = Field(
        default=None, description="The secret that goes with `clientId`: best written as `${env:NAME}`."
    )
    private_key: Text | None = Field(
        default=None,
        description="The private key of `clientId`, for `private_key_jwt`: the path of its file (PEM or JWK), or the"
        " key itself, best written as `${env:NAME}`.",
    )
    resource: Resource | None = Field(
        default=None,
        description="The `resource` to ask for a token for. Default: the address of the server. `false` sends none.",
    )
    scope: Scopes = Field(default=(), description="The scopes to ask for.")


class AssertionFile(TokenServiceFile):
    """Identity assertion: the issuer of the hub's users vouches for a user at the server's authorization server."""

    issuer: Url = Field(description="The authorization server of the server, as its metadata names it.")


class ExchangeFile(TokenServiceFile):
    """Token exchange: a user's token for the hub becomes her token for the server."""

    form: ExchangeFormName = Field(
        default="token-exchange",
        description="`token-exchange`: RFC 8693. `on-behalf-of`: the form of Microsoft Entra ID.",
    )
    audience: Text | None = Field(
        default=None,
        description="The `audience` to ask for, where the authorization server knows the server by a name. Then no"
        " `resource` is sent unless it is written.",
    )


class CredentialsFile(_FileModel):
    """Where the credentials of each user come from: assertion, exchange, her own login, the hub's. The order is fixed.

    Her own login is as `oauth` describes it; `"oauth": false` leaves it out.
    """

    assertion: AssertionFile | None = Field(
        default=None,
        description="Identity assertion (ID-JAG), for users who signed in to the hub at its issuer.",
    )
    exchange: ExchangeFile | None = Field(
        default=None, description="Token exchange, for users whose clients send a JWT to the hub."
    )
    shared: Flag = Field(
        default=False,
        description="Whether a user without a credential of her own acts with the login of the hub. A user who has"
        " one never does.",
    )


def credential_ladder(file: CredentialsFile) -> CredentialLadder:
    """The ladder of the file's object."""
    return CredentialLadder(
        assertion=_token_service(file.assertion) if file.assertion is not None else None,
        exchange=_token_service(file.exchange) if file.exchange is not None else None,
        shared=file.shared,
    )


def _token_service(file: AssertionFile | ExchangeFile) -> TokenService:
    form, audience, issuer, resource = "token-exchange", "", "", file.resource
    if isinstance(file, AssertionFile):
        issuer = file.issuer
    else:
        form, audience = file.form, file.audience or ""
        by_name = form == "on-behalf-of" or audience
        resource = "" if resource is None and by_name else resource
    return TokenService(
        token_url=file.token_url,
        client_id=file.client_id,
        client_secret=file.client_secret,
        private_key=file.private_key,
        form=cast("ExchangeForm", form),
        issuer=issuer,
        audience=audience,
        resource=resource,
        scope=file.scope,
    )


def _object(value: object) -> object:
    """``true`` and ``false`` set ``enabled``; LibreChat writes keys with underscores."""
    if isinstance(value, bool):
        return {"enabled": value}
    if not isinstance(value, dict):
        return value
    keys: dict[str, Any] = {to_camel(key) if "_" in key else key: item for key, item in value.items()}
    return {key: item for key, item in keys.items() if key not in _FOREIGN and item is not None}


OAuth = Annotated[OAuthFile, BeforeValidator(_object)]


def oauth_settings(file: OAuthFile) -> OAuthSettings:
    """The settings of the file's object, with its other spellings, and what one key says about another."""
    oauth = meaning(OAuthSettings, file)
    redirect, issuer = oauth.redirect_uri, oauth.issuer
    if redirect is None and file.callback_port is not None:
        redirect = f"http://localhost:{file.callback_port}/callback"
    if issuer is None and oauth.authorization_url is not None:
        parts = urlsplit(oauth.authorization_url)
        issuer = f"{parts.scheme}://{parts.netloc}"
    return replace(oauth, scope=oauth.scope or file.scopes, redirect_uri=redirect, issuer=issuer)


def _listed(value: object) -> object:
    if isinstance(value, str):
        raise InvalidValue(
            "must be a list of texts, not a text", hint='write ["first", "second"]: one text for each word'
        )
    return value


def _filter(value: object) -> object:
    return {"include": value} if isinstance(value, list) else value


def _without_nulls(value: object) -> object:
    """VS Code writes null for a variable that is not to be set."""
    if isinstance(value, dict):
        return {key: item for key, item in value.items() if item is not None}
    if isinstance(value, list):
        raise InvalidValue(f"must be an object, not {kind_of(value)}", hint='write {"NAME": "value"}')
    return value


_Words = Annotated[tuple[Scalar, ...], BeforeValidator(_listed)]
_Names = Annotated[tuple[Text, ...], BeforeValidator(_listed)]
_Environment = Annotated[
    dict[EnvName, Scalar],
    BeforeValidator(_without_nulls),
    WithJsonSchema({"type": "object", "additionalProperties": {"type": ["string", "number", "boolean", "null"]}}),
]


class ToolsFile(_FileModel):
    """Which of a server's tools are shown. A list is read as `include`."""

    include: _Names = Field(default=("*",), description="Shell patterns (`read_*`) of the tools that are shown.")
    exclude: _Names = Field(
        default=(), description="Shell patterns of the tools that are hidden; they override `include`."
    )
    hold_changed: Flag = Field(
        default=False,
        description='The old name of `approvals`: `true` means `"approvals": "hold"`, if that is not set.',
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
    hub: HubAddress | None = Field(
        default=None,
        description="Another hub of the same session key that has this server under the same name: `HOST:PORT`, or "
        "`unix:/path` on this machine. The state of the server there is its state here. Instead of `command` or `url`.",
    )
    headers: dict[HeaderName, HeaderValue] = Field(default={}, description="Headers for every request to `url`.")
    enabled: Flag | None = Field(default=None, description="Whether the server is used. Default: true.")
    disabled: Flag | None = Field(default=None, description="The opposite of `enabled` (Cline, Windsurf, Roo Code).")
    lazy: Flag = Field(
        default=False,
        description="Start the server at its first use, and stop it after `holdfast.idle` without use.",
    )
    start_timeout: Timeout = Field(
        default=ServerSpec.start_timeout,
        description="How long its process may take to answer for the first time; it is not ended before. A first run "
        "of `npx` or `uvx` installs packages and can take a minute.",
    )
    timeout: CallTimeout | None = Field(
        default=None,
        description="How long a call of it may go without an answer or progress. Default: `holdfast.call.timeout`. "
        "One that is longer than `holdfast.call.hardTimeout` takes its place for this server. A number without a unit "
        "is read as other clients mean it: below 1000 as seconds, from 1000 on as milliseconds.",
    )
    era: EraName = Field(
        default="auto",
        description="The protocol era to speak with it. `auto`: the one that it speaks, and that of each client where "
        "it speaks both. `legacy`: `initialize` (2024-11-05 to 2025-11-25). `modern`: 2026-07-28.",
    )
    approvals: ApprovalName | None = Field(
        default=None,
        description="What happens when this server changes a tool, a prompt or its instructions, or adds one, after it "
        "was first listed: `off`, `warn` (reported) or `hold` (shown as first seen, or hidden, until a person approves "
        "it). Left out, `holdfast.approvals` decides.",
    )
    scope: ServerScopeName = Field(
        default="shared",
        description="`project`: it runs once for each folder that clients work in, with that folder as its working "
        "folder and as `${workspaceFolder}`. A definition in your own file that uses `${workspaceFolder}` is one too.",
    )
    sharing: SharingName = Field(
        default="shared",
        description="Whether all clients of the hub share one connection, each client has its own (`per-client`: for "
        "browsers, shells and other servers that keep state), or each user has her own with her own login "
        "(`per-user`: for servers where each person must act as herself).",
    )
    identity: IdentityName = Field(
        default="none",
        description="What a server with a `url` is told about who calls: `none`; `header`, the name of the principal "
        "in `Holdfast-User`; `signed`, a short-lived JWT of the hub in `Holdfast-Identity`, for this server alone. Its "
        "keys are at `/.well-known/jwks.json` of the hub. The caller's own token is never sent.",
    )
    placement: PlacementField | None = Field(
        default=None,
        description="An old key without effect: a stdio server runs on each replica. What must run once has a hub of "
        "its own.",
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
    credentials: CredentialsFile = Field(
        default=CredentialsFile(),
        description="Where the credentials of its users come from, for a server that is `per-user`.",
    )


SettingsFile = _section("holdfast", Settings)
"""The model of the ``holdfast`` section, made from the classes of ``settings.py``."""


class ConfigFile(_FileModel):
    """A Holdfast configuration: an mcp.json, with Holdfast's own settings in addition to the servers."""

    mcp_servers: dict[str, ServerFile] = Field(default={}, description="The servers, by their names.")
    servers: dict[str, ServerFile] = Field(default={}, description="Another spelling of `mcpServers` (VS Code).")
    holdfast: SettingsFile = Field(default=SettingsFile(), description="Holdfast's own settings.")  # type: ignore[valid-type]  # made above


_NOTE = "a note to people"
_VS_CODE = "VS Code"
_LIBRECHAT = "LibreChat"
_GEMINI = "Gemini CLI"

TOP_KEYS: Mapping[str, str] = {
    "$comment": _NOTE,
    "$schema": "the editor's schema",
    "//": _NOTE,
    "_comment": _NOTE,
    "globalShortcut": "Claude Desktop",
    "inputs": _VS_CODE,
    "mcpSettings": _LIBRECHAT,
    "preferences": "Claude Desktop",
    "sandbox": _VS_CODE,
    "version": _LIBRECHAT,
}
"""At the top of the file: the key, and the client that uses it."""

SERVER_KEYS: Mapping[str, str] = {
    "$comment": _NOTE,
    "//": _NOTE,
    "_comment": _NOTE,
    "alwaysAllow": "Roo Code, Windsurf",
    "alwaysLoad": "Claude Code",
    "apiKey": _LIBRECHAT,
    "auth": "Cursor",
    "authProviderType": _GEMINI,
    "autoApprove": "Cline, Kiro",
    "chatMenu": _LIBRECHAT,
    "comment": _NOTE,
    "customUserVars": _LIBRECHAT,
    "description": "several clients",
    "dev": _VS_CODE,
    "extension": _GEMINI,
    "extensionName": _GEMINI,
    "gallery": _VS_CODE,
    "headersHelper": "Claude Code",
    "icon": "several clients",
    "iconPath": _LIBRECHAT,
    "initTimeout": _LIBRECHAT,
    "name": "several clients",
    "note": _NOTE,
    "oauth_headers": _LIBRECHAT,
    "obo": _LIBRECHAT,
    "proxy": _LIBRECHAT,
    "registry": "Windsurf",
    "remote": "Zed",
    "requiresOAuth": _LIBRECHAT,
    "sandbox": _VS_CODE,
    "sandboxEnabled": _VS_CODE,
    "serverInstructions": _LIBRECHAT,
    "settings": "Zed",
    "source": "Zed",
    "sseReadTimeout": _LIBRECHAT,
    "startup": _LIBRECHAT,
    "stderr": _LIBRECHAT,
    "targetAudience": _GEMINI,
    "targetServiceAccount": _GEMINI,
    "title": _LIBRECHAT,
    "trust": _GEMINI,
    "version": _VS_CODE,
    "watchPaths": "Roo Code",
}
"""In the definition of a server: the key, and the client that uses it."""

CONNECTION_KEYS: Mapping[str, str] = {
    "encoding": "LangChain",
    "encoding_error_handler": "LangChain",
    "httpx_client_factory": "LangChain",
    "session_kwargs": "LangChain",
    "sse_read_timeout": "LangChain",
    "terminate_on_close": "LangChain",
    "timeout": "LangChain",
}
"""In a connection that a program passes, in addition to the keys above."""
