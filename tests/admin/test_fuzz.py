"""The control API, asked everything that its own document allows, and much that it does not."""

from __future__ import annotations

import copy
from typing import Any

import anyio
import anyio.to_thread
import hypothesis
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from holdfast.admin.openapi import document
from holdfast.testing import HttpServer
from tests.admin.steered import TOKEN, steered

pytestmark = pytest.mark.anyio

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
EXAMPLES = 6


def fuzzed() -> dict[str, Any]:
    """The document without its streams: they have no end to wait for."""
    whole = copy.deepcopy(document())
    whole["paths"] = {
        path: item
        for path, item in whole["paths"].items()
        if "text/event-stream" not in str(item["get" if "get" in item else "post"]["responses"]["200"])
    }
    return whole


def fuzz(base: str) -> int:
    """Ask; returns how many questions were put."""
    schema = schemathesis.openapi.from_dict(fuzzed())
    asked = 0
    with requests.Session() as session:
        session.trust_env = False
        session.headers["authorization"] = f"Bearer {TOKEN}"
        for result in schema.get_all_operations():
            assert isinstance(result, Ok)
            for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
                asked += _fuzz_one(result.ok(), mode, base, session)
    return asked


def _fuzz_one(operation: Any, mode: GenerationMode, base: str, session: requests.Session) -> int:
    asked = 0

    @hypothesis.seed(20261115)
    @settings(max_examples=EXAMPLES, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy(generation_mode=mode))
    def put(case: Any) -> None:
        nonlocal asked
        for server in (None, "up") if "server" in (case.path_parameters or {}) else (None,):
            if server is not None:
                case.path_parameters["server"] = server
            response = case.call(base_url=base, session=session, headers=dict(session.headers), timeout=30)
            case.validate_response(response, checks=CHECKS)
            asked += 1

    try:
        put()
    except hypothesis.errors.Unsatisfiable:  # there is nothing that could be wrong with a request without parts
        return 0
    return asked


@pytest.mark.requirement("HUB-5")
async def test_whatever_is_asked_is_answered_as_the_document_says() -> None:
    async with HttpServer({"a": "one"}) as up, steered({"up": up.definition}, refresh="off") as hub:
        asked = await anyio.to_thread.run_sync(fuzz, hub.base)
        assert (await hub.control.hub()).ready
    assert asked > 5 * EXAMPLES
