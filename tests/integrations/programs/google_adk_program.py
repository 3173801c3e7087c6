"""Google ADK's own loop on ``HubToolset``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from functools import partial
from typing import Any, Literal

from google.adk.agents import LlmAgent
from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.adk.runners import InMemoryRunner
from google.genai import types
from scenario import Script, play

from holdfast import Hub
from holdfast.integrations.google_adk import HubToolset


class ScriptedModel(BaseLlm):
    """A model that does what the script says."""

    script: Any

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        read = [
            part.function_response.response
            for content in llm_request.contents
            for part in content.parts or []
            if part.function_response
        ]
        told = llm_request.config.system_instruction
        said = await self.script.turn(
            offered=list(llm_request.tools_dict), read=read[-1] if read else None, told=str(told or "")
        )
        if isinstance(said, str):
            part = types.Part(text=said)
        else:
            name, arguments = said
            part = types.Part(function_call=types.FunctionCall(name=name, args=arguments))
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


async def run(hub: Hub, script: Script, mode: Literal["all", "find"] = "all") -> None:
    agent = LlmAgent(
        name="a",
        model=ScriptedModel(model="scripted", script=script),
        tools=[HubToolset(hub, tools=mode)],
        instruction=lambda ctx: hub.warnings().for_model,
    )
    runner = InMemoryRunner(agent=agent, app_name="test")
    session = await runner.session_service.create_session(app_name="test", user_id="u")
    message = types.Content(role="user", parts=[types.Part(text="go")])
    async for _ in runner.run_async(user_id="u", session_id=session.id, new_message=message):
        pass


asyncio.run(play(run, partial(run, mode="find")))
