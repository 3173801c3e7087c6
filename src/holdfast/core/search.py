"""The words of a search over tools: how names are split, what a query asks for, and how a hit is shown in one line.

A search compares words. Both sides go through this module, so that they meet: a tool's name is split where its writer
joined words (``create_issue``, ``createIssue``, ``create-issue``), and Chinese, Japanese and Korean text, which has no
spaces, becomes pairs of neighbouring characters. A query is data. Only its words are used, never its punctuation, so
the syntax of a search engine in it means nothing.

The rank of a tool is BM25F: a word counts by its rarity, by the part of the tool that it stands in, and by how often it
is there, less and less. A word counts more in a short part. A first sentence says what a tool does, so it is a part of
its own. A word that is repeated in a query counts more. A word that means much the same (``SYNONYMS``) counts a
little. The lengths that are usual for each part are constants, so that the weight of a word in a tool does not depend
on the other tools; only rarity does.

A query loses its function words. They are rare in descriptions of tools, so a ranking by rarity would prefer a tool
that happens to contain "please" or "what". This was measured on sets that the list was not made from (ADR 0030).

A hit is shown as a signature. Required parameters always stand in it, because a call without one fails. Optional ones
stand in it as long as there is room, and a count says how many were left out.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, NamedTuple

from holdfast.core.redact import plain

__all__ = [
    "SYNONYMS",
    "Ranking",
    "SearchText",
    "first_sentence",
    "meaning_text",
    "query_words",
    "search_text",
    "signature",
]

MOST_WORDS = 64
"""How many words of a query are searched. A task in a paragraph has fewer; a page of text costs no more than that."""

LONGEST_QUERY = 16_384
"""How many characters of a query are read."""

LONGEST_TEXT = 8_192
"""How many characters of a description are indexed. A longer one is a manual, and would only dilute its own words."""

LONGEST_SENTENCE = 160
"""How many characters of a first sentence are shown."""

OPTIONAL_ROOM = 60
"""How many characters a signature may have before no further optional parameter is added."""

LONGEST_TYPE = 40
"""How many characters of a type or an enumeration are shown."""

_WORD = re.compile(r"[^\W_]+")
_LOWER_UPPER = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s|(?<=[。！？])|\n\s*\n|\n(?=\s*(?:[-*#]|\w+:))")

_FUNCTION_WORDS = frozenset(
    # In lines, not as 170 quoted strings, so that it can be read.
    """
    a about above after again against all also am an and any are aren as at be because been before being below between
    both but by can cannot could couldn d did didn do does doesn doing don down during each etc few for from further had
    hadn has hasn have haven having he her here hers herself him himself his how i if in into is isn it its itself just
    let ll m me more most must my myself no nor not now of off on once only or other ought our ours ourselves out over
    own please re s same shall she should shouldn so some such t than that the their theirs them themselves then there
    these they this those through to too under until up upon us ve very was wasn we were weren what when where which
    while who whom why will with within without won would wouldn you your yours yourself yourselves
    """.split()  # noqa: SIM905 - see above
)


SYNONYMS: tuple[str, ...] = tuple(
    # Each line is a group. They are general knowledge of what tools do, not taken from queries. What they gain is
    # measured on sets whose queries were not read for it (ADR 0030).
    """
    create make add new insert generate build write
    delete remove erase drop clear discard
    get fetch retrieve read obtain load view show display
    list enumerate browse show all
    search find lookup query locate discover seek
    update edit modify change alter adjust set revise
    send post publish submit share deliver
    move rename relocate transfer
    copy duplicate clone
    convert transform translate turn export
    merge combine join concatenate unite
    split divide separate
    compare diff difference contrast
    summarize summary overview digest brief
    analyze analysis examine inspect evaluate assess study
    calculate compute math arithmetic evaluate
    run execute launch start invoke
    stop kill terminate end cancel abort
    download save store
    upload import attach
    open visit navigate browse
    close shut
    schedule plan book reserve arrange
    check verify validate test confirm
    picture image photo photograph screenshot
    document doc file text word
    folder directory path
    spreadsheet excel sheet workbook xlsx csv
    presentation slide powerpoint ppt deck
    pdf document paper
    video movie film clip youtube
    music song audio track sound
    weather forecast temperature climate rain
    price cost quote rate
    stock share equity ticker market
    currency money exchange
    company business firm corporation
    news article headline story
    website webpage page url site web link http https
    email mail message inbox
    message chat text notification
    calendar event meeting appointment
    map location place address geocode
    route direction navigation path travel
    distance far near nearby around close
    trip travel vacation tour itinerary
    hotel accommodation lodging
    flight airline plane airport
    train railway rail ticket station
    restaurant food dining eat meal
    recipe cook cooking dish meal
    drug medicine medication pharmaceutical
    disease illness condition symptom
    paper article publication research academic study scholar
    book reading novel
    code program source script
    repository repo git github codebase
    issue bug ticket
    commit change revision history
    undo revert reset restore rollback
    mistake error fault problem lint
    package library dependency module
    database db sql table query
    user account profile person member
    chart graph plot diagram visualization
    table grid matrix
    time date clock hour timezone
    translate translation language
    question ask answer query
    game gaming play player
    trend trending popular ranking rank top
    information info detail details data
    note memo memory
    task todo reminder
    job career employment resume vacancy
    house home property real estate
    shop shopping product buy purchase store
    crypto cryptocurrency bitcoin coin
    law legal court attorney
    school education course learn learning teach
    health medical clinical fitness
    image draw design art logo icon
    color colour palette
    password login credential authentication
    shell terminal command bash console
    process program task
    browser web chrome page
    click press tap
    type enter fill input
    """.strip().splitlines()
)


class SearchText(NamedTuple):
    """The words of one tool. Each part has a weight of its own in the search."""

    name: str
    server: str
    summary: str
    """The first sentence of the description."""
    description: str
    """The rest of it."""
    parameters: str


class Ranking(NamedTuple):
    """How a tool's words and a query's words become a score. The parts are those of ``SearchText``."""

    weights: tuple[float, ...] = (3.0, 2.0, 1.5, 0.5, 0.3)
    """What a word counts in each part."""
    shortness: tuple[float, ...] = (0.3, 0.3, 0.5, 0.75, 0.75)
    """How much more a word counts in a part that is shorter than usual."""
    lengths: tuple[float, ...] = (3.0, 2.0, 12.0, 20.0, 30.0)
    """The usual number of words of each part."""
    saturation: float = 2.0
    """The higher it is, the more a further occurrence counts."""
    repetition: float = 0.5
    """What a word counts more that stands several times in a query."""
    synonyms: float = 0.3
    """What a synonym counts, beside 1 for the word itself."""

    def impacts(self, counted: Mapping[tuple[str, int], int]) -> dict[str, float]:
        """What each word counts in a tool, from 0 to 1, by how often each stands in each part."""
        lengths = [0] * len(self.weights)
        for (_, part), count in counted.items():
            lengths[part] += count
        scale = [
            weight / (1 - short + short * length / usual)
            for weight, short, length, usual in zip(self.weights, self.shortness, lengths, self.lengths, strict=True)
        ]
        summed: dict[str, float] = {}
        for (word, part), count in counted.items():
            summed[word] = summed.get(word, 0.0) + scale[part] * count
        return {word: weight / (self.saturation + weight) for word, weight in summed.items()}

    def wanted(
        self, asked: Mapping[str, int], related: Mapping[str, frozenset[str]], rows: int, frequency: Mapping[str, int]
    ) -> dict[str, float]:
        """What each word is worth to a query that has some words so many times.

        ``related`` are the synonyms of words; ``frequency`` is in how many of the ``rows`` tools each word stands.
        """
        worth = {word: 1 + self.repetition * math.log(count) for word, count in asked.items()}
        for word, count in asked.items():
            also = self.synonyms * (1 + self.repetition * math.log(count))
            for one in related.get(word, ()):
                if one not in asked:
                    worth[one] = max(worth.get(one, 0.0), also)
        known = ((word, value, frequency[word]) for word, value in worth.items() if word in frequency)
        return {word: value * math.log(1 + (rows - found + 0.5) / (found + 0.5)) for word, value, found in known}


def search_text(server: str, name: str, raw: Mapping[str, object]) -> SearchText:
    """The words of a tool, from its server's id, its own name and its description on the wire."""
    parameters = (f"{_spread(key)} {_text(of.get('description'))}" for key, of in _properties(raw).items())
    description = _text(raw.get("description"))[:LONGEST_TEXT].strip()
    end = _SENTENCE_END.search(description)
    cut = end.start() if end is not None else len(description)
    return SearchText(
        name=_spread(f"{name} {_text(raw.get('title'))}"),
        server=_spread(server),
        summary=_paired(description[:cut]),
        description=_paired(description[cut:]),
        parameters=_paired(" ".join(parameters)[:LONGEST_TEXT]),
    )


