"""Pydantic AI's own loop on ``HubToolset``."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Literal

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, RetryPromptPart, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from scenario import Script, play

from holdfast import Hub
from holdfast.integrations.pydantic_ai import HubToolset


async def run(hub: Hub, script: Script, mode: Literal["all", "find"] = "all") -> None:
    async def scripted(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        parts = [part for part in messages[-1].parts if isinstance(part, ToolReturnPart | RetryPromptPart)]
        read: Any = None
        if parts:
            part = parts[-1]
            outcome = getattr(part, "outcome", "retry")
            read = {"kind": part.part_kind, "outcome": outcome, "content": repr(part.content)}
        said = await script.turn(
            offered=[tool.name for tool in info.function_tools], read=read, told=info.instructions or ""
        )
        if isinstance(said, str):
            return ModelResponse(parts=[TextPart(said)])
        name, arguments = said
        return ModelResponse(parts=[ToolCallPart(name, arguments)])

    agent = Agent(
        FunctionModel(scripted),
        toolsets=[HubToolset(hub, tools=mode)],
        instructions=lambda: hub.warnings().for_model,
        retries=3,
    )
    await agent.run("go")


asyncio.run(play(run, partial(run, mode="find")))
