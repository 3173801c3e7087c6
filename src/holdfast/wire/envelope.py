"""JSON as it came: the members of an object and the items of an array, each as its own bytes.

A call passes through the hub as bytes. Only the envelope is read: this module splits an object one level deep
and joins it again, so numbers of any size, escapes, unknown members and the order of keys survive. Nothing here
knows MCP, and nothing here builds Python values out of arguments or results.
"""

from __future__ import annotations

import json
import json.decoder
import json.scanner
import random
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import msgspec
from msgspec import Raw

__all__ = [
    "BadJson",
    "Fields",
    "KeyNames",
    "LoadedObject",
    "RawValue",
    "SplitBytes",
    "dump_object",
    "dumps",
    "fields",
    "has_lone_surrogate",
    "have_lone_surrogate",
    "is_dense",
    "is_text",
    "is_word",
    "items",
    "join_fields",
    "join_items",
    "load_object",
    "loads",
    "objects",
    "read_bytes",
    "text_as_json",
    "text_of",
]

Bytes: TypeAlias = bytes | Raw
Fields: TypeAlias = dict[str, Bytes]
"""The members of a JSON object: each value is the bytes that it came in."""

_BOM = b"\xef\xbb\xbf"

_OBJECT = msgspec.json.Decoder(dict[str, Raw])
_ARRAY = msgspec.json.Decoder(list[Raw])
_OBJECTS = msgspec.json.Decoder(list[dict[str, Raw]])
_STRING = msgspec.json.Decoder(str)

_written = json.JSONEncoder(separators=(",", ":")).encode
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_KEY = re.compile(rb'[\s,{]*("[^"\\]*(?:\\.[^"\\]*)*")\s*:\s*')
_GAP = re.compile(rb"[\s,\[]*")

_KEYS: dict[str, bytes] = {}
"""Keys as they are written. A protocol has few of them; the bound keeps a peer from filling it."""
_MOST_KEYS = 512


_TEXTS: dict[str, bytes] = {}
_MOST_TEXTS = 4096

EXPLAINED_BYTES = 64 * 1024
"""Up to this size, bytes that cannot be split are read again to say why."""


SMALL_BYTES = 128 * 1024
"""What is not larger is read at once: that takes a few milliseconds for any content."""

WINDOWS, WINDOW_BYTES = 256, 128
DENSE_MARKS = 100_000
"""A large text with more signs of structure than this is dense: to read it takes the event loop too long."""

_NO_MARKS = bytes(sorted(set(range(256)) - set(b'"\\[]{},:\r\n')))


class BadJson(ValueError):
    """The bytes are not what they should be; the message says why and quotes nothing."""

    truncated = False
    """Whether they end before the value does."""


class KeyNames:
    """The names that some objects have as keys. Parsers in Go and C# take a key in another case for the same name."""

    def __init__(self, *names: str) -> None:
        self._exact = frozenset(names)
        self._folded = frozenset(map(_folded, names))

    def misspelled(self, keys: Iterable[str]) -> list[str]:
        """The keys that such a parser takes for one of the names, and others do not."""
        if self._exact.issuperset(keys):
            return []
        return [key for key in keys if key not in self._exact and _folded(key) in self._folded]


def _folded(name: str) -> str:
    return name.upper().casefold()


class SplitBytes(bytes):
    """Some JSON of a large message whose parts are known already, so that they need not be looked for again."""

    members: Fields | None = None
    parts: list[Bytes] | None = None
    lone_surrogates: bool = False
    """Whether its message has an escaped surrogate that is not one of a pair."""


class RawValue(bytes):
    """A value that is passed on as the bytes that it came in."""


def is_dense(data: Bytes | bytearray) -> bool:
    """Whether a large text has much structure. Looks at random places, which its sender cannot foresee."""
    if isinstance(data, SplitBytes):
        return True
    view = memoryview(data)
    if len(view) <= SMALL_BYTES:
        return False
    last = len(view) - WINDOW_BYTES
    starts = [random.randrange(last) for _ in range(WINDOWS)]  # noqa: S311 - a sample; a guess of it gains nothing
    seen = b"".join([view[start : start + WINDOW_BYTES] for start in starts])
    marks = len(seen.translate(None, _NO_MARKS))
    return marks * len(view) > DENSE_MARKS * len(seen)


