"""The report of an examination: findings, their remedies, the versioned format of ``doctor --json``, and repairs.

A new field needs a default, and a renamed field needs a new version of the report. ``make schema`` writes its
JSON Schema. This module is cheap to import, so that a broken configuration is reported without loading the MCP client.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from holdfast._version import __version__
from holdfast.config import (
    Backups,
    ClientFile,
    ClientLocation,
    ConfigReading,
    FileEdit,
    KeyPath,
    entry_secrets,
    find_config,
    is_named,
    parse,
    read_file,
    rename_key,
    replace_value,
    set_member,
)
from holdfast.control import running_hubs
from holdfast.core import MASK, Evidence, Redactor, classify_evidence, telling_line, visible_json
from holdfast.doctor.codes import CODES, Code, Severity
from holdfast.errors import (
    ConfigError,
    ConfigNotFound,
    HoldfastError,
    Problem,
    UnknownServer,
    UntrustedConfig,
    UsageError,
)
from holdfast.files import PRIVATE_FILE, set_aside

__all__ = [
    "VERSION",
    "CheckResult",
    "Edit",
    "EditPlan",
    "Finding",
    "Health",
    "HubSeen",
    "LiveState",
    "ProposedEdit",
    "Remedy",
    "Repair",
    "Repaired",
    "Report",
    "ReportModel",
    "ServerReport",
    "SharedCause",
    "as_told",
    "ask_for",
    "causes_of",
    "check_names",
    "code_named",
    "finding",
    "open_at",
    "own_findings",
    "plan_edits",
    "problem_finding",
    "read_or_report",
    "rename_edits",
    "repair",
    "shell",
    "undo_edits",
    "worst",
]

Repair: TypeAlias = Literal["chmod", "set_aside"]
"""What ``--fix`` can repair."""


class ReportModel(BaseModel):
    """The base of every part of a report: frozen, without unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Edit(ReportModel):
    """A value to write into the configuration."""

    action: Literal["replace", "insert", "rename"] = Field(
        default="replace",
        description="Replace the value at `place`, insert a member after the `{` at `place`, or replace the key there",
    )
    place: str = Field(description="The position of the value, of the object to insert into, or of the key")
    key: str = Field(description="The key, from the top of the file: mcpServers.weather.url")
    keys: tuple[str | int, ...] = Field(description="The key inside its server, or inside `holdfast`, step by step")
    path: tuple[str | int, ...] = Field(default=(), description="The key from the top of the file, step by step")
    value: str = Field(description="The value, as JSON; for `rename`, the new key")
    paste: str = Field(default="", description="The exact text to paste at `place`")
    certain: bool = Field(default=True, description="Whether `--fix` may write it without a question")


class Remedy(ReportModel):
    """What to do: a sentence, and commands and edits to paste."""

    text: str = Field(description="What to do, in a sentence")
    commands: tuple[str, ...] = Field(default=(), description="Shell commands to paste, in order")
    edits: tuple[Edit, ...] = Field(default=(), description="Values to write into the configuration")


class Finding(ReportModel):
    """One fault that a check found."""

    code: str = Field(description="Stable, HF-…; `holdfast doctor explain CODE` explains it")
    severity: Severity
    words: str = Field(description="The fault, in this case")
    detail: str = Field(default="", description="Lines to look at, such as the end of a server's stderr")
    remedy: Remedy
    repair: Repair | None = Field(default=None, description="What `--fix` does about it, if that is safe")
    target: str = Field(default="", description="The file that the repair changes")

    def rewritten(self, change: Callable[[str], str]) -> Finding:
        """The same finding with every text changed. It is used to mask secrets."""
        remedy = self.remedy
        return self.model_copy(
            update={
                "words": change(self.words),
                "detail": change(self.detail),
                "remedy": Remedy(
                    text=change(remedy.text),
                    commands=tuple(map(change, remedy.commands)),
                    edits=tuple(
                        edit.model_copy(update={"value": change(edit.value), "paste": change(edit.paste)})
                        for edit in remedy.edits
                    ),
                ),
            }
        )


def finding(
    code: str,
    words: str,
    remedy: str,
    *commands: str,
    edits: tuple[Edit, ...] = (),
    detail: str = "",
    repair: Repair | None = None,
    target: str = "",
) -> Finding:
    """A finding of a known code; ``commands`` are shell commands to paste."""
    return Finding(
        code=code,
        severity=CODES[code].severity,
        words=words,
        detail=detail,
        remedy=Remedy(text=remedy, commands=commands, edits=in_order(edits)),
        repair=repair,
        target=target,
    )


