"""What the server says: the handshake, and its tools."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

from holdfast.doctor.case import Case
from holdfast.doctor.checks.base import Check, Seen, found
from holdfast.doctor.diagnosis.diagnose import diagnose
from holdfast.doctor.findings import Finding, finding, shell
from holdfast.doctor.probe import probe
from holdfast.hub.lease import is_shown

__all__ = ["HandshakeCheck", "ToolsCheck"]

_NAMED = 5
"""How many tools are named before the rest is counted."""

_ACCEPTED_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")

_EITHER = (
    "HF-CUT",
    "HF-SILENT",
    "HF-NOT-READY",
    "HF-RATE",
    "HF-AUTH-OUTAGE",
    "HF-DENIED",
    "HF-DENIED-UNCLEAR",
    "HF-AUTH-SCOPE",
    "HF-PROTOCOL",
    "HF-RPC-ERROR",
    "HF-BOUND",
    "HF-KILLED",
    "HF-EXITED",
    "HF-UNEXPECTED",
)
"""What can go wrong in the handshake and, in another moment, in the listing."""


class HandshakeCheck(Check):
    """Whether it speaks MCP with us."""

    id: ClassVar[str] = "handshake"
    looks_at: ClassVar[str] = "whether it answers, lets us in, and speaks a protocol version that we know"
    needs: ClassVar[tuple[str, ...]] = ("definition", "command", "port", "tls")
    finds: ClassVar[tuple[str, ...]] = (
        *_EITHER,
        "HF-COMMAND-FORMAT",
        "HF-COMMAND-START",
        "HF-EXIT-VARIABLE",
        "HF-EXIT-RUNTIME",
        "HF-EXIT-MODULE",
        "HF-EXIT-PACKAGE",
        "HF-STDOUT-ONLY",
        "HF-STDOUT-NOISE",
        "HF-PROXY-LOGIN",
        "HF-PROXY-REFUSED",
        "HF-HTTPS-MEANT",
        "HF-PLAIN-CREDENTIALS",
        "HF-AUTH-NEEDED",
        "HF-AUTH-REJECTED",
        "HF-AUTH-EXPIRED",
        "HF-AUTH-AUDIENCE",
        "HF-LOGIN-INPUT",
        "HF-LOGIN-ENDED",
        "HF-LOGIN-UNREACHABLE",
        "HF-PATH",
        "HF-TYPE-SSE",
        "HF-TYPE-HTTP",
        "HF-REDIRECT",
        "HF-STATUS",
        "HF-NOT-MCP",
        "HF-VERSION",
    )

    async def look(self, case: Case) -> Seen:
        """Dial it as the runtime does, and list what it offers on the same connection."""
        tools = case.tools
        seen = case.learned.probe = await probe(
            case.spec, dialer=tools.dialer, turnstile=tools.turnstile, redactor=case.redactor, deadline=case.deadline
        )
        if not seen.version:
            assert seen.evidence is not None  # noqa: S101 - a dial without either has not ended
            return found(await diagnose(case, seen.evidence))
        noisy = (_noisy(case, seen.noise),) if seen.noise else ()
        return Seen(f"speaks MCP {seen.version} after {seen.handshake_seconds:.2f} s", noisy)


def _noisy(case: Case, noise: str) -> Finding:
    words = "it prints on stdout what is not MCP; Holdfast passes over it, other clients may fail on it"
    text = "let it log to stderr; this shows what it prints"
    command = f"{shell(case.spec.command, *case.spec.args)} </dev/null"
    return finding("HF-STDOUT-NOISE", words, text, command, detail=noise)


class ToolsCheck(Check):
    """What tools it has, and whether clients can use them."""

    id: ClassVar[str] = "tools"
    looks_at: ClassVar[str] = "whether it lists its tools, with names and schemas that clients accept"
    needs: ClassVar[tuple[str, ...]] = ("handshake",)
    finds: ClassVar[tuple[str, ...]] = (
        *_EITHER,
        "HF-TOOLS-NONE",
        "HF-TOOLS-HIDDEN",
        "HF-TOOLS-DUPLICATE",
        "HF-TOOLS-NAME",
        "HF-TOOLS-SCHEMA",
    )

    async def look(self, case: Case) -> Seen:
        """Look at what the handshake's connection listed."""
        seen = case.learned.probe
        assert seen is not None  # noqa: S101 - `handshake` made it
        if seen.evidence is not None:
            return found(await diagnose(case, seen.evidence))
        offered = (seen.listing or {}).get("tools", ())
        listed = {name: raw for name, raw in offered if is_shown(name, case.spec.tools)}
        count = f"{len(listed)} tool{'' if len(listed) == 1 else 's'} listed in {seen.listing_seconds:.2f} s"
        if not offered:
            return Seen(count, (_none(other_offers=bool(seen.listing and len(seen.listing) > 1)),))
        if not listed:
            return Seen(count, (_hidden(case, len(offered)),))
        return Seen(count, tuple(_faults(case, [name for name, _ in offered if name in listed], listed)))


def _none(*, other_offers: bool) -> Finding:
    words = "it lists no tools" + (", only prompts or resources" if other_offers else "")
    text = "if it should have some, compare its arguments and credentials with its documentation; this shows them"
    return finding("HF-TOOLS-NONE", words, text, "holdfast config show")


def _hidden(case: Case, count: int) -> Finding:
    words = f"its definition hides all of its {count} tools"
    text = "show all of them, or correct the patterns"
    return finding("HF-TOOLS-HIDDEN", words, text, edits=(case.edit("tools", {"include": ["*"]}),))


def _faults(case: Case, names: list[str], listed: Mapping[str, Mapping[str, Any]]) -> Iterator[Finding]:
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        words = f"more than one tool is called {_some(twice)}"
        yield _at_fault(case, "HF-TOOLS-DUPLICATE", words, twice)
    if odd := [name for name in listed if not _ACCEPTED_NAME.fullmatch(name)]:
        words = f"clients accept letters, digits, _ and -, 64 at the most, as a tool's name; not {_some(odd)}"
        yield _at_fault(case, "HF-TOOLS-NAME", words, odd)
    invalid = {name: why for name, raw in listed.items() if (why := _schema_fault(raw))}
    if invalid:
        first, why = next(iter(invalid.items()))
        words = f"the schema of {_some(list(invalid))} is not valid JSON Schema ({first}: {why})"
        yield _at_fault(case, "HF-TOOLS-SCHEMA", words, list(invalid))


def _at_fault(case: Case, code: str, words: str, names: list[str]) -> Finding:
    text = "a fault of the server's own: tell its authors; until then, hide what cannot be used"
    return finding(code, words, text, edits=(case.edit("tools.exclude", names),))


def _some(names: list[str]) -> str:
    shown = ", ".join(f"`{name[:70]}`" for name in names[:_NAMED])
    return f"{shown} and {len(names) - _NAMED} more" if len(names) > _NAMED else shown


def _schema_fault(raw: Mapping[str, Any]) -> str:
    """Why a tool's schema is not one; empty if it is."""
    for key in ("inputSchema", "outputSchema"):
        schema = raw.get(key)
        if schema is None:
            continue
        try:
            Draft202012Validator.check_schema(schema)
        except SchemaError as exc:
            where = "/".join(map(str, exc.absolute_path)) or key
            return f"{where}: {' '.join(exc.message.split())[:100]}"
        if key == "inputSchema" and schema.get("type") != "object":
            return 'inputSchema: its type must be "object"'
    return ""
