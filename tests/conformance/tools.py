"""How the fixture server's tools behave. Each is a coroutine that takes the call and gives its result."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

import anyio
import mcp_types as types
from mcp.server.subscriptions import PromptsListChanged, ResourceUpdated, ToolsListChanged
from mcp.shared.exceptions import MCPError

from tests.conformance.input_requests import Asker, Call, confirm, elicit, roots, sample
from tests.conformance.inventory import PNG, WATCHED, WAV, embedded, text
from tests.conformance.subscribers import Audience

__all__ = ["Tools"]

# The suite wants to see that what is sent during a call arrives during the call.
_STEP = 0.05
# A call of test_cancelled that has nothing to see must end, or a failing test would hang until its own limit.
_PATIENCE = 20.0

_SINGLE = ["option1", "option2", "option3"]
_TITLED = [{"const": f"value{n}", "title": f"{word} Option"} for n, word in ((1, "First"), (2, "Second"), (3, "Third"))]

Handler = Callable[[Call], Awaitable[types.CallToolResult]]


class Tools:
    """The behaviours by name, and what they share: who listens, what was cancelled, what comes and goes."""

    def __init__(self, audience: Audience) -> None:
        self.audience = audience
        self.extra_tool = False
        self.extra_prompt = False
        self._cancelled: dict[str, asyncio.Event] = {}

    async def call(self, call: Call) -> types.CallToolResult:
        """Run the tool that the call names."""
        handler: Handler | None = getattr(self, f"_{call.name}", None)
        if handler is None:
            raise MCPError(types.INVALID_PARAMS, f"Unknown tool: {call.name}")
        return await handler(call)

    async def _test_simple_text(self, call: Call) -> types.CallToolResult:
        return _said("This is a simple text response for testing.")

    async def _test_image_content(self, call: Call) -> types.CallToolResult:
        return _result(types.ImageContent(type="image", data=PNG, mime_type="image/png"))

    async def _test_audio_content(self, call: Call) -> types.CallToolResult:
        return _result(types.AudioContent(type="audio", data=WAV, mime_type="audio/wav"))

    async def _test_embedded_resource(self, call: Call) -> types.CallToolResult:
        return _result(embedded("test://embedded-resource", "text/plain", "This is an embedded resource content."))

    async def _test_multiple_content_types(self, call: Call) -> types.CallToolResult:
        return _result(
            text("Multiple content types test:"),
            types.ImageContent(type="image", data=PNG, mime_type="image/png"),
            embedded("test://mixed-content-resource", "application/json", '{"test":"data","value":123}'),
        )

    async def _test_error_handling(self, call: Call) -> types.CallToolResult:
        return types.CallToolResult(
            content=[text("This tool intentionally returns an error for testing")], is_error=True
        )

    async def _test_tool_with_logging(self, call: Call) -> types.CallToolResult:
        await _log(call, "Tool execution started")
        await anyio.sleep(_STEP)
        await _log(call, "Tool processing data")
        await anyio.sleep(_STEP)
        await _log(call, "Tool execution completed")
        return _said("The log was written.")

    async def _test_logging_tool(self, call: Call) -> types.CallToolResult:
        await _log(call, "One entry")
        return _said("The log was written.")

    async def _test_tool_with_progress(self, call: Call) -> types.CallToolResult:
        for progress in (0, 50, 100):
            await call.context.session.report_progress(progress, 100)
            await anyio.sleep(_STEP)
        return _said("All steps were reported.")

    async def _test_sampling(self, call: Call) -> types.CallToolResult:
        answers = await call.ask({"answer": sample(call.arguments["prompt"])})
        return _said(f"LLM response: {_sampled(answers['answer'])}")

    async def _test_elicitation(self, call: Call) -> types.CallToolResult:
        request = elicit(
            call.arguments["message"],
            "username",
            "email",
            username={"type": "string", "description": "User's response"},
            email={"type": "string", "description": "User's email address"},
        )
        answer: types.ElicitResult = (await call.ask({"user": request}))["user"]
        return _said(f"User response: action: {answer.action}, content: {json.dumps(answer.content)}")

    async def _test_elicitation_sep1034_defaults(self, call: Call) -> types.CallToolResult:
        return await _elicited(
            call,
            elicit(
                "Please check your details",
                name={"type": "string", "default": "John Doe"},
                age={"type": "integer", "default": 30},
                score={"type": "number", "default": 95.5},
                status={"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
                verified={"type": "boolean", "default": True},
            ),
        )

    async def _test_elicitation_sep1330_enums(self, call: Call) -> types.CallToolResult:
        legacy = {
            "type": "string",
            "enum": ["opt1", "opt2", "opt3"],
            "enumNames": ["Option One", "Option Two", "Option Three"],
        }
        return await _elicited(
            call,
            elicit(
                "Please choose",
                untitledSingle={"type": "string", "enum": _SINGLE},
                titledSingle={"type": "string", "oneOf": _TITLED},
                legacyEnum=legacy,
                untitledMulti={"type": "array", "items": {"type": "string", "enum": _SINGLE}},
                titledMulti={"type": "array", "items": {"anyOf": _TITLED}},
            ),
        )

    async def _test_streaming_elicitation(self, call: Call) -> types.CallToolResult:
        await call.context.session.report_progress(1, 2)
        return await _elicited(call, confirm("Go on?"))

    async def _test_list_roots(self, call: Call) -> types.CallToolResult:
        return _said(_places((await call.ask({"roots": roots()}))["roots"]))

    async def _test_missing_capability(self, call: Call) -> types.CallToolResult:
        return await self._test_input_required_result_sampling(call)

    async def _test_reconnection(self, call: Call) -> types.CallToolResult:
        if call.context.close_sse_stream is not None:
            await call.context.close_sse_stream()
            await anyio.sleep(_STEP)
        return _said("The answer came on another stream.")

    async def _test_trigger_tool_change(self, call: Call) -> types.CallToolResult:
        self.extra_tool = not self.extra_tool
        await self.audience.tell(ToolsListChanged())
        return _said("The tools changed.")

    async def _test_trigger_prompt_change(self, call: Call) -> types.CallToolResult:
        self.extra_prompt = not self.extra_prompt
        await self.audience.tell(PromptsListChanged())
        return _said("The prompts changed.")

    async def _test_dynamic_tool(self, call: Call) -> types.CallToolResult:
        return _said("I am here for now.")

    async def _test_input_required_result_elicitation(self, call: Call) -> types.CallToolResult:
        answers = await call.ask({"user_name": elicit("What is your name?", "name")})
        return _said(f"Hello, {(answers['user_name'].content or {}).get('name')}!")

    async def _test_input_required_result_sampling(self, call: Call) -> types.CallToolResult:
        answers = await call.ask({"capital_question": sample("What is the capital of France?")})
        return _said(_sampled(answers["capital_question"]))

    async def _test_input_required_result_list_roots(self, call: Call) -> types.CallToolResult:
        return _said(_places((await call.ask({"client_roots": roots()}))["client_roots"]))

    async def _test_input_required_result_request_state(self, call: Call) -> types.CallToolResult:
        await call.ask({"confirm": confirm("Please confirm")}, keep_state=True)
        return _said("state-ok" if call.state is not None or not call.modern else "the state was lost")

    async def _test_input_required_result_tampered_state(self, call: Call) -> types.CallToolResult:
        return await self._test_input_required_result_request_state(call)

    async def _test_input_required_result_multiple_inputs(self, call: Call) -> types.CallToolResult:
        requests: dict[str, Asker] = {
            "user_name": elicit("What is your name?", "name"),
            "greeting": sample("Generate a greeting", max_tokens=50),
            "client_roots": roots(),
        }
        answers = await call.ask(requests, keep_state=True)
        name = (answers["user_name"].content or {}).get("name")
        return _said(f"{_sampled(answers['greeting'])}, {name}, in {_places(answers['client_roots'])}")

    async def _test_input_required_result_multi_round(self, call: Call) -> types.CallToolResult:
        first = await call.ask({"step1": elicit("Step 1: What is your name?", "name")}, keep_state=True)
        second = await call.ask({"step2": elicit("Step 2: What is your favorite color?", "color")})
        name, color = (first["step1"].content or {}).get("name"), (second["step2"].content or {}).get("color")
        return _said(f"{name} likes {color}.")

    async def _test_input_required_result_capabilities(self, call: Call) -> types.CallToolResult:
        possible: dict[str, Asker] = {
            "capital_question": sample("What is the capital of France?"),
            "user_name": elicit("What is your name?", "name"),
            "client_roots": roots(),
        }
        asked = {name: request for name, request in possible.items() if call.can(request.method)}
        return _said(f"Answered: {', '.join(await call.ask(asked))}")

    async def _json_schema_2020_12_tool(self, call: Call) -> types.CallToolResult:
        return _said(json.dumps(dict(call.arguments)))

    async def _test_headers(self, call: Call) -> types.CallToolResult:
        return _said(call.arguments.get("region", "nowhere"))

    async def _test_echo(self, call: Call) -> types.CallToolResult:
        return _said(call.arguments["words"])

    async def _test_counting(self, call: Call) -> types.CallToolResult:
        steps: int = call.arguments["steps"]
        for step in range(1, steps + 1):
            await call.context.session.report_progress(step, steps, f"step {step}")
        return _said(f"Counted to {steps}.")

    async def _test_slow(self, call: Call) -> types.CallToolResult:
        seconds: int = call.arguments["seconds"]
        await call.context.session.report_progress(0, seconds)
        await anyio.sleep(seconds)
        return _said(f"Slept for {seconds} s.")

    async def _test_wait(self, call: Call) -> types.CallToolResult:
        await call.context.session.report_progress(1, 2, "waiting")
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            self._mark(call.arguments["name"]).set()
            raise
        return _said("No cancellation came.")

    async def _test_cancelled(self, call: Call) -> types.CallToolResult:
        name = call.arguments["name"]
        with anyio.move_on_after(_PATIENCE):
            await self._mark(name).wait()
            return _said(f"{name} was cancelled")
        return types.CallToolResult(content=[text(f"{name} was not cancelled")], is_error=True)

    async def _test_update_resource(self, call: Call) -> types.CallToolResult:
        await self.audience.tell(ResourceUpdated(uri=WATCHED))
        return _said("The resource changed.")

    async def _test_meta(self, call: Call) -> types.CallToolResult:
        given = {key: value for key, value in (call.context.meta or {}).items() if key.startswith("example.com/")}
        answer = _said(json.dumps(given))
        answer.meta = {"example.com/answer": "from the server"}
        return answer

    def _mark(self, name: str) -> asyncio.Event:
        return self._cancelled.setdefault(name, asyncio.Event())


def _result(*content: types.ContentBlock) -> types.CallToolResult:
    return types.CallToolResult(content=list(content))


def _said(words: str) -> types.CallToolResult:
    return _result(text(words))


async def _elicited(call: Call, request: types.ElicitRequest) -> types.CallToolResult:
    answer: types.ElicitResult = (await call.ask({"user": request}))["user"]
    return _said(f"Elicitation completed: action={answer.action}, content={json.dumps(answer.content)}")


def _sampled(answer: types.CreateMessageResult) -> str:
    return answer.content.text if isinstance(answer.content, types.TextContent) else answer.content.type


def _places(answer: types.ListRootsResult) -> str:
    return ", ".join(str(root.uri) for root in answer.roots)


async def _log(call: Call, words: str) -> None:
    await call.context.session.send_log_message("info", words, related_request_id=call.context.request_id)
