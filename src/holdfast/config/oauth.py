"""The ``oauth`` object of a server's definition.

Other clients write the same object with keys of their own. Keys that Holdfast does not use are ignored.
"""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic.alias_generators import to_camel

from holdfast.config.durations import Unfit
from holdfast.config.fields import Flag, Port, Text, Url, kind_of
from holdfast.config.spec import OAuthSettings

__all__ = ["OAuth", "OAuthFile", "is_oauth_key", "oauth_settings"]

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


def _scopes(value: object) -> list[str]:
    words = value.split() if isinstance(value, str) else value
    if isinstance(words, list) and all(isinstance(word, str) and word.strip() for word in words):
        return [part for word in words for part in word.split()]
    raise Unfit(f"must be a text or a list of texts, not {kind_of(value)}", hint='write "read write"')


_Scopes = Annotated[
    tuple[str, ...],
    BeforeValidator(_scopes),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
]


class OAuthFile(BaseModel):
    """How Holdfast logs in to a server, if the server does not announce it. `false` turns logins off."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel)

    enabled: Flag = Field(default=True, description="Whether a login is used for this server.")
    client_id: Text | None = Field(
        default=None, description="Holdfast's client id at the authorization server, if it is registered there."
    )
    client_secret: Text | None = Field(
        default=None, description="The secret that goes with `clientId`: best written as `${env:NAME}`."
    )
    client_metadata_url: Url | None = Field(
        default=None,
        description="The https address of a client id metadata document: the client id at servers that accept one.",
    )
    scope: _Scopes = Field(default=(), description="The scopes to ask for. Default: those that the server names.")
    scopes: _Scopes = Field(default=(), description="Another spelling of `scope`.")
    redirect_uri: Url | None = Field(
        default=None,
        description="The redirect URI, if one is registered: an address of this machine.",
    )
    callback_port: Port | None = Field(
        default=None, description="Short for a `redirectUri` of http://localhost:PORT/callback (Claude Code)."
    )
    issuer: Url | None = Field(
        default=None, description="The authorization server to use. Default: the first that the server names."
    )
    authorization_url: Url | None = Field(
        default=None, description="The authorization endpoint, if the authorization server publishes no metadata."
    )
    token_url: Url | None = Field(default=None, description="The token endpoint, if it publishes no metadata.")
    device_authorization_url: Url | None = Field(
        default=None, description="The device authorization endpoint, if its metadata has none."
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


def is_oauth_key(key: str) -> bool:
    """Whether Holdfast uses a key, in either spelling."""
    return (to_camel(key) if "_" in key else key) in {field.alias for field in OAuthFile.model_fields.values()}


def oauth_settings(file: OAuthFile) -> OAuthSettings:
    """The settings of the file's object."""
    redirect = file.redirect_uri
    if redirect is None and file.callback_port is not None:
        redirect = f"http://localhost:{file.callback_port}/callback"
    issuer = file.issuer
    if issuer is None and file.authorization_url is not None:
        parts = urlsplit(file.authorization_url)
        issuer = f"{parts.scheme}://{parts.netloc}"
    return OAuthSettings(
        enabled=file.enabled,
        client_id=file.client_id,
        client_secret=file.client_secret,
        client_metadata_url=file.client_metadata_url,
        scope=file.scope or file.scopes,
        redirect_uri=redirect,
        issuer=issuer,
        authorization_url=file.authorization_url,
        token_url=file.token_url,
        device_authorization_url=file.device_authorization_url,
    )