def as_told(
    code: str, seen: Evidence, remedy: str, *commands: str, edits: tuple[Edit, ...] = (), detail: str = ""
) -> Finding:
    """A finding in the hub's own words about this evidence (DOC-9). ``remedy`` says what only doctor can add."""
    return finding(code, classify_evidence(seen).reason, remedy, *commands, edits=edits, detail=detail)


def in_order(edits: tuple[Edit, ...]) -> tuple[Edit, ...]:
    """The edits from the end of the file to its start, so that one edit does not move the position of the next.

    Members for the same object become one text, which is with the first of them; the others then paste nothing.
    """
    members: dict[str, dict[str, object]] = {}
    for edit in edits:
        if edit.action == "insert":
            _merge(members.setdefault(edit.place, {}), json.loads(f"{{{edit.paste.removesuffix(',')}}}"))
    ordered = []
    for edit in sorted(edits, key=_position, reverse=True):
        if edit.action == "insert":
            text = visible_json(members.pop(edit.place, {}))[1:-1]
            comma = "," if text and edit.paste.endswith(",") else ""
            edit = edit.model_copy(update={"paste": text + comma})  # noqa: PLW2901 - the same edit, with its text
        ordered.append(edit)
    return tuple(ordered)


def _merge(into: dict[str, object], more: dict[str, object]) -> None:
    for key, value in more.items():
        there = into.get(key)
        if isinstance(there, dict) and isinstance(value, dict):
            _merge(there, value)
        else:
            into[key] = value


def _position(edit: Edit) -> tuple[int, ...]:
    return tuple(int(part) for part in edit.place.split(":")[-2:] if part.isdigit())


def ask_for(variable: str) -> str:
    """A command that reads a variable's value from the keyboard, so that it is not shown and not in the history."""
    return f"read -rs {variable} && export {variable}"


def shell(*words: str) -> str:
    """A command line of these words, quoted for a shell."""
    return shlex.join(words)


VERSION = 1
"""Incremented when a field is renamed, removed or changes its meaning; not when one is added."""

Health: TypeAlias = Literal["healthy", "warned", "failed", "disabled"]
CheckStatus: TypeAlias = Literal["passed", "warned", "failed", "skipped"]


class CheckResult(ReportModel):
    """The result of one check."""

    check: str = Field(description="The check's id")
    status: CheckStatus
    seen: str = Field(default="", description="What the check saw, in short; for a skipped check, the reason")
    findings: tuple[Finding, ...] = ()
    elapsed_ms: float = 0.0


class LiveState(ReportModel):
    """The same server in a running hub on this machine."""

    state: str
    status: str
    breaker: str
    reason: str = ""
    retry_in: float | None = Field(
        default=None, description="Seconds until the hub tries again without being asked, at the end of the examination"
    )
    breaker_retry_in: float | None = Field(
        default=None, description="Seconds until a call may try again while the breaker is open"
    )
    agrees: bool = Field(description="Whether the hub and this examination agree about the server")
    difference: str = Field(default="", description="How they differ, and possible reasons")


