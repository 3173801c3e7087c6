"""The scenario on the Python SDK's client: ``python -m tests.clients.python_sdk URL legacy|modern``."""

from __future__ import annotations

import json
import sys
import uuid
import warnings
from typing import Any

import anyio
import mcp_types as types
from mcp import Client
from mcp.client.client import ConnectMode

from tests.clients.scenario import ANSWERS, MODEL_SAYS, STEPS

_MODES: dict[str, ConnectMode] = {"legacy": "legacy", "modern": "2026-07-28"}


async def main(url: str, era: str) -> None:
    """Run the scenario and print the report."""
    async with Client(
        url, mode=_MODES[era], elicitation_callback=_elicited, sampling_callback=_sampled, cache=None
    ) as client:
        report = {"version": client.protocol_version, **await _lists(client), **await _uses(client)}
        report["cancelled"] = await _cancel(client)
    sys.stdout.write(json.dumps(report))


async def _lists(client: Client) -> dict[str, Any]:
    return {
        "tools": sorted(tool.name for tool in (await client.list_tools()).tools),
        "prompts": sorted(prompt.name for prompt in (await client.list_prompts()).prompts),
        "resources": sorted(resource.uri for resource in (await client.list_resources()).resources),
        "templates": sorted(
            template.uri_template for template in (await client.list_resource_templates()).resource_templates
        ),
    }


async def _uses(client: Client) -> dict[str, Any]:
    prompt = await client.get_prompt("test_prompt_with_arguments", {"arg1": "one", "arg2": "two"})
    resource = await client.read_resource("test://static-text")
    seen: list[float] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        seen.append(progress)

    await client.call_tool("test_counting", {"steps": STEPS}, progress_callback=note)
    return {
        "echo": await _call(client, "test_echo", words="hello"),
        "error": await _call(client, "test_error_handling"),
        "prompt": _text(prompt.messages[0].content),
        "resource": getattr(resource.contents[0], "text", None),
        # The SDK runs each callback as a task of its own, so their order is not the order of arrival.
        "progress": sorted(seen),
        "elicitation": await _call(client, "test_elicitation", message="Who are you?"),
        "sampling": await _call(client, "test_sampling", prompt="What is the answer?"),
    }


async def _cancel(client: Client) -> str:
    name = str(uuid.uuid4())
    with anyio.CancelScope() as scope:

        async def begun(progress: float, total: float | None, message: str | None) -> None:
            scope.cancel()

        await client.call_tool("test_wait", {"name": name}, progress_callback=begun)
    return (await _call(client, "test_cancelled", name=name)).replace(name, "this call")


async def _call(client: Client, name: str, /, **arguments: Any) -> str:
    return _text((await client.call_tool(name, arguments)).content[0])


def _text(content: object) -> str:
    assert isinstance(content, types.TextContent), content
    return content.text


async def _elicited(context: object, params: types.ElicitRequestParams) -> types.ElicitResult:
    return types.ElicitResult(action="accept", content={**ANSWERS})


async def _sampled(context: object, params: types.CreateMessageRequestParams) -> types.CreateMessageResult:
    said = types.TextContent(type="text", text=MODEL_SAYS)
    return types.CreateMessageResult(role="assistant", content=said, model="test-model")


if __name__ == "__main__":
    # Sampling is discouraged in later versions of the protocol; clients that do it are still about.
    warnings.simplefilter("ignore")
    anyio.run(main, sys.argv[1], sys.argv[2])
