"""Trace context over HTTP: copied from a request's ``_meta`` into its headers, and back.

The protocol carries trace context in ``_meta``; proxies and web frameworks read only headers. A value that does not
have the W3C form is not copied, so a caller cannot create headers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from holdfast.wire.raw_json import BadJson, Fields, dumps, fields, text_of

__all__ = ["in_headers", "in_meta", "trace_headers", "traced"]

_PARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(?:-[\x21-\x7e]{0,256})?")
_PRINTABLE = re.compile(r"[\x20-\x7e]{1,8192}")
_KEYS = {"traceparent": _PARENT, "tracestate": _PRINTABLE, "baggage": _PRINTABLE}


def in_headers(params: Mapping[str, Any] | None) -> dict[str, str]:
    """The headers for a request with these parameters."""
    meta = params.get("_meta") if params is not None else None
    if not isinstance(meta, Mapping) or "traceparent" not in meta:
        return {}
    return _well_formed(meta)


def trace_headers(params: Fields) -> dict[str, str]:
    """The headers for a request whose parameters are passed on as they came."""
    raw = params.get("_meta")
    if raw is None or b"traceparent" not in bytes(raw):
        return {}
    try:
        return _well_formed({key: text_of(value) for key, value in fields(raw).items() if key in _KEYS})
    except BadJson:
        return {}


def in_meta(params: Mapping[str, Any], headers: Mapping[str, str]) -> Mapping[str, Any]:
    """The parameters of a request that came with these headers; a trace in its own ``_meta`` wins."""
    meta = params.get("_meta")
    meta = meta if isinstance(meta, Mapping) else {}
    if "traceparent" not in headers or "traceparent" in meta:
        return params
    return {**params, "_meta": {**_well_formed(headers), **meta}}


def _well_formed(carrier: Mapping[str, Any]) -> dict[str, str]:
    """The valid values; nothing without a valid ``traceparent``."""
    found = {
        key: value
        for key, form in _KEYS.items()
        if isinstance(value := carrier.get(key), str) and form.fullmatch(value)
    }
    return found if "traceparent" in found else {}


def traced(meta: Fields, headers: Mapping[str, str]) -> Fields:
    """The members of ``_meta`` of a request that came with these headers; its own trace context takes precedence."""
    if "traceparent" not in headers or "traceparent" in meta:
        return meta
    return {**{key: dumps(value) for key, value in _well_formed(headers).items()}, **meta}
