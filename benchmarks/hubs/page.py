"""docs/benchmarks/hubs.md, its rule book and its plots, made of the raw results alone: a test makes them again.

The first run fills the tables. A second one stands beside it, and all that differs is listed.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.hubs.adapters import ADAPTERS, NOT_HERE
from benchmarks.hubs.rubric import FACTS, UNKNOWN
from benchmarks.hubs.run import Results
from benchmarks.hubs.scenes import SCENES
from benchmarks.plots import drawn
from benchmarks.processes import ROOT
from benchmarks.report import Plot, Spread

__all__ = ["FOLDER", "PAGE", "RAW", "RULES", "files", "summary", "write"]

FOLDER = ROOT / "docs" / "benchmarks"
RAW = FOLDER / "hubs"
PAGE, RULES = "hubs.md", "hubs-rules.md"
QUOTED = 140

HEAD = """\
# Hubs under faults

What a client sees when servers fail behind an MCP hub: {hubs} programs, {scenes} scenes, one client, one server,
the same faults for all. Holdfast is one of them, and its bad results stand here like all others. The [rule
book](hubs-rules.md) says how it is done and how the words of a hub are judged; both were fixed before the runs.

**Not in the tables**, because they could not be had where this ran: {missing}. They are not judged.

Run it yourself: `python -m benchmarks hubs` (`--hub`, `--scene`, `--rounds`, `--jobs`; it resumes where it
stopped). `python -m benchmarks hubs --docs` writes this page. The raw results are {raw}.
"""

BUSY = """
**The machine of these runs was busy with other work**: {busy}. A hub that needs much CPU time
for a start or a call suffers more from that than one that needs little. Marks that rest on time (starts, calls lost
after 20 s, seconds until back) may be better on an idle machine; words, lists, sessions, eras and doubled calls do not
depend on it. A run of your own on an idle machine is the better judge.
"""

RULE_BOOK = """\
# Rule book of the benchmark of hubs

These rules hold for [the benchmark of hubs under faults](hubs.md). `python -m benchmarks hubs --page` writes this
page from the code that judges, so the rules cannot differ from what is done.

## Fairness

1. **One client.** `benchmarks/hubs/client.py` serves all. It keeps its session, sends no retries, and waits 20 s
   for an answer. It opens a new session only where a scene says so, and that is shown.
2. **One server.** `benchmarks/hubs/server.py` is behind all: over HTTP with sessions, as the SDKs' servers have
   them, or over stdio for a hub that takes nothing else. It writes down each call that reaches it. *Doubled* and
   *ran* are counted there, never at the client.
3. **Pinned versions, one environment each**, made by the command.
4. **Documented settings.** A hub runs with its defaults, apart from what its adapter lists with the reason and the
   address of its documentation. Logs are off and rate limits are lifted for all. Tuning that a project's own
   documentation advises belongs into its adapter; a better setting is a welcome change.
5. **A hub with a database** gets its servers while they are well, as its operator would have done before the fault.
6. **`n/a` is no mark.** A scene that a program does not claim to serve does not count against it: a plain proxy
   knows no lists, a bridge for stdio has no HTTP server behind it.
7. **The same scale for all**, also for Holdfast. No scene has a setting of its own for one hub.
8. **Nothing is left out.** A hub that cannot be installed or started, and a scene that does not end, are results.
   All rounds are in the raw results. What is bad for Holdfast stands there too.
9. **Speed is told as a ratio or as CPU time**, beside the load of the machine. Wall-clock time of a busy machine
   compares nothing.
10. **The rubric is fixed before a run.** It holds no name of a hub. A change of it means that both runs are made
    again.

## What is counted

| word | meaning |
|---|---|
| answered | a result, and it is the caller's own |
| refused | an error that the client was told, as a JSON-RPC error, an `isError` result or an HTTP status |
| lost | no answer within 20 s, or a connection that broke without one |
| wrong | a result that belongs to another call |
| doubled | the server ran one call more than once |
| ran unseen | the server ran it, and the client was told otherwise |
| back | seconds from the server's return to the first result, in the same session or in a new one |
| listed | whether the server's tools stay in the list during the fault |

## What a client was told

A scene makes the fault, so it knows the fact. Each text that a client got during the fault is judged by these
patterns (any case). *False* wins over *true*: who adds a wrong reason to a right one misleads. A fault is told
*false* if any text was, *true* if at least half of the texts were, else *vague*.

| fact | true if the text has | false if the text has |
|---|---|---|
"""

AFTER_RUBRIC = """
"Unknown tool" and its kin ({unknown}) are false where the hub had listed the tool before: the tool exists, its
server is away. Where the hub never saw a list of that server, the same words are vague.

