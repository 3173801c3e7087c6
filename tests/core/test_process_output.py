"""What a process printed before it ended: the line that tells most, and what it needs."""

from __future__ import annotations

import pytest

from holdfast.core.classify import classify_evidence
from holdfast.core.evidence import ProcessExit
from holdfast.core.process_output import Need, hint_for, need_of, telling_line

pytestmark = pytest.mark.requirement("DOC-9")

NPM_404 = """\
npm error code E404
npm error 404 Not Found - GET https://registry.npmjs.org/@acme%2fserver - Not found
npm error 404
npm error 404  '@acme/server@*' is not in this registry.
npm error 404
npm error 404 Note that you can also install from a
npm error 404 tarball, folder, http url, or git folder.
npm error A complete log of this run can be found in: /root/.npm/_logs/2026-11-16T06_00_00_000Z-debug-0.log
"""
SENTRY = """\
Error: No access token was provided. Pass one with `--access-token` or via `SENTRY_ACCESS_TOKEN`.
Usage: sentry-mcp --access-token=<token> [--host=<host>]

Options:
  --host  The Sentry host
"""
PYTHON = """\
Traceback (most recent call last):
  File "/srv/server.py", line 3, in <module>
    key = os.environ["ACME_API_KEY"]
  File "<frozen os>", line 679, in __getitem__
KeyError: 'ACME_API_KEY'
"""
NODE = """\
node:internal/modules/cjs/loader:1143
  throw err;
  ^

Error: Cannot find module 'express'
Require stack:
- /srv/index.js
    at Module._resolveFilename (node:internal/modules/cjs/loader:1140:15)
    at Module._load (node:internal/modules/cjs/loader:981:27) {
  code: 'MODULE_NOT_FOUND',
  requireStack: [ '/srv/index.js' ]
}

Node.js v20.11.0
"""
NODE_THROWS = """\
/srv/index.js:4
throw new Error("the database is locked by another process");
^

Error: the database is locked by another process
    at Object.<anonymous> (/srv/index.js:4:7)

Node.js v20.11.0
"""
UVX = """\
  × No solution found when resolving tool dependencies:
  ╰─▶ Because mcp-server-acme was not found in the package registry and you require mcp-server-acme, we can
      conclude that your requirements are unsatisfiable.
"""
PIP = "ERROR: Could not find a version that satisfies the requirement acme-mcp (from versions: none)\n"
DOCKER_DOWN = """\
docker: Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?
See 'docker run --help'.
"""
DOCKER_IMAGE = """\
Unable to find image 'acme/mcp:latest' locally
docker: Error response from daemon: pull access denied for acme/mcp, repository does not exist or may require login
See 'docker run --help'.
"""


@pytest.mark.parametrize(
    ("text", "telling", "kind", "names"),
    [
        (NPM_404, "'@acme/server@*' is not in this registry", "package", ("@acme/server",)),
        (SENTRY, "No access token was provided", "variable", ("SENTRY_ACCESS_TOKEN",)),
        (PYTHON, "KeyError: 'ACME_API_KEY'", "variable", ("ACME_API_KEY",)),
        (NODE, "Cannot find module 'express'", "node_module", ("express",)),
        (UVX, "mcp-server-acme was not found", "package", ("mcp-server-acme",)),
        (PIP, "satisfies the requirement acme-mcp", "package", ("acme-mcp",)),
        (DOCKER_DOWN, "Cannot connect to the Docker daemon", "docker", ()),
        (DOCKER_IMAGE, "pull access denied for acme/mcp", "image", ("acme/mcp",)),
        ("ModuleNotFoundError: No module named 'acme.core'\n", "No module named", "python_package", ("acme",)),
        ("acme requires Node >= 22\nNode.js v18.0.0\n", "requires Node", "runtime", ("node",)),
    ],
    ids=["npm", "sentry", "python", "node", "uvx", "pip", "docker down", "docker image", "module", "runtime"],
)
def test_the_telling_line_is_recognised_and_not_the_last(
    text: str, telling: str, kind: str, names: tuple[str, ...]
) -> None:
    need = need_of(text)
    assert need is not None
    assert (need.kind, need.names) == (kind, names)
    assert telling in telling_line(text)
    verdict = classify_evidence(ProcessExit(code=1, stderr=text))
    assert telling.split("'", maxsplit=1)[0][:20] in verdict.reason
    assert verdict.hint == hint_for(need)


