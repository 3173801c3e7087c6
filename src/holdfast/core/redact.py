"""Keeps secrets, and control characters of foreign text, out of everything that is shown (MSG-6, SEC-12).

A ``Redactor`` knows the exact secrets of one server and replaces them wherever they occur: as they are, in a URL, in
JSON, in base64 (also inside a longer text), base64url and hex. An unknown secret, in a server's stderr for example, is
masked by what stands before it (``token=``, ``Bearer``), by the prefix of its issuer (``ghp_``), or by its shape.

The rule of the shape, ``has_secret_shape``: a word is a secret if one of its parts looks random.

- A word is a run of letters, digits and ``+ = _ ~ -``, a segment of a path, or a value of a query. Its parts are
  between ``_ ~ -``. ``%41`` counts as ``A``.
- A part has 20 characters or more; 32 if all of them are hexadecimal digits.
- A part with digits looks random if it has three groups of digits, or if the kind of character (lower case, upper case,
  digit) changes at a quarter of the places. A part of letters alone must change at three of ten places, and not be
  CamelCase, with one word in capitals at most.
- A part has 3 bits of entropy per character: ``0a0a0a0a…`` has 1.
- A word of 32 characters, or of 20 with lower case, upper case and digits, is also judged as one part without its
  ``_ ~ -``: a random base64url text has them anywhere.
- A UUID is a secret in a URL and in an argument. Elsewhere it is an id.
- What a name or an address is built from stays: a path below a usual root folder (``/usr``, ``~/``, ``node_modules/``),
  the digest after ``sha256:``, and an integrity value such as ``sha512-…``.

Two mistakes are possible, and the rules weigh them. A secret that is shown cannot be taken back. But a text in which
every path, package and id is masked explains no failure, and people then print it in another way. So what is known to
be secret is always masked, and what only looks like it is masked by rules; ``tests/core/test_redact.py`` has texts for
both sides of each.

What stands after a credential's name stays readable if it cannot be one:

- The name is that of a place or a kind: ``authorizationUrl``, ``token_endpoint``, ``TOKEN_FILE``. A URL there is still
  judged by its own parts.
- The value is a word of programs (``true``, ``undefined``), a reference (``${env:TOKEN}``), a number of tokens, or a
  placeholder (``<token>``, ``your_token``).
- The value is code, as in a traceback: ``os.environ["API_KEY"]``, ``get_token(path)``, ``process.env.TOKEN``.

Foreign text inside our own is quoted, labelled with its origin, cut, and free of what a reader cannot see (MSG-11). A
server, a process or a client may write anything. Where our text quotes it, it is data: it stays inside its quotes and
on its line, so it cannot look like a sentence, a heading or a line of ours. Results and descriptions are not quoted:
they pass as they are.

``fault_line`` is a fault of the program itself, as one line of bounded length. An input that causes a fault may cause a
thousand. A traceback of each, with those of all exceptions before it, holds up the event loop longer than the fault
did.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from typing import Any, Final
from urllib.parse import quote, quote_plus, unquote

from holdfast.core.evidence import Evidence, HttpStatus, RpcError

__all__ = [
    "INVISIBLE",
    "LEFT_OUT",
    "MASK",
    "Redactor",
    "cut",
    "fault_line",
    "has_secret_shape",
    "mask_url",
    "masked",
    "plain",
    "quote_block",
    "quoted",
    "quoted_line",
    "quoted_name",
    "secrets_in_url",
    "visible_json",
]

SHOWN = 200
"""How many characters of a foreign text are shown in a sentence."""

LONGEST_BLOCK = 4_000
"""How many characters of a foreign text are shown as a block."""

INVISIBLE = re.compile(
    "[\u00ad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f"
    "\u2028-\u202e\u2060-\u206f\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U000110bd\U000110cd"
    "\U00013430-\U0001345f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
"""Characters without a shape: zero width, writing direction, variation, format controls of scripts, tags, which spell
hidden letters, and halves of surrogate pairs, which many programs cannot read."""

_CONTROL = re.compile(r"\x1b\[[0-?]*+[ -/]*+[@-~]|\x1b\][^\x07\x1b]*+(?:\x07|\x1b\\)|[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def plain(text: str) -> str:
    """``text`` without terminal sequences, control characters and invisible ones; line ends and tabs stay."""
    return INVISIBLE.sub("", _CONTROL.sub("", text.replace("\r\n", "\n").replace("\r", "\n")))


def visible_json(value: object, *, indent: int | None = None, ascii_only: bool = False) -> str:
    """JSON that a terminal can show. A program reads the same value as without the escapes.

    Escaped are characters that a terminal obeys, or that a reader does not see: C1 controls, directions, zero width
    and tag characters.
    """
    return _UNSEEN.sub(_escaped, json.dumps(value, indent=indent, ensure_ascii=ascii_only))


_UNSEEN = re.compile(f"[\x7f-\x9f]|{INVISIBLE.pattern}")


def _escaped(found: re.Match[str]) -> str:
    return json.dumps(found[0])[1:-1] if found[0] > "\x7f" else "\\u007f"


def quoted_line(text: str, most: int = SHOWN) -> str:
    """One line of a foreign text, cut to a bound, with no quote that could end ours early."""
    line = " ".join(plain(text[: 8 * most]).split()).replace('"', "'")
    return line if len(line) <= most else line[: most - 1].rstrip() + "…"


def quoted(text: str, *, origin: str = "", most: int = SHOWN) -> str:
    """A foreign text in quotes, with its origin: ``stderr: "no such file"``. Empty if nothing of it can be shown."""
    line = quoted_line(text, most)
    if not line:
        return ""
    return f'{origin}: "{line}"' if origin else f'"{line}"'


_PLAIN_NAME = re.compile(r"[A-Za-z0-9_./@$%*+~-][A-Za-z0-9_.,:;/?#@$%&*=+~!-]*")


def quoted_name(text: str, most: int = 80, *, ticks: bool = False) -> str:
    """A foreign name, version or address: as it is where it is one short plain word, else quoted.

    A word without blanks, quotes and invisible characters cannot look like a sentence of ours. With ``ticks`` it is
    between backticks, as our sentences show names.
    """
    if len(text) <= most and _PLAIN_NAME.fullmatch(text):
        return f"`{text}`" if ticks else text
    return quoted(text, most=most) or '""'


def quote_block(text: str, most: int = LONGEST_BLOCK) -> str:
    """A foreign text of several lines, each of them marked as quoted: none can be taken for ours."""
    shown = plain(text[: 2 * most]).strip()
    cut = shown if len(shown) <= most else shown[: most - 1].rstrip() + "…"
    return "\n".join(f"> {line}".rstrip() for line in cut.splitlines())


LONGEST_TEXT: Final = 200


def fault_line(exc: BaseException) -> str:
    """Return what it is, what it says and where it was raised."""
    text = " ".join(_text_of(exc)[: 2 * LONGEST_TEXT].split())[:LONGEST_TEXT]
    place = ""
    if (trace := exc.__traceback__) is not None:
        while trace.tb_next is not None:
            trace = trace.tb_next
        code = trace.tb_frame.f_code
        place = f", in {code.co_qualname} ({code.co_filename.rpartition('/')[2]}:{trace.tb_lineno})"
    return f"{type(exc).__name__}: {text}{place}" if text else f"{type(exc).__name__}{place}"


def _text_of(exc: BaseException) -> str:
    try:
        return str(exc)
    except Exception:  # noqa: BLE001 - an exception of a library may fail to say what it is
        return ""


MASK = "***"

SHORTEST_SECRET = 4
"""Shorter values (``1``, ``on``) are not secrets. To mask them would make every text unreadable."""

LONGEST_MASKED = 16 * 1024
"""Characters; to mask more would take the event loop too long."""

GAP_CHARACTERS = 2 * 1024
"""How far the cut of a long text goes back to a gap."""

LEARNED = 64
"""How many learned secrets are kept: tokens are renewed for as long as a hub runs."""

_SCHEMES = frozenset({"basic", "bearer", "digest", "negotiate", "token", "apikey"})
"""The words before a credential in a header."""

_NOT_SECRET = _SCHEMES | {"true", "false", "none", "null", "debug", "info", "warn", "warning", "error"}

_TELLING = re.compile(
    r"(?i)token|secret|passw(?:or)?d|passphrase|api[_-]?key|access[_-]?key|private[_-]?key|auth(?!or(?!i[sz]))|credential"
    r"|signature|session|cookie|\A(?:key|sig|pwd|jwt)\Z"
)
"""The names of credentials."""

_OF_PLACE = re.compile(
    r"(?:[_.-](?i:ur[il]s?|endpoints?|files?|path|dir|folder|types?|methods?|issuer|expir\w*|ttl|timeout|enabled|required)"
    r"|(?<=[a-z])(?:Ur[il]s?|UR[IL]|Endpoints?|File|Path|Dir|Types?|Methods?|Issuer|Expir\w*|Timeout|Enabled|Required))\Z"
)
"""The names of places and kinds, which may begin as the name of a credential does."""

_HARMLESS = re.compile(
    r"(?i)(?:(?:basic|bearer) )?\$\{[\w:]++\}|true|false|yes|none|null|undefined|unset|missing|required|optional"
    r"|invalid|expired|enabled|disabled|string|str|redacted|your[_-][a-z_-]++|(?:[a-z]++[_-])?x{4,}+|\.{3}|…"
)
"""Whole values that are no secrets, after any name."""

_PLACEHOLDER = re.compile(r"<[^<>\r\n]{1,60}+>")

_COUNT = re.compile(r"[0-9]{1,9}+")

_CODE = re.compile(
    r"(?:[A-Za-z_]\w*+\??\.)*+[A-Za-z_]\w*+[(\[](?:\Z|[^()\[\]]*+[)\]])"
    r"|(?:process\.env|os\.environ|import\.meta\.env|self|this|cls)\.[A-Za-z_][\w.]*+[,;)]*+\Z"
)
"""An expression of a program: a call, an index, or a field."""

_TELLING_IN_QUERY = frozenset({"code"})
"""Names of credentials in a URL only: an exit code is not a secret."""

# Each pattern starts at a word and never backtracks: the time to mask a hostile text stays
# proportional to its length.
_USER_INFO = re.compile(r"(?<=://)[^/?#\s'\"]+(?=@)")
_ASSIGNED = re.compile(r"(?<![\w.-])(?P<name>[\w.-]++)(?P<sign>\\*+[\"']?+\s*+[:=]\s*+)")
_QUOTED = re.compile(r"(\")(?:\\.|[^\"\\\r\n])++|(')(?:\\.|[^'\\\r\n])++|(\\++[\"'])[^\"'\\\r\n]++")
_BARE = re.compile(r"()[^\s\"'&=][^\s\"'&]*+")
_SHAPES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"(?i)\b(bearer)\s++[A-Za-z0-9._~+/=-]{6,}+"), rf"\1 {MASK}"),
    # Ordinary words follow these three too ("negotiate versions"): only a text that is no word is a credential.
    (
        re.compile(r"\b((?i:basic|digest|negotiate))\s++(?=[a-z]*+[A-Z0-9+/=])[A-Za-z0-9._~+/=-]{6,}+"),
        rf"\1 {MASK}",
    ),
    (
        re.compile(r"(?i)\b((?:proxy-)?authorization|(?:set-)?cookie|x-api-key)(\s*+[:=]\s*+)[^\r\n]++"),
        rf"\1\2{MASK}",
    ),
    (re.compile(r"(?<![\w-])eyJ[A-Za-z0-9_-]{8,}+\.[A-Za-z0-9_-]{4,}+\.[A-Za-z0-9_-]*+"), MASK),
    (re.compile(r"\b(?:sk|pk|rk)[-_][A-Za-z0-9_-]{16,}+"), MASK),
    (re.compile(r"\b(?:gh[opsur]_|github_pat_|glpat-|xox[abeoprs]-)[A-Za-z0-9_-]{10,}+"), MASK),
    # These two begin names of variables too (`npm_config_cache`): a credential has no second underscore.
    (re.compile(r"\b(?:npm_|hf_)[A-Za-z0-9]{20,}+"), MASK),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"), MASK),
)

SHORTEST_PART, SHORTEST_HEX, SHORTEST_WHOLE = 20, 32, 32
"""Characters; see the rule of the shape above."""

LONGEST_WORD = 4096
"""Characters. A longer word is judged by its beginning, and masked whole."""

SHORTEST_ENCODED = 8
"""Characters of a secret in base64 or hex that are looked for. Fewer occur by chance."""

_WORD = re.compile(r"[A-Za-z0-9+/_~%.@-]{20,}+={0,2}+")
_SEGMENT = re.compile(r"[^/.@]++")
_URL = re.compile(r"[a-z][a-z0-9+.-]{1,20}+://[^\s\"'<>`]++", re.IGNORECASE)
_AUTHORITY = re.compile(r"[^:/?#]++://[^/?#]*+")
_URL_PIECE = re.compile(r"[^/?#&;=,]++")
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)
_PART = re.compile(r"[^_~-]++")
_DIGITS = re.compile(r"[0-9]++")
_HEX = re.compile(r"[0-9a-fA-F]++")
_SAME_KIND = re.compile(r"[a-z]++|[A-Z]++|[0-9]++")
_CAMEL = re.compile(r"[a-z]*+(?:[A-Z][a-z]++)*+(?:[A-Z]{2,6}+[a-z]*+(?:[A-Z][a-z]++)*+)?+[A-Z]?+")
_ROOTS = re.compile(
    r"/(?:Applications|Library|Users|Volumes|app|bin|dev|etc|home|lib|mnt|nix|opt|private|proc|root|run|sbin|snap|srv"
    r"|sys|tmp|usr|var|workspace)/|~/|\.{1,2}+/"
)
_BELOW = re.compile(r"(?:\A|/)(?:node_modules|(?:site|dist)-packages)/")
_DIGEST = re.compile(r"(?i:sha(?:1|256|384|512)|md5|blake2b)(?:[:=]\Z|-)")


class Redactor:
    """Masks known secrets, and texts that have the shape of one."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._given = tuple(secrets)
        self._learned: deque[str] = deque(maxlen=LEARNED)
        self._known = _all_spellings(self._given)

    def learn(self, *values: str) -> None:
        """Add secrets found at run time, such as a renewed token. The latest are kept."""
        # The same token comes again and again. To make all spellings takes longer than to look.
        fresh = [value for value in values if value not in self._learned]
        if fresh:
            self._learned.extend(fresh)
            self._known = _all_spellings((*self._given, *self._learned))

    def mask(self, text: str) -> str:
        """``text`` with every secret replaced, and without control characters. A long text is cut first (SEC-7)."""
        # Known secrets first, while they are whole: a rule for shapes could mask a part, and the rest would stay.
        text = self.mask_known(plain(cut(text)))
        text = _hide_named(_USER_INFO.sub(MASK, text))
        for shape, replacement in _SHAPES:
            text = shape.sub(replacement, text)
        return _hide_shaped(text)

    def mask_known(self, text: str) -> str:
        """``text`` with the known secrets replaced, and nothing else changed."""
        for spelling in self._known:  # a search for each is faster than one pattern of all
            if spelling in text:
                text = text.replace(spelling, MASK)
        return text

    def __repr__(self) -> str:
        return f"<Redactor of {len(self._given) + len(self._learned)} values>"


