"""What the conformance suite tests of a client: Holdfast's own way to a server, with a person who logs in where asked.

A visit connects through a hub, uses all that the server offers, and where it is denied does what the scenario says.
The suite starts a program for each scenario: a small messenger, which only sends the scenario to this process,
since importing Holdfast dozens of times would take minutes.
"""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from holdfast.auth.credentials import Logins
from holdfast.auth.person_login import log_in
from holdfast.auth.token_store import TokenStore
from holdfast.config.read import config_from_mapping
from holdfast.config.spec import ServerSpec
from holdfast.core.evidence import HttpStatus, read_challenge
from holdfast.core.lifecycle.table import State
from holdfast.core.names import Kind
from holdfast.errors import CallDenied, LoginFailed, ServerFailure
from holdfast.hub.hub import Hub
from holdfast.hub.slot import latest_failure
from tests.conformance.responses import Answering
from tests.peers.browser import Browser

__all__ = ["scenario_runner"]

SERVER = "suite"
_MESSENGER = Path(__file__).with_name("messenger.py")
MOST_LOGINS = 3
"""How often a person logs in before they give up."""

CLIENT_DOCUMENT = "https://conformance-test.local/client-metadata.json"
"""The client id metadata document that the suite expects."""


class NotServed(Exception):
    """The server was not connected to."""


class Visitor:
    """A person who uses a server and logs in when asked."""

    def __init__(self, spec: ServerSpec, hub: Hub) -> None:
        self._spec = spec
        self._hub = hub
        self._logins = 0
        self._answering = Answering()
        hub.registry.attach(self._answering)

    async def use(self, calls: list[Mapping[str, Any]]) -> None:
        """Connect, and use everything once; or make just these calls."""
        await self._hub.ready()
        while self._hub.server_health(SERVER).state is State.DENIED and self._logins < MOST_LOGINS:
            await self._log_in(latest_failure(self._hub.registry.slots[SERVER]))
        listing = self._hub.catalog.servers[SERVER].listing
        if listing is None:
            raise NotServed(self._hub.server_health(SERVER).reason)
        for tool in listing.of(Kind.TOOL):
            given = [call for call in calls if call["name"] == tool.name]
            for arguments in [call["arguments"] for call in given] or [_arguments(tool.raw)]:
                await self._ask("tools/call", {"name": tool.name, "arguments": arguments})
        for prompt in listing.of(Kind.PROMPT):
            await self._ask("prompts/get", {"name": prompt.name})
        for resource in listing.of(Kind.RESOURCE):
            await self._ask("resources/read", {"uri": resource.name})

    async def _ask(self, method: str, params: Mapping[str, Any]) -> None:
        while True:
            try:
                result = await self._hub.registry.request(SERVER, method, params, caller=self._answering)
            except CallDenied as denied:
                if self._logins >= MOST_LOGINS:
                    return
                await self._log_in(denied.evidence)
                continue
            except ServerFailure:
                return  # what the suite wanted to see, it saw
            if result.get("resultType") != "input_required":
                return
            answers = await self._answering.round(result.get("inputRequests") or {})
            state = {"requestState": result["requestState"]} if "requestState" in result else {}
            base = {key: value for key, value in params.items() if key not in ("inputResponses", "requestState")}
            params = {**base, "inputResponses": answers, **state}

    async def _log_in(self, seen: object) -> None:
        """What the words of a denial say: log in, for the scope that is named, where a hint says so with its issuer."""
        self._logins += 1
        header = seen.headers.get("www-authenticate", "") if isinstance(seen, HttpStatus) else ""
        challenge = read_challenge(header)
        more = challenge.scope if challenge.wants_scope else ()
        try:
            await self._at_the_browser(more)
        except LoginFailed as failed:
            issuer = re.search(r'"issuer": "([^"]+)"', failed.hint)
            if issuer is None:
                raise
            self._spec = replace(self._spec, oauth=replace(self._spec.oauth, issuer=issuer[1]))
            await self._at_the_browser(more)
        for passing in (State.DENIED, State.CONNECTING):  # the hub notices the login by itself
            while self._hub.server_health(SERVER).state is passing:
                await self._hub.registry.slots[SERVER].changed()

    async def _at_the_browser(self, scope: tuple[str, ...]) -> None:
        async with Browser() as browser:
            await log_in(self._spec, store=self._hub.registry.logins.store, person=browser, scope=scope, within=60)


def _arguments(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Something for each argument that is required."""
    schema = tool.get("inputSchema") or {}
    properties = schema.get("properties") or {}
    samples: dict[str, Any] = {"number": 5, "integer": 5, "boolean": True, "object": {}, "array": []}
    return {name: samples.get(properties.get(name, {}).get("type"), "test") for name in schema.get("required") or ()}


def _definition(url: str, context: Mapping[str, Any]) -> dict[str, Any]:
    oauth: dict[str, Any] = {"clientMetadataUrl": CLIENT_DOCUMENT}
    for ours, theirs in (("clientId", "client_id"), ("clientSecret", "client_secret")):
        if theirs in context:
            oauth[ours] = context[theirs]
    return {"type": "http", "url": url, "oauth": oauth}


@asynccontextmanager
async def scenario_runner(folder: Path) -> AsyncIterator[str]:
    """Take messengers' words and make the visits; gives the command that starts a messenger."""
    place = folder / "runner.sock"

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        word = json.loads(await reader.readline())
        try:
            with tempfile.TemporaryDirectory(dir=folder) as own:
                await visit(word["url"], word["context"], Path(own))
            answer = ""
        except (LoginFailed, NotServed) as exc:
            answer = str(exc)
        writer.write(answer.encode())
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_unix_server(serve, place)
    async with server:
        yield shlex.join([sys.executable, "-IS", str(_MESSENGER), str(place)])


async def visit(url: str, context: Mapping[str, Any], folder: Path) -> None:
    """One scenario."""
    # All scenarios run at once: on a busy machine each may take as long as all of them.
    patience = {"load": {"attemptTimeout": "50s", "totalTimeout": "100s"}}
    config = config_from_mapping({"mcpServers": {SERVER: _definition(url, context)}, "holdfast": patience})
    spec = config.servers[SERVER]
    assert not spec.problems
    async with Hub(config, logins=Logins(TokenStore(folder, vault=lambda: None))) as hub:
        await Visitor(spec, hub).use(context.get("toolCalls") or [])
