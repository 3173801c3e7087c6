"""The programs of the frameworks run once for all tests of a run."""

from __future__ import annotations

import os

import pytest

from tests.integrations.played import Plays


@pytest.fixture(scope="session")
def plays(tmp_path_factory: pytest.TempPathFactory) -> Plays:
    """What came of each framework's programs."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "frameworks"
    folder.mkdir(exist_ok=True)
    return Plays(folder)
