"""HTTP/1.1 as bytes: reading a request, and the head of an answer. No server, no opinion."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from http import HTTPStatus
from types import MappingProxyType
from typing import NamedTuple

__all__ = ["NO_HEADERS", "Request", "head_of", "read_request"]

NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class Request(NamedTuple):
    """One request, as it came in. Header names are in lower case; ``path`` has its query."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


def head_of(status: int, headers: Mapping[str, str]) -> bytes:
    """The status line and the headers of an answer, and the empty line after them."""
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = "Unassigned"
    lines = [f"HTTP/1.1 {status} {phrase}", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


async def read_request(reader: asyncio.StreamReader) -> Request | None:
    """The next request of a connection, or None at its end."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    line, *fields = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    method, path, _ = line.split(" ")
    headers: dict[str, str] = {}
    for name, _, value in (item.partition(":") for item in fields):
        key = name.strip().lower()
        headers[key] = f"{headers[key]}, {value.strip()}" if key in headers else value.strip()
    return Request(method, path, MappingProxyType(headers), await _read_body(reader, headers))


async def _read_body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
    if headers.get("transfer-encoding", "").lower() != "chunked":
        return await reader.readexactly(int(headers.get("content-length", "0")))
    body = b""
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        body += await reader.readexactly(size)
        await reader.readexactly(2)
    await reader.readuntil(b"\r\n")
    return body
