"""Reads a configuration from a file, a text, a mapping or a single connection."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

from holdfast.config.definition import ReadContext, read_definition
from holdfast.config.find import find_config, project_folder, read_config, user_folders
from holdfast.config.foreign import CONNECTION_KEYS, SERVER_KEYS
from holdfast.config.jsonc import DEEPEST, parse
from holdfast.config.places import KeyPath, SourceMap, joined
from holdfast.config.reading import Reading, read_document
from holdfast.config.spec import BadServer, Config, HeaderSource, ServerSpec
from holdfast.errors import ConfigError, Problem

__all__ = ["config_from_mapping", "load_config", "parse_config", "read_file", "spec_from_connection"]


def load_config(
    path: Path | None = None, *, environ: Mapping[str, str] | None = None, cwd: Path | None = None
) -> Config:
    """The configuration at ``path``, or the first that the search finds.

    Raises ``ConfigNotFound`` if there is none, and ``ConfigError`` with every problem if the file as a
    whole is invalid. A server with an invalid definition is a ``BadServer`` in the result.
    """
    environ = os.environ if environ is None else environ
    return read_file(find_config(path, environ=environ, cwd=cwd or Path.cwd()), environ=environ).config


def parse_config(text: str | bytes, *, file: Path | None = None, environ: Mapping[str, str] | None = None) -> Config:
    """The configuration that ``text`` holds; ``file`` is its origin, for positions and relative paths."""
    return _read_text(text, file=file, environ=os.environ if environ is None else environ).config


def config_from_mapping(mapping: Mapping[str, object], *, environ: Mapping[str, str] | None = None) -> Config:
    """The configuration in a program's own mapping, with the keys of a file; relative paths are not changed."""
    context = ReadContext(source_map=SourceMap(), environ=os.environ if environ is None else environ)
    return read_document(_plain(mapping, ()), context).config


def spec_from_connection(server_id: str, connection: Mapping[str, object]) -> ServerSpec | BadServer:
    """One entry of a ``connections`` mapping; ``${…}`` is not expanded, ``headers`` may be a callable."""
    context = ReadContext(
        source_map=SourceMap(),
        environ=os.environ,
        expands=False,
        foreign={**SERVER_KEYS, **CONNECTION_KEYS},
    )
    try:
        raw = _plain(connection, (server_id,))
    except ConfigError as error:
        return BadServer(id=server_id, problems=error.problems)
    headers = raw.pop("headers", None) if isinstance(raw, dict) and callable(raw.get("headers")) else None
    server = read_definition(server_id, raw, (server_id,), context, problems=_auth_problems(server_id, raw)).server
    if headers is None or isinstance(server, BadServer):
        return server
    return replace(server, headers=cast("HeaderSource", headers))


def read_file(file: Path, *, environ: Mapping[str, str]) -> Reading:
    """Read a file, and record where each value came from."""
    return _read_text(read_config(file), file=file, environ=environ)


def _read_text(text: str | bytes, *, file: Path | None, environ: Mapping[str, str]) -> Reading:
    document = parse(text, file=file)
    folder = project_folder(file) if file else None
    is_users_own = file is not None and file.absolute().parent in list(user_folders(environ))
    context = ReadContext(
        source_map=SourceMap(document, file=file),
        environ=environ,
        folder=folder,
        # A user's own servers belong to no project, so they run in the current folder.
        cwd=None if is_users_own else folder,
    )
    return read_document(document.value, context, duplicates=document.duplicates, source=file)


def _plain(value: object, path: KeyPath) -> dict[str, object] | object:
    """A program's value as JSON types; other types stay as they are and are rejected later."""
    if len(path) > DEEPEST:
        raise ConfigError([Problem(message=f"this is nested more than {DEEPEST} levels deep", path=joined(path[:3]))])
    if isinstance(value, Mapping):
        return {_name(key, path): _plain(item, (*path, _name(key, path))) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, (*path, index)) for index, item in enumerate(value)]
    return str(value) if isinstance(value, Path) else value


def _name(key: object, path: KeyPath) -> str:
    if isinstance(key, str):
        return key
    message = f"a key must be a text, not a {type(key).__name__}"
    raise ConfigError([Problem(message=message, hint="use texts as keys", path=joined(path))])


def _auth_problems(server_id: str, raw: object) -> list[Problem]:
    """Reject an ``auth`` object: ignoring it silently would lead to a 401 without an explanation."""
    if not isinstance(raw, dict) or raw.pop("auth", None) is None:
        return []
    hint = "give `headers` as a callable that returns fresh ones for each request"
    return [Problem(message="`auth` objects are not supported", hint=hint, path=joined((server_id, "auth")))]
