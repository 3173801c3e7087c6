"""``classify_load_error``: the fallback for callers that have only a text and perhaps a status.

Names that the user or the server chose are removed first: URLs, paths, quoted strings, and words
joined by dots, dashes or slashes (``timeout-503-refused``). The rest is matched against whole
phrases. The runtime itself does not use this: it has typed evidence.
"""

from __future__ import annotations

import re

from holdfast.core.classify import OUTAGE_BODIES, status_class
from holdfast.core.messages import FailureStatus

__all__ = ["classify_load_error"]

LONGEST = 8192
"""How many characters of a text are read: an error is at its beginning, and patterns over names cost time."""

_NAME_STOOD_HERE = " … "

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://\S+")
_QUOTED = re.compile(r"(?<!\w)'(?:[^']|'(?=\w))*'(?!\w)|\"[^\"]*\"|`[^`]*`|«[^»]*»")
_JOINED = re.compile(r"(?<!\w)[\w@]+(?:[./\\@_-]+[\w@]+)+(?::\d+)?")
_LIBRARY = re.compile(r"(?:Client|Server) error '([45]\d\d)[^'\n]*' for url '|\A([45]\d\d), message=")
"""What HTTP clients write: the status in quotes, or at the beginning."""
_STATUS = re.compile(
    r"(?i)\b(?:HTTP(?:/\d(?:\.\d)?)?|status(?:[ _]code)?|error(?: code)?|response|returned)\s*[:=]?\s*([1-5]\d\d)\b"
    r"|\b([45]\d\d)\s+(?:Bad Request|Unauthorized|Forbidden|Not Found|Request Timeout|Too Many Requests"
    r"|Internal Server Error|Bad Gateway|Service Unavailable|Gateway Timeout|(?:Client|Server) Error)\b"
)
_DENIED = re.compile(r"(?i)\b(?:unauthori[sz]ed|forbidden|access denied)\b|(?<!\] )\bpermission denied\b")
"""A permission that the file system denied has an errno before it: that is not a denial by the server."""
_PERMANENT = re.compile(
    r"(?i)\b(?:name or service not known|nodename nor servname|temporary failure in name resolution"
    r"|getaddrinfo failed|no address associated|connection refused|connect call failed|not found"
    r"|no such file or directory|certificate verify failed|invalid (?:url|config(?:uration)?)|method not found)\b"
)
_TRANSIENT = re.compile(
    r"(?i)\b(?:timed? ?out|(?:read|connect|write|pool)?timeout(?:error|exception)?|deadline exceeded"
    r"|connection ?reset(?:error)?|reset by peer|broken ?pipe(?:error)?"
    r"|connection (?:was )?closed"
    r"|closed connection|server disconnected|disconnected without|incomplete (?:chunked )?read|end of (?:file|stream)"
    r"|peer closed|connection lost|connection aborted|too many requests|service unavailable|bad gateway"
    r"|temporarily unavailable|starting up)\b"
)


def classify_load_error(error_msg: str, status_code: int | None = None) -> FailureStatus:
    """Classify a failed load from its text and, where known, its HTTP status.

    A status decides, except that a 403 with a text that ends in an authorization-outage body
    is transient. Without a status, an empty text (``str(TimeoutError())``) is transient, because
    exceptions without a text come from transports. Any other unknown text is permanent.
    """
    text = _without_names(error_msg[:LONGEST])
    status = status_code if status_code is not None else _status_in(error_msg[:LONGEST], text)
    if status is not None and status >= 400:
        return status_class(status, _outage_in(error_msg) if status == 403 else "")
    if not error_msg.strip():
        return "transient"
    if _DENIED.search(text):
        return "denied"
    if _PERMANENT.search(text):
        return "permanent"
    return "transient" if _TRANSIENT.search(text) else "permanent"


def _without_names(text: str) -> str:
    """``text`` without anything that could hold a URL, an id or an argument."""
    for pattern in (_URL, _QUOTED, _JOINED):
        text = pattern.sub(_NAME_STOOD_HERE, text)
    return text


def _status_in(whole: str, text: str) -> int | None:
    """The status that a text states; ``text`` is the ``whole`` without names."""
    found = _LIBRARY.search(whole) or _STATUS.search(text)
    return int(found[1] or found[2]) if found else None


def _outage_in(text: str) -> str:
    """The outage body that is the whole ``text``, or its end after a colon; else an empty string."""
    text = text.strip()
    return next((body for body in OUTAGE_BODIES if text == body or text.endswith(f": {body}")), "")
