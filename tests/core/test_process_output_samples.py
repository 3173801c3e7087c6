"""The most telling line of a process's output, for outputs that real programs wrote."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from holdfast.core import process_output
from holdfast.core.classify import classify_evidence
from holdfast.core.evidence import ProcessExit
from holdfast.core.process_output import LONGEST_LIST, MOST_LINES, hint_for, need_of, telling_line

pytestmark = pytest.mark.requirement("DOC-9")

OUTPUTS = Path(__file__).with_name("outputs")

TELLING = [
    ("npx404", "package", "npm error code E404: The requested resource '@modelcontextprotocol/server-doesnotexist@*'"),
    ("npxver", "package", "npm error code ETARGET: No matching version found for @modelcontextprotocol/server-github"),
    ("npxdep", "package", "npm error code ETARGET: No matching version found for typedarray.prototype.slice@^1.0.6."),
    ("npxcert", "certificate", "npm error request to https://registry.npmjs.org/@notionhq%2fnotion-mcp-server failed"),
    ("npxcjs", "npx_folder", "Error: Cannot find module '@shopify/liquid-html-parser'"),
    ("npxcut", "npx_folder", "Error [ERR_MODULE_NOT_FOUND]: Cannot find module '/home/ada/.npm/_npx/0726791833487271"),
    ("uvxcert", "certificate", "invalid peer certificate: UnknownIssuer"),
    ("uvxpython", "runtime", "Because the current Python version (3.11.2) does not satisfy Python>=3.12"),
    ("brightdata", "variable", "Error: Cannot run MCP server without API_TOKEN env"),
    ("sentry", "variable", "Error: No access token was provided."),
    ("brave", "variable", "Error: A Brave API key is required via"),
    ("uvx404", "package", "Because mcp-server-doesnotexist-xyz was not found in the package registry"),
    ("uvxcmd", "executable", "An executable named `mcp-server-nosuch` is not provided by package `mcp-server-time`."),
    ("pip", "package", "ERROR: No matching distribution found for nosuch-package-xyz"),
    ("nodemod", "node_module", "Error: Cannot find module './nosuch'"),
    ("nodeerr", None, "TypeError: Cannot read properties of undefined (reading 'y')"),
    ("pymod", "python_module", "ModuleNotFoundError: No module named 'nosuch'"),
    ("pykey", "variable", "KeyError: 'API_KEY'"),
    ("pychain", None, "RuntimeError: Could not connect to the database at startup"),
    ("pygroup", "variable", "ValueError: GITLAB_TOKEN environment variable is required"),
    ("docker_daemon", "docker", "docker: Cannot connect to the Docker daemon"),
    ("redis_refused", "address", "[Redis Error] Stack: Error: connect ECONNREFUSED 127.0.0.1:6379"),
    ("node_cause", "address", "Error: getaddrinfo ENOTFOUND svelte.dev"),
    ("sdk_decorator", "python_package", "AttributeError: 'Server' object has no attribute 'list_resources'"),
    ("sdk_module", "python_package", "ModuleNotFoundError: No module named 'mcp.server.fastmcp'."),
    ("sdk_name", "python_package", "ImportError: cannot import name 'streamablehttp_client' from"),
    ("uvxname", "executable", "An executable named `mcp-server-snowflake` is not provided by package"),
    ("uvxlibrary", "executable", "Package `pydantic` does not provide any executables."),
    ("npxbin", "executable", "npm error could not determine executable to run"),
    ("uvxyanked", "withdrawn", "Because all versions of awslabs-cdk-mcp-server were yanked (reason: Superceeded by"),
    ("uvxyanked_url", "withdrawn", "Because all versions of awslabs-terraform-mcp-server were yanked"),
    ("uvxyanked_long", "withdrawn", "And because awslabs-aws-diagram-mcp-server>=0.8.2025141004 was yanked"),
    ("npxsuffix", "broken_package", "Fatal error in main(): Cannot find module '/home/ada/.npm/_npx/909ffbc9d45b7a62"),
    ("gitlab", "variable", "ERROR [18:50:04.304] (27932): GITLAB_PERSONAL_ACCESS_TOKEN environment variable is not"),
    ("figma", "variable", "Either FIGMA_API_KEY or FIGMA_OAUTH_TOKEN is required"),
    ("pydantic_name", "python_package", "ImportError: cannot import name 'eval_type_backport' from 'pydantic._inter"),
    ("pydantic_field", "python_package", "TypeError: cannot specify both default and default_factory"),
    ("pyremoved", "python_package", "ModuleNotFoundError: No module named 'logfire.experimental.query_client'"),
    ("flag", "argument", "Error: In-memory databases require the --read-write flag."),
    ("uvxrange", "runtime", "Because the current Python version (3.11.2) does not satisfy Python>=3.12,<3.13"),
    ("uvxver", "package", "Because there is no version of mcp-server-time==99.9.9"),
    ("pnpm404", "package", "Failed to resolve the latest version of nosuch-package-xyz-1:"),
    ("pnpmver", "package", "No matching version found for cowsay@99.9.9"),
    ("bun404", "package", "error: GET https://registry.npmjs.org/nosuch-package-xyz-1 - 404"),
    ("bunver", "package", "error: No version matching"),
    ("deno404", "package", "error: npm package 'nosuch-package-xyz-1' does not exist."),
    ("yarn404", "package", "➤ YN0027: create-nosuch-xyz-1@unknown can't be resolved"),
    ("docker_image", "image", "docker: Error response from daemon: pull access denied for mcp/nosuch"),
]


def output(name: str) -> str:
    return (OUTPUTS / f"{name}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize(("name", "kind", "line"), TELLING, ids=[name for name, _, _ in TELLING])
def test_the_telling_line_of_a_real_output_is_found(name: str, kind: str | None, line: str) -> None:
    need = need_of(output(name))
    assert telling_line(output(name)).startswith(line)
    assert (need.kind if need is not None else None) == kind
    reason = classify_evidence(ProcessExit(code=1, stderr=output(name))).reason
    assert line[:60] in reason


def names(text: str) -> tuple[str, ...]:
    need = need_of(text)
    return need.names if need is not None else ()


def test_what_is_missing_is_named() -> None:
    assert names(output("npx404")) == ("@modelcontextprotocol/server-doesnotexist",)
    assert names(output("npxdep")) == ("typedarray.prototype.slice",)
    assert names(output("npxcert")) == ("registry.npmjs.org",)
    assert names(output("npxcut")) == ("0726791833487271",)
    assert names(output("uvxcert")) == ("pypi.org",)
    assert names(output("brightdata")) == ("API_TOKEN",)
    assert names(output("npxver")) == ("@modelcontextprotocol/server-github",)
    assert names(output("uvx404")) == ("mcp-server-doesnotexist-xyz",)
    assert names(output("nodemod")) == ("./nosuch",)
    assert names(output("pymod")) == ("nosuch",)
    assert names(output("sentry")) == ("SENTRY_ACCESS_TOKEN",), "the usage text names many more"
    assert names(output("uvxyanked_long")) == ("awslabs-aws-diagram-mcp-server",)
    assert names(output("npxsuffix")) == ("@heroku/mcp-server",), "the package that imports, not the one without it"
    assert names(output("flag")) == ("--read-write",)
    assert names(output("pnpm404")) == names(output("bun404")) == names(output("deno404")) == ("nosuch-package-xyz-1",)
    assert names("Missing A_KEY\nMissing B_KEY\n") == ("A_KEY", "B_KEY")


@pytest.mark.parametrize("name", ["sdk_name", "pydantic_name", "pydantic_field"])
def test_the_file_in_which_another_version_of_a_package_was_found_is_the_last_of_its_environment(name: str) -> None:
    need = need_of(output(name))
    files = [line.split('"')[1] for line in output(name).splitlines() if "/site-packages/" in line and 'File "' in line]
    assert need is not None
    assert files
    assert need.place == files[-1]


@pytest.mark.parametrize(
    ("name", "version"),
    [("npxver", "99.99.99"), ("npxdep", "^1.0.6"), ("uvxver", "99.9.9"), ("pnpmver", "99.9.9"), ("npx404", "")],
)
def test_a_version_that_the_registry_does_not_have_is_named(name: str, version: str) -> None:
    need = need_of(output(name))
    assert need is not None
    assert need.version == version
    assert (f"no version {version} of" in hint_for(need)) == bool(version)


@pytest.mark.parametrize(
    ("name", "needed", "instead"),
    [
        ("brave", ("BRAVE_API_KEY",), ("BRAVE_API_KEY_FILE",)),
        ("gitlab", ("GITLAB_PERSONAL_ACCESS_TOKEN",), ("GITLAB_USE_OAUTH",)),
        ("figma", ("FIGMA_API_KEY",), ("FIGMA_OAUTH_TOKEN",)),
        ("uvxname", ("mcp-server-snowflake", "mcp-server-snowflake"), ("mcp_server_snowflake",)),
        ("uvxcmd", ("mcp-server-time", "mcp-server-nosuch"), ("mcp-server-time",)),
        ("uvxyanked", ("awslabs-cdk-mcp-server",), ("awslabs.aws-iac-mcp-server",)),
        ("uvxyanked_url", ("awslabs-terraform-mcp-server",), ()),
    ],
)
def test_what_would_do_instead_is_told_apart_from_what_is_needed(
    name: str, needed: tuple[str, ...], instead: tuple[str, ...]
) -> None:
    need = need_of(output(name))
    assert need is not None
    assert (need.names, need.others) == (needed, instead)


def test_a_withdrawal_is_told_with_its_reason_and_a_runtime_with_its_whole_range() -> None:
    withdrawn, runtime = need_of(output("uvxyanked_long")), need_of(output("uvxrange"))
    assert withdrawn is not None
    assert withdrawn.why.startswith("Superceeded by diagram agent skill in the deploy-on-aws plugin https://")
    assert runtime is not None
    assert runtime.version == ">=3.12,<3.13"


@pytest.mark.parametrize(
    ("text", "package"),
    [
        (output("pydantic_name"), "pydantic<2.12"),
        (output("pydantic_field"), "pydantic<2.12"),
        ("ImportError: acme 1.2 requires pydantic<2.12, but you have pydantic 2.14.3\n", "pydantic<2.12"),
        ("ImportError: tokenizers>=0.21,<0.22 is required for this module, but found 0.23\n", "tokenizers>=0.21,<0.22"),
        (
            "pkg_resources.VersionConflict: (click 9.0 (/a), Requirement.parse('click<9,>=8'))\n",
            "click<9,>=8",
        ),
        (
            "pkg_resources.DistributionNotFound: The 'anyio<5' distribution was not found and is required by acme\n",
            "anyio<5",
        ),
        (output("pyremoved"), "logfire"),
        (output("sdk_decorator"), "mcp<2"),
        (output("sdk_module"), "mcp<2"),
        (output("sdk_name"), "mcp<2"),
        ("ModuleNotFoundError: No module named 'mcp.server.mcpserver'\n", "mcp>=2"),
        ("ImportError: cannot import name 'McpError' from 'mcp' (/a/site-packages/mcp/__init__.py)\n", "mcp<2"),
        ("ImportError: cannot import name 'MCPError' from 'mcp' (/a/site-packages/mcp/__init__.py)\n", "mcp>=2"),
        (
            "ImportError: cannot import name 'x' from 'acme._internal' (/a/site-packages/acme/x.py)\n",
            "acme",
        ),
    ],
)
def test_a_server_for_another_version_of_a_package_is_not_told_to_install_the_package(text: str, package: str) -> None:
    need = need_of(text)
    assert need is not None
    assert (need.kind, need.names[0] + need.version) == ("python_package", package)


@pytest.mark.parametrize(
    ("line", "address"),
    [
        ("Error: connect ECONNREFUSED ::1:6379", "[::1]:6379"),
        ("Error: getaddrinfo ENOTFOUND db.internal", "db.internal"),
        ("ConnectionRefusedError: [Errno 111] Connect call failed ('127.0.0.1', 5432)", "127.0.0.1:5432"),
        ('connection to server at "localhost" (::1), port 5432 failed: Connection refused', "localhost:5432"),
        ("redis.exceptions.ConnectionError: Error 111 connecting to localhost:6379. refused.", "localhost:6379"),
        ("ServerSelectionTimeoutError: localhost:27017: [Errno 111] Connection refused", "localhost:27017"),
        ("2026/01/01 dial tcp 127.0.0.1:5432: connect: connection refused", "127.0.0.1:5432"),
        ("Error: Can't connect to MySQL server on 'localhost:3306' (111)", "localhost:3306"),
    ],
)
def test_a_service_that_does_not_answer_is_named(line: str, address: str) -> None:
    need = need_of(f"Starting\n{line}\n")
    assert need is not None
    assert (need.kind, need.names) == ("address", (address,))


@pytest.mark.parametrize(
    ("line", "port"),
    [
        ("Failed to start server: Error: listen EADDRINUSE: address already in use :::3001", "3001"),
        ("Error: listen EADDRINUSE: address already in use 127.0.0.1:9009", "9009"),
        (
            "ERROR: [Errno 98] error while attempting to bind on address ('127.0.0.1', 8000): address already in use",
            "8000",
        ),
        ("OSError: [Errno 98] Address already in use", ""),
        ("OSError: [Errno 48] Address already in use: ('localhost', 9876)", "9876"),
        ("2026/01/01 listen tcp 127.0.0.1:8080: bind: address already in use", "8080"),
        ('Error: Os { code: 98, kind: AddrInUse, message: "Address already in use" }', ""),
    ],
)
def test_a_port_that_another_program_has_is_named(line: str, port: str) -> None:
    need = need_of(f"Starting\n{line}\n    at Server.setupListenHandle\n")
    assert need is not None
    assert (need.kind, need.names) == ("port", (port,) if port else ())
    assert hint_for(need).startswith(
        f"another process has its port {port}" if port else "another process has its port:"
    )


def test_a_file_with_the_name_of_a_module_is_no_reason_to_install_something() -> None:
    line = "ModuleNotFoundError: No module named 'http.client'; 'http' is not a package"
    assert (need_of(line), telling_line(line)) == (None, line)


def test_a_missing_variable_counts_more_than_a_service_that_does_not_answer() -> None:
    need = need_of("telemetry: connect ECONNREFUSED 127.0.0.1:4318\nError: API_KEY is required\n")
    assert need is not None
    assert need.names == ("API_KEY",)


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
        ("npm warn old\nnpm notice new version\n", "npm warn old"),
        ("error: first\nerror: second\n", "error: first"),
        ("\u00e9\u0000odd\n", "\u00e9\u0000odd"),
    ],
)
def test_an_output_that_no_program_is_known_for_gives_its_first_error_or_its_last_line(text: str, line: str) -> None:
    assert telling_line(text) == line


@pytest.mark.requirement("SEC-4")
def test_a_hostile_output_takes_no_time() -> None:
    """Patterns that backtrack would take seconds on these; the test ends by its own limit then."""
    for text in ("no " * 100_000, "A" * 1_000_000, "A_" * 500_000, "Error: " * 100_000, "'" * 500_000, "{" * 500_000):
        telling_line(text)
        telling_line(f"npm error code E404\nnpm error 404 {text}")
        telling_line(f"Traceback (most recent call last):\n{text}")


@pytest.mark.requirement("SEC-7")
def test_only_the_last_lines_are_compared_with_the_patterns() -> None:
    """Eight thousand lines of one letter took a tenth of a second, on the event loop."""
    assert telling_line("error: first\n" + "x\n" * MOST_LINES) == "x"
    assert telling_line("error: first\n" + "x\n" * (MOST_LINES - 1)) == "error: first"


def cost_of(text: str) -> float:
    """The CPU time of one look at a text, as little as it was seen to be."""
    times = []
    for _ in range(3):
        began = time.process_time()
        need_of(text)
        times.append(time.process_time() - began)
    return min(times)


@pytest.mark.requirement("SEC-7")
@pytest.mark.parametrize(
    "line",
    [
        "missing " + ", ".join(f"A_{number}" for number in range(150)),
        "missing " + ", ".join("ABCDE_FGHI"[: 3 + number % 7] + "_X" for number in range(100)),
        "a." * 499,
    ],
    ids=["many variables", "the same variables", "one long name"],
)
def test_a_hostile_line_costs_little_more_than_a_plain_one_of_its_length(line: str) -> None:
    """A process that ended with 16 KiB of such lines held up the event loop for up to half a second."""
    plain = "\n".join(["x" * 999] * 16)
    assert cost_of("\n".join([line[:999]] * 16)) < 12 * cost_of(plain)


@pytest.mark.requirement("SEC-7")
def test_variables_are_looked_for_in_the_lines_that_follow_and_not_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[str] = []
    real = process_output._groups

    def counted(line: str, *, listed: bool = False) -> list[list[str]]:
        looked_at.append(line)
        return real(line, listed=listed)

    monkeypatch.setattr(process_output, "_groups", counted)
    need = need_of("\n".join(f"missing A_{number}" for number in range(300)))
    assert need is not None
    assert need.names == ("A_0", "A_1", "A_2")
    assert len(looked_at) <= LONGEST_LIST + 2


@pytest.mark.parametrize(
    ("name", "last"),
    [("probe_plain", "INFO:mcp-shell-server:Server shutdown complete"), ("probe_rich", "ListToolsRequest")],
)
def test_what_a_server_says_of_the_probe_of_its_era_is_not_taken_for_its_trouble(name: str, last: str) -> None:
    said = output(name)
    assert telling_line(said) == last
    assert telling_line(said[-3000:]) == last, "also where its beginning is no longer kept"
    assert telling_line(f"{said}ERROR:root:the disk is full\n") == "ERROR:root:the disk is full"
    assert need_of(said) is None


@pytest.mark.parametrize(
    ("frames", "place"),
    [
        (["/srv/server.py"], ""),
        (["/a/lib/site-packages/x.py", "/srv/server.py"], "/a/lib/site-packages/x.py"),
        (["/a/lib/site-packages/x.py", "/a/lib/site-packages/y.py", "<frozen z>"], "/a/lib/site-packages/y.py"),
        ([], ""),
    ],
)
def test_a_package_is_looked_for_in_the_environment_of_the_last_frame_and_not_beside_the_program(
    frames: list[str], place: str
) -> None:
    lines = [f'  File "{frame}", line 3, in <module>' for frame in frames]
    error = "ImportError: cannot import name 'McpError' from 'mcp' (/a/site-packages/mcp/__init__.py)"
    said = "\n".join(["Traceback (most recent call last):", *lines, error])
    need = need_of(said)
    assert need is not None
    assert (need.names, need.place) == (("mcp",), place)