@pytest.mark.parametrize(
    ("text", "telling"),
    [
        (NODE_THROWS, "Error: the database is locked by another process"),
        ("starting\nready\n", "ready"),
        ("npm error\nnpm error A complete log of this run can be found in: /x\n", "npm error A complete log"),
        ("npm notice\nnpm notice New major version of npm available! 11.17.0 -> 12.2.0\nnpm notice\n", ""),
        ("", ""),
    ],
    ids=["a node traceback", "no error", "only noise", "only news", "nothing"],
)
def test_without_a_known_need_an_error_line_comes_before_the_last_line(text: str, telling: str) -> None:
    assert need_of(text) is None
    assert telling_line(text).startswith(telling)
    assert bool(telling_line(text)) is bool(telling)


def test_the_status_depends_on_the_exit_code_and_never_on_the_output() -> None:
    for text in (NPM_404, SENTRY, NODE_THROWS, ""):
        assert classify_evidence(ProcessExit(code=1, stderr=text)).status == "permanent"
        assert classify_evidence(ProcessExit(code=75, stderr=text)).status == "transient"


@pytest.mark.parametrize(
    ("text", "names", "others"),
    [
        ("Error: set `ACME_KEY`, or `ACME_TOKEN`", ("ACME_KEY",), ("ACME_TOKEN",)),
        ("Error: ACME_KEY and ACME_SECRET must be set", ("ACME_KEY", "ACME_SECRET"), ()),
        ("Please set ACME_URL, ACME_USER and ACME_PASS", ("ACME_URL", "ACME_USER", "ACME_PASS"), ()),
        ("Missing one of ACME_KEY, ACME_TOKEN, ACME_FILE", ("ACME_KEY",), ("ACME_TOKEN", "ACME_FILE")),
        ("Set ACME_KEY, ACME_TOKEN, or ACME_FILE", ("ACME_KEY",), ("ACME_TOKEN", "ACME_FILE")),
        ("Error: ACME_KEY is required. Set ACME_HOST too", ("ACME_KEY", "ACME_HOST"), ()),
        ("Error: ACME_HOST is not set\nSet ACME_KEY or ACME_TOKEN", ("ACME_HOST", "ACME_KEY"), ("ACME_TOKEN",)),
        ("Error: no credentials. Set one of:\n  - ACME_KEY\n  - ACME_TOKEN\n", ("ACME_KEY",), ("ACME_TOKEN",)),
        ("ACME_KEY is not set\nOr set ACME_TOKEN to use a login\n", ("ACME_KEY",), ("ACME_TOKEN",)),
        ("ACME_KEY is required\nACME_REGION is not set (optional, defaults to eu)\n", ("ACME_KEY",), ()),
        ("Please set ACME_KEY. Alternatively, set ACME_TOKEN.", ("ACME_KEY",), ("ACME_TOKEN",)),
        ("ACME_KEY is missing; with OAuth, set ACME_CLIENT instead.", ("ACME_KEY",), ("ACME_CLIENT",)),
        ("ACME_KEY|ACME_TOKEN is required", ("ACME_KEY",), ("ACME_TOKEN",)),
        ("Missing variables:\n- ACME_KEY: the key\n- ACME_HOST\nOptional:\n- ACME_X\n", ("ACME_KEY", "ACME_HOST"), ()),
        (
            "Error: ACME_HOST is not set\nand one of these must be set:\n  ACME_KEY\n  ACME_TOKEN\n",
            ("ACME_HOST", "ACME_KEY"),
            ("ACME_TOKEN",),
        ),
        (
            "Please provide either an API key (ACME_KEY) or a service account file (ACME_FILE).",
            ("ACME_KEY",),
            ("ACME_FILE",),
        ),
        ("You must give ACME_KEY / ACME_TOKEN", ("ACME_KEY",), ("ACME_TOKEN",)),
        ("Set one of ACME_KEY for calls, ACME_HOST", ("ACME_KEY", "ACME_HOST"), ()),
        ("Set one of ACME_KEY because of ACME_HOST", ("ACME_KEY", "ACME_HOST"), ()),
    ],
)
def test_variables_that_are_alternatives_are_told_apart_from_those_that_are_all_needed(
    text: str, names: tuple[str, ...], others: tuple[str, ...]
) -> None:
    need = need_of(text)
    assert need is not None
    assert (need.names, need.others) == (names, others)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("usage: x [-h]\nx: error: the following arguments are required: --api-key, FILE", ("--api-key",)),
        ("Usage: x [OPTIONS]\nError: Missing option '--token'.", ("--token",)),
        ("Error: Missing argument 'DATABASE'.", ("DATABASE",)),
        ("error: required option '--url <url>' not specified", ("--url",)),
        ("error: missing required argument 'path'", ("path",)),
        ("Options:\n  --help\n\nMissing required argument: project", ("project",)),
        ("error: the following required arguments were not provided:\n  --dsn <DSN>\n\nUsage: x", ("--dsn",)),
    ],
)
def test_an_argument_that_is_missing_is_named(text: str, names: tuple[str, ...]) -> None:
    need = need_of(text)
    assert need is not None
    assert (need.kind, need.names) == ("argument", names)


