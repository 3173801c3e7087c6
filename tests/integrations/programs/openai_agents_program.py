"""The OpenAI Agents SDK's own loop on ``HubServer``."""

from __future__ import annotations

import asyncio
import json
import uuid
from functools import partial
from typing import Any, Literal

from agents import Agent, ModelResponse, Runner, Usage, set_tracing_disabled
from agents.models.interface import Model
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText
from scenario import Script, play

from holdfast import Hub
from holdfast.integrations.openai_agents import HubServer

set_tracing_disabled(True)


class ScriptedModel(Model):
    """A model that does what the script says."""

    def __init__(self, script: Script) -> None:
        self._script = script

    async def get_response(self, *given: Any, **options: Any) -> ModelResponse:
        said_before, seen, _, tools, *_ = given or _by_name(options)
        read = [item["output"] for item in seen if _is_output(item)] if isinstance(seen, list) else []
        said = await self._script.turn(
            offered=[tool.name for tool in tools], read=read[-1] if read else None, told=said_before or ""
        )
        return ModelResponse(output=[_item(said)], usage=Usage(), response_id=None)

    def stream_response(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError


def _by_name(options: dict[str, Any]) -> tuple[Any, ...]:
    return options["system_instructions"], options["input"], options["model_settings"], options["tools"]


def _is_output(item: Any) -> bool:
    return isinstance(item, dict) and item.get("type") == "function_call_output"


def _item(said: tuple[str, dict[str, Any]] | str) -> Any:
    if isinstance(said, str):
        text = ResponseOutputText(annotations=[], text=said, type="output_text")
        return ResponseOutputMessage(id="m", content=[text], role="assistant", status="completed", type="message")
    name, arguments = said
    return ResponseFunctionToolCall(
        arguments=json.dumps(arguments), call_id=uuid.uuid4().hex, name=name, type="function_call"
    )


async def run(hub: Hub, script: Script, mode: Literal["all", "find"] = "all") -> None:
    async with HubServer(hub, tools=mode) as server:
        agent = Agent(
            name="a",
            model=ScriptedModel(script),
            instructions=lambda ctx, agent: hub.warnings().for_model,
            mcp_servers=[server],
        )
        await Runner.run(agent, "go", max_turns=20)
    assert hub.servers, "the hub is its owner's: the server leaves it open"


asyncio.run(play(run, partial(run, mode="find")))
