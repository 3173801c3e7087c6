"""What each agent program saw, kept in a file; ``python -m tests.field.agents.results`` writes the page from it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

__all__ = ["note", "page"]

_ROOT = Path(__file__).parents[3]
_FILE = _ROOT / "test-results" / "field" / "agents.json"
PAGE = _ROOT / "docs" / "reference" / "agents.md"

_WORKS = {"call": "hello", "server restart": "back", "hub restart": "again", "hub back": "last"}
"""The text that the tool gives in each step."""

_FOUND = {
    "find": "one__echo(",
    "describe": "inputSchema",
    "call": "hello",
    "outage in the call": "'one'",
    "outage in the hit": "reconnecting",
    "recovery in the call": "back",
    "recovery in the hit": "one__echo(",
}
"""What the model reads in each step in find mode."""

_FIND = """
## In find mode

The same over HTTP at `/mcp?tools=find`, where the tool is not on the list: the model finds it, describes it, calls it,
reads of an outage in the hit and in the call, and of its end.
"""

_HEAD = """# Agent programs

Each program was installed from its registry and ran once without a person: with `holdfast serve` as its only MCP
server, a scripted model, a home of its own, and a network that has only loopback. The model called the same tool while
all was well, while the server behind the hub was down, after the server's restart, after the hub's restart, while the
hub was away, and after it came back. The cells say what the *model* read. `make test-field` repeats this;
`make clients` writes this page.

- **name**: how the program names the tool `one__echo` to the model. The hub's names leave room for that.
- **outage**: the model reads the true reason, and the tool stays on the list.
- **hub away**: no hub can answer then. The cell says what the program makes of it.
- Over stdio the hub had served before, so that it knew its tools when it started.
"""

_FOOT = """
## What helps

- **Qwen Code** forgets the tools of a hub that is away, and asks for them again only in the next session. **Copilot
  CLI** did so in one of two runs. **fast-agent** and **gptme** wait without an end for an answer that no longer comes.
  Restart a hub with `holdfast serve --takeover`, or let `--workers` or replicas take turns: then it is never away
  ([restarts](../how-to/restart.md)).
- **Claude Code** and **Qwen Code** hide the tools of MCP servers behind a search of their own; the model then
  sees names alone. For this table the search was off (`ENABLE_TOOL_SEARCH=false`,
  `tools.toolSearch.enabled`).
- **Cline** gives a server over stdio 3 s for its first answer; give it more on a slow machine (`"timeout": 60`).
  **Codex** begins without a server that is still starting; `required = true` lets it wait.
- **gptme** and **Codex** change names: a hash behind, or no separator after the prefix.
- **fast-agent** needs Python 3.12 in its newest versions; this is the last one for 3.11, with `pydantic<2.12` and
  `a2a-sdk<0.3` beside it.
"""


def note(program: str, way: str, versions: str, seen: dict[str, Any]) -> None:
    """Keep what one program saw."""
    _FILE.parent.mkdir(parents=True, exist_ok=True)
    rows = _rows()
    rows[f"{program} / {way}"] = {"versions": versions, "date": f"{datetime.now(UTC):%Y-%m-%d}", **seen}
    _FILE.write_text(json.dumps(rows, indent=1))


def page(rows: dict[str, dict[str, Any]]) -> str:
    """The page of the documentation."""
    lines = [
        "| program | transport | name | call | outage | server restart | hub restart | hub away | hub back | seen |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for key, row in sorted(rows.items(), key=lambda each: each[0].lower()):
        program, way = key.split(" / ")
        if way == "find":
            continue
        names = row["listed"].get("call") or ["(none)"]
        steps = ("call", "outage", "server restart", "hub restart", "hub away", "hub back")
        cells = " | ".join(_brief(step, row) for step in steps)
        lines.append(f"| {program} ({row['versions']}) | {way} | `{names[0]}` | {cells} | {row['date']} |")
    return "\n".join([_HEAD, *lines, _FIND, *_finding(rows), _FOOT]).rstrip() + "\n"


def _finding(rows: dict[str, dict[str, Any]]) -> list[str]:
    """The table of find mode."""
    lines = [f"| program | {' | '.join(_FOUND)} | seen |", f"|---{'|---' * len(_FOUND)}|---|"]
    for key, row in sorted(rows.items(), key=lambda each: each[0].lower()):
        program, way = key.split(" / ")
        if way == "find":
            cells = " | ".join(
                "works" if text in row["results"].get(step, "") else "-" for step, text in _FOUND.items()
            )
            lines.append(f"| {program} ({row['versions']}) | {cells} | {row['date']} |")
    return lines


def _brief(step: str, row: dict[str, Any]) -> str:
    text = row["results"].get(step)
    if text is None:
        return (
            ("waits without an end" if row["exit"] == -1 and step == "hub away" else "")
            if row["listed"]
            else "no tools"
        )
    if step in _WORKS:
        return (
            "works"
            if _WORKS[step] in text
            else "lost its tools"
            if "not found" in text or "does not exist" in text
            else "fails"
        )
    if step == "outage":
        return "true reason" if "'one'" in text and ("refused" in text or "closed" in text) else "no reason"
    return "an error"


def _rows() -> dict[str, dict[str, Any]]:
    return dict(json.loads(_FILE.read_text())) if _FILE.exists() else {}


if __name__ == "__main__":
    PAGE.write_text(page(_rows()))
