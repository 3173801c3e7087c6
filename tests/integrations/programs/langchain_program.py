"""LangChain's own loop on ``HubMiddleware``, and on ``langchain_tools`` where nothing changes."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

from langchain.agents import create_agent
from langchain_core.callbacks import AsyncCallbackManagerForLLMRun
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from scenario import Script, play

from holdfast import Hub
from holdfast.integrations.langchain import HubMiddleware, langchain_tools


class ScriptedModel(BaseChatModel):
    """A model that does what the script says."""

    script: Any
    offered: tuple[str, ...] = ()

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self.model_copy(update={"offered": tuple(tool.name for tool in tools)})

    def _generate(self, *args: Any, **kwargs: Any) -> ChatResult:
        raise NotImplementedError

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        last = messages[-1]
        read = (
            {"status": last.status, "content": last.content, "artifact": last.artifact}
            if isinstance(last, ToolMessage)
            else None
        )
        told = str(messages[0].content) if messages[0].type == "system" else ""
        said = await self.script.turn(offered=list(self.offered), read=read, told=told)
        if isinstance(said, str):
            answer = AIMessage(said)
        else:
            name, arguments = said
            answer = AIMessage("", tool_calls=[{"name": name, "args": arguments, "id": uuid.uuid4().hex}])
        return ChatResult(generations=[ChatGeneration(message=answer)])


async def run(hub: Hub, script: Script) -> None:
    agent = create_agent(ScriptedModel(script=script), middleware=[HubMiddleware(hub)])
    await agent.ainvoke({"messages": [("user", "go")]})


async def run_finding(hub: Hub, script: Script) -> None:
    agent = create_agent(ScriptedModel(script=script), middleware=[HubMiddleware(hub, tools="find")])
    await agent.ainvoke({"messages": [("user", "go")]})


async def run_on_tools(hub: Hub, script: Script) -> None:
    agent = create_agent(ScriptedModel(script=script), await langchain_tools(hub))
    await agent.ainvoke({"messages": [("user", "go")]})


if __name__ == "__main__":
    asyncio.run(play(run, run_finding))
