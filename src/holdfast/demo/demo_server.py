"""The program of the demo's servers: ``server.py stdio|http NAME FLEET_FILE``.

It uses the standard library alone and does not import Holdfast: it is started by its path, and starts fast. It polls
the fleet's file, which sets its behaviour, so that a second terminal can break and heal it. Over HTTP it prints its
port, and ends when its stdin ends.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time

TYPE_CHECKING = False  # importing typing takes a large part of the start time
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, TypeAlias

    Message: TypeAlias = dict[str, Any]

LEGACY, MODERN = "2025-11-25", "2026-07-28"
KEY_HEADER, KEY = "x-demo-key", "open-sesame"
WARM_UP = 6.0
"""Seconds for which `weather` answers 503 after its start: long enough to see, short enough to wait for."""
LIFE = 10.0
"""Seconds after which a flapping server exits."""
GLANCE = 0.1

_notes: list[str] = ["Buy rope", "Ask the harbour master about berth 7"]


def _add_note(given: Mapping[str, Any]) -> str:
    _notes.append(str(given["text"]))
    return "noted; there is 1 note now" if len(_notes) == 1 else f"noted; there are {len(_notes)} notes now"


def _list_notes(_: Mapping[str, Any]) -> str:
    return "\n".join(f"{number}. {note}" for number, note in enumerate(_notes, 1))


def _forecast(given: Mapping[str, Any]) -> str:
    winds = ("calm", "a light breeze", "a fresh breeze", "a gale")
    return f"{given['city']}: {winds[sum(map(ord, str(given['city']))) % len(winds)]}, no rain before evening"


def _price(given: Mapping[str, Any]) -> str:
    return f"{given['symbol']}: {100 + sum(map(ord, str(given['symbol']))) % 57}.{int(time.time()) % 100:02d}"


def _secret(given: Mapping[str, Any]) -> str:
    return f"the vault holds {given['name']}, and you may read it"


def _today(_: Mapping[str, Any]) -> str:
    return "09:00 high tide; 14:30 crew meeting"


def _tool(run: Callable[[Mapping[str, Any]], str], description: str, *, reads: bool = True, **fields: str) -> Message:
    properties = {name: {"type": "string", "description": words} for name, words in fields.items()}
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    shown = {"description": description, "inputSchema": schema, "annotations": {"readOnlyHint": reads}}
    return {"run": run, "shown": shown}


TOOLS: dict[str, dict[str, Message]] = {
    "notes": {
        "add_note": _tool(_add_note, "Keep a note", reads=False, text="What to keep"),
        "list_notes": _tool(_list_notes, "Give back all notes"),
    },
    "weather": {"forecast": _tool(_forecast, "Tell today's weather", city="The name of a city")},
    "ticker": {"price": _tool(_price, "Tell a share's price", symbol="The share's symbol")},
    "vault": {"read_secret": _tool(_secret, "Read a secret", name="The secret's name")},
    "calendar": {"today": _tool(_today, "List today's appointments")},
}


class Behaviour:
    """The behaviour that the fleet's file sets at this moment."""

    def __init__(self, name: str, file: str) -> None:
        self._name = name
        self._file = file
        self._started = time.time()

    def now(self) -> str:
        """`healthy`, or the fault."""
        with open(self._file, encoding="utf-8") as opened:  # noqa: PTH123 - pathlib doubles the starting time
            fleet = json.load(opened)
        condition, is_now = fleet["conditions"][self._name], str(fleet["conditions"][self._name]["is"])
        since = max(self._started, condition["since"])
        if is_now == "starting" and time.time() > since + WARM_UP / fleet["pace"]:
            return "healthy"
        if is_now == "flapping" and time.time() > self._started + LIFE / fleet["pace"]:
            return "down"
        return is_now


def answer(name: str, message: Message) -> Message | None:
    """The server's answer to a message; None for a notification."""
    if "id" not in message:
        return None
    try:
        result = _result(name, str(message.get("method")), message.get("params") or {})
    except (KeyError, TypeError) as exc:
        return _reply(message, error={"code": -32602, "message": f"missing or unknown: {exc}"})
    if result is None:
        return _reply(message, error={"code": -32601, "message": "Method not found"})
    return _reply(message, result={**result, **({"resultType": "complete"} if _is_modern(name) else {})})


