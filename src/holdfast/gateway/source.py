"""Where the bridge's targets come from: an mcp.json on disk, one that an HTTP endpoint serves, or a running hub.

A hub tells its registry at ``/api/targets``, by its control token; the others are one document. What came over
HTTP is a stranger's: ``${env:…}`` in it is never expanded, so that nobody can have this process's environment written
into a URL.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import anyio
from pydantic import ValidationError

from holdfast.config.find import read_config
from holdfast.config.load import parse_config
from holdfast.config.spec import Config
from holdfast.config.targets import Target, Targets, targets_of
from holdfast.control.models import TargetsView
from holdfast.core.classify import classify
from holdfast.core.redact import mask_url
from holdfast.errors import ConfigError, ServerFailure
from holdfast.wire.fetch import fetch

__all__ = ["FileSource", "HttpSource", "Source", "SourceFailed"]

WITHIN = 10.0
"""Seconds that an endpoint has; a poll that takes longer is one that failed."""


class SourceFailed(Exception):
    """The targets could not be read; those of the last time still hold. It never leaves the bridge."""


class Source(Protocol):
    """Something that knows the targets."""

    @property
    def name(self) -> str:
        """Where it is, fit to be shown."""

    async def read(self) -> Targets:
        """The targets now; ``SourceFailed`` says why there are none."""


@dataclass(frozen=True)
class FileSource:
    """An mcp.json on this machine."""

    file: Path

    @property
    def name(self) -> str:
        """Its path."""
        return str(self.file)

    async def read(self) -> Targets:
        """Read the file anew."""
        try:
            text = await anyio.to_thread.run_sync(read_config, self.file)
            return _targets(text, parse_config(text, file=self.file))
        except ConfigError as exc:
            raise SourceFailed(exc.message) from exc


@dataclass(frozen=True, kw_only=True)
class HttpSource:
    """An endpoint that serves an mcp.json, or a hub's registry."""

    url: str = field(repr=False)
    token: Callable[[], str] | None = field(default=None, repr=False)
    """Gives the bearer token, anew for each poll."""
    allow_plain_http: bool = False

    @property
    def name(self) -> str:
        """Its address, without what is secret in it."""
        return mask_url(self.url)

    async def read(self) -> Targets:
        """Ask the endpoint."""
        headers = self._headers if self.token is not None else None
        try:
            body = await fetch(self.url, headers=headers, allow_plain_http=self.allow_plain_http, within=WITHIN)
            return _registry(body) or _targets(body, parse_config(body, environ={}))
        except ServerFailure as exc:
            raise SourceFailed(f"the endpoint gave no targets: {classify(exc.evidence).reason}") from exc
        except ConfigError as exc:
            # The parser's words may quote what came; a stranger's document is not repeated.
            raise SourceFailed("what the endpoint answered is not an mcp.json") from exc

    def _headers(self) -> Mapping[str, str]:
        return {"authorization": f"Bearer {self.token()}"} if self.token is not None else {}


def _registry(body: bytes) -> Targets | None:
    """A hub's registry; None if it is something else."""
    try:
        told = TargetsView.model_validate_json(body)
    except ValidationError:
        return None
    found = tuple(Target(id=one.id, url=one.url, transport=one.transport) for one in told.targets)
    return Targets(found=tuple(sorted(found, key=lambda one: one.id)), left_out=told.left_out)


def _targets(text: bytes, config: Config) -> Targets:
    """An empty object parses, and would withdraw every route: a list that is empty has to say so."""
    if not config.servers and not any(key in text for key in (b'"mcpServers"', b'"servers"')):
        raise SourceFailed('there is no "mcpServers" in it; an empty list is written {"mcpServers": {}}')
    return targets_of(config)