class RawObject:
    """A JSON object as it came, with its members. One that was changed is joined again when it is written."""

    __slots__ = ("get", "is_large", "members", "raw")

    def __init__(self, members: Fields, raw: Bytes | None = None) -> None:
        self.members = members
        self.raw = raw
        """As it is written, where that is known: the bytes that it came in, or those with more before them."""
        self.get: Callable[[str], Bytes | None] = members.get
        """One member."""
        self.is_large = raw is not None and len(memoryview(raw)) > SMALL_BYTES
        """Whether a pass over it takes milliseconds."""

    @classmethod
    def read(cls, raw: Bytes) -> RawObject:
        """The object that these bytes are; raises ``BadJson``."""
        return cls(fields(raw), raw)

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> RawObject:
        """The object of a Python value."""
        return cls({key: dumps(one) for key, one in value.items()})

    def changed(self, changes: Mapping[str, Bytes | None]) -> RawObject:
        """The same with some members set, or left out where they are None."""
        members = dict(self.members)
        for key, value in changes.items():
            if value is None:
                members.pop(key, None)
            else:
                members[key] = value
        return self._like(members)

    def led_by(self, lead: Mapping[str, Bytes], written: bytes = b"") -> RawObject:
        """The same with more members before its own; its own stay as they are. ``written`` is the lead as an object."""
        own = self.members
        more = lead if own.keys().isdisjoint(lead) else {key: value for key, value in lead.items() if key not in own}
        if not more:
            return self
        other = self._like({**more, **own})
        if self.raw is not None and not self.is_large and own:
            rest = bytes(self.raw)
            if rest.startswith(b'{"'):  # nothing of what it has is written again
                before = written if written and more is lead else join_fields(more)
                other.raw = b"%b,%b" % (before[:-1], rest[1:])
        return other

    def _like(self, members: Fields) -> RawObject:
        """Another object of much the same size."""
        other = RawObject(members)
        other.is_large = self.is_large
        return other

    def written(self) -> bytes:
        """As it goes over the wire."""
        return bytes(self.raw) if self.raw is not None else join_fields(self.members)

    def pieces(self) -> list[Bytes]:
        """The same in pieces, which are not copied: a large one is joined once with what is around it."""
        return [self.raw] if self.raw is not None else _pieces(self.members)

    @property
    def size(self) -> int:
        """The bytes of its members."""
        return sum([len(memoryview(one)) for one in self.members.values()])

    def value(self) -> dict[str, Any]:
        """The Python value, of an object that is not large; see ``large.load_members`` for any."""
        if self.size > LOADED_BYTES:
            raise BadJson("it is too large to be read")
        return {key: loads(one) for key, one in self.members.items()}


def read_bytes(data: bytes) -> bytes:
    """The same bytes, checked: JSON is UTF-8, and the splitter does not look inside strings.

    A byte order mark before them is no part of them (RFC 8259 allows a reader to ignore it).
    """
    if not data.isascii():
        data = data.removeprefix(_BOM)
        try:
            data.decode()
        except UnicodeDecodeError:
            raise BadJson("it is not UTF-8") from None
    return data


_OBJECT_BEGINS, _ARRAY_BEGINS = b"{["


def is_object(data: Bytes | None) -> bool:
    """Whether these bytes, which are JSON, are an object."""
    return False if not data else memoryview(data)[0] == _OBJECT_BEGINS


def is_word(data: Bytes, word: bytes) -> bool:
    """Whether these bytes are ``true``, ``false`` or ``null``. Others may be large: they are not copied."""
    return len(memoryview(data)) == len(word) and bytes(data) == word


def is_array(data: Bytes | None) -> bool:
    """Whether these bytes, which are JSON, are an array."""
    return False if not data else memoryview(data)[0] == _ARRAY_BEGINS


_LINE_ENDS = bytes.maketrans(b"\r\n", b"  ")


def one_line(data: bytes) -> bytes:
    """The same JSON on one line: a line end can only stand between its tokens."""
    return data.translate(_LINE_ENDS) if b"\n" in data or b"\r" in data else data


def fields(data: Bytes | bytearray) -> Fields:
    """The members of a JSON object."""
    if isinstance(data, SplitBytes):
        return _known_members(data)
    try:
        return _OBJECT.decode(data)  # type: ignore[return-value]  # a dict of Raw is a dict of bytes to its readers
    except msgspec.ValidationError:
        raise BadJson("it is not a JSON object") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        return _fields_with_surrogates(bytes(data), exc)
    except RecursionError:
        raise BadJson("it is nested too deep") from None


