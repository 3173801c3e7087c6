"""The types of values in a configuration: how each is read and written, and its JSON Schema.

Durations are written ``250ms``, ``10s``, ``1.5h``; sizes ``64KiB``, ``16MiB``. Each type is one annotated
type whose validator raises ``InvalidValue`` with a readable message. There are no unions, because pydantic
reports one fault of a union once per member.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal, TypeAlias, get_args
from urllib.parse import urlsplit

from pydantic import BeforeValidator, GetCoreSchemaHandler, GetJsonSchemaHandler, WithJsonSchema
from pydantic_core import CoreSchema, core_schema

from holdfast.config.jsonc import quoted
from holdfast.config.settings import ApprovalMode
from holdfast.config.spec import UNIX, Transport
from holdfast.core import LONGEST_NAME, NAME_LENGTH, SHORTEST_NAME

__all__ = [
    "DURATION_PATTERN",
    "SIZE_PATTERN",
    "TRANSPORTS",
    "ApprovalName",
    "Arguments",
    "CallTimeout",
    "ConditionText",
    "Count",
    "Duration",
    "EnvName",
    "Environment",
    "Factor",
    "Flag",
    "HeaderName",
    "HeaderValue",
    "InvalidValue",
    "NameLength",
    "Names",
    "OneOf",
    "Patterns",
    "Pauses",
    "Period",
    "PlacementField",
    "Port",
    "Prefix",
    "Resource",
    "Scalar",
    "Scopes",
    "Size",
    "Text",
    "Timeout",
    "TransportName",
    "Url",
    "WholeNumber",
    "Words",
    "format_duration",
    "kind_of",
    "parse_duration",
    "parse_size",
    "read_bare_timeout",
    "read_flag",
    "read_transport",
]

DURATION_PATTERN = r"^[0-9]+(\.[0-9]+)?\s*(ms|s|m|h|d)$"
SIZE_PATTERN = r"^[0-9]+(\.[0-9]+)?\s*(B|KB|KiB|MB|MiB|GB|GiB)$"

LONGEST = 365 * 24 * 3600.0
"""Seconds; a duration over a year is a typing error."""

LARGEST = 1 << 40
"""Bytes; a size over a tebibyte is a typing error."""

_SECONDS: Mapping[str, float] = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES: Mapping[str, int] = {
    "b": 1,
    "kb": 10**3,
    "kib": 1 << 10,
    "mb": 10**6,
    "mib": 1 << 20,
    "gb": 10**9,
    "gib": 1 << 30,
}
_AMOUNT = re.compile(r"\s*([0-9]{1,15}(?:\.[0-9]{1,15})?)\s*([A-Za-z]*)\s*", re.ASCII)


class InvalidValue(ValueError):
    """A value that cannot be used. The message follows the key's name: ``must be a list``."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