## What is good, and what bad

| scene | what is done | the mark |
|---|---|---|
"""


COSTS = (
    ("CPU a call, 1 caller", "cpu_ms_1", "{:.2f} ms"),
    ("CPU a call, 16 callers", "cpu_ms_16", "{:.2f} ms"),
    ("latency, times the bare server's", "latency_ratio_1", "{:.1f}"),
    ("calls/s of 16 callers, share of the bare server's", "rate_ratio_16", "{:.3f}"),
    ("memory", "memory_mb", "{:.0f} MB"),
    ("start", "start_seconds", "{:.1f} s"),
    ("load average", "load", "{:.0f}"),
)

ABOUT_COSTS = """\
CPU time is that of the hub and its helpers, without the server behind. mcp-hub is called by the benchmark's own client,
since the load generator has no HTTP+SSE. Each cell has one figure for each run.
"""


def write() -> None:
    """Write the page, the rule book and the plots of the kept results."""
    RAW.mkdir(parents=True, exist_ok=True)
    for old in RAW.glob("*.svg"):
        old.unlink()
    for name, text in files(_kept()).items():
        (FOLDER / name).write_text(text)


def _kept() -> list[dict[str, Any]]:
    return [json.loads(file.read_text()) for file in sorted(RAW.glob("run-*.json"))]


def files(runs: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """All that is made of the runs, by its name under docs/benchmarks."""
    plots = _plots(runs)
    drawings = {f"hubs/{name}.svg": drawn(plot) for name, plot in plots.items()}
    return {RULES: _rules(), **drawings, PAGE: _page(runs, plots)}


def summary(results: Results) -> str:
    """The marks of a run, for a terminal."""
    hubs = [hub for hub in ADAPTERS if any(results.of(hub, scene) for scene in SCENES)]
    width = max([len(hub) for hub in hubs], default=0)
    lines = []
    for scene in SCENES:
        cells = [f"{_worst(results.of(hub, scene)) or '-':>{max(6, len(hub))}}" for hub in hubs]
        lines.append(f"{scene:<{max(width, 12)}} {' '.join(cells)}")
    head = f"{'':<{max(width, 12)}} {' '.join(f'{hub:>6}' for hub in hubs)}"
    return "\n".join([head, *lines])


def _rules() -> str:
    lines = [RULE_BOOK.rstrip("\n")]
    lines += [f"| {fact.about} | {_patterns(fact.true)} | {_patterns(fact.false)} |" for fact in FACTS.values()]
    lines.append(AFTER_RUBRIC.rstrip("\n").format(unknown=_patterns(UNKNOWN)))
    lines += [f"| {scene.title} | {scene.about} | {scene.wanted} |" for scene in SCENES.values()]
    return "\n".join([*lines, ""])


def _patterns(patterns: Sequence[str]) -> str:
    return ", ".join(f"`{pattern}`" for pattern in patterns).replace("|", "\\|")


def _page(runs: Sequence[Mapping[str, Any]], plots: Mapping[str, Plot]) -> str:
    first = runs[0]["cells"] if runs else {}
    hubs = [hub for hub in ADAPTERS if not runs or any(key.startswith(f"{hub}/") for key in first)]
    raw = (
        " and ".join(f"[run {number}](hubs/run-{number}.json)" for number in range(1, len(runs) + 1)) or "not kept yet"
    )
    missing = "; ".join(f"**{name}** ({reason})" for name, reason in NOT_HERE.items())
    graded = [name for name, scene in SCENES.items() if not scene.alone]
    parts = [HEAD.format(hubs=len(hubs), scenes=len(graded), missing=missing, raw=raw)]
    parts += [_where(number, run) for number, run in enumerate(runs, 1)]
    if not runs:
        return "\n".join([*parts, "## The hubs and their settings\n", _settings(hubs)])
    middle = max(statistics.median(_loads(run)) for run in runs)
    if middle > 2 * runs[0]["machine"]["cores"]:
        load = f"a load average of {middle:.0f} on {runs[0]['machine']['cores']} cores in the middle"
        parts.append(BUSY.format(busy=load))
    parts += ["\n## At a glance\n", _glance(first, hubs, graded)]
    parts += [f"![{plot.title}](hubs/{name}.svg)\n" for name, plot in plots.items()]
    parts += ["## What a call costs\n", _costs(runs, hubs)]
    parts += [_scene(name, first, hubs) for name in graded]
    if len(runs) > 1:
        parts += ["## Two runs side by side\n", _differences(runs, hubs, graded)]
    parts += ["## The hubs and their settings\n", _settings(hubs)]
    return "\n".join(parts)


def _loads(run: Mapping[str, Any]) -> list[float]:
    return [one["load"] for cell in run["cells"].values() for one in cell]


def _where(number: int, run: Mapping[str, Any]) -> str:
    where, loads = run["machine"], _loads(run)
    busy = f"load average {min(loads):g} to {max(loads):g}, median {statistics.median(loads):g}"
    return (
        f"- Run {number}: {where['began']}, {where['cores']} cores, {where['memory_gb']} GB, {where['kernel']}, "
        f"Python {where['python']}, Holdfast at {where['commit']}; {busy}. {where.get('remark', '')}".rstrip()
    )


def _glance(cells: Mapping[str, Any], hubs: Sequence[str], scenes: Sequence[str]) -> str:
    lines = [f"| | {' | '.join(ADAPTERS[hub].name for hub in hubs)} |", f"|---|{'---|' * len(hubs)}"]
    for name in scenes:
        marks = [_mark(_worst(cells.get(f"{hub}/{name}", ()))) for hub in hubs]
        lines.append(f"| [{SCENES[name].title}](#{_anchor(SCENES[name].title)}) | {' | '.join(marks)} |")
    sums = []
    for hub in hubs:
        grades = [_worst(cells.get(f"{hub}/{name}", ())) for name in scenes]
        played = [grade for grade in grades if grade not in {None, "n/a"}]
        sums.append(f"{grades.count('good')} of {len(played)}")
    lines.append(f"| **good** | {' | '.join(sums)} |")
    legend = (
        "`failed`: the hub did not start or never answered a call, so there is nothing to judge; it counts as played."
    )
    return "\n".join([*lines, "", legend, ""])


def _anchor(title: str) -> str:
    kept = [letter for letter in title.lower() if letter.isalnum() or letter in " -"]
    return "".join(kept).replace(" ", "-")


def _mark(grade: str | None) -> str:
    return {None: "", "bad": "**bad**", "failed": "**failed**"}.get(grade, str(grade))


def _worst(rounds: Sequence[Mapping[str, Any]]) -> str | None:
    """The worst mark of all rounds."""
    order = ("failed", "bad", "part", "good", "n/a")
    return min((one["grade"] for one in rounds), key=order.index, default=None)


def _scene(name: str, cells: Mapping[str, Any], hubs: Sequence[str]) -> str:
    scene = SCENES[name]
    lines = [f"## {scene.title}\n", f"{scene.about} {scene.wanted}\n"]
    played = {hub: cells.get(f"{hub}/{name}", []) for hub in hubs}
    counted = any("lost" in one["figures"] for rounds in played.values() for one in rounds)
    told = any(one["told"] for rounds in played.values() for one in rounds)
    heads = ["", "mark", "what a user sees"]
    heads += ["answered / refused / lost / wrong / doubled"] if counted else []
    heads += ["told, for example"] if told else []
    lines += [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    left_out = []
    for hub, rounds in played.items():
        for one in rounds:
            if one["grade"] == "n/a":
                left_out.append(f"{ADAPTERS[hub].name} ({one['seen']})")
                continue
            row = [ADAPTERS[hub].name, _mark(one["grade"]), plain(one["seen"], 300)]
            row += [_counts(one["figures"])] if counted else []
            row += [_told(one["told"])] if told else []
            lines.append(f"| {' | '.join(row)} |")
    lines += [f"\nn/a: {'; '.join(left_out)}."] if left_out else []
    return "\n".join([*lines, ""])


def _counts(figures: Mapping[str, Any]) -> str:
    if "lost" not in figures:
        return ""
    return " / ".join(str(figures[what]) for what in ("answered", "refused", "lost", "wrong", "doubled"))


def _told(said: Mapping[str, Any] | None) -> str:
    if not said or not said["samples"]:
        return "nothing"
    for verdict in ("false", "vague", "true"):
        if verdict in said["samples"]:
            times, all_ = said["counts"][verdict], sum(said["counts"].values())
            return f"{verdict} ({times} of {all_}): “{plain(said['samples'][verdict], QUOTED)}”"
    return "nothing"


def plain(text: str, most: int) -> str:
    """A text for a cell of a table."""
    short = " ".join(text.split())
    short = short if len(short) <= most else f"{short[: most - 1]}…"
    return short.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_").replace("`", "'")


def _costs(runs: Sequence[Mapping[str, Any]], hubs: Sequence[str]) -> str:
    heads = ("", *(head for head, _, _ in COSTS))
    lines = [f"{SCENES['cost'].about} {ABOUT_COSTS}", f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for hub in hubs:
        found = [figures for run in runs if (figures := _figures(run, hub, "cost"))]
        if not found:
            seen = [one["seen"] for run in runs for one in run["cells"].get(f"{hub}/cost", [])]
            lines.append(f"| {ADAPTERS[hub].name} | {plain('; '.join(seen) or 'not played', 200)} |{' |' * 6}")
            continue
        row = [_each(found, key, form) for _, key, form in COSTS]
        lines.append(f"| {ADAPTERS[hub].name} | {' | '.join(row)} |")
    return "\n".join([*lines, ""])


def _each(found: Sequence[Mapping[str, Any]], key: str, form: str) -> str:
    return ", ".join(form.format(one[key]) for one in found if key in one) or "n/a"


def _figures(run: Mapping[str, Any], hub: str, scene: str) -> Mapping[str, Any]:
    rounds = run["cells"].get(f"{hub}/{scene}", [])
    return rounds[0]["figures"] if rounds and rounds[0]["grade"] not in {"failed", "n/a"} else {}


def _plots(runs: Sequence[Mapping[str, Any]]) -> dict[str, Plot]:
    """Bars are the median of the runs; the line on each goes from the least to the most."""
    wanted = {
        "back": ("Server killed: seconds until a call is answered again", "s", "killed", _back),
        "cpu": ("CPU time a call, 16 callers", "ms", "cost", lambda figures: figures.get("cpu_ms_16")),
        "memory": ("Memory after the first call", "MB", "cost", lambda figures: figures.get("memory_mb")),
    }
    plots = {}
    for name, (title, unit, scene, pick) in wanted.items():
        bars: dict[str, Spread] = {}
        for hub, adapter in ADAPTERS.items():
            values = [value for run in runs if (value := pick(_figures(run, hub, scene))) is not None]
            if values:
                bars[adapter.name] = Spread(statistics.median(values), min(values), max(values))
        if bars:
            plots[name] = Plot(title=title, unit=unit, bars=bars)
    return plots


def _back(figures: Mapping[str, Any]) -> float | None:
    back: Mapping[str, float | None] = figures.get("back", {})
    found = back.get("same_session")
    return back.get("new_session") if found is None else found


def _differences(runs: Sequence[Mapping[str, Any]], hubs: Sequence[str], scenes: Sequence[str]) -> str:
    first, second = runs[0]["cells"], runs[1]["cells"]
    both = [(hub, name) for hub in hubs for name in scenes if f"{hub}/{name}" in first and f"{hub}/{name}" in second]
    other = [
        (hub, name)
        for hub, name in both
        if _worst(first[f"{hub}/{name}"]) != _worst(second[f"{hub}/{name}"])
    ]  # fmt: skip
    missing = len(hubs) * len(scenes) - len(both)
    part = f" {missing} cells were played in the first run alone." if missing else ""
    lines = [f"{len(both) - len(other)} of {len(both)} marks are the same in both runs.{part} These differ:\n"]
    lines += ["| hub | scene | run 1 | run 2 |", "|---|---|---|---|"]
    for hub, name in other:
        cells = [
            f"{_mark(_worst(cells[f'{hub}/{name}']))}: {plain(cells[f'{hub}/{name}'][0]['seen'], 160)}"
            for cells in (first, second)
        ]
        lines.append(f"| {ADAPTERS[hub].name} | {SCENES[name].title} | {' | '.join(cells)} |")
    if not other:
        lines = [f"All {len(both)} marks are the same in both runs.{part}"]
    return "\n".join([*lines, ""])


def _settings(hubs: Sequence[str]) -> str:
    lines = ["| hub | version | what it is | behind it | set, and why | checked against |", "|---|---|---|---|---|---|"]
    for hub in hubs:
        adapter = ADAPTERS[hub]
        settings = [
            f"{plain(one.what, 200)}: {one.why} ([{_site(one.address)}]({one.address}))" for one in adapter.settings
        ]
        pages = [f"[{_site(address)}]({address})" for address in adapter.documentation]
        row = [adapter.name, adapter.version, adapter.kind, adapter.behind, "; ".join(settings) or "its defaults"]
        lines.append(f"| {' | '.join([*row, ', '.join(pages)])} |")
    return "\n".join([*lines, ""])


def _site(address: str) -> str:
    return address.removeprefix("https://").split("/")[0]


def kept_files() -> dict[str, str]:
    """What is in the repository now."""
    names = [PAGE, RULES, *(f"hubs/{file.name}" for file in RAW.glob("*.svg"))]
    return {name: (FOLDER / name).read_text() for name in names if (FOLDER / name).exists()}


def made_files() -> dict[str, str]:
    """What the kept raw results give."""
    return files(_kept())
