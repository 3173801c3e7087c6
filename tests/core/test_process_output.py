"""The most telling line of a process's output, for outputs that real programs wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.core.classify import classify_evidence
from holdfast.core.evidence import ProcessExit
from holdfast.core.process_output import OutputKind, read_output

pytestmark = pytest.mark.requirement("DOC-9")

OUTPUTS = Path(__file__).with_name("outputs")

VARIABLE, PACKAGE, MODULE, DOCKER, ERROR = (
    OutputKind.VARIABLE,
    OutputKind.PACKAGE,
    OutputKind.MODULE,
    OutputKind.DOCKER,
    OutputKind.ERROR,
)

TELLING = [
    ("npx404", PACKAGE, "npm error code E404: The requested resource '@modelcontextprotocol/server-doesnotexist@*'"),
    ("npxver", PACKAGE, "npm error code ETARGET: No matching version found for @modelcontextprotocol/server-github"),
    ("sentry", VARIABLE, "Error: No access token was provided."),
    ("brave", VARIABLE, "Error: A Brave API key is required via"),
    ("uvx404", PACKAGE, "Because mcp-server-doesnotexist-xyz was not found in the package registry"),
    ("uvxcmd", PACKAGE, "An executable named `mcp-server-nosuch` is not provided by package `mcp-server-time`."),
    ("pip", PACKAGE, "ERROR: No matching distribution found for nosuch-package-xyz"),
    ("nodemod", MODULE, "Error: Cannot find module './nosuch'"),
    ("nodeerr", ERROR, "TypeError: Cannot read properties of undefined (reading 'y')"),
    ("pymod", MODULE, "ModuleNotFoundError: No module named 'nosuch'"),
    ("pykey", VARIABLE, "KeyError: 'API_KEY'"),
    ("pychain", ERROR, "RuntimeError: Could not connect to the database at startup"),
    ("pygroup", VARIABLE, "ValueError: GITLAB_TOKEN environment variable is required"),
    ("docker_daemon", DOCKER, "docker: Cannot connect to the Docker daemon"),
    ("docker_image", DOCKER, "docker: Error response from daemon: pull access denied for mcp/nosuch"),
]


def output(name: str) -> str:
    return (OUTPUTS / f"{name}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize(("name", "kind", "line"), TELLING, ids=[name for name, _, _ in TELLING])
def test_the_telling_line_of_a_real_output_is_found(name: str, kind: OutputKind, line: str) -> None:
    said = read_output(output(name))
    assert said.line.startswith(line)
    assert said.kind is kind
    reason = classify_evidence(ProcessExit(code=1, stderr=output(name))).reason
    assert line[:60] in reason


def test_what_is_missing_is_named() -> None:
    assert read_output(output("npx404")).subject == "@modelcontextprotocol/server-doesnotexist"
    assert read_output(output("npxver")).subject == "@modelcontextprotocol/server-github"
    assert read_output(output("uvx404")).subject == "mcp-server-doesnotexist-xyz"
    assert read_output(output("nodemod")).subject == "./nosuch"
    assert read_output(output("pymod")).subject == "nosuch"
    assert read_output(output("sentry")).variables == ("SENTRY_ACCESS_TOKEN",), "the usage text names many more"
    assert read_output(output("brave")).variables == ("BRAVE_API_KEY", "BRAVE_API_KEY_FILE")
    assert read_output("Missing A_KEY\nMissing B_KEY\n").variables == ("A_KEY", "B_KEY")


def test_the_hint_names_the_variable_instead_of_sending_people_to_a_terminal() -> None:
    hint = classify_evidence(ProcessExit(code=1, stderr=output("sentry"))).hint
    assert "SENTRY_ACCESS_TOKEN" in hint
    assert "by hand" not in hint
    assert "by hand" in classify_evidence(ProcessExit(code=1, stderr="it ends here\n")).hint


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", ""),
        ("  \n\n", ""),
        ("one\ntwo\n", "two"),
        ("starting\nlistening failed: address in use\nbye\n", "listening failed: address in use"),
        ("npm warn old\nnpm notice new version\n", "npm notice new version"),
        ("error: first\nerror: second\n", "error: first"),
        ("\u00e9\u0000odd\n", "\u00e9\u0000odd"),
    ],
)
def test_an_output_that_no_program_is_known_for_gives_its_first_error_or_its_last_line(text: str, line: str) -> None:
    assert read_output(text).line == line


@pytest.mark.requirement("SEC-4")
def test_a_hostile_output_takes_no_time() -> None:
    """Patterns that backtrack would take seconds on these; the test ends by its own limit then."""
    for text in ("no " * 100_000, "A" * 1_000_000, "A_" * 500_000, "Error: " * 100_000, "'" * 500_000, "{" * 500_000):
        read_output(text)
        read_output(f"npm error code E404\nnpm error 404 {text}")
        read_output(f"Traceback (most recent call last):\n{text}")
