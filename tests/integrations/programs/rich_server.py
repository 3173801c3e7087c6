"""An MCP server over stdio whose tools return what frameworks must convert: an image, an object, an error, progress."""

from __future__ import annotations

import base64

from mcp.server.mcpserver import Context, MCPServer
from mcp.types import AudioContent, ImageContent
from pydantic import BaseModel

PIXEL = base64.b64encode(
    bytes.fromhex(
        "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c49444154789c63f8cfc0000003010100c9fe92ef"
        "0000000049454e44ae426082"
    )
).decode()

server = MCPServer("rich")


class Reading(BaseModel):
    """A structured result."""

    city: str
    degrees: int


@server.tool()
def picture() -> ImageContent:
    """A picture."""
    return ImageContent(type="image", data=PIXEL, mime_type="image/png")


@server.tool()
def sound() -> AudioContent:
    """A sound."""
    return AudioContent(type="audio", data=base64.b64encode(b"RIFF").decode(), mime_type="audio/wav")


@server.tool()
def reading(city: str) -> Reading:
    """A structured reading."""
    return Reading(city=city, degrees=21)


@server.tool()
def broken() -> str:
    """Always fails."""
    raise ValueError("the sensor is unplugged")


@server.tool()
async def counting(ctx: Context) -> str:
    """Reports progress."""
    for step in (1, 2):
        await ctx.report_progress(step, 2, f"step {step}")
    return "counted"


if __name__ == "__main__":
    server.run()