def _known_members(data: SplitBytes) -> Fields:
    if data.members is not None:
        return data.members
    if len(data) <= SMALL_BYTES:
        return fields(bytes(data))
    raise BadJson("it is not a JSON object" if not is_object(data) else "it is too large to be read")


def items(data: Bytes) -> list[Bytes]:
    """The items of a JSON array."""
    if isinstance(data, SplitBytes):
        if data.parts is not None:
            return data.parts
        if len(data) > SMALL_BYTES:
            raise BadJson("it is not a JSON array" if not is_array(data) else "it has too many items")
        data = bytes(data)
    try:
        return _ARRAY.decode(data)  # type: ignore[return-value]  # as above
    except msgspec.ValidationError:
        raise BadJson("it is not a JSON array") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        return _items_with_surrogates(bytes(data), exc)
    except RecursionError:
        raise BadJson("it is nested too deep") from None


def objects(data: Bytes) -> list[Fields]:
    """The members of each object in a JSON array; an item that is no object has none."""
    try:
        return _OBJECTS.decode(data)  # type: ignore[return-value]  # as above
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # one is no object, or has odd escapes
        return [fields(one) if is_object(one) else {} for one in items(data)]


def join_fields(members: Mapping[str, Bytes]) -> bytes:
    """A JSON object of these members."""
    return b"".join(_pieces(members))


def _pieces(members: Mapping[str, Bytes]) -> list[Bytes]:
    known, lead = _KEYS.get, b"{"
    pieces: list[Bytes] = []
    for key, value in members.items():
        pieces += (lead, known(key) or _key(key), value)
        lead = b","
    pieces.append(b"}" if members else b"{}")
    return pieces


def join_items(values: list[Bytes]) -> bytes:
    """A JSON array of these items."""
    return b"[%b]" % b",".join(values)


def dumps(value: Any) -> bytes:
    """A Python value as JSON. Text that is no Unicode is written as the escapes that it came in."""
    try:
        return _written(value).encode()
    except RecursionError:  # a client's value can be read a little deeper than it can be written
        raise BadJson("it is nested too deep") from None


def text_as_json(text: str) -> bytes:
    """A text as JSON. A protocol has few methods, and a fleet has few names: each is written once."""
    written = _TEXTS.get(text)
    if written is None:
        written = dumps(text)
        if len(_TEXTS) >= _MOST_TEXTS:
            _TEXTS.clear()
        if len(text) < 128:
            _TEXTS[text] = written
    return written


LOADED_BYTES = 512 * 1024
"""What is not larger is read as a value at once: 20 ms for the content that takes longest."""

LARGEST_LETTERS = 6 << 20
"""How many bytes of other letters than ASCII are read as a value: they take a step ten times as long."""


def loads(data: Bytes) -> Any:
    """The Python value of some JSON, for the parts that the hub itself reads. What is large and dense is refused."""
    size = len(memoryview(data))
    if size > LOADED_BYTES and (is_dense(data) or (size > LARGEST_LETTERS and not bytes(data).isascii())):
        raise BadJson("it is too large to be read")
    return _decoded(_values, data)


def _decoded(decoder: json.JSONDecoder, data: Bytes) -> Any:
    try:
        return decoder.decode(bytes(data).decode("utf-8", "surrogatepass"))
    except RecursionError:
        raise BadJson("it is nested too deep") from None
    except BadJson:
        raise
    except ValueError:
        raise BadJson("it is not JSON") from None


class LoadedObject(dict[str, Any]):
    """A large JSON object as it came (``raw``), with the values of those members that are small."""

    raw: bytes = b"{}"


def load_object(data: Bytes) -> dict[str, Any] | None:
    """The object that these bytes are, as a value; None if they are something else. A large one passes as bytes."""
    if len(memoryview(data)) <= SMALL_BYTES:
        value = loads(data)
        return value if isinstance(value, dict) else None
    if not is_object(data):
        return None
    found = LoadedObject(
        {key: loads(value) for key, value in fields(data).items() if len(memoryview(value)) <= SMALL_BYTES}
    )
    found.raw = bytes(data)
    return found


def dump_object(value: Mapping[str, Any]) -> bytes:
    """An object as JSON; one that came as bytes goes out as the same bytes."""
    if isinstance(value, LoadedObject):
        return value.raw
    if any(isinstance(one, LoadedObject) for one in value.values()):
        return join_fields({k: dump_object(v) if isinstance(v, LoadedObject) else dumps(v) for k, v in value.items()})
    return dumps(value)


