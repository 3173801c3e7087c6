"""Large results that are kept (FIND-6): whole, for one principal, for a time, within bounds."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from holdfast.config import LargeResultSettings
from holdfast.hub import Hub, kept_results
from holdfast.hub.kept_results import RESULTS_URI, KeptResults
from holdfast.wire import RawObject
from tests.peers.peer_server import running

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("FIND-6")]


class Scene:
    """Kept results with a clock and a bound that the test sets."""

    def __init__(self, over: int = 400) -> None:
        self.time = 0.0
        self.kept = KeptResults(lambda: LargeResultSettings(over=over, lifetime=60.0), lambda: self.time)

    async def shortened(self, result: dict[str, Any], principal: str = "ada") -> dict[str, Any]:
        return (await self.kept.shortened(RawObject.of(result), "s/t", principal=principal)).value()

    async def handle(self, text: str = "x" * 1_000, principal: str = "ada") -> str:
        """The handle under which a result of this text is kept; empty if it went out whole."""
        content = (await self.shortened(said(text), principal))["content"]
        return str(content[-1]["uri"]).removeprefix(RESULTS_URI) if len(content) > 1 else ""

    async def read(self, handle: str, principal: str = "ada", **asked: Any) -> dict[str, Any]:
        return (await self.kept.read({"handle": handle, **asked}, principal)).value()


def said(*texts: str, **more: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text} for text in texts], **more}


def text_of(result: dict[str, Any]) -> str:
    return str(result["content"][0]["text"])


IMAGE = {"type": "image", "data": "A" * 2_000, "mimeType": "image/png"}
TEXTS = st.text(max_size=120)
BLOCKS = st.one_of(
    st.builds(lambda text: {"type": "text", "text": text}, TEXTS),
    st.builds(lambda text: {"type": "text", "text": text, "annotations": {"priority": 1}}, TEXTS),
    st.builds(lambda text: {"type": "resource", "resource": {"uri": "a://b", "text": text}}, TEXTS),
    st.sampled_from([IMAGE, {"type": "resource", "resource": {"uri": "a://b", "blob": "AAAA"}}, {"type": "new"}]),
)


@settings(max_examples=150)
@given(blocks=st.lists(BLOCKS, max_size=8), structured=st.none() | st.dictionaries(TEXTS, TEXTS, max_size=3))
async def test_whatever_a_result_holds_nothing_of_it_is_lost(blocks: list[Any], structured: Any) -> None:
    """A mutant that drops a block, a text or a character makes the whole differ."""
    whole = {"content": blocks, "isError": False, **({} if structured is None else {"structuredContent": structured})}
    scene = Scene(over=200)
    result = await scene.shortened(whole)
    if result == whole:
        return
    *begun, told, link = result["content"]
    handle = link["uri"].removeprefix(RESULTS_URI)
    texts = [one["text"] if one["type"] == "text" else one["resource"]["text"] for one in blocks if is_text(one)]
    document = "\n".join([*texts, *([json.dumps(structured, separators=(",", ":"))] if structured is not None else [])])
    assert len(document) > 200
    read, offset = "", 0
    while offset < len(document):
        piece = text_of(await scene.read(handle, offset=offset))
        assert 0 < len(piece) <= 200
        read, offset = read + piece, offset + len(piece)
    assert read == document
    assert [one for one in begun if not is_text(one)] == [one for one in blocks if not is_text(one)]
    raw = await scene.kept.contents(link["uri"], "ada")
    assert raw is not None
    contents = raw.value()["contents"]
    assert [one["text"] for one in contents][: len(texts)] == texts
    assert f"{len(document):,} characters" in told["text"]
    for one, kept in zip([one for one in blocks if is_text(one)], contents, strict=False):
        beside = {key: value for key, value in one.items() if key not in ("type", "text")}
        if one["type"] == "text" and beside:
            assert kept["_meta"]["holdfast/block"] == beside


def is_text(block: dict[str, Any]) -> bool:
    return block["type"] == "text" or "text" in block.get("resource", {})


async def test_blocks_that_are_no_text_never_count_and_stay() -> None:
    result = said("short") | {"content": [IMAGE, {"type": "text", "text": "short"}]}
    assert await Scene().shortened(result) == result


async def test_a_kept_result_is_gone_after_the_time_that_was_told() -> None:
    scene = Scene()
    handle = await scene.handle()
    scene.time = 59.0
    assert text_of(await scene.read(handle)).startswith("xxx")
    scene.time = 60.0
    assert (await scene.read(handle))["isError"]
    await scene.handle()
    assert repr(scene.kept) == "<KeptResults 1>", "what is over is freed by the next"


async def test_over_the_bounds_results_go_out_whole_and_kept_ones_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_results, "PRINCIPAL_BYTES", 8_000)
    monkeypatch.setattr(kept_results, "ALL_BYTES", 12_000)
    scene = Scene()
    handles = [await scene.handle() for _ in range(4)]
    assert [bool(handle) for handle in handles] == [True, True, False, False], "one principal has its own bound"
    others = [await scene.handle(principal=name) for name in ("bob", "cy", "di")]
    assert [bool(handle) for handle in others] == [True, False, False], "and all have one together"
    assert not (await scene.read(handles[0]))["isError"]
    scene.time = 61.0
    assert await scene.handle(), "there is room again"


async def test_a_search_in_a_kept_result_shows_each_place_with_its_offset() -> None:
    scene = Scene()
    text = "".join(f"{'-' * 1_000}Straße {number} İ" for number in range(8))
    handle = await scene.handle(text)
    assert "nothing matches" in text_of(await scene.read(handle, query="STRASSE")), "only case is ignored"
    found = text_of(await scene.read(handle, query="STRAßE 3"))
    offset = int(found.partition("]")[0].removeprefix("[offset "))
    assert found.partition("\n")[2] == text[offset : offset + len(found.partition("\n")[2])]
    assert offset == text.index("Straße 3") - kept_results.EXCERPT_SIDE, "also after letters that grow in lower case"
    first = await scene.read(handle, query="straße")
    assert text_of(first).count("[offset ") == 5
    after = int(first["content"][1]["text"].rstrip(".").rsplit(" ", 1)[1])
    later = text_of(await scene.read(handle, query="straße", offset=after))
    assert [f"Straße {number}" in later for number in range(8)] == [number > 4 for number in range(8)]
    words = await scene.read(handle, query="please where is straße")
    assert "does not occur as it stands" in words["content"][1]["text"]
    assert "nothing matches" in text_of(await scene.read(handle, query="zebra"))


@pytest.mark.parametrize(
    "asked",
    [{}, {"handle": 1}, {"handle": "x", "offset": -1}, {"handle": "x", "offset": "no"}, {"handle": "x", "query": 3}],
)
async def test_arguments_that_make_no_sense_are_answered_with_what_is_needed(asked: dict[str, Any]) -> None:
    answer = (await Scene().kept.read(asked, "ada")).value()
    assert answer["isError"]
    assert "needs `handle`" in text_of(answer)


async def test_an_offset_behind_the_end_says_where_the_end_is() -> None:
    scene = Scene()
    answer = await scene.read(await scene.handle(), offset=1_000)
    assert answer["isError"]
    assert "1,000 characters" in text_of(answer)


async def test_a_program_reads_on_by_the_hub_itself() -> None:
    async with running() as origin:
        config = {"mcpServers": {"o": {"url": origin.url}}, "holdfast": {"largeResults": {"over": 1_000}}}
        async with Hub.from_config(config) as hub:
            assert await hub.ready(20)
            result = await hub.call_tool("o__echo", {"text": "word " * 1_000})
            handle = str(result.content[-1]["uri"]).removeprefix(RESULTS_URI)
            read = await hub.read_result(handle, offset=500)
            (tool,) = [tool for tool in hub.tools() if tool.name == "read_result"]
            found = await tool.call({"handle": handle, "query": "word"})
    assert result.content[0]["text"] == "word " * 100
    assert str(read.content[0]["text"]) == "word " * 100
    assert found.text.startswith("[offset 0]")


async def test_a_piece_says_where_to_read_on_or_that_it_is_the_last() -> None:
    scene = Scene()
    handle = await scene.handle()
    for offset, told in ((0, "0 to 200 of 1,000; read on with `offset` 200."), (800, "800 to 1,000 of 1,000; this is")):
        assert told in (await scene.read(handle, offset=offset))["content"][1]["text"]


async def test_a_handle_that_was_never_given_or_is_of_another_principal_leads_to_nothing() -> None:
    scene = Scene()
    handle = await scene.handle()
    for other, principal in (("unknown", "ada"), (handle, "bob")):
        assert (await scene.read(other, principal))["isError"]
        assert await scene.kept.contents(RESULTS_URI + other, principal) is None
        assert not scene.kept.knows(other, principal)
    assert scene.kept.knows(handle, "ada")
    scene.kept.close()
    assert not scene.kept.knows(handle, "ada")


async def test_structured_content_and_resources_are_kept_with_their_types_and_what_stood_beside_them() -> None:
    scene = Scene()
    page = {"type": "resource", "resource": {"uri": "a://b", "mimeType": "text/html", "text": "y" * 300}, "x": 1}
    result = await scene.shortened({**said("x" * 400), "structuredContent": {"z": 1}})
    both = await scene.shortened({"content": [*said("x" * 300)["content"], page, {"type": "resource"}]})
    parts = []
    for one in (result, both):
        assert "structuredContent" not in one
        raw = await scene.kept.contents(one["content"][-1]["uri"], "ada")
        assert raw is not None
        parts += [(part["mimeType"], part["text"][:7], part.get("_meta")) for part in raw.value()["contents"]]
    rest = {"type": "resource", "resource": {"uri": "a://b", "mimeType": "text/html"}, "x": 1}
    assert parts == [
        ("text/plain", "xxxxxxx", None),
        ("application/json", '{"z":1}', {"holdfast/block": {"type": "structuredContent"}}),
        ("text/plain", "xxxxxxx", None),
        ("text/html", "yyyyyyy", {"holdfast/block": rest}),
    ]


async def test_the_beginning_of_a_kept_result_is_cut_within_the_first_text_that_does_not_fit() -> None:
    *begun, told, _ = (await Scene().shortened(said("a" * 150, "b" * 150, "c" * 150)))["content"]
    assert [one["text"] for one in begun] == ["a" * 150, "b" * 49]
    assert "this result has 452 characters; the first 200 are above" in told["text"]
    *begun, told, _ = (await Scene().shortened(said("a" * 200, "b" * 300)))["content"]
    assert ([one["text"] for one in begun], "the first 200 are" in told["text"]) == (["a" * 200], True)
    kept = Scene().kept
    assert kept.is_on
    short = await kept.shortened(RawObject.of(said("a" * 500)), "s/t", principal="ada", replica="r1", links=False)
    *_, told = short.value()["content"]
    assert "under the handle r1." in told["text"]


async def test_what_is_at_the_bound_or_has_no_list_of_blocks_goes_out_as_it_came() -> None:
    for whole in (said("x" * 400), {"content": "x" * 500}, {"structuredContent": {"x": "x" * 500}}):
        assert await Scene().shortened(whole) == whole
    assert await Scene(over=0).shortened(said("x" * 500)) == said("x" * 500)
    assert not Scene(over=0).kept.is_on
