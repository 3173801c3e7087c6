"""The program that reads large messages for a hub: ``python -I scanner_process.py FD``.

It gets JSON over a socket and says where its parts are: the members of the message, of its parameters or its result,
and the items of its lists. So the hub cuts a message into pieces and never parses it whole. It ends with the socket.
It imports nothing of Holdfast, so that it starts in a moment.
"""

from __future__ import annotations

import ctypes
import json
import re
import resource
import socket
import struct
import sys
from typing import Any

import msgspec
from msgspec import Raw

MOST_MEMBERS = 1_000
MOST_ITEMS = 50_000
MOST_COMMAS = 1_000_000
"""Over it, the items of a list are not looked for: they would fill the memory."""

MEMORY_BYTES = 2 << 30
LISTS = ("content", "contents", "messages", "tools", "prompts", "resources", "resourceTemplates")
OBJECTS = ("params", "result", "error", "_meta")

_OBJECT = msgspec.json.Decoder(dict[str, Raw])
_ARRAY = msgspec.json.Decoder(list[Raw])
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_ESCAPES = re.compile(rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|[^u]|u(?![dD][89a-fA-F]))")


class _View(ctypes.Structure):
    """The C view of an object's bytes."""

    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.py_object),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    )


def _address(data: Any) -> int:
    view = _View()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(data), ctypes.byref(view), 0)
    address = view.buf or 0
    ctypes.pythonapi.PyBuffer_Release(ctypes.byref(view))
    return address


class Unreadable(ValueError):
    """Why a message cannot be used."""


def scan(data: bytes) -> dict[str, Any]:
    """Where the parts of a message are: ``{"members": {key: part}}``, a part is ``{"at": [start, end], …}``."""
    try:
        data.decode()
    except UnicodeDecodeError:
        raise Unreadable("it is not UTF-8") from None
    # An escaped surrogate is valid JSON that the decoder refuses; another escape of its length keeps the layout.
    readable = _SURROGATE.sub(rb"\\u0041", data)
    lone = readable is not data and _has_lone_surrogate(data)
    base = _address(readable)

    def part(raw: Raw, key: str, depth: int) -> dict[str, Any]:
        start = _address(raw) - base
        end = start + len(memoryview(raw))
        found: dict[str, Any] = {"at": (start, end)}
        first = readable[start : start + 1]
        if first == b"{" and key in OBJECTS and depth < 3:
            found["members"] = members(raw, depth + 1)
        elif first == b"[" and key in LISTS and depth == 2 and readable.count(b",", start, end) <= MOST_COMMAS:
            items = _ARRAY.decode(raw)
            if len(items) <= MOST_ITEMS:
                found["items"] = [(_address(item) - base, len(memoryview(item))) for item in items]
        return found

    def members(raw: Raw | bytes, depth: int) -> dict[str, Any]:
        try:
            read = _OBJECT.decode(raw)
        except msgspec.ValidationError:
            raise Unreadable("it is not a JSON object") from None
        if len(read) > MOST_MEMBERS:
            raise Unreadable("it has too many members")
        return {key: part(value, key, depth) for key, value in read.items()}

    try:
        return {"members": members(readable, 1), "lone": lone}
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise Unreadable("it is not JSON") from None
    except RecursionError:
        raise Unreadable("it is nested too deep") from None


def _has_lone_surrogate(data: bytes) -> bool:
    """Whether an escaped surrogate is not one of a pair."""
    return _SURROGATE.search(_ESCAPES.sub(b"", data)) is not None


def main(link: socket.socket) -> None:
    """Answer one message after the other, until the hub closes the socket."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    with link, link.makefile("rb") as incoming:
        while head := incoming.read(8):
            (size,) = struct.unpack(">Q", head)
            data = incoming.read(size)
            if len(data) < size:
                return
            try:
                answer: dict[str, Any] = scan(data)
            except Unreadable as exc:
                answer = {"error": str(exc)}
            except MemoryError:
                answer = {"error": "it is too large"}
            del data
            written = json.dumps(answer).encode()
            link.sendall(struct.pack(">Q", len(written)) + written)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
