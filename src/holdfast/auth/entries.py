"""A grant as an entry of the store's file, with or without its secrets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from holdfast.auth.grant import Grant, GrantKey, OAuthClient

__all__ = ["key_of", "read_entry", "secrets_of", "with_secrets", "write_entry"]

SECRETS = ("access_token", "refresh_token")


def key_of(entry: Mapping[str, Any]) -> GrantKey:
    """The key of an entry; raises for an entry that is no grant."""
    return read_entry(entry).key


def read_entry(entry: Mapping[str, Any]) -> Grant:
    """The grant; its tokens are empty where the keyring has them."""
    client = OAuthClient(**entry["client"])
    return Grant(**{"access_token": "", **entry, "servers": tuple(entry["servers"]), "client": client})


def write_entry(grant: Grant) -> dict[str, Any]:
    """All of a grant, or all but its secrets where the keyring has those."""
    entry = asdict(grant)
    if grant.source == "keyring":
        for name in SECRETS:
            del entry[name]
        entry["client"]["secret"] = None
    return entry


def secrets_of(grant: Grant) -> dict[str, str]:
    """The secrets of a grant, for the keyring."""
    pairs = {name: getattr(grant, name) for name in SECRETS} | {"client_secret": grant.client.secret}
    return {name: value for name, value in pairs.items() if value}


def with_secrets(grant: Grant, secrets: Mapping[str, str]) -> Grant:
    """A grant with its secrets put back."""
    return replace(
        grant,
        access_token=secrets.get("access_token", ""),
        refresh_token=secrets.get("refresh_token"),
        client=replace(grant.client, secret=secrets.get("client_secret")),
    )
