"""Short ways to read a configuration in a test, and to look at what is wrong with it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from holdfast.config.read import parse_config
from holdfast.config.spec import Config, ServerSpec
from holdfast.errors import ConfigError, Problem

ENVIRON: Mapping[str, str] = {"HOME": "/home/me", "PATH": "/usr/bin:/bin"}


def read(text: str, *, file: Path | None = None, **environ: str) -> Config:
    """The configuration that ``text`` holds, in an environment of its own."""
    return parse_config(text, file=file, environ={**ENVIRON, **environ})


def server(definition: object, *, file: Path | None = None, **environ: str) -> ServerSpec:
    """What one definition becomes."""
    return read(json.dumps({"mcpServers": {"s": definition}}), file=file, **environ).servers["s"]


def spec(definition: object, *, file: Path | None = None, **environ: str) -> ServerSpec:
    """What one good definition becomes."""
    found = server(definition, file=file, **environ)
    assert not found.problems, found
    return found


def problems(definition: object, *, file: Path | None = None, **environ: str) -> tuple[Problem, ...]:
    """What is wrong with one bad definition."""
    found = server(definition, file=file, **environ)
    assert found.problems, found
    return found.problems


def top_problems(text: str, **environ: str) -> tuple[Problem, ...]:
    """What is wrong with a configuration as a whole."""
    with pytest.raises(ConfigError) as caught:
        read(text, file=None, **environ)
    return caught.value.problems
