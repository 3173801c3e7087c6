"""Write the generated parts of the documentation: ``python docs/generate.py [--check]``."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from architecture import architecture
from commands_page import TERMINAL, commands
from observing import observing

from holdfast.control.server.control_events import EVENTS
from holdfast.control.server.operations import OPERATIONS, Operation, document
from holdfast.doctor.case import Check
from holdfast.doctor.codes import GROUPS, Code
from holdfast.doctor.examine import CHECKS, GLOBAL_CHECKS

DOCS = Path(__file__).parent
COMMANDS = DOCS / "reference" / "commands.md"
CONTROL_API = DOCS / "reference" / "control-api.md"

DOCTOR = DOCS / "reference" / "doctor.md"

DOCTOR_HEAD = """\
# Doctor: checks and codes

`holdfast doctor` checks all servers concurrently and says how to repair them; [how to use it](../how-to/doctor.md).
`make docs` writes this page; a test fails if it is out of date.

| exit code | |
|---|---|
| 0 | nothing failed, or nothing is configured (it says where it looked) |
| 1 | something failed |
| 2 | wrong usage: an option, a server or a code that does not exist |

`--json` prints one document of the schema in [schema/doctor.schema.json](../../schema/doctor.schema.json). Its
`version` increases when a field is renamed, removed or changes its meaning; new fields may come at any time. Codes are
stable: the words may change, the meaning does not.

## Checks

The checks run in this order. A check whose needs failed is skipped and says so. All checks of a server share its
deadline (`--timeout`, else `holdfast.load.attemptTimeout`); all servers are checked concurrently. A check that crashes
is a finding. Doctor sends a server nothing that is not in its definition: the search for another path stays on its
origin, and the check of a certificate sends no data of yours.

| check | looks at | needs |
|---|---|---|
"""

CODES_HEAD = """
## Codes

A server with an *error* cannot be used, and the exit code is 1. A *warning* or a *note* does not change the exit code.
`holdfast doctor explain CODE` prints the same text.
"""


def doctor() -> str:
    """Every check and every code."""
    rows = [f"| `{check.id}` | {check.looks_at} | {_needs(check)} |" for check in CHECKS]
    rows += [f"| `{check.id}` | {check.looks_at} (once for all servers) | |" for check in GLOBAL_CHECKS]
    parts = [DOCTOR_HEAD + "\n".join(rows), CODES_HEAD]
    for title, codes in GROUPS.items():
        parts.append(f"## {title}\n")
        parts += [f"### {code.id}\n\n*{code.severity}.* {_described(code)}\n" for code in codes]
    return "\n".join(parts)


def _needs(check: Check) -> str:
    return ", ".join(f"`{need}`" for need in check.needs)


def _described(code: Code) -> str:
    return f"{code.means}.\n\n- Cause: {code.cause}\n- Cure: {code.cure}"


# The control API

API_HEAD = """\
# The control API

The API to see and operate a running hub. The status page, `holdfast status` and the other commands use only this API.
Its OpenAPI 3.1 document is at `GET /api/openapi.json`. `make docs` writes this page from it; a test fails if it is out
of date.

## Authorization

An operation needs a role: `read`, `operate` or `approve`. Who may operate or approve may also read. The **control
token** (`Authorization: Bearer …`) and a browser that **signed in with a code** have every role; these tokens do not
open `/mcp`. A **principal** has the roles that `holdfast.access.roles` gives her. She is known as at `/mcp`: by her own
token, by a trusted gateway, or by the session of her browser. A refusal names the role that is missing.

- The control token is in the file of `--control-token-file` or is `$HOLDFAST_CONTROL_TOKEN`, at least 16 characters, or
  the hub makes one at each start. It is never printed. The commands of the same user find it in `hubs/` in the
  [state folder](../how-to/serve.md), in a file that only this user can read. The file is removed when the hub ends.
- A browser signs in by a code: `holdfast status --open`, or the address that `holdfast serve` prints on a terminal. A
  code works once, for ten minutes; its token ends with the hub. After 20 wrong codes within a minute, further wrong
  ones are answered late, as wrong tokens are; a valid one works all the same.
- `Host` and `Origin` are checked as for callers. An `Origin` must be the hub's own, including the port. No other
  site is allowed (CORS). A request with the cookie of a session that changes something must have an `Origin`.

A refusal is `{"error": "…", "hint": "…"}`: 422 for an unreadable request, 401 without a valid token, 403 for a
forbidden Origin or a missing role, 404 for an unknown resource, 409 if a server's state does not allow it, 421 for a
Host that is not served, 502 if a server failed. New keys may be added to an answer; no key changes its meaning.
"""


def control_api() -> str:
    """The operations, the events and the models."""
    schemas = document()["components"]["schemas"]
    operations = [_operation(operation) for operation in OPERATIONS]
    events = [f"| `{name}` | {words} |" for name, words in EVENTS.items()]
    parts = [
        API_HEAD,
        "## Operations\n",
        "| | needs | returns | |\n|---|---|---|---|",
        "\n".join(operations) + "\n",
        "A server's id is one segment of the path, percent-encoded.\n",
        "## Events\n",
        "`GET /api/events` is a stream of server-sent events. The numbers (`id`) increase. A comment every 15 s keeps",
        "the stream alive.\n",
        "| event | |\n|---|---|",
        "\n".join(events) + "\n",
        "## Models\n",
        "Times are seconds since the epoch (`at`, `since`, `started`, `now`, `until`) or from now (`retry_in`).\n",
        *(line for name in sorted(schemas) for line in _shape(name, schemas[name])),
    ]
    return "\n".join(parts)


_NEEDS = {"nothing": "", "caller": "any principal", "control": "the control token"}
"""What else an operation needs is a role."""


def _operation(operation: Operation) -> str:
    needs = _NEEDS.get(operation.needs, f"`{operation.needs}`")
    answer = operation.answer.__name__ if operation.answer is not None else operation.media_type
    body = f" {operation.body.__name__}" if operation.body is not None else ""
    query = "".join(f"?{name}=N" for name in operation.query)
    return f"| `{operation.method} {operation.path}{query}`{body} | {needs} | {answer} | {operation.summary} |"


def _shape(name: str, schema: dict[str, Any]) -> Iterator[str]:
    yield f"### {name}\n"
    yield f"{schema.get('description', '').replace('``', '`')}\n"
    yield "| | | |\n|---|---|---|"
    for key, value in schema.get("properties", {}).items():
        yield f"| `{key}` | {_kind(value)} | {value.get('description', '')} |"
    yield ""


def _kind(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"].rpartition("/")[2])
    if "anyOf" in schema:
        return " or ".join(_kind(one) for one in schema["anyOf"])
    if "enum" in schema:
        return ", ".join(f"`{one}`" for one in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    return str(schema.get("type", "anything"))


def main() -> int:
    """Write the pages, or with ``--check`` say whether they are up to date."""
    os.environ.update(TERMINAL)
    fresh = {COMMANDS: commands(), CONTROL_API: control_api(), DOCTOR: doctor(), **observing(), **architecture()}
    if "--check" in sys.argv:
        return 0 if all(page.exists() and page.read_text() == text for page, text in fresh.items()) else 1
    for page, text in fresh.items():
        page.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
