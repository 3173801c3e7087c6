"""docs/benchmarks is written by the tool: the page and the plots are those of the kept results. No number is judged."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

from benchmarks import __main__ as command, flame, instructions, page
from benchmarks.plots import drawn
from benchmarks.report import Check, Plot, Report, Row, Spread, as_json, from_json

FULL = Report(
    name="fake",
    title="A title",
    requirements=("PERF-0",),
    rows=(
        Row(label="Holdfast", time=Spread(0.02, 0.01, 0.03), ratio=Spread(0.5, 0.4, 0.6), rate=7.0, memory=2e6),
        Row(label="a | b", note="<odd>"),
    ),
    checks=(Check(demand="a demand", found="a finding", met=False),),
    about="What was measured.",
    plots=(
        Plot(title="Bars & more", unit="ms", bars={"Holdfast": Spread(2, 1, 3), "other": Spread(4, 4, 4)}, limit=3),
    ),
    missing=("a gateway: no network",),
)
WHERE = {"date": "2026-01-02 03:04 UTC", "commit": "abc", "machine": "m", "load": "0.1 0.1 0.1", "versions": "Python 3"}


def test_the_page_in_the_repository_is_the_one_of_its_results() -> None:
    made = page.files(json.loads((page.FOLDER / page.RESULTS).read_text()))
    plots = {path.name for path in page.FOLDER.glob("*.svg")}
    kept = {name: (page.FOLDER / name).read_text() for name in {*made, *plots}}
    assert made == kept, "run `make bench-docs`, which writes the page"


def test_every_kept_result_says_when_and_on_what_it_was_measured() -> None:
    results = json.loads((page.FOLDER / page.RESULTS).read_text())["benchmarks"]
    assert {one["name"] for one in results} <= command.BENCHMARKS.keys()
    for one in results:
        assert one["where"].keys() == WHERE.keys()
        assert one["about"] or one["rows"]


def test_results_are_kept_beside_those_of_benchmarks_that_did_not_run(tmp_path: Path) -> None:
    other = from_json({**as_json([FULL])["benchmarks"][0], "name": "other"})
    page.record([FULL, other], WHERE, folder=tmp_path)
    page.record([FULL], {**WHERE, "date": "later"}, folder=tmp_path)
    kept = json.loads((tmp_path / page.RESULTS).read_text())["benchmarks"]
    assert [(one["name"], one["where"]["date"]) for one in kept] == [("fake", "later"), ("other", WHERE["date"])]
    page.write(folder=tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        "README.md",
        "results.json",
        "fake-1.svg",
        "other-1.svg",
    }


def test_a_page_shows_verdicts_rows_remarks_and_what_is_missing() -> None:
    text = page.files({"benchmarks": [{**as_json([FULL])["benchmarks"][0], "where": WHERE}]})["README.md"]
    assert "| a demand | a finding | **missed** |" in text
    assert "| Holdfast | 0.50 (0.40 … 0.60) | 20.0 ms (10.0 ms … 30.0 ms) | 7 | 2.0 MB |  |" in text
    assert "| a \\| b |  |  |  |  | &lt;odd> |" in text
    assert "Not measured: a gateway: no network" in text
    assert "![Bars & more](fake-1.svg)" in text
    assert "Measured 2026-01-02 03:04 UTC at abc on m" in text


def test_a_report_survives_its_way_through_json() -> None:
    assert from_json(json.loads(json.dumps(as_json([FULL])["benchmarks"][0]))) == FULL


def test_a_plot_has_a_bar_for_each_name_its_interval_and_the_limit() -> None:
    picture = ET.fromstring(drawn(FULL.plots[0]))
    space = "{http://www.w3.org/2000/svg}"
    bars = [rect for rect in picture.iter(f"{space}rect") if "bar" in rect.attrib["class"].split()]
    lines = [line.attrib["class"] for line in picture.iter(f"{space}line")]
    assert [bar.attrib["class"] for bar in bars] == ["bar ours", "bar"]
    assert float(bars[1].attrib["width"]) == 2 * float(bars[0].attrib["width"])
    assert lines == ["interval", "interval", "limit"]
    title = picture.find(f"{space}title")
    assert title is not None
    assert title.text == "Bars & more. Holdfast: 2 ms; other: 4 ms; limit: 3 ms"


def test_a_flame_graph_shows_where_stacks_end_and_how_wide_they_are() -> None:
    folded = (
        "run (asyncio/runners.py:190);reply (/x/src/holdfast/front/server.py:7);dumps (/lib/python3.11/json/a.py:3) 3\n"
        "run (asyncio/runners.py:190);reply (/x/src/holdfast/front/server.py:9) 1\n"
        "_bootstrap (threading.py:1002);wait (threading.py:320) 50\n"
    )
    stacks = flame.read(folded)
    assert flame.shares(stacks) == {"json": 0.75, "Holdfast: HTTP, sessions and MCP towards clients": 0.25}
    picture = ET.fromstring(flame.drawn("A title", stacks))
    titles = [title.text for title in picture.iter("{http://www.w3.org/2000/svg}title")]
    assert titles == [
        "A title",
        "run (asyncio/runners.py) 100.0%",
        "reply (holdfast/front/server.py) 100.0%",
        "dumps (json/a.py) 75.0%",
    ]


def test_the_instructions_of_a_dump_are_its_last_total() -> None:
    assert instructions.total("version: 1\nevents: Ir\nsummary: 120\n\nfn=(1) main\n1 5\n\ntotals: 125\n") == 125
    assert instructions.total("") == 0