def text_of(data: Bytes | None) -> str | None:
    """The text that these bytes are; None if they are something else, or far larger than any name."""
    if data is None or len(memoryview(data)) > SMALL_BYTES:
        return None
    try:
        return _STRING.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        value = loads(data)
        return value if isinstance(value, str) else None


_PAIR_OR_OTHER = re.compile(rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|[^u]|u(?![dD][89a-fA-F]))")
"""Every escape but that of a surrogate without its other half."""


def has_lone_surrogate(data: Bytes) -> bool:
    """Whether some JSON escapes a surrogate that is not one of a pair: it is no Unicode text."""
    if isinstance(data, SplitBytes):
        return data.lone_surrogates
    if _SURROGATE.search(memoryview(data)) is None:
        return False
    return _SURROGATE.search(_PAIR_OR_OTHER.sub(b"", data)) is not None


def is_text(text: str) -> bool:
    """Whether it is Unicode: servers drop a message with a lone surrogate, and its sender would wait for ever."""
    return text.isascii() or not any("\ud800" <= one <= "\udfff" for one in text)


def have_lone_surrogate(values: Iterable[Bytes]) -> bool:
    """Whether one of some values has such an escape. Most have none of any surrogate, and are looked at once."""
    for value in values:
        suspect = value.lone_surrogates if isinstance(value, SplitBytes) else _SURROGATE.search(memoryview(value))
        if suspect and has_lone_surrogate(value):
            return True
    return False


def _refuse_constant(_: str) -> None:
    raise BadJson("NaN and Infinity are not JSON")


_values = json.JSONDecoder(parse_constant=_refuse_constant)


class _StepwiseDecoder(json.JSONDecoder):
    """Reads objects and lists in Python: another thread gets its turns meanwhile, which C code does not give."""

    def __init__(self) -> None:
        super().__init__(parse_constant=_refuse_constant)
        self.parse_object = json.decoder.JSONObject  # type: ignore[attr-defined]  # the reader of the library itself
        self.parse_array = json.decoder.JSONArray  # type: ignore[attr-defined]  # as above
        self.scan_once = json.scanner.py_make_scanner(self)  # type: ignore[attr-defined]  # as above


def loads_stepwise(data: Bytes) -> Any:
    """The same as ``loads`` for any size, for a thread beside the event loop."""
    return _decoded(_StepwiseDecoder(), data)


def _key(key: str) -> bytes:
    written = _KEYS.get(key)
    if written is None:
        written = json.dumps(key).encode() + b":"
        if len(_KEYS) < _MOST_KEYS and len(key) < 64:
            _KEYS[key] = written
    return written


# The decoder refuses an escaped lone surrogate, which JSON allows. A copy in which each surrogate is replaced by an
# escape of the same length has the same layout, so its values show where the real ones are.


def _fields_with_surrogates(data: bytes, cause: Exception) -> Fields:
    masked, count = _SURROGATE.subn(rb"\\u0041", data)
    if not count:
        raise _reason(data, cause) from cause
    try:
        found = list(_OBJECT.decode(masked).values())
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise BadJson("it is not JSON") from None
    position, members = 0, {}
    for value in found:
        key = _KEY.match(data, position)
        position = _placed(masked, value, key.end() if key is not None else -1)
        assert key is not None  # noqa: S101 - a place was found behind it
        members[json.loads(key[1])] = data[position - len(bytes(value)) : position]
    return members


def _items_with_surrogates(data: bytes, cause: Exception) -> list[Bytes]:
    masked, count = _SURROGATE.subn(rb"\\u0041", data)
    if not count:
        raise _reason(data, cause) from cause
    try:
        found = _ARRAY.decode(masked)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise BadJson("it is not JSON") from None
    position, values = 0, []
    for value in found:
        gap = _GAP.match(data, position)
        position = _placed(masked, value, gap.end() if gap is not None else -1)
        values.append(data[position - len(bytes(value)) : position])
    return values


def _reason(data: bytes, cause: Exception) -> BadJson:
    """Why bytes are no JSON, in the words of the slower reader where they are few enough for it."""
    reason = BadJson("it is not JSON")
    if len(data) <= EXPLAINED_BYTES:
        try:
            loads(data)
        except BadJson as exc:
            reason = exc
    reason.truncated = "truncated" in str(cause)
    return reason


def _placed(masked: bytes, value: Raw, start: int) -> int:
    """Where a value ends; duplicate keys move values, and then the layout says nothing."""
    end = start + len(bytes(value))
    if start < 0 or masked[start:end] != bytes(value):
        raise BadJson("it repeats a key")
    return end
