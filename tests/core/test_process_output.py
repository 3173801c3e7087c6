"""What a process printed before it ended: the line that tells most, and what it needs."""

from __future__ import annotations

import pytest

from holdfast.core.classify import classify_evidence
from holdfast.core.evidence import ProcessExit
from holdfast.core.process_output import hint_for, need_of, telling_line

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
        ("", ""),
    ],
    ids=["a node traceback", "no error", "only noise", "nothing"],
)
def test_without_a_known_need_an_error_line_comes_before_the_last_line(text: str, telling: str) -> None:
    assert need_of(text) is None
    assert telling_line(text).startswith(telling)


def test_the_status_depends_on_the_exit_code_and_never_on_the_output() -> None:
    for text in (NPM_404, SENTRY, NODE_THROWS, ""):
        assert classify_evidence(ProcessExit(code=1, stderr=text)).status == "permanent"
        assert classify_evidence(ProcessExit(code=75, stderr=text)).status == "transient"


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("Either FIGMA_API_KEY or FIGMA_OAUTH_TOKEN is required (via CLI argument or .env file)", ("FIGMA_API_KEY",)),
        ("Error: set `ACME_KEY`, or `ACME_TOKEN`", ("ACME_KEY",)),
        ("Error: ACME_KEY and ACME_SECRET must be set", ("ACME_KEY", "ACME_SECRET")),
    ],
)
def test_of_two_variables_that_are_alternatives_one_is_asked_for(line: str, names: tuple[str, ...]) -> None:
    need = need_of(line)
    assert need is not None
    assert need.names == names