class ServerReport(ReportModel):
    """One server."""

    id: str
    transport: str = Field(description="stdio, http, sse or hub; empty if the definition cannot be read")
    target: str = Field(default="", description="Its command or URL, masked")
    health: Health
    tools: int | None = Field(
        default=None, description="The number of listed tools that its definition does not hide; null if it listed none"
    )
    checks: tuple[CheckResult, ...] = ()
    hub: LiveState | None = Field(default=None, description="Its state in a running hub; null if there is no such hub")
    elapsed_ms: float = 0.0

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All findings, in the order of the checks."""
        return tuple(found for result in self.checks for found in result.findings)


class SharedCause(ReportModel):
    """One cause that several servers share. Each of them has the finding too."""

    code: str
    severity: Severity
    words: str = Field(description="The fault, as the first of them has it")
    servers: tuple[str, ...] = Field(description="The servers that have it")
    detail: str = Field(default="", description="The lines of the first of them")
    remedy: Remedy = Field(description="What to do for all of them")


class Repaired(ReportModel):
    """A repair by ``--fix``, done or failed."""

    code: str
    server: str = Field(default="", description="The server; empty if the repair concerns no single server")
    done: bool
    words: str


class HubSeen(ReportModel):
    """A running hub on this machine that serves this configuration."""

    url: str
    version: str
    pid: int


class Report(ReportModel):
    """A whole examination."""

    version: int = VERSION
    holdfast: str = Field(description="The version of Holdfast that made it")
    ok: bool = Field(description="Whether no check failed and each server was judged; the exit code is then 0, else 1")
    file: str | None = Field(default=None, description="The configuration; null if none was found")
    searched: tuple[str, ...] = Field(default=(), description="The paths that were searched for a configuration")
    served: tuple[str, ...] = Field(
        default=(), description="If none was found: the files that hubs on this machine serve"
    )
    hub: HubSeen | None = Field(default=None, description="The running hub that the servers were compared with")
    checks: tuple[CheckResult, ...] = Field(default=(), description="Checks that concern no single server")
    servers: tuple[ServerReport, ...] = ()
    causes: tuple[SharedCause, ...] = Field(
        default=(), description="Causes that several servers share, the most common first"
    )
    repairs: tuple[Repaired, ...] = ()
    elapsed_ms: float = 0.0

    def count(self, health: Health) -> int:
        """The number of servers with that health."""
        return sum(server.health == health for server in self.servers)


def causes_of(servers: Sequence[ServerReport]) -> tuple[SharedCause, ...]:
    """The causes that more than one server has."""
    shared = [_shared(group) for group in _by_cause(servers).values() if len({name for name, _ in group}) > 1]
    return tuple(sorted(shared, key=lambda cause: -len(cause.servers)))


def own_findings(servers: Sequence[ServerReport]) -> dict[str, tuple[Finding, ...]]:
    """The findings of each server that no other server has."""
    by_cause = _by_cause(servers)

    def is_own(server: str, found: Finding) -> bool:
        return all(name == server for name, _ in by_cause[_cause_key(server, found)])

    return {one.id: tuple(found for found in one.findings if is_own(one.id, found)) for one in servers}


def _by_cause(servers: Sequence[ServerReport]) -> dict[tuple[str, ...], list[tuple[str, Finding]]]:
    groups: dict[tuple[str, ...], list[tuple[str, Finding]]] = {}
    for server in servers:
        for found in server.findings:
            groups.setdefault(_cause_key(server.id, found), []).append((server.id, found))
    return groups


_CAUSE_IN_DETAIL = frozenset({"HF-EXITED", "HF-KILLED", "HF-COMMAND-START", "HF-STDOUT-ONLY", "HF-UNEXPECTED"})
"""Codes whose sentence is the same for every cause: the output makes the difference."""

_VARYING = re.compile(r"\d+(?:\.\d+)? s\b|\b[0-9a-f]{8,}\b|:\d+(?::\d+)?\b|(?<![\w@`])/\S+")
"""What differs from server to server with one cause: times, hashes, positions, paths."""


def _cause_key(server: str, found: Finding) -> tuple[str, ...]:
    """Equal for two findings that have the same cause."""
    # Where the output must tell the cause and tells nothing, no two are known to be alike.
    detail = (telling_line(found.detail) or server) if found.code in _CAUSE_IN_DETAIL else ""
    own_name = re.compile(rf"(?<=\.){re.escape(server)}(?=[.\[`])")
    texts = (found.words, found.remedy.text, detail)
    return (found.code, *(_VARYING.sub("…", own_name.sub("…", text)) for text in texts))


def _shared(group: Sequence[tuple[str, Finding]]) -> SharedCause:
    first = group[0][1]
    edits = tuple(edit for _, found in group for edit in found.remedy.edits)
    commands = tuple(dict.fromkeys(command for _, found in group for command in found.remedy.commands))
    return SharedCause(
        code=first.code,
        severity=first.severity,
        words=first.words,
        servers=tuple(dict.fromkeys(name for name, _ in group)),
        detail=first.detail,
        remedy=Remedy(text=first.remedy.text, commands=commands, edits=in_order(edits)),
    )


def worst(findings: tuple[Finding, ...]) -> Literal["passed", "warned", "failed"]:
    """The status of a check with these findings."""
    severities = {found.severity for found in findings}
    if "error" in severities:
        return "failed"
    return "warned" if "warning" in severities else "passed"


def read_or_report(path: Path | None) -> ConfigReading | Report:
    """The configuration at ``path``, or the first that the search finds, or a report that says why there is none."""
    try:
        file = find_config(path, environ=os.environ, cwd=Path.cwd())
    except ConfigNotFound as error:
        served = tuple(hub.config for hub in running_hubs() if hub.config)
        return Report(holdfast=__version__, ok=True, searched=tuple(map(str, error.searched)), served=served)
    try:
        return read_file(file, environ=os.environ, found=not is_named(path, os.environ))
    except UntrustedConfig:
        raise  # a question for the user, not a fault of the file
    except ConfigError as error:
        mask = Redactor().mask
        findings = tuple(
            problem_finding("HF-CONFIG", problem, edits=rename_edits(problem)).rewritten(mask)
            for problem in error.problems
        )
        result = CheckResult(check="configuration", status="failed", findings=findings)
        return Report(holdfast=__version__, ok=False, file=str(file), checks=(result,))


def rename_edits(problem: Problem) -> tuple[Edit, ...]:
    """The edit that replaces an unknown key by the known one that it probably stands for."""
    if not problem.rename:
        return ()
    place = f"{problem.file.name if problem.file else 'line'}:{problem.line}:{problem.column}"
    name = json.dumps(problem.rename)
    return (
        Edit(
            action="rename",
            place=place,
            key=problem.path,
            keys=problem.keys[2:] or problem.keys,
            path=problem.keys,
            value=name,
            paste=name,
        ),
    )


def check_names(names: Sequence[str], reading: ConfigReading) -> None:
    """Reject names of servers that are not configured."""
    known = [definition.server.id for definition in reading.definitions]
    for name in names:
        if name not in known:
            unknown = UnknownServer.among(name, known)
            raise UsageError(unknown.message, hint=unknown.hint)


def code_named(text: str) -> Code:
    """The code of that name, in upper or lower case, with or without ``HF-``."""
    wanted = text.upper() if text.upper().startswith("HF-") else f"HF-{text.upper()}"
    if wanted in CODES:
        return CODES[wanted]
    near = get_close_matches(wanted, CODES, n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(CODES)}"
    raise UsageError(f"there is no code `{text}`", hint=hint)


def problem_finding(code: str, problem: Problem, *, edits: tuple[Edit, ...] = ()) -> Finding:
    """The finding for a problem in the file, with the command that opens the file at its line."""
    return finding(code, str(problem), problem.hint or "correct it there", *open_at(problem), edits=edits)


def open_at(problem: Problem) -> tuple[str, ...]:
    """The command that opens the file of a problem at its line; none where it has no file."""
    if problem.file is None:
        return ()
    at = [f"+{problem.line}"] if problem.line else []
    return (f"${{EDITOR:-vi}} {shell(*at, str(problem.file))}",)


# The repairs of ``doctor --fix``. Nothing is deleted. An edit is written exactly as the report shows it, after a
# backup, and can be undone.

OWNER = "doctor"
"""The name of this command's backups."""


