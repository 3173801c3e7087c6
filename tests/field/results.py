"""What each client of the matrix saw, kept in a file: parts of the matrix may run at different times.

``python -m tests.field.results`` writes the page of the documentation from it.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

__all__ = ["FOLDER", "note", "page", "table"]

_ROOT = Path(__file__).parents[2]
FOLDER = _ROOT / "test-results" / "field"
PAGE = _ROOT / "docs" / "reference" / "clients.md"

COLUMNS = ("list", "call", "outage", "server restart", "hub restart", "unknown tool", "stderr")
"""What is looked at. ``hub restart`` is noted by the tests of sessions."""

FLEET = {
    "three hubs": "three hubs",
    "fleet on Redis": "on Redis",
    "without Redis": "Redis killed",
    "a hub killed": "hub killed",
    "workers": "2 workers",
    "workers replaced": "roll",
    "a worker killed": "worker killed",
}
"""What is looked at with several replicas, and the title of its column on the page."""

_HABITS = (
    "",
    "## What some clients do",
    "",
    "These are habits of the clients. They meet them at any server, with and without Holdfast.",
    "",
    "- **Vercel AI SDK** over stdio waits 1 s for an answer to `server/discover`, then sends `initialize`. Holdfast",
    "  accepts both: the question alone does not decide the protocol version of the connection.",
    "- **smolagents** (its adapter is `mcpadapt`) loses every tool if one tool's `inputSchema` has no",
    "  `properties`. Holdfast passes schemas on as they are; hide such a tool with `tools.exclude`.",
    "- **smolagents**, **Semantic Kernel** and **Agno** drop `isError`: the model reads the reason, and the program",
    "  sees a normal answer.",
    "- **Semantic Kernel** hangs at `tools/list_changed`: it waits for a new list while it should read it. A hub that",
    "  was restarted sends that notice, because tools may have changed. Connect the plugin again after a restart.",
    "- **smolagents**, **AutoGen**, **CAMEL** and **mcp-agent** need `mcp<2` beside them; with 2.x they fail at their",
    "  import. **LiteLLM** needs the package `expression` beside it for calls.",
    "- **CrewAI** and **PraisonAI** (over stdio) drop `isError` as well.",
    "- **CrewAI** makes `one_echo` of the name `one__echo`; **Genkit** makes `holdfast/one__echo` of it.",
    "- **BeeAI** refuses arguments for a tool whose `inputSchema` has empty `properties`.",
    "- **OpenAI Agents JS** over stdio starts its server twice: the first process is only asked for its era.",
    "- **LiteLLM** over stdio starts its server for each request.",
    "- **mcp-use** logs to stdout. **mcp-use JS** is a client up to version 1.",
)

_WORKS = {"back": "works", "hello": "works", "0 lines": "silent", "3 of 3": "works"}


def note(client: str, versions: str, way: str, column: str, seen: str) -> None:
    """Keep what a client saw, and write the table with all that is known."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    rows = _rows()
    row = rows.setdefault(f"{client} / {way}", {"client": client, "way": way})
    row |= {"versions": versions, "date": f"{datetime.now(UTC):%Y-%m-%d}", column: seen}
    (FOLDER / "clients.json").write_text(json.dumps(rows, indent=1))
    (FOLDER / "clients.md").write_text(table(rows))


def table(rows: dict[str, dict[str, str]]) -> str:
    """One row for each client and way, with the words that the client got."""
    lines = [f"| client | way | {' | '.join(COLUMNS)} |", f"|---|---|{'---|' * len(COLUMNS)}"]
    for row in rows.values():
        cells = [row.get(column, "").replace("|", "\\|").replace("\n", " ") for column in COLUMNS]
        lines.append(f"| {row['client']} ({row['versions']}) | {row['way']} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def page(rows: dict[str, dict[str, str]]) -> str:
    """The page of the documentation: what works, with which version, seen when."""
    shown = ("list", "call", "outage", "server restart", "hub restart", "stderr")
    lines = [
        "# Clients",
        "",
        "Each client was installed from its registry into an environment of its own and connected to `holdfast serve`",
        "as its documentation says. It listed and called tools, called during an outage of the server behind the hub,",
        "and called again after the server's restart. `make test-field` repeats this; `make clients` writes this page.",
        "",
        "- **outage**: the client gets an error with the true reason, and the tools stay on its list.",
        "- **stderr**: what the client logs while all is well.",
        "- An empty cell was not tried in this run.",
        "",
        f"| client | versions | transport | {' | '.join(shown)} | seen |",
        f"|---|---|---|{'---|' * len(shown)}---|",
    ]
    clients = list(dict.fromkeys(row["client"] for row in rows.values()))
    for row in sorted(rows.values(), key=lambda row: clients.index(row["client"])):
        cells = " | ".join(_brief(column, row.get(column, "")) for column in shown)
        lines.append(f"| {row['client']} | {row['versions']} | {row['way']} | {cells} | {row['date']} |")
    return "\n".join([*lines, *_fleet(rows), *_HABITS]) + "\n"


def _fleet(rows: dict[str, dict[str, str]]) -> list[str]:
    """The part of the page about several replicas."""
    lines = [
        "",
        "## Several replicas",
        "",
        "The same clients in front of several replicas. Each kept its session, or what it has instead of one, through",
        "the events of one line below: it listed the tools first and last, and made three calls after each event.",
        "",
        "- **three hubs**: with one session key, behind HAProxy, which gives each request to the next hub and repeats",
        "  nothing.",
        "- **on Redis**, **Redis killed**, **hub killed**: the same as a fleet (`--fleet`), then without Redis, then",
        "  after `kill -9` of a hub.",
        "- **2 workers**, **roll**, **worker killed**: `serve --workers 2`, then after SIGHUP replaced both workers,",
        "  then after `kill -9` of one.",
        "",
        f"| client | {' | '.join(FLEET.values())} |",
        f"|---|{'---|' * len(FLEET)}",
    ]
    seen = [row for row in rows.values() if any(column in row for column in FLEET)]
    cells = [" | ".join(_brief(column, row.get(column, "")) for column in FLEET) for row in seen]
    return [*lines, *(f"| {row['client']} | {text} |" for row, text in zip(seen, cells, strict=True))]


def _brief(column: str, seen: str) -> str:
    if column == "outage" and seen:
        return "true reason" if "refused" in seen or "closed" in seen else "no reason"
    if column == "list" and seen:
        return "works"
    return _WORKS.get(seen, seen.replace("|", "\\|"))


def _rows() -> dict[str, dict[str, str]]:
    file = FOLDER / "clients.json"
    return dict(json.loads(file.read_text())) if file.exists() else {}


if __name__ == "__main__":
    PAGE.write_text(page(_rows()))