def _result(name: str, method: str, params: Message) -> Message | None:
    tools = TOOLS[name]
    fresh = {"ttlMs": 0, "cacheScope": "private"} if _is_modern(name) else {}
    about = {"capabilities": {"tools": {}}, "serverInfo": {"name": f"demo-{name}", "version": "1"}}
    if method == "server/discover" and _is_modern(name):
        return {"supportedVersions": [MODERN], **about, **fresh}
    if method == "initialize" and not _is_modern(name):
        return {"protocolVersion": LEGACY, **about}
    if method == "ping":
        return {}
    if method == "tools/list":
        return {"tools": [{"name": tool, **one["shown"]} for tool, one in tools.items()], **fresh}
    if method == "tools/call":
        text = tools[params["name"]]["run"](params.get("arguments") or {})
        return {"content": [{"type": "text", "text": text}], "isError": False}
    return None


def _is_modern(name: str) -> bool:
    return name == "weather"


def _reply(message: Message, **outcome: Message) -> Message:
    return {"jsonrpc": "2.0", "id": message["id"], **outcome}


# As a child process.


def run_stdio(name: str, behaviour: Behaviour) -> None:
    """Serve on stdin and stdout until the process must exit."""
    if behaviour.now() == "down":
        sys.exit(f"{name} is set to be down")
    threading.Thread(target=_watch, args=(name, behaviour), daemon=True).start()
    for line in sys.stdin:
        said = answer(name, json.loads(line))
        while behaviour.now() == "hanging":
            time.sleep(GLANCE)
        if said is not None:
            sys.stdout.write(json.dumps(said) + "\n")
            sys.stdout.flush()


def _watch(name: str, behaviour: Behaviour) -> None:
    while behaviour.now() != "down":
        time.sleep(GLANCE)
    sys.stderr.write(f"{name} exits: it is set to be down\n")
    sys.stderr.flush()
    os._exit(3)


# Over HTTP.


class Web:
    """An HTTP server that closes its listener and all connections while it is down."""

    def __init__(self, name: str, behaviour: Behaviour) -> None:
        self._name = name
        self._behaviour = behaviour
        self._port = 0
        self._listener: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()

    async def run(self) -> None:
        """Listen, and follow the fleet's file, until stdin ends."""
        ended = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        while not ended.done():
            await self._follow(self._behaviour.now())
            await asyncio.wait([ended], timeout=GLANCE)
        os._exit(0)

    async def _follow(self, now: str) -> None:
        if now == "down" and self._listener is not None:
            self._listener.close()
            self._listener = None
            for writer in self._open:
                writer.transport.abort()
        elif now != "down" and self._listener is None:
            self._listener = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
            if not self._port:
                self._port = self._listener.sockets[0].getsockname()[1]
                sys.stdout.write(f"{self._port}\n")
                sys.stdout.flush()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                line, *fields = head.strip().split("\r\n")
                headers = {key.lower(): value.strip() for key, _, value in (field.partition(":") for field in fields)}
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                writer.write(await self._answer(line.split(" ")[0], headers, body))
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._open.discard(writer)
            writer.close()

    async def _answer(self, method: str, headers: Mapping[str, str], body: bytes) -> bytes:
        while self._behaviour.now() == "hanging":  # noqa: ASYNC110 - the condition is in a file
            await asyncio.sleep(GLANCE)
        if self._behaviour.now() == "starting":
            return _response("503 Service Unavailable", b"warming up", extra="retry-after: 1\r\n")
        if self._name == "vault" and headers.get(KEY_HEADER) != KEY:
            return _response("403 Forbidden", b"this caller may not open the vault")
        if method != "POST":
            return _response("405 Method Not Allowed")
        said = answer(self._name, json.loads(body))
        if said is None:
            return _response("202 Accepted")
        return _response("200 OK", json.dumps(said).encode(), kind="application/json")


def _response(status: str, body: bytes = b"", *, kind: str = "text/plain", extra: str = "") -> bytes:
    head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n{extra}\r\n"
    return head.encode("latin-1") + body


def main(how: str, name: str, file: str) -> None:
    """Run until it is ended."""
    behaviour = Behaviour(name, file)
    if how == "http":
        # A group of its own: Ctrl-C in the terminal goes to the hub, which ends its servers in order. Not a session of
        # its own: a hub takes a child in another session for an adopted orphan, and ends it with the last stdio server.
        os.setpgid(0, 0)
        asyncio.run(Web(name, behaviour).run())
    else:
        run_stdio(name, behaviour)


if __name__ == "__main__":
    main(*sys.argv[1:4])
