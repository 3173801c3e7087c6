"""Fixtures of the tests for pairs of eras: a conftest names them, and each of its tests runs for both eras."""

from __future__ import annotations

import pytest

from tests.harness.served_hub import Era, Person

__all__ = ["ada", "bob", "client_era", "server_era"]


@pytest.fixture(params=["modern", "legacy"])
def client_era(request: pytest.FixtureRequest) -> Era:
    era: Era = request.param
    return era


@pytest.fixture(params=["modern", "legacy"])
def server_era(request: pytest.FixtureRequest) -> Era:
    era: Era = request.param
    return era


@pytest.fixture
def ada() -> Person:
    return Person("ada")


@pytest.fixture
def bob() -> Person:
    return Person("bob")
