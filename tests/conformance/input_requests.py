"""One call, and how its handler asks the client for input, in both eras.

In the handshake era a server sends the client a request and waits. At 2026-07-28 it answers with what it needs, and
the client repeats the call with the answers; what was answered in earlier rounds travels in the request state.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

__all__ = ["Asker", "Call", "InputNeeded", "confirm", "elicit", "roots", "sample"]

Asker = types.ElicitRequest | types.CreateMessageRequest | types.ListRootsRequest
"""What a server may ask of its client in the middle of a call."""

Answer = types.ElicitResult | types.CreateMessageResult | types.ListRootsResult

_RESULTS: dict[str, type[Answer]] = {
    "elicitation/create": types.ElicitResult,
    "sampling/createMessage": types.CreateMessageResult,
    "roots/list": types.ListRootsResult,
}
_NEEDED: dict[str, types.ClientCapabilities] = {
    "elicitation/create": types.ClientCapabilities(elicitation=types.ElicitationCapability()),
    "sampling/createMessage": types.ClientCapabilities(sampling=types.SamplingCapability()),
    "roots/list": types.ClientCapabilities(roots=types.RootsCapability()),
}


class InputNeeded(Exception):
    """Ends a round: the result says what the client has to answer before it repeats the call."""

    def __init__(self, result: types.InputRequiredResult) -> None:
        super().__init__("the client has to answer first")
        self.result = result


@dataclass(frozen=True, kw_only=True)
class Call:
    """A tool's call or a prompt's, as its handler sees it."""

    context: ServerRequestContext[Any]
    name: str
    arguments: Mapping[str, Any]
    given: Mapping[str, Any] = field(default_factory=dict)
    state: str | None = None

    @property
    def modern(self) -> bool:
        """Whether the client speaks the era without sessions."""
        return self.context.protocol_version in MODERN_PROTOCOL_VERSIONS

    def can(self, method: str) -> bool:
        """Whether the client declared that it answers such requests."""
        return self.context.session.check_client_capability(_NEEDED[method])

    async def ask(self, requests: Mapping[str, Asker], *, keep_state: bool = False) -> dict[str, Any]:
        """The client's answers, under the names of the requests; at 2026-07-28 the round may end here instead."""
        for request in requests.values():
            self._require(request.method)
        if self.modern:
            return self._from_rounds(requests, keep_state=keep_state)
        return {name: await self._send(request) for name, request in requests.items()}

    def _require(self, method: str) -> None:
        if self.can(method):
            return
        needed = _NEEDED[method].model_dump(by_alias=True, mode="json", exclude_none=True)
        raise MCPError(
            types.MISSING_REQUIRED_CLIENT_CAPABILITY,
            f"the client does not answer {method}",
            {"requiredCapabilities": needed},
        )

    def _from_rounds(self, requests: Mapping[str, Asker], *, keep_state: bool) -> dict[str, Any]:
        earlier: dict[str, Any] = json.loads(self.state) if self.state else {}
        answers = {name: self._answer(name, request, earlier) for name, request in requests.items()}
        if missing := {name: request for name, request in requests.items() if answers[name] is None}:
            known = earlier | {name: _dump(answer) for name, answer in self.given.items()}
            state = json.dumps(known) if known or keep_state else None
            raise InputNeeded(types.InputRequiredResult(input_requests=missing, request_state=state))
        return answers

    def _answer(self, name: str, request: Asker, earlier: Mapping[str, Any]) -> Any:
        kind = _RESULTS[request.method]
        if name in earlier:
            return kind.model_validate(earlier[name])
        given = self.given.get(name)
        return given if isinstance(given, kind) else None

    async def _send(self, request: Asker) -> Any:
        on_the_calls_stream = ServerMessageMetadata(related_request_id=self.context.request_id)
        kind = _RESULTS[request.method]
        return await self.context.session.send_request(request, kind, metadata=on_the_calls_stream)


def elicit(message: str, *required: str, **properties: Mapping[str, Any]) -> types.ElicitRequest:
    """Ask the user to fill in a form; fields that are only named are strings."""
    fields = {name: {"type": "string"} for name in required} | {name: dict(value) for name, value in properties.items()}
    schema: dict[str, Any] = {"type": "object", "properties": fields, "required": list(required)}
    return types.ElicitRequest(params=types.ElicitRequestFormParams(message=message, requested_schema=schema))


def confirm(message: str) -> types.ElicitRequest:
    """Ask the user for a yes or a no."""
    return elicit(message, "ok", ok={"type": "boolean"})


def sample(prompt: str, *, max_tokens: int = 100) -> types.CreateMessageRequest:
    """Ask the client's model."""
    message = types.SamplingMessage(role="user", content=types.TextContent(type="text", text=prompt))
    return types.CreateMessageRequest(
        params=types.CreateMessageRequestParams(messages=[message], max_tokens=max_tokens)
    )


def roots() -> types.ListRootsRequest:
    """Ask the client where it works."""
    return types.ListRootsRequest()


def _dump(answer: Answer) -> dict[str, Any]:
    return answer.model_dump(by_alias=True, mode="json", exclude_none=True)