@pytest.mark.parametrize(
    "line",
    [
        "Error [ERR_MODULE_NOT_FOUND]: Cannot find module '/a/_npx/0a1b2c3d/node_modules/sdk/dist/x' imported from {}",
        (
            "Error [ERR_UNSUPPORTED_DIR_IMPORT]: Directory import '/a/node_modules/sdk/lib' is not supported "
            "resolving ES modules imported from {}"
        ),
        (
            "Error [ERR_PACKAGE_PATH_NOT_EXPORTED]: Package subpath './old' is not defined by \"exports\" in "
            "/a/node_modules/sdk/package.json imported from {}"
        ),
        (
            "file://{}:3\nimport {{ gone }} from 'sdk';\n"
            "SyntaxError: The requested module 'sdk' does not provide an export named 'gone'"
        ),
    ],
)
def test_a_release_whose_imports_cannot_work_is_told_apart_from_an_installation_that_was_cut_off(line: str) -> None:
    need = need_of(line.format("/a/_npx/0a1b2c3d4e/node_modules/@acme/server/dist/index.js"))
    assert need is not None
    assert (need.kind, need.names) == ("broken_package", ("@acme/server",))
    own = need_of(line.format("/srv/server/dist/index.js"))
    assert own is None or own.kind != "broken_package", "a server in a folder of its own is built, not installed"


@pytest.mark.parametrize(
    ("line", "package"),
    [
        ("ImportError: httpx is required to use the query clients", "httpx"),
        ("ImportError: Missing optional dependency. Use `pip install 'acme[server]'` to get it.", "acme[server]"),
        ("RuntimeError: This needs rich. Run: pip install rich", "rich"),
        ("ModuleNotFoundError: No module named 'uvicorn'", "uvicorn"),
    ],
)
def test_a_package_that_another_uses_without_installing_it_is_named(line: str, package: str) -> None:
    need = need_of(f'Traceback (most recent call last):\n  File "/a/x.py", line 1, in <module>\n{line}\n')
    assert need is not None
    assert (need.kind, need.names) == ("python_module", (package,))


