"""The types of values in a configuration: how each is read, and its JSON Schema.

Each type is one annotated type whose validator raises ``Unfit`` with a readable message. There are
no unions, because pydantic reports one fault of a union once per member.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, TypeAlias
from urllib.parse import urlsplit

from pydantic import BeforeValidator, WithJsonSchema

from holdfast.config.durations import DURATION_PATTERN, SIZE_PATTERN, Unfit, parse_duration, parse_size
from holdfast.config.places import quoted

__all__ = [
    "TRANSPORTS",
    "Count",
    "Duration",
    "EnvName",
    "Factor",
    "Flag",
    "HeaderName",
    "HeaderValue",
    "Pauses",
    "Period",
    "Port",
    "Prefix",
    "Scalar",
    "SharingName",
    "Size",
    "Text",
    "Timeout",
    "TransportName",
    "Url",
    "WholeNumber",
    "kind_of",
    "read_flag",
    "read_transport",
]

TRANSPORTS = {
    "stdio": "stdio",
    "local": "stdio",
    "http": "http",
    "streamable-http": "http",
    "streamable_http": "http",
    "streamableHttp": "http",
    "sse": "sse",
}
"""Every spelling of a transport that clients write, and the transport it stands for."""

SHARINGS = ("shared", "per-client")

_FOLDED = {re.sub("[-_]", "", spelling).lower(): meaning for spelling, meaning in TRANSPORTS.items()}
_EXPANDS = {"type": "string", "pattern": r"\$\{"}
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e]*")
_PREFIX = re.compile(r"[A-Za-z0-9_-]{0,32}")
_NUMBER = re.compile(r"[0-9]{1,15}(?:\.[0-9]{1,15})?", re.ASCII)
_MOST_PAUSES = 20
_LARGEST_FACTOR = 100
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


def kind_of(value: object) -> str:
    """The type of a JSON value, as text."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a text"
        case list() | tuple():
            return "a list"
        case dict():
            return "an object"
        case _:
            return f"a {type(value).__name__}"


def read_transport(value: object) -> str | None:
    """What a transport's spelling means; None for what is none."""
    return _FOLDED.get(re.sub("[-_]", "", value).lower()) if isinstance(value, str) else None


def read_flag(value: object) -> bool | None:
    """True or false, also as a text (an expansion results in a text); None for other values."""
    if isinstance(value, bool):
        return value
    return value == "true" if value in ("true", "false") else None


def _text(value: object) -> str:
    text = _scalar(value) if isinstance(value, str) else _refuse(value)
    if not text.strip():
        raise Unfit("is empty", hint="write a value, or remove the key")
    return text


def _refuse(value: object) -> str:
    raise Unfit(f"must be a text, not {kind_of(value)}", hint='a text is written in double quotes: "…"')


def _scalar(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    text = value if isinstance(value, str) else _refuse(value)
    if "\0" in text:
        raise Unfit("contains a NUL character", hint="remove it: no program accepts one")
    return text


def _flag(value: object) -> bool:
    flag = read_flag(value)
    if flag is not None:
        return flag
    raise Unfit(f"must be true or false, not {kind_of(value)}", hint="write true or false, without quotes")


def _whole_number(value: object, *, least: int = 0) -> int:
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value[:12])
    if not isinstance(value, int) or isinstance(value, bool):
        raise Unfit(f"must be a whole number, not {kind_of(value)}", hint="write it without quotes, as in 3")
    if not least <= value <= 1_000_000_000:
        raise Unfit(f"must be between {least} and 1000000000", hint="write a whole number, as in 3")
    return value


def _count(value: object) -> int:
    return _whole_number(value, least=1)


def _port(value: object) -> int:
    port = _count(value)
    if port > 65535:
        raise Unfit("must be between 1 and 65535", hint="write the number of a port, as in 8765")
    return port


def _factor(value: object) -> float:
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        value = float(value)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise Unfit(f"must be a number, not {kind_of(value)}", hint="write it without quotes, as in 1.5")
    if not 1 <= value <= _LARGEST_FACTOR:
        raise Unfit(f"must be between 1 and {_LARGEST_FACTOR}", hint="1 changes nothing, 2 doubles")
    return float(value)


def _timeout(value: object) -> float:
    seconds = parse_duration(value)
    if seconds <= 0:
        raise Unfit("must be longer than 0", hint='write how long, as in "10s"')
    return seconds


def _period(value: object) -> float | None:
    if value == "off":
        return None
    try:
        return _timeout(value)
    except Unfit as fault:
        raise Unfit(fault.message, hint=f'{fault.hint}; or write "off" for never') from None


def _pauses(value: object) -> object:
    hint = 'write ["1s", "2s", "4s"]: one duration for each attempt'
    if not isinstance(value, list):
        raise Unfit(f"must be a list of durations, not {kind_of(value)}", hint=hint)
    if not 1 <= len(value) <= _MOST_PAUSES:
        raise Unfit(f"must contain between 1 and {_MOST_PAUSES} durations", hint=hint)
    return value


def _sharing(value: object) -> str:
    if value in SHARINGS:
        return str(value)
    raise Unfit(
        "must be `shared` or `per-client`", hint='write "per-client" to give each client a connection of its own'
    )


def _transport(value: object) -> str:
    transport = read_transport(value)
    if transport is not None:
        return transport
    name = quoted(value) if isinstance(value, str) else kind_of(value)
    raise Unfit(f"is {name}, which is not a transport that Holdfast knows", hint='write "stdio", "http" or "sse"')


