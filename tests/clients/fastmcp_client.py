"""The scenario on FastMCP's client: ``python -m tests.clients.fastmcp_client URL legacy|modern``."""

from __future__ import annotations

import json
import sys
import uuid
import warnings
from typing import Any

import anyio
import mcp_types as types
from fastmcp import Client
from fastmcp.exceptions import ToolError

from tests.clients.scenario import ANSWERS, MODEL_SAYS, STEPS

_MODES = {"legacy": "legacy", "modern": "2026-07-28"}


async def main(url: str, era: str) -> None:
    """Run the scenario and print the report."""
    mode: Any = _MODES[era]
    async with Client(url, mode=mode, elicitation_handler=_elicited, sampling_handler=_sampled) as client:
        report = {**await _lists(client), **await _uses(client), "cancelled": await _cancel(client)}
    sys.stdout.write(json.dumps(report))


async def _lists(client: Client[Any]) -> dict[str, Any]:
    return {
        "tools": sorted(tool.name for tool in await client.list_tools()),
        "prompts": sorted(prompt.name for prompt in await client.list_prompts()),
        "resources": sorted(str(resource.uri) for resource in await client.list_resources()),
        "templates": sorted(template.uri_template for template in await client.list_resource_templates()),
    }


async def _uses(client: Client[Any]) -> dict[str, Any]:
    prompt = await client.get_prompt("test_prompt_with_arguments", {"arg1": "one", "arg2": "two"})
    resource = await client.read_resource("test://static-text")
    seen: list[float] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        seen.append(progress)

    await client.call_tool("test_counting", {"steps": STEPS}, progress_handler=note)
    return {
        "echo": await _call(client, "test_echo", words="hello"),
        "error": await _refusal(client, "test_error_handling"),
        "prompt": _text(prompt.messages[0].content),
        "resource": getattr(resource[0], "text", None),
        # The library runs each handler as a task of its own, so their order is not the order of arrival.
        "progress": sorted(seen),
        "elicitation": await _call(client, "test_elicitation", message="Who are you?"),
        "sampling": await _call(client, "test_sampling", prompt="What is the answer?"),
    }


async def _cancel(client: Client[Any]) -> str:
    name = str(uuid.uuid4())
    with anyio.CancelScope() as scope:

        async def begun(progress: float, total: float | None, message: str | None) -> None:
            scope.cancel()

        await client.call_tool("test_wait", {"name": name}, progress_handler=begun)
    return (await _call(client, "test_cancelled", name=name)).replace(name, "this call")


async def _call(client: Client[Any], name: str, /, **arguments: Any) -> str:
    return _text((await client.call_tool(name, arguments)).content[0])


async def _refusal(client: Client[Any], name: str) -> str:
    try:
        return await _call(client, name)
    except ToolError as error:
        return str(error)


def _text(content: object) -> str:
    assert isinstance(content, types.TextContent), content
    return content.text


async def _elicited(message: str, response_type: Any, params: object, context: object) -> Any:
    return response_type(**ANSWERS)


async def _sampled(messages: object, params: object, context: object) -> str:
    return MODEL_SAYS


if __name__ == "__main__":
    # Sampling is discouraged in later versions of the protocol; clients that do it are still about.
    warnings.simplefilter("ignore")
    anyio.run(main, sys.argv[1], sys.argv[2])