def test_the_settings_that_pydantic_rejects_are_named() -> None:
    text = (
        'Traceback (most recent call last):\n  File "/a/server.py", line 3, in <module>\n    Settings()\n'
        "pydantic_core._pydantic_core.ValidationError: 2 validation errors for Settings\n"
        "api_key\n  Field required [type=missing, input_value={}, input_type=dict]\n"
        "    For further information visit https://errors.pydantic.dev/2.14/v/missing\n"
        "port\n  Input should be a valid integer [type=int_parsing, input_value='x', input_type=str]\n"
    )
    assert telling_line(text).endswith("for Settings: api_key: Field required; port: Input should be a valid integer")


def test_a_package_that_was_unpublished_is_told_apart_from_one_that_never_was() -> None:
    text = NPM_404.replace("npm error 404\n", "npm error 404 Unpublished on 2025-03-16T14:23:17.034Z\n", 1)
    need = need_of(text)
    assert need is not None
    assert (need.kind, need.names, need.why) == (
        "withdrawn",
        ("@acme/server",),
        "Unpublished on 2025-03-16T14:23:17.034Z",
    )


def test_a_withdrawn_version_is_told_apart_from_a_withdrawn_package() -> None:
    need = need_of(
        "  × No solution found when resolving tool dependencies:\n"
        "  ╰─▶ Because acme-mcp==1.2.3 was yanked (reason: a bug) and you require acme-mcp==1.2.3, we can\n"
        "      conclude that your requirements are unsatisfiable.\n"
    )
    assert need is not None
    assert (need.kind, need.version, need.why) == ("withdrawn", "==1.2.3", "a bug")


def test_an_executable_of_a_dependency_is_named_with_its_package() -> None:
    need = need_of(
        "The executable `fastmcp` was not found.\nwarning: An executable named `fastmcp` is not provided by package "
        "`acme` but is available via the dependency `fastmcp-cli`. Consider using `uvx --from fastmcp-cli fastmcp` "
        "instead.\n"
    )
    assert need is not None
    assert (need.kind, need.names[0], need.others) == ("executable", "fastmcp-cli", ("fastmcp",))


@pytest.mark.parametrize(
    ("need", "hint"),
    [
        (Need("variable", ("A",)), "its output names `A`: give it a value in `env`"),
        (Need("variable", ("A", "B")), "its output names `A` and `B`: give them a value in `env`"),
        (Need("variable", ("A",), others=("B", "C")), "its output names `A` (or `B` or `C`): give it a value in `env`"),
        (
            Need("python_package", ("mcp",)),
            "it was written for another version of the Python package `mcp`: install that version",
        ),
        (
            Need("python_package", ("mcp",), version="<2"),
            "it was written for another version of the Python package `mcp`: install `mcp<2`",
        ),
        (
            Need("runtime", ("node",), version="22"),
            "install Node 22, and put it first on PATH or write its full path into `command`",
        ),
        (
            Need("runtime", ("node",)),
            "install a newer Node, and put it first on PATH or write its full path into `command`",
        ),
        (
            Need("package", ("acme",), version="9"),
            "the registry has no version 9 of the package `acme`: name another version of the server in `args`",
        ),
        (Need("package", ("acme",)), "the registry has no package `acme`: correct the name in `args`"),
        (Need("withdrawn", ("acme",)), "its authors have withdrawn the package `acme`: use another server"),
        (
            Need("withdrawn", ("acme",), others=("acme2",)),
            "its authors have withdrawn the package `acme`: write `acme2` into `args`",
        ),
        (
            Need("broken_package", ("acme",)),
            "this release of the package `acme` is broken: name another version of it in `args`",
        ),
        (
            Need("executable", ("acme",), others=("run",)),
            "the package `acme` has no such executable: write `--from`, `acme`, `run` into `args`",
        ),
    ],
)
def test_a_hint_says_exactly_what_is_known(need: Need, hint: str) -> None:
    assert hint_for(need) == hint