def repair(found: Finding) -> Repaired | None:
    """Make the repair that the finding names; None if it names none."""
    file = Path(found.target)
    try:
        match found.repair:
            case "chmod":
                file.chmod(PRIVATE_FILE)
                return Repaired(code=found.code, done=True, words=f"{file} can now be read only by you (mode 600)")
            case "set_aside":
                aside = set_aside(file)
                return Repaired(code=found.code, done=True, words=f"set {file} aside as {aside.name}")
            case None:
                return None
    except OSError as exc:
        why = exc.strerror or type(exc).__name__
        return Repaired(code=found.code, done=False, words=f"{file} could not be repaired: {why}")


@dataclass(frozen=True, kw_only=True)
class ProposedEdit:
    """An edit of the report, and the finding that proposes it."""

    server: str
    code: str
    edit: Edit

    def repaired(self, *, done: bool, why: str = "") -> Repaired:
        """The entry in the report about what became of the edit."""
        verb = "renamed to" if self.edit.action == "rename" else "is now"
        words = f"{self.edit.key} {verb} {self.edit.value}" if done else f"{self.edit.key}: {why}"
        return Repaired(code=self.code, server=self.server, done=done, words=words)


@dataclass(frozen=True, kw_only=True)
class EditPlan(FileEdit):
    """What ``--fix`` writes into one file: no more than the edits that the report shows."""

    edits: tuple[ProposedEdit, ...]
    secrets: frozenset[str] = field(default=frozenset(), repr=False)
    """The secrets of the file, for the diff."""


