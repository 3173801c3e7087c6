"""The examples of docs/reference/python.md run as printed, and each public name is used in one of them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast
from holdfast import errors

PAGE = Path(__file__).parents[2] / "docs/reference/python.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)

SERVER = """
import json, sys

def schema(**fields):
    return {"type": "object", "properties": {name: {"type": kind} for name, kind in fields.items()}}

TOOLS = [
    {"name": "add", "description": "Add", "inputSchema": schema(a="number", b="number")},
    {"name": "greet", "description": "Greet", "inputSchema": schema(name="string")},
]

def result(message):
    method, params = message["method"], message.get("params") or {}
    if method == "initialize":
        return {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
                "serverInfo": {"name": "calc", "version": "1"}}
    if method == "tools/list":
        return {"tools": TOOLS}
    if method == "tools/call":
        given = params["arguments"]
        text = str(given["a"] + given["b"]) if params["name"] == "add" else f"hello {given['name']}"
        return {"content": [{"type": "text", "text": text}]}
    return {} if method == "ping" else None

for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    answer = result(message)
    outcome = {"result": answer} if answer is not None else {"error": {"code": -32601, "message": "Method not found"}}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **outcome}), flush=True)
"""

PRINTS = [
    "['add', 'greet'] ['lost']",
    "calc {",
    "transient\npermanent\ndenied",
    "5\n{'calc': 'connected', 'lost': 'permanently_failed'}",
    "disabled 0\nconnected 2\n()",
    "hello Ada False 1",
    "['calc'] 60.0 ",
    "no server named `nothing` is configured",
]
"""A part of what each example prints, in the order of the page."""


def test_there_is_an_example_for_each_part_of_the_page() -> None:
    assert len(EXAMPLES) == len(PRINTS)
    used = "\n".join(EXAMPLES)
    of_results = {"CallResult", "FoundTool", "LoadResult", "MCPServerLoadOutcome", "Tool"}
    assert {*holdfast.__all__} - {*errors.__all__} - of_results <= {*re.findall(r"\w+", used)}


def test_every_error_is_in_the_table_under_its_class() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| `(\w+)` \|", PAGE.read_text(), flags=re.MULTILINE))
    raised = [getattr(holdfast, name) for name in {*holdfast.__all__} & {*errors.__all__} - {"HoldfastError"}]
    assert rows == {kind.__name__: kind.__base__.__name__ for kind in raised}


@pytest.mark.parametrize(("example", "prints"), list(zip(EXAMPLES, PRINTS, strict=False)), ids=range(len(PRINTS)))
def test_the_example_runs_as_printed(example: str, prints: str, tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(SERVER)
    (tmp_path / "example.py").write_text(example)
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    environment = {"PATH": path, "HOME": str(tmp_path), "HOLDFAST_TEST_WARM": "1"}
    ran = subprocess.run(
        [sys.executable, "example.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    assert prints in ran.stdout