def masked(evidence: Evidence, redactor: Redactor) -> Evidence:
    """The same evidence with each of its texts masked.

    The body of an HTTP error stays: it decides the verdict, and was masked where it was read.
    """
    judged_by = {"body"} if isinstance(evidence, HttpStatus) else set()
    texts: dict[str, Any] = {
        field.name: redactor.mask(text)
        for field in fields(evidence)
        if field.name not in judged_by and isinstance(text := getattr(evidence, field.name), str)
    }
    if isinstance(evidence, RpcError) and evidence.data is not None:
        texts["data"] = masked_data(evidence.data, redactor, for_user=evidence.code == URL_ELICITATION_REQUIRED)
    return replace(evidence, **texts)


URL_ELICITATION_REQUIRED = -32042
"""The error whose data has the address that the user must open: the shape of a part of it means nothing."""

MOST_DATA_PARTS = 1_000
"""Values in the data of an error."""

LEFT_OUT = "(Holdfast left out the data of this error: it is too large to be searched for secrets)"


def masked_data(data: object, redactor: Redactor, *, for_user: bool = False) -> object:
    """The data of an error with each text masked as the message is; ``for_user``: known secrets alone.

    Data that is too large to be masked on the event loop (SEC-7) is left out, and says so.
    """
    masking = _DataMask(redactor.mask_known if for_user else redactor.mask, by_name=not for_user)
    try:
        return masking.of(data, secret=False)
    except (_TooLarge, RecursionError):
        return LEFT_OUT