def proposed_edits(report: Report) -> Iterator[ProposedEdit]:
    """Every edit of a report, in its order."""
    of_file = [("", found) for result in report.checks for found in result.findings]
    of_servers = [(server.id, found) for server in report.servers for found in server.findings]
    for server, found in (*of_file, *of_servers):
        for edit in found.remedy.edits:
            yield ProposedEdit(server=server, code=found.code, edit=edit)


def plan_edits(report: Report, *, certain: bool = True) -> tuple[EditPlan | None, list[Repaired]]:
    """The edits that can be written, as one plan, and why each of the others is not.

    With ``certain``, only edits without an alternative are planned. Otherwise only those that a person must choose.
    """
    if report.file is None:
        return None, []
    file = ClientFile.read(Path(report.file))
    text = file.text
    taken: list[ProposedEdit] = []
    left: list[Repaired] = []
    for proposed in proposed_edits(report):
        edit = proposed.edit
        # The first edit of a key wins: a second one was made for the text before it, and may contradict it.
        if edit.certain != certain or any(_overlap(edit.path, other.edit.path) for other in taken):
            continue
        if MASK in edit.value:
            left.append(proposed.repaired(done=False, why="its value contains a secret: write it by hand"))
            continue
        text = _edited(text, edit)
        taken.append(proposed)
    if not taken:
        return None, left
    plan = EditPlan(
        owner=OWNER,
        place=_location(file.file),
        before=file.text,
        after=text,
        note=" (repaired)",
        edits=tuple(taken),
        secrets=_secrets(file),
    )
    return plan, left


def _secrets(file: ClientFile) -> frozenset[str]:
    """The secrets of every definition. A text with a reference to a variable is none, and must be seen."""
    groups = (file.servers((group,)) for group in ("mcpServers", "servers"))
    found = (entry_secrets(raw) for group in groups for raw in group.values() if isinstance(raw, dict))
    return frozenset(secret for secrets in found for secret in secrets if "${" not in secret)


def undo_edits(file: Path) -> None:
    """Restore the file from its newest backup, which is gone then."""
    backups = Backups(os.environ)
    backup = backups.latest(OWNER, _location(file))
    if backup is None:
        raise HoldfastError(f"there is nothing to undo: `doctor --fix` has not edited {file}")
    if not backup.is_untouched(ClientFile.read(file).text):
        raise HoldfastError(
            f"{file} changed since `doctor --fix` wrote it: nothing was written",
            hint=f"the text before the edit is in {backup.kept_in}, under `before`",
        )
    backups.restore(backup, backup.before)


def _edited(text: str, edit: Edit) -> str:
    """The text with one edit, checked: it must contain the expected value and no other change."""
    value = json.loads(edit.value)
    document = parse(text)
    if edit.action == "rename":
        after = rename_key(text, edit.path, value)
    elif edit.path in document.spans:
        after = replace_value(text, edit.path, value)
    else:
        after = set_member(text, tuple(map(str, edit.path[:-1])), str(edit.path[-1]), value)
    if parse(after).value != _changed(document.value, edit.path, value, rename=edit.action == "rename"):
        raise HoldfastError(f"{edit.place} cannot be edited safely: nothing was changed", hint="edit the file by hand")
    return after


def _changed(whole: Any, path: KeyPath, value: object, *, rename: bool) -> Any:
    step, rest = path[0], path[1:]
    if isinstance(whole, list):
        inner = _changed(whole[int(step)], rest, value, rename=rename) if rest else value
        return [inner if index == step else item for index, item in enumerate(whole)]
    members = whole if isinstance(whole, dict) else {}
    if rename and not rest:
        return {value if key == step else key: item for key, item in members.items()}
    return {**members, step: _changed(members.get(step), rest, value, rename=rename) if rest else value}


def _overlap(one: KeyPath, other: KeyPath) -> bool:
    shared = min(len(one), len(other))
    return one[:shared] == other[:shared]


def _location(file: Path) -> ClientLocation:
    return ClientLocation(file=file.absolute(), path=(), scope="user")