def meaning_text(server: str, name: str, raw: Mapping[str, object]) -> str:
    """The text whose meaning a tool has: like a sentence, so each word once, and without what parameters mean."""
    parameters = " ".join(_properties(raw))
    return f"{_apart(f'{server} {name}')} {_text(raw.get('description'))} {_apart(parameters)}"


def query_words(query: str) -> dict[str, int]:
    """The words that a query searches for, in lower case, each with how often it stands there.

    If a query has function words alone, it searches for these.
    """
    found = Counter(_WORD.findall(_spread(query[:LONGEST_QUERY]).lower()))
    kept = {word: count for word, count in found.items() if word not in _FUNCTION_WORDS} or found
    return dict(islice(kept.items(), MOST_WORDS))


def first_sentence(description: str) -> str:
    """The first sentence of a description as it stands, on one line; a very long one is cut, and marked."""
    text = plain(description[:LONGEST_TEXT]).strip()
    end = _SENTENCE_END.search(text)
    line = " ".join((text[: end.start()] if end else text).split())
    return line if len(line) <= LONGEST_SENTENCE else line[: LONGEST_SENTENCE - 1].rstrip() + "…"


def signature(name: str, raw: Mapping[str, object]) -> str:
    """``create_issue(repo: string, title: string, body?: string, … 3 more)``: how a tool is called, in one line."""
    schema = raw.get("inputSchema")
    stated = schema.get("required") if isinstance(schema, Mapping) else None
    wanted = [one for one in stated if isinstance(one, str)] if isinstance(stated, list | tuple) else []
    properties = _properties(raw)
    # A required parameter that has no schema of its own is required all the same.
    shown = [f"{_one_word(key)}: {_type(properties.get(key, {}))}" for key in dict.fromkeys(wanted)]
    optional = [key for key in properties if key not in wanted]
    room = OPTIONAL_ROOM - sum(map(len, shown))
    for number, key in enumerate(optional):
        parameter = f"{_one_word(key)}?: {_type(properties[key])}"
        if len(parameter) > room:
            shown.append(f"… {len(optional) - number} more")
            break
        room -= len(parameter)
        shown.append(parameter)
    return f"{name}({', '.join(shown)})"


