"""Trace context over HTTP: what a request carries in ``_meta`` stands in its headers too, and the reverse.

In the protocol it travels in ``_meta``; a proxy or a web framework on the way knows the headers alone. A value
that is not as the W3C writes it stays where it is: nothing that a caller makes up becomes a header of ours.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

__all__ = ["in_headers", "in_meta"]

_PARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(?:-[\x21-\x7e]{0,256})?")
_PRINTABLE = re.compile(r"[\x20-\x7e]{1,8192}")
_KEYS = {"traceparent": _PARENT, "tracestate": _PRINTABLE, "baggage": _PRINTABLE}


def in_headers(params: Mapping[str, Any] | None) -> dict[str, str]:
    """The headers for a request with these parameters."""
    meta = params.get("_meta") if params is not None else None
    if not isinstance(meta, Mapping) or "traceparent" not in meta:
        return {}
    return _well_formed(meta)


def in_meta(params: Mapping[str, Any], headers: Mapping[str, str]) -> Mapping[str, Any]:
    """The parameters of a request that came with these headers; what it says of its trace itself stands."""
    meta = params.get("_meta")
    meta = meta if isinstance(meta, Mapping) else {}
    if "traceparent" not in headers or "traceparent" in meta:
        return params
    return {**params, "_meta": {**_well_formed(headers), **meta}}


def _well_formed(carrier: Mapping[str, Any]) -> dict[str, str]:
    """All of it, or nothing if there is no parent that the rest could belong to."""
    found = {
        key: value
        for key, form in _KEYS.items()
        if isinstance(value := carrier.get(key), str) and form.fullmatch(value)
    }
    return found if "traceparent" in found else {}