class _TooLarge(Exception):
    """The data has more than is masked."""


class _DataMask:
    """Masks the texts of one value, up to a bound in all."""

    def __init__(self, mask: Callable[[str], str], *, by_name: bool) -> None:
        self._mask = mask
        self._by_name = by_name
        self._parts = MOST_DATA_PARTS
        self._characters = LONGEST_MASKED

    def of(self, value: object, *, secret: bool) -> object:
        """A value without its secrets; ``secret``: it is the value of a credential's name."""
        self._parts -= 1
        if self._parts < 0:
            raise _TooLarge
        match value:
            case str():
                return self._text(value, secret=secret)
            case Mapping():
                return {
                    self._text(str(key)): self.of(one, secret=self._names(key, secret)) for key, one in value.items()
                }
            case bytes():
                raise _TooLarge  # a large one that was not read
            case list() | tuple():
                return [self.of(one, secret=secret) for one in value]
            case _:
                return value

    def _names(self, key: object, secret: bool) -> bool:
        return secret or (self._by_name and _TELLING.search(str(key)) is not None)

    def _text(self, text: str, *, secret: bool = False) -> str:
        # Counted over the whole value: a thousand short texts cost as much as a long one.
        self._characters -= len(text)
        if self._characters < 0:
            raise _TooLarge
        if secret and len(text) >= SHORTEST_SECRET and text.lower() not in _NOT_SECRET:
            return MASK
        return self._mask(text)


