"""The product's own schemas, where they are at hand: in the folder that a variable names, or beside the checkout."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.gateway.model import family_of
from holdfast.gateway.render import SCHEMAS_VARIABLE, Schema, find_schema

__all__ = ["VERSIONS", "folder", "schema_of"]

VERSIONS = ("0.12.0", "1.0.0", "1.1.0", "1.2.1", "1.3.1", "1.4.1")
"""A release of each kind that is supported."""


def folder() -> Path:
    """Where the schemas are; the test is skipped, and says so, where they are not."""
    beside = Path(__file__).parents[3] / "shared" / "data" / "agentgateway"
    place = Path(os.environ.get(SCHEMAS_VARIABLE) or beside)
    if not place.is_dir():
        pytest.skip(f"AgentGateway's schemas are not at hand: set {SCHEMAS_VARIABLE} to a folder of them")
    return place


def schema_of(version: str) -> Schema:
    """The schema of a release."""
    found = find_schema(family_of(version), folder())
    assert found is not None, f"no schema for {version} in {folder()}"
    return found
