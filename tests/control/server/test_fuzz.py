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

from holdfast.control.server.operations import document
from holdfast.testing import HttpServer
from tests.control.server.controlled_hub import TOKEN, steered

pytestmark = pytest.mark.anyio

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
EXAMPLES = 5


def fuzzed() -> dict[str, Any]:
    """The document without its streams: they have no end to wait for."""
    whole = copy.deepcopy(document())
    whole["paths"] = {
        path: item
        for path, item in whole["paths"].items()
        if "text/event-stream" not in str(item["get" if "get" in item else "post"]["responses"]["200"])
    }
    return whole


def made() -> list[Any]:
    """The questions; all are thought of before any is put, since the hub must not roll dice meanwhile."""
    cases: list[Any] = []
    for result in schemathesis.openapi.from_dict(fuzzed()).get_all_operations():
        assert isinstance(result, Ok)
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            _make(result.ok(), mode, cases)
    return cases


def _make(operation: Any, mode: GenerationMode, cases: list[Any]) -> None:
    @hypothesis.seed(20261115)
    @settings(max_examples=EXAMPLES, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy(generation_mode=mode))
    def make(case: Any) -> None:
        cases.append(case)

    try:
        make()
    except hypothesis.errors.Unsatisfiable:  # there is nothing that could be wrong with a request without parts
        return


def put(cases: list[Any], base: str) -> None:
    """Ask them all, those about a server also about one that is there."""
    with requests.Session() as session:
        session.trust_env = False
        for case in cases:
            servers = (case.path_parameters["server"], "up") if "server" in (case.path_parameters or {}) else ("",)
            for server in servers:
                if server:
                    case.path_parameters["server"] = server
                headers = {"authorization": f"Bearer {TOKEN}"}
                response = case.call(base_url=base, session=session, headers=headers, timeout=30)
                case.validate_response(response, checks=CHECKS)


@pytest.mark.requirement("HUB-5")
async def test_every_request_is_answered_as_the_document_says() -> None:
    cases = made()
    assert len(cases) > 10 * EXAMPLES
    async with HttpServer({"a": "one"}) as up, steered({"up": up.definition}, refresh="off") as hub:
        await anyio.to_thread.run_sync(put, cases, hub.base)
        assert (await hub.control.hub()).ready
