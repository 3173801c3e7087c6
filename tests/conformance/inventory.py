"""What the fixture server has on offer: every tool, resource and prompt that the conformance suite asks for by name,
and a few more that clients are tried on. Data alone; how a tool behaves stands in ``tools``."""

from __future__ import annotations

from typing import Any

import mcp_types as types

__all__ = [
    "DYNAMIC_PROMPT",
    "DYNAMIC_TOOL",
    "PNG",
    "PROMPTS",
    "RESOURCES",
    "TEMPLATES",
    "TOOLS",
    "WATCHED",
    "WAV",
    "embedded",
    "text",
]

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
"""One red pixel."""

WAV = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAEAfAAABAAgAZGF0YQAAAAA="
"""A sound without a sample."""

WATCHED = "test://watched-resource"
"""The resource that ``test_update_resource`` reports as changed."""

_NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}}

# Every keyword that a listing must carry through unharmed.
_RICH_SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}


def text(words: str) -> types.TextContent:
    """A block of text."""
    return types.TextContent(type="text", text=words)


def embedded(uri: str, mime_type: str, words: str) -> types.EmbeddedResource:
    """A resource inside a result."""
    return types.EmbeddedResource(
        type="resource", resource=types.TextResourceContents(uri=uri, mime_type=mime_type, text=words)
    )


def _tool(name: str, description: str, /, *required: str, **properties: Any) -> types.Tool:
    schema = {"type": "object", "properties": properties, "required": list(required)} if properties else _NO_ARGUMENTS
    return types.Tool(name=name, description=description, input_schema=schema)


def _prompt(name: str, description: str, /, *arguments: str) -> types.Prompt:
    return types.Prompt(
        name=name,
        description=description,
        arguments=[types.PromptArgument(name=argument, description=argument, required=True) for argument in arguments],
    )


_STRING = {"type": "string"}
_INTEGER = {"type": "integer"}

TOOLS: tuple[types.Tool, ...] = (
    _tool("test_simple_text", "Returns a text"),
    _tool("test_image_content", "Returns an image"),
    _tool("test_audio_content", "Returns a sound"),
    _tool("test_embedded_resource", "Returns a resource inside its result"),
    _tool("test_multiple_content_types", "Returns a text, an image and a resource"),
    _tool("test_error_handling", "Always fails"),
    _tool("test_tool_with_logging", "Writes to the client's log three times"),
    _tool("test_logging_tool", "Writes to the client's log once"),
    _tool("test_tool_with_progress", "Reports progress in three steps"),
    _tool("test_sampling", "Asks the client's model", "prompt", prompt=_STRING),
    _tool("test_elicitation", "Asks the user for a name and an address", "message", message=_STRING),
    _tool("test_elicitation_sep1034_defaults", "Asks the user, with a default for every kind of value"),
    _tool("test_elicitation_sep1330_enums", "Asks the user to choose, in every way there is"),
    _tool("test_streaming_elicitation", "Asks the user while its answer is being streamed"),
    _tool("test_list_roots", "Tells which roots the client has"),
    _tool("test_missing_capability", "Needs a client that samples"),
    _tool("test_reconnection", "Closes its stream before it answers"),
    _tool("test_trigger_tool_change", "Adds a tool to the list, or takes it away"),
    _tool("test_trigger_prompt_change", "Adds a prompt to the list, or takes it away"),
    _tool("test_input_required_result_elicitation", "Asks the user for a name"),
    _tool("test_input_required_result_sampling", "Asks the client's model for a capital"),
    _tool("test_input_required_result_list_roots", "Asks the client for its roots"),
    _tool("test_input_required_result_request_state", "Asks for a confirmation, and for its state back"),
    _tool("test_input_required_result_multiple_inputs", "Asks the user, the model and the client at once"),
    _tool("test_input_required_result_multi_round", "Asks twice, the second time after the first answer"),
    _tool("test_input_required_result_tampered_state", "Asks for a confirmation, and for its state back unharmed"),
    _tool("test_input_required_result_capabilities", "Asks only for what the client can give"),
    types.Tool(
        name="json_schema_2020_12_tool",
        description="Tool with JSON Schema 2020-12 features",
        input_schema=_RICH_SCHEMA,
    ),
    _tool(
        "test_headers", "Takes an argument that stands in a header too", region={**_STRING, "x-mcp-header": "Region"}
    ),
    _tool("test_echo", "Says what it was told", "words", words=_STRING),
    _tool("test_counting", "Reports progress as often as asked", "steps", steps=_INTEGER),
    _tool("test_slow", "Reports that it has begun, and answers later", "seconds", seconds=_INTEGER),
    _tool("test_wait", "Waits for its own cancellation, and reports that it has begun", "name", name=_STRING),
    _tool("test_cancelled", "Waits until a call of test_wait was cancelled", "name", name=_STRING),
    _tool("test_update_resource", f"Reports {WATCHED} as changed"),
    _tool("test_meta", "Says what stood in the call's _meta, and answers with a _meta of its own"),
)

DYNAMIC_TOOL = _tool("test_dynamic_tool", "Comes and goes with test_trigger_tool_change")

RESOURCES: tuple[types.Resource, ...] = (
    types.Resource(uri="test://static-text", name="static-text", description="A text", mime_type="text/plain"),
    types.Resource(uri="test://static-binary", name="static-binary", description="A pixel", mime_type="image/png"),
    types.Resource(uri=WATCHED, name="watched-resource", description="It may change", mime_type="text/plain"),
)

TEMPLATES: tuple[types.ResourceTemplate, ...] = (
    types.ResourceTemplate(
        uri_template="test://template/{id}/data",
        name="template-data",
        description="A record by its id",
        mime_type="application/json",
    ),
)

PROMPTS: tuple[types.Prompt, ...] = (
    _prompt("test_simple_prompt", "Without arguments"),
    _prompt("test_prompt_with_arguments", "With two arguments", "arg1", "arg2"),
    _prompt("test_prompt_with_embedded_resource", "With a resource inside", "resourceUri"),
    _prompt("test_prompt_with_image", "With an image inside"),
    _prompt("test_input_required_result_prompt", "Asks the user for its context"),
)

DYNAMIC_PROMPT = _prompt("test_dynamic_prompt", "Comes and goes with test_trigger_prompt_change")