def cut(text: str, most: int = LONGEST_MASKED) -> str:
    """The beginning of a long text, up to a gap: half a secret would not be recognised."""
    if len(text) <= most:
        return text
    head = text[:most]
    gap = max(head.rfind(" ", most - GAP_CHARACTERS), head.rfind("\n", most - GAP_CHARACTERS))
    return f"{head[: gap if gap > 0 else most - GAP_CHARACTERS]} … (cut)"


def mask_url(url: str) -> str:
    """A URL without user info, secret query values, and path segments that have the shape of a secret."""
    shown = _hide_named(_USER_INFO.sub(MASK, plain(cut(url))))
    start = _AUTHORITY.match(shown)
    at = start.end() if start else 0
    return shown[:at] + _URL_PIECE.sub(
        lambda piece: MASK if _is_secret_place(piece[0]) else piece[0],
        shown[at:],
    )


def secrets_in_url(url: str) -> list[str]:
    """The path segments and query values of a URL that have the shape of a secret, as written and decoded."""
    start = _AUTHORITY.match(url)
    found = [piece for piece in _URL_PIECE.findall(url, start.end() if start else 0) if _is_secret_place(piece)]
    return [spelling for piece in found for spelling in dict.fromkeys((piece, unquote(piece)))]


def has_secret_shape(word: str, *, uuid: bool = False) -> bool:
    """Whether a word looks like a secret, by the rule above; ``uuid`` says whether a UUID is one here."""
    word = unquote(word[:LONGEST_WORD]) if "%" in word else word[:LONGEST_WORD]
    if len(word) < SHORTEST_PART:
        return False
    if _UUID.fullmatch(word):
        return uuid
    if "/" in word:  # base64 has slashes too
        return (word.endswith("=") or "+" in word) and has_secret_shape(re.sub("[/+]", "", word))
    word = word.strip("=")
    parts = _PART.findall(word)
    if any(map(_looks_random, parts)):
        return True
    # Without its separators a word is shorter: the least lengths below allow for four, and for six of them.
    whole = "".join(parts) if len(parts) > 1 else ""
    if len(word) < SHORTEST_WHOLE:
        return _has_three_kinds(whole) and _looks_random(whole, least=SHORTEST_PART - 4)
    return _looks_random(whole, least=SHORTEST_WHOLE - 6)


