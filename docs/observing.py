"""Write the reference of metrics and events from the tables and records of the program."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import get_args

from holdfast.control.server.metrics import METHODS, METRICS, SECONDS, WAITS, Metric
from holdfast.core import breaker
from holdfast.core.lifecycle import events
from holdfast.core.lifecycle.table import State
from holdfast.hub import journal
from holdfast.hub.journal import RECORDS, BreakerChanged, CallOutcome, OneClientRecord, event_name

__all__ = ["observing"]

REFERENCE = Path(__file__).parent / "reference"

METRICS_HEAD = """\
# Metrics

The metrics at `/metrics` of [a hub](../how-to/observe.md), in Prometheus' text format. `make docs` writes this page; a
test fails if it is out of date. On Linux there are also the usual `process_…` metrics.

Labels are bounded. `server` is a configured server: the series of a removed server disappear. A tool, an address or a
caller is never a label.

| metric | kind | labels | |
|---|---|---|---|
"""

EVENTS_HEAD = """\
# Events

Every transition, trip, retry, denial and call is one record. The log, the metrics, the traces, the control API with
its status page, and [your own program](python.md) (`hub.events()`, `hub.listen(sink)`) all get the same records. `make
docs` writes this page; a test fails if it is out of date.

In the JSON log (`--log-format json`) a record is one line: `event` is its name, and its fields are beside it. Empty
fields are left out.
"""


def observing() -> dict[Path, str]:
    """Both pages."""
    return {REFERENCE / "metrics.md": _metrics(), REFERENCE / "events.md": _events()}


def _metrics() -> str:
    rows = "\n".join(map(_row, METRICS.values()))
    return f"{METRICS_HEAD}{rows}\n\n" + "\n".join(_values()) + "\n"


def _row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.shown}` | {metric.kind} | {labels} | {metric.says} |"


def _values() -> Iterator[str]:
    yield "## Values of labels\n"
    yield f"- `outcome`: {_listed(get_args(CallOutcome))}"
    yield f"- `state`: {_listed(state.shown for state in State)}"
    yield f"- `method`: {_listed(sorted(METHODS))}, and `other` for all others"
    yield "- `result`: `applied`, `refused`\n"
    yield "## Buckets\n"
    yield f"- `holdfast_call_seconds`: {', '.join(f'{bound:g}' for bound in SECONDS)}"
    yield f"- `holdfast_call_wait_seconds`: {', '.join(f'{bound:g}' for bound in WAITS)}"


def _listed(names: Iterator[str] | tuple[str, ...] | list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _events() -> str:
    parts = [EVENTS_HEAD]
    for kind in RECORDS:
        if kind is OneClientRecord:
            continue
        says = inspect.getdoc(kind) or ""
        parts.append(f"## {event_name(kind)}\n\n{says} (`{kind.__name__}`)\n\n" + "\n".join(_fields(kind)) + "\n")
    parts.append(f"## One client's own connections\n\n{inspect.getdoc(OneClientRecord)}")
    parts.append("Its line has the event inside it, with `one_client` beside the fields.\n")
    return "\n".join(parts).replace("``", "`")


def _fields(kind: type) -> Iterator[str]:
    if kind is BreakerChanged:
        yield "- `server`\n- `open`: true if it opened, false if it closed"
        for change in (breaker.Tripped, breaker.ClosedAgain):
            names = ", ".join(f"`{one.name}`" for one in fields(change) if one.name != "at")
            yield f"- {'opened' if change is breaker.Tripped else 'closed'}: {names}"
        return
    notes = _notes(kind)
    for name in kind.__annotations__:
        if name != "at":
            yield f"- `{name}`" + (f": {notes[name]}" if name in notes else "")


def _notes(kind: type) -> dict[str, str]:
    """The text under each field in the source."""
    module = events if kind.__module__ == events.__name__ else journal
    (found,) = [
        node
        for node in ast.parse(inspect.getsource(module)).body
        if isinstance(node, ast.ClassDef) and node.name == kind.__name__
    ]
    notes: dict[str, str] = {}
    for field, note in zip(found.body, found.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(note, ast.Expr):
            assert isinstance(note.value, ast.Constant)  # noqa: S101 - a text under a field
            notes[field.target.id] = str(note.value.value)
    return notes
