"""Where the targets of the bridge come from: an mcp.json on disk or at an HTTP endpoint, or a running hub.

A hub serves its registry at ``/api/targets``, with its control token. A document that came over HTTP is not
trusted: ``${env:…}`` in it is never expanded, so that it cannot read the environment of this process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import anyio
from pydantic import ValidationError

from holdfast.config import Config, Target, Targets, parse_config, read_config, targets_of
from holdfast.control import TargetsView
from holdfast.core import classify_evidence, mask_url
from holdfast.errors import ConfigError, ServerFailure
from holdfast.wire import fetch

__all__ = ["FileSource", "HttpSource", "SourceFailed", "TargetSource"]

WITHIN = 10.0
"""Seconds for one poll of an endpoint."""


class SourceFailed(Exception):
    """The targets could not be read, and the last ones stay valid. Only the bridge sees this error."""


class TargetSource(Protocol):
    """A source of targets."""

    @property
    def name(self) -> str:
        """Its location, without secrets."""

    async def read(self) -> Targets:
        """The current targets; ``SourceFailed`` if they cannot be read."""


@dataclass(frozen=True)
class FileSource:
    """An mcp.json on this machine."""

    file: Path

    @property
    def name(self) -> str:
        """Its path."""
        return str(self.file)

    async def read(self) -> Targets:
        """Read the file."""
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
    """Returns the bearer token; called for each poll."""
    allow_plain_http: bool = False

    @property
    def name(self) -> str:
        """Its address, without secrets."""
        return mask_url(self.url)

    async def read(self) -> Targets:
        """Ask the endpoint."""
        headers = self._headers if self.token is not None else None
        try:
            body = await fetch(self.url, headers=headers, allow_plain_http=self.allow_plain_http, within=WITHIN)
            return _registry(body) or _targets(body, parse_config(body, environ={}))
        except ServerFailure as exc:
            raise SourceFailed(f"the endpoint returned no targets: {classify_evidence(exc.evidence).reason}") from exc
        except ConfigError as exc:
            # The message of the parser may quote the document, which is not trusted.
            raise SourceFailed("the answer of the endpoint is not an mcp.json") from exc

    def _headers(self) -> Mapping[str, str]:
        return {"authorization": f"Bearer {self.token()}"} if self.token is not None else {}


def _registry(body: bytes) -> Targets | None:
    """The registry of a hub; None if the body is something else."""
    try:
        registry = TargetsView.model_validate_json(body)
    except ValidationError:
        return None
    found = (Target(id=one.id, url=one.url, transport=one.transport) for one in registry.targets)
    usable = tuple(sorted((one for one in found if "@" not in urlsplit(one.url).netloc), key=lambda one: one.id))
    return Targets(found=usable, left_out=registry.left_out)


def _targets(text: bytes, config: Config) -> Targets:
    """The targets of a config. An object without a server list is an error, because it would remove every route."""
    if not config.servers and not any(key in text for key in (b'"mcpServers"', b'"servers"')):
        raise SourceFailed('it has no "mcpServers"; an empty list is {"mcpServers": {}}')
    return targets_of(config)
