"""A real authorization service in a process of its own: Envoy's ``ext_authz`` on the gRPC library of the gRPC project.

What it does is in a file that a test may change at any time (``Script``). Each question that it gets is a line of
another file. The messages are described by the field numbers that Envoy publishes, for Google's protobuf library: so
neither gRPC nor protobuf is written here by the hand that wrote the client.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import grpc  # type: ignore[import-untyped]  # the package ships no types
import grpc.aio  # type: ignore[import-untyped]  # as above
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory

from tests.harness.waiting import gone, until
from tests.peers.process import foreign_process

__all__ = ["GrpcAuthorizer", "grpc_authorizer"]

_PROTO: Mapping[str, Mapping[str, tuple[int, str]]] = {
    "CheckRequest": {"attributes": (1, "AttributeContext")},
    "AttributeContext": {
        "source": (1, "Peer"),
        "destination": (2, "Peer"),
        "request": (4, "Request"),
        "context_extensions": (10, "{}"),
    },
    "Peer": {"service": (2, "text"), "principal": (4, "text")},
    "Request": {"http": (2, "HttpRequest")},
    "HttpRequest": {
        "method": (2, "text"),
        "headers": (3, "{}"),
        "path": (4, "text"),
        "host": (5, "text"),
        "size": (9, "number"),
    },
    "CheckResponse": {"status": (1, "Status"), "denied_response": (2, "Response"), "ok_response": (3, "Response")},
    "Status": {"code": (1, "number"), "message": (2, "text")},
    "Response": {"headers": (2, "[HeaderValueOption]"), "body": (3, "text")},
    "HeaderValueOption": {"header": (1, "HeaderValue")},
    "HeaderValue": {"key": (1, "text"), "value": (2, "text")},
}


def _messages() -> dict[str, Any]:
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="check.proto", package="check", syntax="proto3")
    for name, members in _PROTO.items():
        message = file.message_type.add(name=name)
        for member, (number, kind) in members.items():
            label = kinds.LABEL_REPEATED if kind[0] in "[{" else kinds.LABEL_OPTIONAL
            field = message.field.add(name=member, number=number, label=label)
            if kind == "{}":
                entry_name = "".join(part.title() for part in member.split("_")) + "Entry"
                entry = message.nested_type.add(name=entry_name)
                entry.options.map_entry = True
                for at, key in ((1, "key"), (2, "value")):
                    entry.field.add(name=key, number=at, label=kinds.LABEL_OPTIONAL, type=kinds.TYPE_STRING)
                field.type, field.type_name = kinds.TYPE_MESSAGE, f".check.{name}.{entry_name}"
            elif kind in ("text", "number"):
                field.type = kinds.TYPE_STRING if kind == "text" else kinds.TYPE_INT64
            else:
                field.type, field.type_name = kinds.TYPE_MESSAGE, f".check.{kind.strip('[]')}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"check.{name}")) for name in _PROTO}


# The process.


async def _serve(port: int, script: Path, seen: Path, ready: Path, tls: tuple[str, ...]) -> None:
    made = _messages()

    def noted(content: bytes) -> Any:
        """What the script wants for a question, which is noted."""
        question = made["CheckRequest"].FromString(content)
        with seen.open("a") as file:
            file.write(json.dumps(json_format.MessageToDict(question, preserving_proto_field_name=True)) + "\n")
        return json.loads(script.read_text())

    async def check(content: bytes, context: Any) -> bytes:
        wanted = noted(content)
        if wanted.get("hang"):
            await asyncio.Event().wait()
        if wanted.get("error"):
            await context.abort(grpc.StatusCode[wanted["error"]], "as the test wants it")
        if wanted.get("raw") is not None:
            return bytes.fromhex(wanted["raw"])
        answer: bytes = json_format.ParseDict(wanted["answer"], made["CheckResponse"]()).SerializeToString()
        return answer

    server = grpc.aio.server()
    handler = grpc.unary_unary_rpc_method_handler(check)
    service = grpc.method_handlers_generic_handler("envoy.service.auth.v3.Authorization", {"Check": handler})
    server.add_generic_rpc_handlers((service,))
    address = f"127.0.0.1:{port}"
    if tls:
        key, chain, ca = [await anyio.Path(file).read_bytes() for file in tls]
        credentials = grpc.ssl_server_credentials([(key, chain)], ca, require_client_auth=True)
        port = server.add_secure_port(address, credentials)
    else:
        port = server.add_insecure_port(address)
    await server.start()
    await anyio.Path(ready).write_text(str(port))
    await server.wait_for_termination()


# For tests.


class GrpcAuthorizer:
    """The service, which may be killed and started again at the same port."""

    def __init__(self, folder: Path, tls: tuple[Path, ...]) -> None:
        self._folder = folder
        self._tls = tls
        self._script = folder / "script.json"
        self._seen = folder / "seen.jsonl"
        self._ready = folder / "ready"
        self._pid = 0
        self.port = 0
        self.allow()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def seen(self) -> list[dict[str, Any]]:
        """The attributes of each question that came, in order."""
        if not self._seen.exists():
            return []
        return [json.loads(line)["attributes"] for line in self._seen.read_text().splitlines()]

    async def asked(self, times: int) -> None:
        """Wait until so many questions came."""
        await until(lambda: len(self.seen) >= times, beside=self._folder)

    def allow(self, **headers: str) -> None:
        self._write({"answer": {"status": {"code": 0}, "ok_response": {"headers": _options(headers)}}})

    def deny(self, body: str = "", *, message: str = "", **headers: str) -> None:
        denied = {"denied_response": {"body": body, "headers": _options(headers)}} if body else {}
        self._write({"answer": {"status": {"code": 7, "message": message}, **denied}})

    def hang(self) -> None:
        """Give no answer."""
        self._write({"hang": True})

    def fail(self, status: str) -> None:
        """End each call with a status of gRPC."""
        self._write({"error": status})

    def answer_bytes(self, content: bytes) -> None:
        self._write({"raw": content.hex()})

    def _write(self, script: Mapping[str, Any]) -> None:
        new = self._script.with_suffix(".new")
        new.write_text(json.dumps(script))
        new.replace(self._script)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run it; at the port that it had before, if it ran already."""
        self._ready.unlink(missing_ok=True)
        arguments = (str(self.port), self._script, self._seen, self._ready, *self._tls)
        command = (sys.executable, "-m", "tests.peers.grpc_authorizer", *map(str, arguments))
        async with foreign_process(command, log=self._folder / "authorizer.log", env={**os.environ}) as process:
            self._pid = process.pid
            self.port = int(await process.appears(self._ready))
            yield

    async def kill(self) -> None:
        """End it without a word."""
        os.killpg(self._pid, signal.SIGKILL)
        await gone(self._pid)


def _options(headers: Mapping[str, str]) -> list[dict[str, Any]]:
    return [{"header": {"key": key.replace("_", "-"), "value": value}} for key, value in headers.items()]


@asynccontextmanager
async def grpc_authorizer(folder: Path, *tls: Path) -> AsyncIterator[GrpcAuthorizer]:
    """A service that allows everything; ``tls`` are its key, its certificate, and the authority of its clients."""
    own = folder / "authorizer"
    own.mkdir(exist_ok=True)
    made = GrpcAuthorizer(own, tls)
    async with made.running():
        yield made


if __name__ == "__main__":
    number, script_file, seen_file, ready_file, *tls_files = sys.argv[1:]
    anyio.run(_serve, int(number), Path(script_file), Path(seen_file), Path(ready_file), tuple(tls_files))