def _properties(raw: Mapping[str, object]) -> dict[str, Mapping[str, Any]]:
    """The parameters of a tool, each with its schema. A malformed schema has none, and a malformed part is empty."""
    schema = raw.get("inputSchema")
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    if not isinstance(properties, Mapping):
        return {}
    return {str(key): one if isinstance(one, Mapping) else {} for key, one in properties.items()}


def _type(schema: Mapping[str, Any]) -> str:
    """The type of one parameter, in TypeScript's notation, which models read well."""
    values = schema.get("enum")
    if isinstance(values, list | tuple) and values:
        return _cut("|".join(map(_literal, values[:20])))
    named = schema.get("type")
    if named == "array":
        items = schema.get("items")
        return f"{_type(items)}[]" if isinstance(items, Mapping) and items.get("type") != "array" else "array"
    if isinstance(named, str):
        return _one_word(named)
    branches = schema.get("anyOf") or schema.get("oneOf")
    several: Iterable[object] = named if isinstance(named, list) else ()
    if isinstance(branches, list):
        several = (one.get("type") for one in branches[:20] if isinstance(one, Mapping))
    names = [one for one in several if isinstance(one, str) and one != "null"]
    return _cut("|".join(dict.fromkeys(map(_one_word, names)))) or "any"


def _literal(value: object) -> str:
    return f'"{_one_word(value)}"' if isinstance(value, str) else str(value)


def _one_word(text: str) -> str:
    """A foreign name inside a signature: on one line, without what cannot be seen."""
    return _cut(" ".join(plain(text[: 4 * LONGEST_TYPE]).split()), 2 * LONGEST_TYPE)


def _cut(text: str, most: int = LONGEST_TYPE) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _spread(text: str) -> str:
    """A text in which ``createIssue`` stands beside its words; ``_`` and ``-`` part words for the index by itself."""
    apart = _LOWER_UPPER.sub(" ", text)
    return _paired(text if apart == text else f"{text} {apart}")


def _apart(text: str) -> str:
    """``createIssue``, ``create_issue`` and ``create-issue`` as words."""
    return _LOWER_UPPER.sub(" ", text).replace("_", " ").replace("-", " ")


def _paired(text: str) -> str:
    """A text whose unspaced runs are pairs of neighbouring characters: ``天气预报`` becomes ``天气 气预 预报``."""
    return _UNSPACED.sub(lambda run: f" {_pairs(run.group())} ", text)


def _pairs(run: str) -> str:
    return " ".join(run[at : at + 2] for at in range(len(run) - 1)) or run


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
