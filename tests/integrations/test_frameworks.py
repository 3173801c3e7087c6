"""Each framework's own agent loop on a hub, across an outage, with the current release and the oldest one allowed."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.integrations.environments import FRAMEWORKS, Framework, Release
from tests.integrations.played import Plays

RELEASES = [
    pytest.param(framework, release, id=f"{framework.name}-{release}", marks=marks)
    for framework in FRAMEWORKS
    for release, marks in (("current", ()), ("oldest", pytest.mark.field))
]

OUTAGE = "MCP server 'weather' "


@pytest.mark.requirement("INT-1", "INT-2")
@pytest.mark.parametrize(("framework", "release"), RELEASES)
@pytest.mark.timeout(600)
def test_a_run_goes_on_through_an_outage_and_its_model_reads_the_reason(
    framework: Framework, release: Release, plays: Plays
) -> None:
    outage = plays(framework, release).scenario["outage"]
    _, before, during, after, new_tool = (json.dumps(read) for read in outage["read"])
    assert "sunny" in before
    assert OUTAGE in during
    assert "sunny" not in during
    assert "rainy" in after
    assert "none" in new_tool
    assert outage["calls_at_the_server"] == 3  # the call during the outage did not reach it, the others once


@pytest.mark.requirement("INT-1")
@pytest.mark.parametrize(("framework", "release"), RELEASES)
@pytest.mark.timeout(600)
def test_a_changed_catalog_is_followed_within_a_run(framework: Framework, release: Release, plays: Plays) -> None:
    offered = plays(framework, release).scenario["outage"]["offered"]
    assert offered[0] == ["weather__forecast"]
    assert offered[2] == ["weather__forecast"]  # still listed while its server is down
    assert offered[3] == ["weather__alerts", "weather__forecast"]


@pytest.mark.requirement("FIND-5")
@pytest.mark.parametrize(("framework", "release"), RELEASES)
@pytest.mark.timeout(600)
def test_a_model_finds_a_tool_that_is_not_listed_and_calls_it(
    framework: Framework, release: Release, plays: Plays
) -> None:
    found = plays(framework, release).scenario["find"]
    _, hits, result = (json.dumps(read) for read in found["read"])
    assert found["offered"][0] == ["call_readonly_tool", "call_tool", "describe_tools", "find_tools"]
    assert "weather__forecast()" in hits
    assert "[available]" in hits or "'available': True" in hits, "as text, or as structured content"
    assert "sunny" in result


@pytest.mark.requirement("INT-2")
@pytest.mark.parametrize(("framework", "release"), RELEASES)
@pytest.mark.timeout(600)
def test_the_instructions_name_what_is_unavailable_and_only_then(
    framework: Framework, release: Release, plays: Plays
) -> None:
    told = plays(framework, release).scenario["outage"]["told"]
    assert "MCP servers" not in told[1]
    assert "weather" in told[2]
    assert "MCP servers" not in told[4]


@pytest.mark.requirement("INT-1")
@pytest.mark.parametrize(("framework", "release"), RELEASES)
@pytest.mark.timeout(600)
def test_images_objects_and_errors_arrive_in_the_frameworks_own_types(
    framework: Framework, release: Release, plays: Plays
) -> None:
    picture, sound, reading, broken, counted = (
        json.dumps(read) for read in plays(framework, release).scenario["kinds"]["read"]
    )
    image, audio, failed = KINDS[framework.name]
    assert image in picture
    assert audio in sound
    assert "Bern" in reading
    assert "21" in reading
    assert failed in broken
    assert "counted" in counted


KINDS = {
    "langchain": ('"type": "image"', '"mime_type": "audio/wav"', '"status": "error"'),
    "openai_agents": ('"type": "input_image"', "audio/wav", "Error executing tool broken"),
    "pydantic_ai": ("BinaryContent(data=b'\\\\x89PNG", "media_type='audio/wav'", "Error executing tool broken"),
    "google_adk": ('"type": "image"', '"type": "audio"', '"error"'),
}
"""The marks of an image, a sound and a tool's own error, by framework."""


@pytest.mark.requirement("INT-1")
@pytest.mark.parametrize(("framework", "release"), RELEASES)
@pytest.mark.timeout(600)
def test_cancelling_a_run_cancels_the_call_at_the_server(framework: Framework, release: Release, plays: Plays) -> None:
    assert plays(framework, release).scenario["cancelled"] == {"run_was_cancelled": True, "server_was_told": True}


def test_importing_holdfast_imports_no_framework() -> None:
    frameworks = "{'langchain', 'langgraph', 'agents', 'pydantic_ai', 'google'}"
    code = (
        f"import holdfast, holdfast.integrations, sys; print({frameworks} & {{m.split('.')[0] for m in sys.modules}})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