def _url(value: object) -> str:
    url = _text(value).strip()
    scheme = _SCHEME.match(url)
    if scheme is None:
        raise Unfit("has no scheme", hint="write it with https:// (or http://) in front")
    if scheme.group(1).lower() not in ("http", "https"):
        raise Unfit(f"has the scheme {quoted(scheme.group(1))}", hint="Holdfast dials http:// and https:// only")
    if any(c.isspace() or not c.isprintable() for c in url):
        raise Unfit("contains a space or a control character", hint="a space in a URL is written %20")
    return _with_host(url)


def _with_host(url: str) -> str:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise Unfit("is not a valid URL", hint="write it as in https://host:8080/mcp") from None
    if not host:
        raise Unfit("names no host", hint="write it as in https://host/mcp")
    return url


def _prefix(value: object) -> str:
    if not isinstance(value, str) or not _PREFIX.fullmatch(value):
        raise Unfit(
            "is not a valid prefix for tool names", hint="use at most 32 letters, digits, _ and -; or an empty text"
        )
    return value


def _env_name(value: object) -> str:
    name = _text(value)
    if "=" in name:
        raise Unfit("has a name with = in it", hint="write the name as the key and the value after the colon")
    return name


def _header_name(value: object) -> str:
    name = _text(value)
    if not _HEADER_NAME.fullmatch(name):
        raise Unfit("is not a valid header name", hint="use letters, digits and -, without a colon")
    return name


def _header_value(value: object) -> str:
    text = _scalar(value).strip()
    if not _HEADER_VALUE.fullmatch(text):
        raise Unfit("contains a character that is not allowed in a header", hint="use plain ASCII on one line")
    return text


def _schema(*kinds: dict[str, Any]) -> WithJsonSchema:
    return WithJsonSchema(kinds[0] if len(kinds) == 1 else {"anyOf": list(kinds)})


_SCALARS = {"type": ["string", "number", "boolean"]}
_LONGER_THAN_NOTHING = {"type": "string", "pattern": "^(?=[0-9.]*[1-9])" + DURATION_PATTERN.removeprefix("^")}

Text: TypeAlias = Annotated[str, BeforeValidator(_text), _schema({"type": "string", "minLength": 1})]
Scalar: TypeAlias = Annotated[str, BeforeValidator(_scalar), _schema(_SCALARS)]
Flag: TypeAlias = Annotated[bool, BeforeValidator(_flag), _schema({"type": "boolean"}, _EXPANDS)]
Count: TypeAlias = Annotated[int, BeforeValidator(_count), _schema({"type": "integer", "minimum": 1}, _EXPANDS)]
WholeNumber: TypeAlias = Annotated[
    int, BeforeValidator(_whole_number), _schema({"type": "integer", "minimum": 0}, _EXPANDS)
]
Port: TypeAlias = Annotated[
    int, BeforeValidator(_port), _schema({"type": "integer", "minimum": 1, "maximum": 65535}, _EXPANDS)
]
Factor: TypeAlias = Annotated[
    float, BeforeValidator(_factor), _schema({"type": "number", "minimum": 1, "maximum": _LARGEST_FACTOR}, _EXPANDS)
]
Duration: TypeAlias = Annotated[
    float, BeforeValidator(parse_duration), _schema({"type": "string", "pattern": DURATION_PATTERN}, _EXPANDS)
]
Timeout: TypeAlias = Annotated[float, BeforeValidator(_timeout), _schema(_LONGER_THAN_NOTHING, _EXPANDS)]
Period: TypeAlias = Annotated[
    float | None, BeforeValidator(_period), _schema(_LONGER_THAN_NOTHING, {"const": "off"}, _EXPANDS)
]
Pauses: TypeAlias = Annotated[
    tuple[Timeout, ...],
    BeforeValidator(_pauses),
    _schema(
        {
            "type": "array",
            "items": {"anyOf": [_LONGER_THAN_NOTHING, _EXPANDS]},
            "minItems": 1,
            "maxItems": _MOST_PAUSES,
        }
    ),
]
Size: TypeAlias = Annotated[
    int,
    BeforeValidator(parse_size),
    _schema({"type": "string", "pattern": SIZE_PATTERN}, {"type": "integer", "minimum": 1}, _EXPANDS),
]
SharingName: TypeAlias = Annotated[str, BeforeValidator(_sharing), _schema({"enum": list(SHARINGS)}, _EXPANDS)]
TransportName: TypeAlias = Annotated[str, BeforeValidator(_transport), _schema({"enum": list(TRANSPORTS)}, _EXPANDS)]
Url: TypeAlias = Annotated[
    str, BeforeValidator(_url), _schema({"type": "string", "pattern": r"^[Hh][Tt][Tt][Pp][Ss]?://."}, _EXPANDS)
]
Prefix: TypeAlias = Annotated[
    str, BeforeValidator(_prefix), _schema({"type": "string", "pattern": f"^{_PREFIX.pattern}$"}, _EXPANDS)
]
EnvName: TypeAlias = Annotated[str, BeforeValidator(_env_name)]
HeaderName: TypeAlias = Annotated[str, BeforeValidator(_header_name)]
HeaderValue: TypeAlias = Annotated[str, BeforeValidator(_header_value), _schema(_SCALARS)]