def _looks_random(part: str, *, least: int = SHORTEST_PART) -> bool:
    size = len(part)
    if size < least or (size < SHORTEST_HEX and _HEX.fullmatch(part)):
        return False
    groups = len(_DIGITS.findall(part))
    # Words and dates change their kind of character seldom, and random text at about every second place.
    changes = len(_SAME_KIND.findall(part)) - 1
    letters = any(character.isalpha() for character in part)
    mixed = changes * 10 >= size * 3 and not _CAMEL.fullmatch(part)
    random = (groups >= 3 or changes * 4 >= size) if groups else mixed
    return letters and random and _entropy(part) >= 3.0


def _has_three_kinds(text: str) -> bool:
    # 0 is a digit, 1 a lower-case letter, 2 an upper-case one.
    kinds = {run[0].islower() + 2 * run[0].isupper() for run in _SAME_KIND.findall(text)}
    return len(kinds) == 3


def _entropy(text: str) -> float:
    """Bits per character."""
    size = len(text)
    return -sum(count / size * math.log2(count / size) for count in map(text.count, set(text)))


def _hide_shaped(text: str) -> str:
    """``text`` without words that have the shape of a secret, and without such pieces of URLs."""
    if "://" in text:
        text = _URL.sub(lambda url: url[0] if url[0].startswith("file:///") else mask_url(url[0]), text)
    return _WORD.sub(_shown_word, text)


