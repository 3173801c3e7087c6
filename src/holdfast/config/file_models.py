"""Pydantic models of the file, frozen, with unknown keys forbidden, and the keys of other clients that are ignored.

A configuration has two shapes: the file, which is described here, and what it means (``spec.py``, ``settings.py``).
Most keys are the same in both. They are described once, in the classes of the meaning (``in_file``): ``_section`` makes
the model of the file from such a class, and ``meaning`` makes an object of the class from what was read. Only what the
file has in another form stands here: other spellings of a key, and values that mean something together.
``definition.py`` turns a ``ServerFile`` into a ``spec.ServerSpec``.

The published JSON Schema is generated from these models. Editors show the descriptions, so they are whole sentences.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal, TypeVar, cast, get_args, get_origin, get_type_hints
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model
from pydantic.alias_generators import to_camel

from holdfast.config import fields
from holdfast.config.fields import (
    Environment,
    Flag,
    HeaderName,
    HeaderValue,
    OneOf,
    PlacementField,
    Port,
    Scopes,
    Text,
    TransportName,
    Url,
    Words,
)
from holdfast.config.settings import Settings
from holdfast.config.spec import CredentialLadder, OAuthSettings, ServerSpec, ToolFilter

__all__ = [
    "CONNECTION_KEYS",
    "SERVER_KEYS",
    "TOP_KEYS",
    "ConfigFile",
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


def _section(name: str, described: type[Any]) -> type[BaseModel]:
    """The model of an object of the file: every field of the class that is described for the file, and its objects."""
    hints, made = get_type_hints(described), dict[str, Any]()
    for one in dataclasses.fields(described):
        if "description" in one.metadata:
            written = _type_in_file(one, hints[one.name])
            default = ... if one.default is dataclasses.MISSING else one.default
            made[one.name] = written, Field(default=default, description=one.metadata["description"])
        elif dataclasses.is_dataclass(one.default):
            section = _section(to_camel(one.name), type(one.default))
            words = (section.__doc__ or "").partition(". ")[0].removesuffix(".")
            made[one.name] = section, Field(default=section(), description=f"{words}.")
    model: type[BaseModel] = create_model(name, __base__=_FileModel, __doc__=described.__doc__, **made)
    return model


def _type_in_file(one: dataclasses.Field[Any], hint: Any) -> Any:
    kind = one.metadata.get("kind")
    if isinstance(kind, type):
        item = _section(to_camel(one.name), kind)
        return tuple[item, ...] if one.default == () else item | None  # type: ignore[valid-type]  # made above
    if kind is not None:
        written = getattr(fields, kind)
    else:
        names = next(part for part in (hint, *get_args(hint)) if get_origin(part) is Literal)
        written = Annotated[names, OneOf(one.metadata["hint"], one.metadata["false_means"])]
    return written | None if one.default is None else written


_Meaning = TypeVar("_Meaning")


def meaning(kind: type[_Meaning], section: BaseModel, **known: object) -> _Meaning:
    """What an object of the file means; ``known`` are the values that do not stand there in the same form."""
    values = dict(known)
    for one in dataclasses.fields(cast("Any", kind)):
        if one.name in known or not hasattr(section, one.name):
            continue
        value = getattr(section, one.name)
        described = one.metadata.get("kind")
        if isinstance(value, BaseModel):
            value = meaning(described or type(one.default), value)
        elif isinstance(described, type) and value is not None:
            value = tuple(meaning(described, item) for item in value)
        values[one.name] = value
    return kind(**values)


class OAuthFile(_section("oauth", OAuthSettings)):  # type: ignore[misc]  # made above
    """How Holdfast logs in to a server, if the server does not announce it. `false` turns logins off."""

    scopes: Scopes = Field(default=(), description="Another spelling of `scope`.")
    callback_port: Port | None = Field(
        default=None, description="Short for a `redirectUri` of http://localhost:PORT/callback (Claude Code)."
    )


def credential_ladder(file: BaseModel) -> CredentialLadder:
    """The ladder of the file's object. An exchange that names the server in another way names no ``resource``."""
    ladder = meaning(CredentialLadder, file)
    service = ladder.exchange
    if service is None or service.resource is not None or not (service.form == "on-behalf-of" or service.audience):
        return ladder
    return replace(ladder, exchange=replace(service, resource=""))


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


def _filter(value: object) -> object:
    return {"include": value} if isinstance(value, list) else value


class ToolsFile(_section("tools", ToolFilter)):  # type: ignore[misc]  # made above
    """Which of a server's tools are shown. A list is read as `include`."""

    hold_changed: Flag = Field(
        default=False,
        description='The old name of `approvals`: `true` means `"approvals": "hold"`, if that is not set.',
    )


class ServerFile(_section("server", ServerSpec)):  # type: ignore[misc]  # made above
    """One server: a command that is started here, or a URL that is dialed."""

    type: TransportName | None = Field(
        default=None, description="How the server is reached. Left out, it is inferred from `command` or `url`."
    )
    transport: TransportName | None = Field(default=None, description="Another spelling of `type`.")
    transport_type: TransportName | None = Field(default=None, description="Another spelling of `type` (Cline).")
    env: Environment = Field(
        default={},
        description="Environment variables for it; it gets these and a minimal environment, never Holdfast's own.",
    )
    env_file: Text | None = Field(
        default=None, description="A file of `NAME=value` lines with more variables; `env` overrides it."
    )
    server_url: Url | None = Field(default=None, description="Another spelling of `url` (Windsurf).")
    http_url: Url | None = Field(
        default=None, description="Another spelling of `url`, always streamable HTTP (Gemini CLI)."
    )
    headers: dict[HeaderName, HeaderValue] = Field(default={}, description="Headers for every request to `url`.")
    disabled: Flag = Field(default=False, description="The opposite of `enabled` (Cline, Windsurf, Roo Code).")
    placement: PlacementField | None = Field(
        default=None,
        description="An old key without effect: a stdio server runs on each replica. What must run once has a hub of "
        "its own.",
    )
    tools: Annotated[ToolsFile, BeforeValidator(_filter)] = Field(
        default=ToolsFile(), description="Which of its tools are shown."
    )
    include_tools: Words = Field(default=(), description="Names of the only tools that are shown (Gemini CLI).")
    exclude_tools: Words = Field(default=(), description="Names of tools that are not shown (Gemini CLI).")
    disabled_tools: Words = Field(default=(), description="Names of tools that are not shown (Windsurf, Roo Code).")
    oauth: OAuth = Field(default=OAuthFile(), description="How to log in to it, if the server does not announce it.")


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
