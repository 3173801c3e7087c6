"""Drive a client by lines of JSON: the test writes what to do on stdin, the client prints what it saw on stdout.

This file runs in the environment of each client: it uses the standard library only.
"""

from __future__ import annotations

import asyncio
import json
import sys
import traceback


def target():
    """Where the hub is: ``{"url": …}``, or ``{"command": …, "args": […], "env": {…}}``."""
    return json.loads(sys.argv[1])


async def _lines():
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        yield json.loads(line)


async def follow(list_tools, call_tool):
    """Do what the test asks for, until its end. An exception that a user would see is what the client saw."""
    _say({"up": True})
    async for asked in _lines():
        try:
            if asked["do"] == "list":
                seen = {"tools": await list_tools()}
            else:
                text, error = await call_tool(asked["tool"], asked["arguments"])
                seen = {"text": text, "error": bool(error), "raised": ""}
        except Exception as exc:  # noqa: BLE001 - whatever it is, the user sees it
            seen = {"text": _words(exc), "error": True, "raised": type(exc).__name__}
            if asked["do"] == "list":
                traceback.print_exc()
        _say(seen)


def _say(seen):
    sys.stdout.write(json.dumps(seen) + "\n")
    sys.stdout.flush()


def _words(exc):
    inner = getattr(exc, "exceptions", None)
    return " / ".join(map(_words, inner)) if inner else str(exc)


def texts(content):
    """The texts of content blocks, of any library."""
    return "\n".join(block.text for block in content if getattr(block, "text", None))