def _shown_word(found: re.Match[str]) -> str:
    word, at = found[0], found.start()
    path = word.lstrip("/") if word.startswith("///") else ""  # of a URL `file:///…`
    if (
        _ROOTS.match(f"/{path}" if path else word)
        or _BELOW.search(word)
        or _DIGEST.match(word)
        or _DIGEST.search(found.string, max(at - 16, 0), at)
    ):
        return word
    if "/" in word and has_secret_shape(word):
        return MASK
    return _SEGMENT.sub(lambda segment: MASK if has_secret_shape(segment[0]) else segment[0], word)


def _is_secret_place(piece: str) -> bool:
    """Whether a segment or a value of a URL is a secret. A package or a file in a URL has dots."""
    return any(has_secret_shape(part, uuid=True) for part in {piece, *piece.split(".")})


def _hide_named(text: str) -> str:
    """``text`` with masked values after a credential's name: ``token=…``, ``"secret": "…"``."""
    shown: list[str] = []
    at = 0
    for found in _ASSIGNED.finditer(text):
        # The first: it stands inside a value that is masked already.
        if found.start() < at or not _is_telling(found) or _is_itself(found):
            continue
        if (value := _value_after(found)) is not None and not _is_harmless(found["name"], value):
            shown += text[at : found.end()], value[value.lastindex or 0], MASK
            at = value.end()
    return "".join(shown) + text[at:]


def _is_telling(found: re.Match[str]) -> bool:
    name = found["name"]
    in_query = found.start() > 0 and found.string[found.start() - 1] in "?&;"
    return bool(_TELLING.search(name) and not _OF_PLACE.search(name)) or (
        in_query and name.lower() in _TELLING_IN_QUERY
    )


def _is_itself(found: re.Match[str]) -> bool:
    """Whether a variable gets its own value, as in the command ``env -i TOKEN="$TOKEN" server``."""
    return found["sign"] == "=" and found.string.startswith(f'"${found["name"]}"', found.end())


def _value_after(found: re.Match[str]) -> re.Match[str] | None:
    """A quoted value, or one that follows a bare ``=``; its only group is the opening quote."""
    quoted = _QUOTED.match(found.string, found.end())
    return quoted or (_BARE.match(found.string, found.end()) if found["sign"].strip(" \t") == "=" else None)


def _is_harmless(name: str, value: re.Match[str]) -> bool:
    quote = value[value.lastindex or 0]
    text = value[0][len(quote) :]
    if quote:
        return _HARMLESS.fullmatch(text) is not None
    if _PLACEHOLDER.match(value.string, value.start()):
        return True
    word = text if text.startswith("$") else text.rstrip(".,;:)]}")
    is_count = name.lower().endswith("tokens") and _COUNT.fullmatch(word)
    return bool(is_count or _HARMLESS.fullmatch(word) or _CODE.match(text))


def _all_spellings(secrets: Iterable[str]) -> tuple[str, ...]:
    """Every form of every secret, the longest first."""
    # A secret may be a part of another one. Masked first, it would leave the rest of that one readable.
    return tuple(sorted({spelling for secret in secrets for spelling in _spellings(secret)}, key=len, reverse=True))


def _spellings(value: str) -> Iterable[str]:
    """A secret and its parts (``Bearer abc`` holds ``abc``), each in all of its encodings."""
    for part in {value, value.strip(), *value.split()}:
        if len(part) >= SHORTEST_SECRET and part.lower() not in _NOT_SECRET:
            encoded = {quote(part), quote(part, safe=""), quote_plus(part)}
            lower = {re.sub("%[0-9A-F]{2}", lambda code: code[0].lower(), spelling) for spelling in encoded}
            written = {part, plain(part), json.dumps(part)[1:-1], json.dumps(part, ensure_ascii=False)[1:-1]}
            yield from (spelling for spelling in encoded | lower | written if len(spelling) >= SHORTEST_SECRET)
            yield from (text for text in _encodings(part.encode("utf-8", "replace")) if len(text) >= SHORTEST_ENCODED)


def _encodings(data: bytes) -> Iterable[str]:
    """Hex, every byte in percent code, and base64 at each of the three places where it can begin in a longer text."""
    yield from (data.hex(), data.hex().upper())
    yield from ("".join(f"%{byte:02X}" for byte in data), "".join(f"%{byte:02x}" for byte in data))
    for before in range(3):
        whole = base64.b64encode(bytes(before) + data).rstrip(b"=").decode()
        # The first and the last character hold bits of the neighbours too.
        own = whole[(0, 2, 3)[before] : len(whole) - ((before + len(data)) % 3 != 0)]
        yield from (own, own.replace("+", "-").replace("/", "_"))
