"""JSON as it came: the members of an object and the items of an array, each as its own bytes.

A call passes through the hub as bytes. Only what the hub must know is read: this module splits an object one level
deep and joins it again, so numbers of any size, escapes, unknown members and the order of keys survive. Nothing here
knows MCP, and nothing here builds Python values out of arguments or results.

The forms of one thing:

- ``Bytes`` is some JSON: ``bytes``, or msgspec's view of a part of them.
- ``Fields`` are the members of an object by their names, each as ``Bytes``. Parameters are passed in this form.
- ``RawObject`` is an object with its members and, as long as nothing changed, the bytes of the whole. Results are
  passed in this form.
- ``LoadedObject`` is a dict, for what a server sends by itself: a large object with the values of its small members.

What may never happen (SEC-7): a message of the largest size holds up the event loop for 50 ms. Measured with 16 MiB on
one core: msgspec scans the densest JSON in 40 ms, text in 7 ms, and a comma is counted in less than a nanosecond. Two
things are slower. Lists in lists take 55 ms, since each level is a call of its own: their number has a bound
(``MOST_LISTS``), and then any message may be scanned in one step. And a split makes objects: 100,000 members take
20 ms, 400,000 items 19 ms beside the scan. So a split has a bound on its parts (``MOST_MEMBERS``, ``MOST_ITEMS``). Over
a bound that one message is refused with ``BadJson``. docs/adr/0028 has the reasons and the figures.

Each pass over 10 MB takes 2 to 5 ms, and a relay that passes the bytes on takes 20 ms in all (PERF-6). So a server's
answer and its result are split in one pass (``split_answer``), and a search for a word looks first for the one byte
that must stand before it: that is found forty times faster.
"""

from __future__ import annotations

import json
import json.decoder
import json.encoder
import json.scanner
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias

import anyio.to_thread
import msgspec
from msgspec import Raw

from holdfast.turns import Turns