def test_a_runtime_that_is_named_in_words_is_told_with_its_version() -> None:
    need = need_of("acme requires at least Python 3.12\n")
    assert need is not None
    assert (need.kind, need.names, need.version) == ("runtime", ("python",), "3.12")


def test_an_error_about_arguments_that_names_none_needs_none() -> None:
    need = need_of("x: error: the following arguments are required: ???")
    assert need is None or need.kind != "argument"


def test_a_package_without_any_executable_is_named_alone() -> None:
    need = need_of("Package `acme` does not provide any executables.")
    assert need is not None
    assert (need.kind, need.names) == ("executable", ("acme",))


def test_a_withdrawal_that_broke_nothing_is_no_need_and_one_without_a_reason_gives_none() -> None:
    yanked = "Because acme-mcp==1.2.3 was yanked and you require acme-mcp==1.2.3, we can conclude that it is"
    need = need_of(f"  ╰─▶ {yanked} unsatisfiable.\n")
    assert need is not None
    assert (need.kind, need.why, need.others) == ("withdrawn", "", ())
    for other in (f"{yanked} fine", "With yanked versions left out, what you require is unsatisfiable"):
        fine = need_of(f"  ╰─▶ {other}.\n")
        assert fine is None or fine.kind != "withdrawn"


def test_a_warning_about_a_certificate_is_no_need_and_an_error_names_its_host() -> None:
    said = "error: request to https://pypi.example:8443/simple failed\n  cause: invalid peer certificate: UnknownIssuer"
    need = need_of(said)
    assert need is not None
    assert (need.kind, need.names) == ("certificate", ("pypi.example:8443",))
    assert telling_line(said) == "invalid peer certificate: UnknownIssuer"
    warned = need_of("npm warn request to https://x.example failed, reason: self-signed certificate")
    assert warned is None or warned.kind != "certificate"


@pytest.mark.parametrize(
    ("text", "names", "others"),
    [
        ("Or set ACME_TOKEN to use a login", ("ACME_TOKEN",), ()),
        (
            "ACME_HOST is not set. Set one of:\n- ACME_KEY\nStopped\nACME_USER must be set",
            ("ACME_HOST", "ACME_KEY", "ACME_USER"),
            (),
        ),
        # A choice takes the place of what stands before it only if that is of the same list.
        (
            "ACME_HOST is required\nOr set ACME_SOCKET\nACME_USER is required",
            ("ACME_HOST", "ACME_USER"),
            ("ACME_SOCKET",),
        ),
        (
            "ACME_HOST is not set. Set one of:\n- ACME_KEY\n- ACME_TOKEN\n- ACME_FILE\nStopped\nACME_USER must be set",
            ("ACME_HOST", "ACME_KEY", "ACME_USER"),
            ("ACME_TOKEN", "ACME_FILE"),
        ),
        (
            "Missing variables:\n- ACME_HOST\n- ACME_KEY\nOr set ACME_TOKEN",
            ("ACME_HOST", "ACME_KEY"),
            ("ACME_TOKEN",),
        ),
        (
            "ACME_HOST is not set\nRequired, one of:\nYou must set one of:\n- ACME_KEY",
            ("ACME_HOST", "ACME_KEY"),
            (),
        ),
        (
            "ACME_HOST is not set. Set one of:\nACME_KEY and ACME_USER are required",
            ("ACME_HOST", "ACME_KEY"),
            ("ACME_USER",),
        ),
        (
            "ACME_KEY or ACME_TOKEN is required\nACME_TOKEN or ACME_FILE is required",
            ("ACME_KEY",),
            ("ACME_TOKEN", "ACME_FILE"),
        ),
    ],
)
def test_variables_of_several_lines_are_one_need(text: str, names: tuple[str, ...], others: tuple[str, ...]) -> None:
    need = need_of(text)
    assert need is not None
    assert (need.names, need.others) == (names, others)
