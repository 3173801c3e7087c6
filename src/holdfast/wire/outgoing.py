"""The messages that we send to a server, as JSON-RPC has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from mcp.shared.dispatcher import CallOptions
from mcp_types import RequestId

from holdfast.wire.envelope import Fields, dumps, fields, join_fields, text_as_json

__all__ = ["Message", "call_message", "notification_message", "request_message", "with_progress_token"]

Message: TypeAlias = dict[str, Any]


def request_message(request_id: RequestId, method: str, params: Mapping[str, Any] | None) -> Message:
    """A JSON-RPC request; ``params`` is left out where there are none."""
    message: Message = {"jsonrpc": "2.0", "id": request_id, "method": method}
    if params:
        message["params"] = params
    return message


def notification_message(method: str, params: Mapping[str, Any] | None) -> Message:
    """A JSON-RPC notification."""
    message: Message = {"jsonrpc": "2.0", "method": method}
    if params:
        message["params"] = params
    return message


def with_progress_token(
    params: Mapping[str, Any] | None, request_id: RequestId, opts: CallOptions
) -> Mapping[str, Any] | None:
    """Add our request id as the progress token, where the caller wants progress."""
    if "on_progress" not in opts:
        return params
    params = dict(params or {})
    params["_meta"] = {**(params.get("_meta") or {}), "progressToken": request_id}
    return params


def call_message(request_id: RequestId, method: str, params: Fields, *, progress: bool) -> bytes:
    """A JSON-RPC request whose parameters are passed on as they are; our id is its progress token."""
    raw_id = b"%d" % request_id if isinstance(request_id, int) else dumps(request_id)
    if progress:
        meta = _with_token(bytes(params["_meta"]), raw_id) if "_meta" in params else b'{"progressToken":%b}' % raw_id
        params = {**params, "_meta": meta}
    if not params:
        return b'{"jsonrpc":"2.0","id":%b,"method":%b}' % (raw_id, text_as_json(method))
    return b'{"jsonrpc":"2.0","id":%b,"method":%b,"params":%b}' % (raw_id, text_as_json(method), join_fields(params))


def _with_token(meta: bytes, token: bytes) -> bytes:
    """``_meta`` with our progress token; it is not written again where it has none, and none under an escaped name."""
    if meta.startswith(b'{"') and b"progressToken" not in meta and b"\\" not in meta:
        return b'{"progressToken":%b,%b' % (token, meta[1:])
    return join_fields({**fields(meta), "progressToken": token})