__all__ = [
    "BadJson",
    "Fields",
    "KeyNames",
    "LoadedObject",
    "NotAnObject",
    "RawObject",
    "dump_object",
    "dumps",
    "field_pieces",
    "fields",
    "have_lone_surrogate",
    "is_text",
    "is_word",
    "items",
    "join_fields",
    "join_items",
    "load_members",
    "load_object",
    "loads",
    "long_text",
    "may_begin",
    "objects",
    "one_line",
    "read_bytes",
    "split",
    "split_answer",
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
_ANY = msgspec.json.Decoder(Raw)
_VALUE = msgspec.json.Decoder()

_written = json.JSONEncoder(separators=(",", ":")).encode
_quoted = json.encoder.encode_basestring_ascii
_KEY = re.compile(r'[\s,]*("[^"\\]*(?:\\.[^"\\]*)*")\s*:\s*')
_GAP = re.compile(r"[\s,]*")
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for bytes that it does not read."""

SMALL_BYTES = 128 * 1024
"""What is not larger is read at once: that takes a few milliseconds for any content."""

MOST_MEMBERS = 100_000
"""How many members an object may have, beside those in ``_BULK``: each is a Python object, and takes 200 ns."""

MEMBER_BYTES = 5
"""No member is shorter, with its comma: ``"":0,``."""

MOST_ITEMS = 400_000
"""How many commas a list may have, in its items too: each may stand between two items, which take 45 ns each.

Ten thousand tools may have forty each. A list of 16 MiB with so many items, and spaces between them, takes 45 ms."""

MOST_LISTS = 4_000_000
"""How many lists a message may have, in each other too: a level takes 6 ns, as four bytes of other JSON do."""

MOST_ODD_PARTS = 5_000
"""How many parts an object or a list with half of a surrogate pair may have: each takes 4 µs."""


class BadJson(ValueError):
    """The bytes are not what they should be; the message says why and quotes nothing."""


class NotAnObject(BadJson):
    """The bytes are JSON, and no object."""


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


class RawObject:
    """A JSON object as it came, with its members. One that was changed is joined again when it is written."""

    __slots__ = ("get", "is_large", "members", "raw", "source")

    def __init__(self, members: Fields, raw: Bytes | None = None) -> None:
        self.members = members
        self.raw = raw
        """As it is written, where that is known: the bytes that it came in, or those with more before them."""
        self.source: Bytes | None = raw
        """Bytes in which all of it stands, where they are known: its own, or those of the message around it."""
        self.get: Callable[[str], Bytes | None] = members.get
        """One member."""
        self.is_large = raw is not None and len(raw) > SMALL_BYTES
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
        """An object with some members set, or left out where they are None."""
        members = dict(self.members)
        for key, value in changes.items():
            if value is None:
                members.pop(key, None)
            else:
                members[key] = value
        return self._like(members)

    def led_by(self, lead: Mapping[str, Bytes]) -> RawObject:
        """An object with more members before its own, which stay as they are."""
        more = {key: value for key, value in lead.items() if key not in self.members}
        return self._like({**more, **self.members}) if more else self

    def _like(self, members: Fields) -> RawObject:
        """Another object of much the same size."""
        other = RawObject(members)
        other.is_large = self.is_large
        return other

    def written(self) -> bytes:
        """As it goes over the wire."""
        return bytes(self.raw) if self.raw is not None else join_fields(self.members)

    def pieces(self) -> list[Bytes]:
        """As it goes over the wire, in pieces: a large one is copied once, when it is joined with what is around it."""
        return [self.raw] if self.raw is not None else field_pieces(self.members)

    @property
    def size(self) -> int:
        """The bytes of its members."""
        return sum([len(one) for one in self.members.values()])

    def value(self) -> dict[str, Any]:
        """The Python value, of an object that is not large; ``load_members`` reads any."""
        if self.size > LOADED_BYTES:
            raise BadJson("it is too large to be read")
        return {key: loads(one) for key, one in self.members.items()}


async def split(message: bytes | bytearray) -> Fields:
    """The members of a large message; raises ``BadJson``. It waits between the passes over it."""
    return await _large_fields(await _readable(message))


async def split_answer(message: bytes | bytearray) -> tuple[Fields, RawObject | BadJson | None]:
    """The members of a server's message, and the result in it; raises ``BadJson``. It waits as ``split`` does.

    The result is None where there is none that is an object, and ``BadJson`` where it alone cannot be split. Then the
    message still says which request it answers. A large result is split in the same pass as the message around it.
    """
    if len(message) > SMALL_BYTES:
        data = await _readable(message)
        if (found := await _large_answer(data)) is not None:
            return found
        members = await _large_fields(data)
    else:
        members = fields(read_bytes(message))  # type: ignore[arg-type]  # see _readable
    raw = bytes(members.get("result", b""))  # it is searched twice, and a view would be copied for each search
    if not raw.startswith(b"{"):
        return members, None
    try:
        # What is large here has half of a surrogate pair, and is bounded for that.
        return members, RawObject(fields(raw), raw)
    except BadJson as exc:
        return members, exc


async def _readable(message: bytes | bytearray) -> bytes:
    """A large message as the passes over it want it: UTF-8 in one line."""
    # It comes as a bytearray, and all that follows reads that too.
    data: bytes = message  # type: ignore[assignment]
    turns = Turns()
    data = one_line(data)  # millions of line ends would be as many lines of an event stream
    await turns.offer()
    data = read_bytes(data)
    await turns.offer()
    if len(data) > MOST_LISTS and _count(data, b"[") > MOST_LISTS:
        raise BadJson("it has too many parts")
    await turns.offer()
    return data


async def _large_fields(data: Bytes) -> Fields:
    """The members of a large object. Each pass over it may take 40 ms, so each is a step of its own."""
    has_commas = _has_many_commas(data)
    await Turns().give()
    if has_commas:
        _bound_members(data)
        await Turns().give()
    try:
        members: Fields = _OBJECT.decode(data)  # type: ignore[assignment]  # as in fields
    except _UNREADABLE as exc:
        members = _odd_fields(data, exc)
    await Turns().give()
    return members


async def _large_answer(data: bytes) -> tuple[Fields, RawObject | BadJson] | None:
    """The members of a large answer and of its result; None for any other message, and for what cannot be read."""
    turns = Turns()
    has_commas = _has_many_commas(data)
    await turns.offer()
    try:
        if has_commas:
            outside = len(data) - _inside(_BULK_ANSWER.decode(data).result)
            await turns.give()
            if outside > MEMBER_BYTES * MOST_MEMBERS:
                members = await _large_fields(data)
                return members, BadJson("it has too many parts")
        found = _ANSWER.decode(data)
    except _UNREADABLE:
        return None
    await turns.offer()
    envelope = {"id": found.id, "method": found.method, "error": found.error}
    result = RawObject(found.result)  # type: ignore[arg-type]  # a dict of Raw is a dict of bytes to its readers
    result.is_large, result.source = True, data
    await turns.offer()
    return {"result": _SPLIT, **{key: value for key, value in envelope.items() if value}}, result


def read_bytes(data: bytes) -> bytes:
    """Bytes that are UTF-8, as JSON is: the scanner does not look inside strings.

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
    return len(data) == len(word) and bytes(data) == word


def is_array(data: Bytes | None) -> bool:
    """Whether these bytes, which are JSON, are an array."""
    return False if not data else memoryview(data)[0] == _ARRAY_BEGINS


_LINE_ENDS = bytes.maketrans(b"\r\n", b"  ")


def one_line(data: bytes) -> bytes:
    """JSON without line ends, which can only stand between its tokens."""
    return data.translate(_LINE_ENDS) if b"\n" in data or b"\r" in data else data


class _Bulk(msgspec.Struct):
    """The members that may be large by their nature. What is inside them is not split with the object around them."""

    arguments: Raw = Raw()
    content: Raw = Raw()
    contents: Raw = Raw()
    data: Raw = Raw()
    error: Raw = Raw()
    messages: Raw = Raw()
    params: Raw = Raw()
    prompts: Raw = Raw()
    resourceTemplates: Raw = Raw()  # noqa: N815 - the protocol's name
    resources: Raw = Raw()
    result: Raw = Raw()
    structuredContent: Raw = Raw()  # noqa: N815 - the protocol's name
    text: Raw = Raw()
    tools: Raw = Raw()


class _BulkAnswer(msgspec.Struct):
    result: _Bulk


class _Answer(msgspec.Struct):
    """An answer whose result is split with it. Other members of a message mean nothing."""

    result: dict[str, Raw]
    id: Raw = Raw()
    method: Raw = Raw()
    error: Raw = Raw()


_BULK = msgspec.json.Decoder(_Bulk)
_BULK_ANSWER = msgspec.json.Decoder(_BulkAnswer)
_ANSWER = msgspec.json.Decoder(_Answer)

_SPLIT = b"{}"
"""Stands for a result that was split with its message."""


def fields(data: Bytes) -> Fields:
    """The members of a JSON object."""
    if len(data) > SMALL_BYTES and _has_many_commas(data):
        _bound_members(data)
    try:
        return _OBJECT.decode(data)  # type: ignore[return-value]  # a dict of Raw is a dict of bytes to its readers
    except _UNREADABLE as exc:
        return _odd_fields(data, exc)


def _has_many_commas(data: Bytes) -> bool:
    """Whether there may be more members than are split: a comma stands between two of them, and in much else.

    The name of a member has quotes. Where no quote is for long, there is one long text.
    """
    text = _searchable(data)
    every = ((at, at + SMALL_BYTES) for at in range(0, len(text), SMALL_BYTES))
    steps = [step for step in every if text.find(b'"', *step) >= 0]
    if len(steps) * SMALL_BYTES <= MEMBER_BYTES * MOST_MEMBERS:
        return False  # so many members do not fit there
    return sum(text.count(b",", *step) for step in steps) > MOST_MEMBERS


def _count(text: bytes, byte: bytes) -> int:
    """How often a byte occurs. It is looked for first in each step: that is forty times faster than to count it."""
    every = ((at, at + SMALL_BYTES) for at in range(0, len(text), SMALL_BYTES))
    return sum(text.count(byte, *step) for step in every if text.find(byte, *step) >= 0)


def _searchable(data: Bytes) -> bytes:
    """The same bytes where they can be searched. Only a view of a part is copied: that takes longer than a search."""
    return bytes(data) if isinstance(data, Raw) else data


_CODED_LETTER: Final = re.compile(rb"\\u00[4-7]")
"""How a letter begins that is written by its number. No program writes one so, but it may.

In text with many line ends, which are escapes too, the pattern is found five times faster than its first bytes are.
"""


def may_begin(data: Bytes, word: bytes) -> bool:
    """Whether a text or a name in some JSON may begin with this word."""
    text = bytes(data) if isinstance(data, Raw) else data
    wide = SMALL_BYTES + len(word) + 1
    for at in range(0, len(text), SMALL_BYTES):
        end = at + wide  # a word may begin in one step and end in the next
        if text.find(b'"', at, end) >= 0 and text.find(word, at, end) >= 0:
            return True
        if text.find(b"\\", at, end) >= 0 and _CODED_LETTER.search(text, at, end) is not None:
            return True
    return False


def _bound_members(data: Bytes) -> None:
    """Refuse an object with too many members, before one of them is made.

    What is outside of the large members is short in every message of the protocol. A peer cannot hide members there:
    of a name that occurs twice, only the last value is taken off.
    """
    try:
        bulk = _BULK.decode(data)
    except _UNREADABLE:
        return  # it is no object, or no JSON: nothing is made of it
    if len(data) - _inside(bulk) > MEMBER_BYTES * MOST_MEMBERS:
        raise BadJson("it has too many parts")


def _inside(bulk: _Bulk) -> int:
    return sum(len(getattr(bulk, name)) for name in _Bulk.__struct_fields__)


def items(data: Bytes) -> list[Bytes]:
    """The items of a JSON array."""
    if len(data) > SMALL_BYTES and _searchable(data).count(b",") > MOST_ITEMS:
        raise BadJson("it has too many parts")
    try:
        return _ARRAY.decode(data)  # type: ignore[return-value]  # as above
    except msgspec.ValidationError:
        raise BadJson("it is not a JSON array") from None
    except _UNREADABLE as exc:
        return [value for _, value in _odd_parts(data, _GAP, exc)]


def join_fields(members: Mapping[str, Bytes]) -> bytes:
    """A JSON object of these members."""
    return b"".join(field_pieces(members))


def field_pieces(members: Mapping[str, Bytes]) -> list[Bytes]:
    """A JSON object of these members, in pieces that are joined with what is around it: one copy of what is large."""
    lead = b"{"
    pieces: list[Bytes] = []
    for key, value in members.items():
        pieces += (lead, _quoted(key).encode(), b":", value)
        lead = b","
    pieces.append(b"}" if members else b"{}")
    return pieces


def objects(data: Bytes) -> list[Fields]:
    """The members of each object in a JSON array of objects, which is small."""
    try:
        return _OBJECTS.decode(data)  # type: ignore[return-value]  # as above
    except msgspec.ValidationError:
        raise BadJson("it is not a JSON array of objects") from None
    except _UNREADABLE:
        return [fields(one) for one in items(data)]


def join_items(values: list[Bytes]) -> bytes:
    """A JSON array of these items."""
    return b"[%b]" % b",".join(values)


def dumps(value: Any) -> bytes:
    """A Python value as JSON. Text that is no Unicode is written as the escapes that it came in."""
    if type(value) is str:
        return _quoted(value).encode()
    if type(value) is int:
        return b"%d" % value
    try:
        return _written(value).encode()
    except RecursionError:  # a client's value can be read a little deeper than it can be written
        raise BadJson("it is nested too deep") from None


LOADED_BYTES = 512 * 1024
"""What is not larger is read as a value at once: 20 ms for the content that takes longest."""


def loads(data: Bytes) -> Any:
    """The Python value of some JSON, for the parts that the hub itself reads. A large one is refused."""
    if len(data) > LOADED_BYTES:
        raise BadJson("it is too large to be read")
    try:
        return _VALUE.decode(data)
    except _UNREADABLE:
        return _decoded(_values, data)  # half of a surrogate pair, a number beyond any float, or no JSON: that says why


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
    if len(data) <= SMALL_BYTES:
        value = loads(data)
        return value if isinstance(value, dict) else None
    if not is_object(data):
        return None
    found = LoadedObject({key: loads(value) for key, value in fields(data).items() if len(value) <= SMALL_BYTES})
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
    if data is None or len(data) > SMALL_BYTES:
        return None
    try:
        return _STRING.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        value = loads(data)
        return value if isinstance(value, str) else None


def long_text(data: Bytes | None) -> str | None:
    """The text that these bytes are, of any size; None if they are something else. 16 MiB take 10 ms, in one step."""
    try:
        return None if data is None else _STRING.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return text_of(data)  # half of a surrogate pair, which only a short text may have


def is_text(text: str) -> bool:
    """Whether it is Unicode: servers drop a message with a lone surrogate, and its sender would wait for ever."""
    return text.isascii() or not any("\ud800" <= one <= "\udfff" for one in text)


def have_lone_surrogate(values: Iterable[Bytes]) -> bool:
    """Whether some JSON escapes a surrogate that is not one of a pair: that is no Unicode text.

    The scanner refuses such JSON, and the values are known to be JSON. A value without any such escape is not scanned.
    """
    for value in values:
        try:
            if b"\\u" in bytes(value):
                _ANY.decode(value)
        except (msgspec.DecodeError, RecursionError):
            return True
    return False


def _refuse_constant(_: str) -> None:
    raise BadJson("NaN and Infinity are not JSON")


_values = json.JSONDecoder(parse_constant=_refuse_constant)


class _StepwiseDecoder(json.JSONDecoder):
    """Reads objects and lists in Python: another thread gets its turns meanwhile, which C code does not give."""

    def __init__(self) -> None:
        super().__init__(parse_constant=_refuse_constant)
        self.scan_once = json.scanner.py_make_scanner(self)  # type: ignore[attr-defined]  # the library's own reader


async def load_members(result: RawObject) -> dict[str, Any]:
    """The Python value of an object of any size; raises ``BadJson``. A large one is read in a thread, step by step."""
    if result.size <= LOADED_BYTES:
        return result.value()

    def read() -> dict[str, Any]:
        decoder = _StepwiseDecoder()
        return {key: _decoded(decoder, one) for key, one in result.members.items()}

    return await anyio.to_thread.run_sync(read, abandon_on_cancel=True)


# JSON allows half of a surrogate pair as an escape, and msgspec refuses it. Such an object or list is small, so the
# library's own reader says whether it is JSON at all, and then where each value ends.


def _odd_fields(data: Bytes, refusal: Exception) -> Fields:
    if isinstance(refusal, msgspec.ValidationError):
        raise NotAnObject("it is not a JSON object") from None
    return {json.loads(lead[1]): value for lead, value in _odd_parts(data, _KEY, refusal)}


def _odd_parts(data: Bytes, lead: re.Pattern[str], refusal: Exception) -> Iterator[tuple[re.Match[str], bytes]]:
    """Each value, and what stands before it. Raises ``BadJson`` where it is no JSON."""
    if isinstance(refusal, RecursionError):
        raise BadJson("it is nested too deep") from None
    if len(data) > LOADED_BYTES:
        raise BadJson("it is not JSON, or it is too large for a text with half of a surrogate pair") from None
    _decoded(_values, data)
    text = bytes(data).decode()
    at = len(text) - len(text.lstrip()) + 1  # after the bracket
    for _ in range(MOST_ODD_PARTS):
        found = lead.match(text, at)
        if found is None or text[found.end()] == "]":
            return
        _, at = _values.raw_decode(text, found.end())
        yield found, text[found.end() : at].encode()
    raise BadJson("it has too many parts for a text with half of a surrogate pair")