def parse_duration(value: object) -> float:
    """Seconds; ``InvalidValue`` says what to write instead."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise _without_unit(value)
    amount, unit = _split(value, 'must be a duration such as "10s"', "the units are ms, s, m, h and d")
    if not unit:
        raise _without_unit(amount)
    if unit not in _SECONDS:
        raise InvalidValue(
            "has a unit that is not known", hint='the units are ms, s, m, h and d, as in "250ms" or "5m"'
        )
    if amount * _SECONDS[unit] > LONGEST:
        raise InvalidValue("is longer than a year", hint="the units are ms, s, m, h and d")
    return amount * _SECONDS[unit]


SECONDS_BELOW = 1_000
"""Clients write a call's limit without a unit, some in seconds, some in milliseconds: no limit is meant to be 17 min
in the one, or less than a second in the other."""


def read_bare_timeout(value: object) -> float | None:
    """The seconds of a limit without a unit, by the unit that it must mean; None for a text with a unit."""
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        value = float(value)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if value < SECONDS_BELOW else value / 1_000


def format_duration(seconds: float) -> str:
    """A short spelling that ``parse_duration`` reads back as the same time."""
    if seconds < 1:
        return f"{_decimal(seconds * 1000)}ms" if seconds else "0s"
    unit = next((unit for unit in ("d", "h", "m") if seconds % _SECONDS[unit] == 0), "s")
    return f"{_decimal(seconds / _SECONDS[unit])}{unit}"


def parse_size(value: object) -> int:
    """Bytes; a bare number is taken as bytes, since the keys say so by their names."""
    if isinstance(value, int) and not isinstance(value, bool):
        size: float = value
    else:
        amount, unit = _split(value, 'must be a size such as "16MiB"', "the units are B, KiB, MiB and GiB")
        if unit.lower() not in _BYTES and unit:
            raise InvalidValue("has a unit that is not known", hint='the units are B, KiB, MiB and GiB, as in "64KiB"')
        size = amount * _BYTES[unit.lower() or "b"]
    if not 1 <= size <= LARGEST:
        raise InvalidValue("must be between 1 byte and 1024 GiB", hint='write it as in "16MiB"')
    return int(size)


def _without_unit(amount: float) -> InvalidValue:
    number = _decimal(amount)
    return InvalidValue("needs a unit", hint=f'write "{number}s" for seconds or "{number}ms" for milliseconds')


def _decimal(amount: float) -> str:
    return f"{amount:.6f}".rstrip("0").rstrip(".")


def _split(value: object, message: str, hint: str) -> tuple[float, str]:
    match = _AMOUNT.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise InvalidValue(message, hint=hint)
    return float(match.group(1)), match.group(2)


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


_FOLDED = {re.sub("[-_]", "", spelling).lower(): meaning for spelling, meaning in TRANSPORTS.items()}
_EXPANDS = {"type": "string", "pattern": r"\$\{"}
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
        raise InvalidValue("is empty", hint="write a value, or remove the key")
    return text


def _refuse(value: object) -> str:
    raise InvalidValue(f"must be a text, not {kind_of(value)}", hint='a text is written in double quotes: "…"')


def _scalar(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    text = value if isinstance(value, str) else _refuse(value)
    if "\0" in text:
        raise InvalidValue("contains a NUL character", hint="remove it: no program accepts one")
    return text


def _flag(value: object) -> bool:
    flag = read_flag(value)
    if flag is not None:
        return flag
    raise InvalidValue(f"must be true or false, not {kind_of(value)}", hint="write true or false, without quotes")


def _whole_number(
    value: object, *, least: int = 0, most: int = 1_000_000_000, hint: str = "write a whole number, as in 3"
) -> int:
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value[:12])
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidValue(f"must be a whole number, not {kind_of(value)}", hint="write it without quotes, as in 3")
    if not least <= value <= most:
        raise InvalidValue(f"must be between {least} and {most}", hint=hint)
    return value


def _factor(value: object) -> float:
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        value = float(value)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise InvalidValue(f"must be a number, not {kind_of(value)}", hint="write it without quotes, as in 1.5")
    if not 1 <= value <= _LARGEST_FACTOR:
        raise InvalidValue(f"must be between 1 and {_LARGEST_FACTOR}", hint="1 changes nothing, 2 doubles")
    return float(value)


def _timeout(value: object) -> float:
    seconds = parse_duration(value)
    if seconds <= 0:
        raise InvalidValue("must be longer than 0", hint='write how long, as in "10s"')
    return seconds


def _call_timeout(value: object) -> float:
    seconds = read_bare_timeout(value)
    if seconds is None:
        return _timeout(value)
    if not 0 < seconds <= LONGEST:
        raise InvalidValue("must be longer than 0 and at most a year", hint='write it with a unit, as in "5m"')
    return seconds


def _period(value: object) -> float | None:
    if value == "off":
        return None
    try:
        return _timeout(value)
    except InvalidValue as fault:
        raise InvalidValue(fault.message, hint=f'{fault.hint}; or write "off" for never') from None


def _list(value: object, of: str, hint: str) -> list[Any]:
    if not isinstance(value, list):
        raise InvalidValue(f"must be a list of {of}, not {kind_of(value)}", hint=hint)
    return value


def _pauses(value: object) -> object:
    hint = 'write ["1s", "2s", "4s"]: one duration for each attempt'
    pauses = _list(value, "durations", hint)
    if not 1 <= len(pauses) <= _MOST_PAUSES:
        raise InvalidValue(f"must contain between 1 and {_MOST_PAUSES} durations", hint=hint)
    return pauses


@dataclass(frozen=True)
class OneOf:
    """Reads one of the names of a ``Literal``; ``false`` may stand for one of them."""

    hint: str
    false_means: str | None = None
    message: str = ""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(partial(self._read, get_args(source)), handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        names = handler(schema)
        return {"anyOf": [{"enum": names.get("enum") or [names["const"]]}, _EXPANDS]}

    def _read(self, names: Sequence[str], value: object) -> object:
        if value in names:
            return value
        if value is False and self.false_means is not None:
            return self.false_means
        *others, last = (f"`{name}`" for name in names)
        raise InvalidValue(self.message or f"must be {', '.join(others)} or {last}", hint=self.hint)


def _without_nulls(value: object) -> object:
    """VS Code writes null for a variable that is not to be set."""
    if isinstance(value, dict):
        return {key: item for key, item in value.items() if item is not None}
    if isinstance(value, list):
        raise InvalidValue(f"must be an object, not {kind_of(value)}", hint='write {"NAME": "value"}')
    return value


def _tool_patterns(value: object) -> list[str]:
    hint = 'write ["github/create_issue"]: the server, a slash, and the tool, where `*` stands for any text'
    patterns = _list(value, "texts", hint)
    if not all(isinstance(one, str) and all(one.partition("/")) for one in patterns):
        raise InvalidValue("must name each tool as `server/tool`", hint=hint)
    return patterns


def _profiles(value: object) -> list[tuple[str, list[str]]]:
    hint = 'write {"coding": ["git/*", "files/read_*"]}: a name, and the tools as `server/tool`'
    if not isinstance(value, dict):
        raise InvalidValue(f"must be an object, not {kind_of(value)}", hint=hint)
    if not all(value):
        raise InvalidValue("a profile must have a name", hint=hint)
    return [(str(name), _tool_patterns(patterns)) for name, patterns in value.items()]


def _listed_texts(value: object) -> list[str]:
    hint = 'write ["first", "second"]'
    texts = _list(value, "texts", hint)
    if not texts:
        raise InvalidValue("is empty", hint="it would match nothing: write a name, or remove the key to match all")
    if not all(isinstance(one, str) and one.strip() and "\0" not in one for one in texts):
        raise InvalidValue("must have texts only, none of them empty", hint=hint)
    return texts


def _full_names(value: object) -> list[str]:
    names = _listed_texts(value)
    for one in names:
        if "*" in one:
            raise InvalidValue(
                f"has the pattern {quoted(one)}", hint="write full names here; remove the key to match all"
            )
    return names


def _condition(value: object) -> str:
    from holdfast.config.conditions import Condition  # noqa: PLC0415 - it imports this module, and few files have one

    return Condition(_text(value)).text


def _transport(value: object) -> str:
    transport = read_transport(value)
    if transport is not None:
        return transport
    name = quoted(value) if isinstance(value, str) else kind_of(value)
    raise InvalidValue(
        f"is {name}, which is not a transport that Holdfast knows", hint='write "stdio", "http" or "sse"'
    )


def _url(value: object) -> str:
    url = _text(value).strip()
    scheme = _SCHEME.match(url)
    if scheme is None:
        raise InvalidValue("has no scheme", hint="write it with https:// (or http://) in front")
    if scheme.group(1).lower() not in ("http", "https"):
        raise InvalidValue(f"has the scheme {quoted(scheme.group(1))}", hint="Holdfast dials http:// and https:// only")
    if any(c.isspace() or not c.isprintable() for c in url):
        raise InvalidValue("contains a space or a control character", hint="a space in a URL is written %20")
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise InvalidValue("is not a valid URL", hint="write it as in https://host:8080/mcp") from None
    if not host:
        raise InvalidValue("names no host", hint="write it as in https://host/mcp")
    return url


def _hub(value: object) -> str:
    """The address of another hub: ``HOST:PORT``, or ``unix:`` and the path of a socket."""
    address = _text(value).strip()
    if address.startswith(UNIX):
        if not address.removeprefix(UNIX).startswith("/"):
            raise InvalidValue("names no absolute path", hint="write it as in unix:/run/holdfast/hub.sock")
        return address
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65_536:
        raise InvalidValue("is no HOST:PORT", hint='write it as in "hub": "db-hub:4654"')
    if "/" in host or "@" in host or any(c.isspace() or not c.isprintable() for c in host):
        raise InvalidValue("is no HOST:PORT", hint="without a scheme, a path or a user: the address alone")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise InvalidValue("has an IPv6 address without brackets", hint='write it as in "hub": "[::1]:4654"')
    return address


def _prefix(value: object) -> str:
    if not isinstance(value, str) or not _PREFIX.fullmatch(value):
        raise InvalidValue(
            "is not a valid prefix for tool names", hint="use at most 32 letters, digits, _ and -; or an empty text"
        )
    return value


def _name(value: object, *, pattern: re.Pattern[str], message: str, hint: str) -> str:
    name = _text(value)
    if not pattern.fullmatch(name):
        raise InvalidValue(message, hint=hint)
    return name


def _header_value(value: object) -> str:
    text = _scalar(value).strip()
    if not _HEADER_VALUE.fullmatch(text):
        raise InvalidValue("contains a character that is not allowed in a header", hint="use plain ASCII on one line")
    return text


def _scopes(value: object) -> list[str]:
    words = value.split() if isinstance(value, str) else value
    if isinstance(words, list) and all(isinstance(word, str) and word.strip() for word in words):
        return [part for word in words for part in word.split()]
    raise InvalidValue(f"must be a text or a list of texts, not {kind_of(value)}", hint='write "read write"')


def _resource(value: object) -> str:
    """``false`` is kept as the empty text: no resource."""
    if value is False:
        return ""
    if isinstance(value, str) and value:
        return value
    raise InvalidValue(f"must be a text or false, not {kind_of(value)}", hint="write the address, or false for none")


def _schema(*kinds: dict[str, Any]) -> WithJsonSchema:
    return WithJsonSchema(kinds[0] if len(kinds) == 1 else {"anyOf": list(kinds)})


_SCALARS = {"type": ["string", "number", "boolean"]}
_LONGER_THAN_NOTHING = {"type": "string", "pattern": "^(?=[0-9.]*[1-9])" + DURATION_PATTERN.removeprefix("^")}

Text: TypeAlias = Annotated[str, BeforeValidator(_text), _schema({"type": "string", "minLength": 1})]
Scalar: TypeAlias = Annotated[str, BeforeValidator(_scalar), _schema(_SCALARS)]
_LISTED = BeforeValidator(partial(_list, of="texts", hint='write ["first", "second"]: one text for each word'))
Arguments: TypeAlias = Annotated[tuple[Scalar, ...], _LISTED]
Words: TypeAlias = Annotated[tuple[Text, ...], _LISTED]
Flag: TypeAlias = Annotated[bool, BeforeValidator(_flag), _schema({"type": "boolean"}, _EXPANDS)]
Count: TypeAlias = Annotated[
    int, BeforeValidator(partial(_whole_number, least=1)), _schema({"type": "integer", "minimum": 1}, _EXPANDS)
]
WholeNumber: TypeAlias = Annotated[
    int, BeforeValidator(_whole_number), _schema({"type": "integer", "minimum": 0}, _EXPANDS)
]
Port: TypeAlias = Annotated[
    int,
    BeforeValidator(partial(_whole_number, least=1, most=65535, hint="write the number of a port, as in 8765")),
    _schema({"type": "integer", "minimum": 1, "maximum": 65535}, _EXPANDS),
]
NameLength: TypeAlias = Annotated[
    int,
    BeforeValidator(
        partial(
            _whole_number,
            least=SHORTEST_NAME,
            most=LONGEST_NAME,
            hint=f"{NAME_LENGTH} leaves room for the prefix of every known client",
        )
    ),
    _schema({"type": "integer", "minimum": SHORTEST_NAME, "maximum": LONGEST_NAME}, _EXPANDS),
]
Factor: TypeAlias = Annotated[
    float, BeforeValidator(_factor), _schema({"type": "number", "minimum": 1, "maximum": _LARGEST_FACTOR}, _EXPANDS)
]
Duration: TypeAlias = Annotated[
    float, BeforeValidator(parse_duration), _schema({"type": "string", "pattern": DURATION_PATTERN}, _EXPANDS)
]
Timeout: TypeAlias = Annotated[float, BeforeValidator(_timeout), _schema(_LONGER_THAN_NOTHING, _EXPANDS)]
CallTimeout: TypeAlias = Annotated[
    float,
    BeforeValidator(_call_timeout),
    _schema(_LONGER_THAN_NOTHING, {"type": "number", "exclusiveMinimum": 0}, _EXPANDS),
]
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
ApprovalName: TypeAlias = Annotated[
    ApprovalMode,
    OneOf('write "hold" to keep a changed tool back until a person approves it', false_means="off"),
]
ToolPatterns: TypeAlias = Annotated[
    tuple[str, ...],
    BeforeValidator(_tool_patterns),
    _schema({"type": "array", "items": {"type": "string", "pattern": "^.+/.+$"}}),
]
Profiles: TypeAlias = Annotated[
    tuple[tuple[str, tuple[str, ...]], ...],
    BeforeValidator(_profiles),
    _schema(
        {
            "type": "object",
            "additionalProperties": {"type": "array", "items": {"type": "string", "pattern": "^.+/.+$"}},
        }
    ),
]
_TEXTS = {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1}
Patterns: TypeAlias = Annotated[tuple[str, ...], BeforeValidator(_listed_texts), _schema(_TEXTS)]
Names: TypeAlias = Annotated[
    tuple[str, ...],
    BeforeValidator(_full_names),
    _schema({**_TEXTS, "items": {"type": "string", "pattern": r"^[^*]+$"}}),
]
ConditionText: TypeAlias = Annotated[str, BeforeValidator(_condition), _schema({"type": "string", "minLength": 1})]
PlacementField: TypeAlias = Annotated[
    Literal["each"],
    OneOf(
        'to run it once in all, give it a hub of its own (`serve --only`), and write {"hub": "HOST:PORT"} here',
        message="a fleet does not place servers any more: a stdio server runs on each replica",
    ),
]
TransportName: TypeAlias = Annotated[
    Transport, BeforeValidator(_transport), _schema({"enum": list(TRANSPORTS)}, _EXPANDS)
]
Url: TypeAlias = Annotated[
    str, BeforeValidator(_url), _schema({"type": "string", "pattern": r"^[Hh][Tt][Tt][Pp][Ss]?://."}, _EXPANDS)
]
HubAddress: TypeAlias = Annotated[
    str, BeforeValidator(_hub), _schema({"type": "string", "pattern": r"^(unix:/.+|[^/@\s]+:[0-9]+)$"}, _EXPANDS)
]
Prefix: TypeAlias = Annotated[
    str, BeforeValidator(_prefix), _schema({"type": "string", "pattern": f"^{_PREFIX.pattern}$"}, _EXPANDS)
]
EnvName: TypeAlias = Annotated[
    str,
    BeforeValidator(
        partial(
            _name,
            pattern=re.compile("[^=]+"),
            message="has a name with = in it",
            hint="write the name as the key and the value after the colon",
        )
    ),
]
Environment: TypeAlias = Annotated[
    dict[EnvName, Scalar],
    BeforeValidator(_without_nulls),
    WithJsonSchema({"type": "object", "additionalProperties": {"type": ["string", "number", "boolean", "null"]}}),
]
HeaderName: TypeAlias = Annotated[
    str,
    BeforeValidator(
        partial(
            _name,
            pattern=re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"),
            message="is not a valid header name",
            hint="use letters, digits and -, without a colon",
        )
    ),
]
HeaderValue: TypeAlias = Annotated[str, BeforeValidator(_header_value), _schema(_SCALARS)]
Scopes: TypeAlias = Annotated[
    tuple[str, ...],
    BeforeValidator(_scopes),
    _schema({"type": "string"}, {"type": "array", "items": {"type": "string"}}),
]
Resource: TypeAlias = Annotated[
    str, BeforeValidator(_resource), _schema({"type": "string", "minLength": 1}, {"const": False})
]
