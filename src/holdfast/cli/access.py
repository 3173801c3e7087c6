"""``holdfast access`` and ``holdfast audit``: what the access rules decide, and who did what.

No hub needs to run. ``access`` reads the rules of an mcp.json: for one question, a table of expectations, or the calls
of an audit. A service that decides too (``access.extAuthz``) is not asked. ``audit`` reads the files that a hub wrote,
and ``audit verify`` checks them; the folder and the key are those of the mcp.json, or of the options.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import typer
from rich.text import Text

import holdfast.access
import holdfast.config
from holdfast.cli.command_options import AsJson, group_of_commands, object_in
from holdfast.cli.output import counted, print_json, print_json_line, print_line, print_note
from holdfast.cli.trust import load_trusted
from holdfast.core import cut, plain
from holdfast.errors import ConfigNotFound, UsageError

if TYPE_CHECKING:
    from holdfast.access import AccessDecision, AccessItem, AuditRecord, Verified
    from holdfast.config import AccessRule, AccessSettings

__all__ = ["access_app", "audit_app"]

access_app = group_of_commands(needs_one=False)

_Kind = Literal["tool", "prompt", "resource"]

_RulesConfig = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="The mcp.json with the rules")]

_EFFECT_STYLES = {"allow": "green", "ask": "yellow", "deny": "red"}


@access_app.callback()
def access() -> None:
    """Say what the access rules decide: for one call, for a table of expectations, or for recorded calls."""


@access_app.command()
def explain(
    user: Annotated[
        str, typer.Argument(metavar="USER", help="A principal: `ci`, `https://idp.example#ada`, `gateway#bob`, `local`")
    ],
    tool: Annotated[str, typer.Argument(metavar="TOOL", help="SERVER/NAME, by the name that the server gives it")],
    groups: Annotated[
        list[str] | None, typer.Option("--groups", metavar="NAME,…", help="The groups of the user; may be repeated")
    ] = None,
    scopes: Annotated[
        list[str] | None, typer.Option("--scopes", metavar="NAME,…", help="The scopes of the token; may be repeated")
    ] = None,
    arguments: Annotated[
        str | None, typer.Option("--arguments", metavar="JSON", help="The arguments of the call, for conditions")
    ] = None,
    kind: Annotated[_Kind, typer.Option("--kind", help="What TOOL is")] = "tool",
    as_json: AsJson = False,
    config: _RulesConfig = None,
) -> None:
    """Say whether a call is allowed, which rule decides that, and whether the tool is listed.

    Without --arguments it says too if that depends on them.
    Exit code 0: it was said.
    """
    settings = load_trusted(config).settings.access
    principal = holdfast.access.principal_named(user, _names(groups), _names(scopes))
    item = _item(kind, tool)
    policy = holdfast.access.Policy(settings)
    given = object_in(arguments, "--arguments", example='{"n": 5}') if arguments is not None else None
    decision = policy.decide(principal, item, given)
    effects = (
        holdfast.access.PossiblePolicy(settings).effects(principal, item) if arguments is None else {decision.effect}
    )
    told = _told(settings, decision, listed=policy.may_list(principal, item))
    told |= {"user": user, "kind": kind, "server": item.server, "name": item.name, "possible": sorted(effects)}
    if as_json:
        print_json(told)
    else:
        _print_explained(told, settings)


@access_app.command("test")
def check_table(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A JSON file with the expectations")],
    as_json: AsJson = False,
    config: _RulesConfig = None,
) -> None:
    """Check a table of expectations against the rules.

    {"tests": [{"user": "bob", "groups": ["dev"], "tool": "jira/get_issue",
    "arguments": {"n": 5}, "expect": "allow"}]}

    `expect` is allow, ask or deny; `listed` and `rule` may be there too. A test has one of
    `tool`, `prompt` and `resource`.
    Exit code 0: all are as expected. 1: some are not.
    """
    settings = load_trusted(config).settings.access
    policy = holdfast.access.Policy(settings)
    rows = [_tested(policy, settings, number, one) for number, one in enumerate(_tests_in(file))]
    failed = sum(not row["passed"] for row in rows)
    if as_json:
        print_json({"passed": len(rows) - failed, "failed": failed, "tests": rows})
    else:
        for row in rows:
            _print_tested(row)
        print_note((f"{counted(len(rows), 'test')}, {failed} failed", "red" if failed else "green"))
    raise typer.Exit(1 if failed else 0)


@access_app.command()
def replay(
    policy: Annotated[
        Path, typer.Option("--policy", metavar="FILE", help="The mcp.json with the new rules", show_default=False)
    ],
    since: Annotated[
        str, typer.Option("--since", metavar="TIME", help="Calls since then: `2h`, `7d`, or 2026-11-18T09:00")
    ] = "7d",
    path: Annotated[Path | None, typer.Option("--path", metavar="FOLDER", help="The folder of the audit")] = None,
    as_json: AsJson = False,
    config: _RulesConfig = None,
) -> None:
    """Say which recorded calls other rules would refuse, ask about, or allow.

    The calls are those of the audit. A call is not judged if a condition needs its arguments
    and the audit has only their hash; `"arguments": "masked"` keeps them.
    Exit code 0: it was said. 1: calls that were made would be refused, or wait for a person.
    """
    settings = load_trusted(policy).settings.access
    rules, possible = holdfast.access.Policy(settings), holdfast.access.PossiblePolicy(settings)
    counts: Counter[str] = Counter()
    rows: Counter[tuple[str, ...]] = Counter()
    for record in holdfast.access.AuditReader(
        _audit_folder(path, config), holdfast.access.AuditFilter(since=_moment_of(since))
    ).read():
        found = holdfast.access.replayed(record, rules, possible)
        if found is None:
            continue
        counts[found.change] += 1
        if found.change != "same":
            what = (found.change, record.principal, record.server, record.tool)
            rows[*what, found.effect, found.rule, found.reason] += 1
    changed = counts["refused"] + counts["asks"]
    names = ("change", "user", "server", "name", "effect", "rule", "reason")
    if as_json:
        told = [dict(zip(names, row, strict=True)) | {"calls": count} for row, count in rows.most_common()]
        print_json({"judged": sum(counts.values()), "counts": dict(counts), "calls": told})
    else:
        _print_replayed(rows, counts)
    raise typer.Exit(1 if changed else 0)


# What is asked.


def _names(given: Sequence[str] | None) -> list[str]:
    return [name.strip() for one in given or () for name in one.split(",") if name.strip()]


def _item(kind: _Kind, text: str) -> AccessItem:
    server, slash, name = text.partition("/")
    if not slash or not server or not name:
        raise UsageError(f"`{text}` names no server", hint="write SERVER/NAME, as in jira/get_issue")
    return holdfast.access.AccessItem(kind, server, name)


class _Expectation(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One test of a table: a call, and what the rules are to say of it."""

    user: str
    groups: list[str] = []
    scopes: list[str] = []
    tool: str | None = None
    prompt: str | None = None
    resource: str | None = None
    arguments: dict[str, Any] | None = None
    expect: Literal["allow", "ask", "deny"]
    listed: bool | None = None
    rule: str | None = None


class _Table(msgspec.Struct):
    tests: Annotated[list[_Expectation], msgspec.Meta(min_length=1)]


def _tests_in(file: Path) -> list[_Expectation]:
    hint = 'write {"tests": [{"user": "bob", "tool": "jira/get_issue", "expect": "allow"}]}, or ask, or deny'
    try:
        return msgspec.json.decode(file.read_bytes(), type=_Table).tests
    except OSError as exc:
        raise UsageError(f"cannot read {file}: {exc.strerror}", hint=hint) from exc
    except (msgspec.DecodeError, RecursionError) as exc:
        raise UsageError(f"{file} is no table of tests: {exc}", hint=hint) from exc


def _tested(policy: Any, settings: AccessSettings, number: int, one: _Expectation) -> dict[str, Any]:
    asked: dict[_Kind, str | None] = {"tool": one.tool, "prompt": one.prompt, "resource": one.resource}
    items = [_item(kind, name) for kind, name in asked.items() if name is not None]
    if len(items) != 1:
        raise UsageError(f"tests[{number}] needs one of `tool`, `prompt` and `resource`")
    principal = holdfast.access.principal_named(one.user, one.groups, one.scopes)
    decision = policy.decide(principal, items[0], one.arguments)
    told = _told(settings, decision, listed=policy.may_list(principal, items[0]))
    wanted = {"effect": one.expect, "listed": one.listed, "rule": one.rule}
    wanted = {key: value for key, value in wanted.items() if value is not None}
    passed = all(told[key] == value for key, value in wanted.items())
    what = {"number": number, "user": one.user, "kind": items[0].kind, "server": items[0].server, "name": items[0].name}
    return {**what, "passed": passed, "expected": wanted, **told}


def _told(settings: AccessSettings, decision: AccessDecision, *, listed: bool) -> dict[str, Any]:
    asks = decision.effect == "ask"
    return {
        "effect": decision.effect,
        "rule": decision.rule,
        "reason": decision.reason,
        "approver": decision.approver if asks else None,
        "listed": listed,
        "service": settings.ext_authz.address if decision.effect != "deny" else None,
    }


# How it is shown.


def _print_explained(told: Mapping[str, Any], settings: AccessSettings) -> None:
    effect, name = told["effect"], f"{told['server']}/{told['name']}"
    print_line((effect, _EFFECT_STYLES[effect]), plain(f"  {told['user']}  {name}"))
    lines = [f"decided by {told['rule']}: {told['reason']}"]
    if (rule := _rule_text(settings, told["rule"])) is not None:
        lines.append(f"the rule is {rule}")
    if told["approver"] is not None:
        lines.append("the caller is asked" if told["approver"] == "caller" else "an operator is asked")
    if len(told["possible"]) > 1:
        lines.append(f"it depends on the arguments: {' or '.join(told['possible'])}; give them with --arguments")
    lines.append("it is listed" if told["listed"] else "it is not listed, and a call of it answers as an unknown name")
    if told["service"] is not None:
        lines.append(f"the service at {told['service']} is asked too, at each call")
    for line in lines:
        print_line(plain(f"  {line}"))


def _rule_text(settings: AccessSettings, name: str) -> str | None:
    """A rule as the file has it; None where no rule decided."""
    if not name.startswith("rules["):
        return None
    rule: AccessRule = settings.rules[int(name[6:-1])]
    given = {key: value for key, value in asdict(rule).items() if value not in ((), "")}
    if rule.effect != "ask":
        del given["approver"]
    return json.dumps(given, ensure_ascii=False)


def _print_tested(row: Mapping[str, Any]) -> None:
    name = f"{row['user']}  {row['server']}/{row['name']}"
    wanted = ", ".join(f"{key} {json.dumps(value)}" for key, value in row["expected"].items())
    found = f"{row['effect']} by {row['rule']}, {'listed' if row['listed'] else 'not listed'}"
    words = f"{name}: {found}" + ("" if row["passed"] else f"; expected {wanted}")
    mark = ("ok    ", "green") if row["passed"] else ("failed", "red")
    print_line(mark, plain(f"  tests[{row['number']}]  {words}"))


_TITLES = {
    "refused": ("would be refused", "red"),
    "asks": ("would wait for a person", "yellow"),
    "allowed": ("denied then would be allowed", "green"),
    "unknown": ("cannot be judged", "dim"),
}


def _print_replayed(rows: Counter[tuple[str, ...]], counts: Counter[str]) -> None:
    for change, (title, style) in _TITLES.items():
        own = [(row, count) for row, count in rows.most_common() if row[0] == change]
        if own:
            print_line((f"{counted(counts[change], 'call')} {title}", style))
        for (_, user, server, name, effect, rule, reason), count in own:
            by = f"{effect} by {rule}" if rule else effect
            print_line(plain(f"  {count:>6}  {user}  {server}/{name}  {by}: {reason}"))
    total = sum(counts.values())
    words = f"{counted(total, 'call')} judged, {counts['same']} as before"
    print_note(words if total else "there are no recorded calls")


# The audit

audit_app = group_of_commands(needs_one=False)

POLL_SECONDS = 0.3
"""How often ``--follow`` looks for new records."""

_OUTCOME_STYLES = {"completed": "green", "done": "green", "applied": "green", "refused": "yellow", "denied": "yellow"}

_AuditConfig = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="The mcp.json whose audit is meant")
]


@audit_app.callback(invoke_without_command=True)
def audit(
    context: typer.Context,
    user: Annotated[str, typer.Option("--user", metavar="NAME", help="Only what this principal did")] = "",
    server: Annotated[str, typer.Option("--server", metavar="ID", help="Only what concerns this server")] = "",
    tool: Annotated[str, typer.Option("--tool", metavar="NAME", help="Only this tool, by its original name")] = "",
    outcome: Annotated[
        str, typer.Option("--outcome", metavar="WORD", help="Only this outcome, such as `refused` or `failed`")
    ] = "",
    since: Annotated[
        str, typer.Option("--since", metavar="TIME", help="Only since then: `2h`, `7d`, or 2026-11-18T09:00")
    ] = "24h",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for new records, and show them")] = False,
    as_json: AsJson = False,
    path: Annotated[Path | None, typer.Option("--path", metavar="FOLDER", help="The folder of the files")] = None,
    config: _AuditConfig = None,
) -> None:
    """Show who did what: calls, refusals, logins, approvals, switches and changes of the configuration.

    With --json each record is a JSON object on one line.
    Exit code 0: the records were shown. 2: there is no audit.
    """
    if context.invoked_subcommand is not None:
        return
    wanted = holdfast.access.AuditFilter(
        principal=user, server=server, tool=tool, outcome=outcome, since=_moment_of(since)
    )
    reader = holdfast.access.AuditReader(_audit_folder(path, config), wanted)
    while True:
        for record in reader.read():
            _show(record, as_json=as_json)
        if not follow:
            return
        time.sleep(POLL_SECONDS)


@audit_app.command()
def verify(
    path: Annotated[
        Path | None, typer.Argument(metavar="[PATH]", help="The folder of an audit, or one of its files")
    ] = None,
    checkpoints: Annotated[
        Path | None,
        typer.Option("--checkpoints", metavar="FILE", help="A text with checkpoints, such as the log of the machine"),
    ] = None,
    key_file: Annotated[Path | None, typer.Option("--key-file", metavar="FILE", help="The key of the audit")] = None,
    as_json: AsJson = False,
    config: _AuditConfig = None,
) -> None:
    """Check that no record was changed, removed or moved, and that no file is missing.

    It says too what it cannot know: the end of a file that was not closed is proven only by a checkpoint.
    Exit code 0: nothing was found. 1: something was changed or is missing. 2: there is nothing to check.
    """
    folder, own_key = _places(config)
    given = _text(checkpoints) if checkpoints is not None else ""
    shown = path if path is not None else folder
    found = holdfast.access.verify(
        shown, holdfast.access.read_key(key_file or own_key, make=False), holdfast.access.checkpoints_in(given)
    )
    if as_json:
        print_json(
            {
                "path": str(shown),
                "intact": not found.count,
                "files": found.files,
                "records": found.records,
                "problems": found.problems,
                "warnings": found.warnings,
                "unproven": found.unproven,
            }
        )
    else:
        _report(shown, found)
    raise typer.Exit(1 if found.count else 0)


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError as exc:
        raise UsageError(f"the checkpoints cannot be read: {exc}") from exc


def _audit_folder(path: Path | None, config: Path | None) -> Path:
    """The folder of the audit that is meant; raises ``UsageError`` if there is none."""
    folder = path if path is not None else _places(config)[0]
    if not folder.is_dir():
        raise UsageError(f"there is no audit in {folder}", hint="`audit.path` in the mcp.json turns it on")
    return folder


def _places(config: Path | None) -> tuple[Path, Path]:
    """The folder and the key of the mcp.json; those of the state folder where there is none."""
    try:
        found = load_trusted(config)
    except ConfigNotFound:
        return holdfast.access.audit_places(holdfast.config.AuditSettings(), None, os.environ)
    return holdfast.access.audit_places(found.settings.audit, found.source, os.environ)


def _moment_of(text: str) -> datetime:
    """The time that ``--since`` means."""
    try:
        return datetime.now(UTC) - timedelta(seconds=holdfast.config.parse_duration(text))
    except holdfast.config.InvalidValue:
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"--since {text} is no time", hint="write `2h`, `7d`, or 2026-11-18T09:00") from None
    return moment if moment.tzinfo is not None else moment.astimezone()


def _show(record: AuditRecord, *, as_json: bool) -> None:
    if as_json:
        print_json_line(msgspec.to_builtins(record))
        return
    about = "/".join(filter(None, (record.server, record.tool)))
    what = about or record.method if record.event == "call" else " ".join(filter(None, (record.method, about)))
    where = f"  {record.source}" if record.source else ""
    took = f"  {record.ms:.0f} ms" if record.ms else ""
    why = f"  {record.reason}" if record.reason else ""
    lost = f"  {counted(record.count, 'record')}" if record.count else ""
    line = Text.assemble(
        (f"{record.time.astimezone():%Y-%m-%d %H:%M:%S}  ", "dim"),
        f"{record.event:<9}  {_one(record.principal or '-'):<16}  {_one(what)}  ",
        (record.outcome, _OUTCOME_STYLES.get(record.outcome, "red")),
        (_one(f"{took}{where}{why}{lost}"), "dim"),
    )
    print_line(line)


def _one(text: str) -> str:
    """A text of others on one line: nothing in it moves the cursor."""
    return " ".join(plain(cut(text, 500)).split("\n"))


def _report(path: Path, found: Verified) -> None:
    for words in found.problems:
        print_line(("changed  ", "red"), plain(words))
    if (more := found.count - len(found.problems)) > 0:
        print_line(f"and {counted(more, 'more problem')}")
    for words in found.warnings:
        print_line(("warning  ", "yellow"), plain(words))
    for words in found.unproven:
        print_line(("unproven  ", "yellow"), plain(words))
    if found.unproven:
        print_note("What was cut off after that is found with --checkpoints, or when the hub closes the file.")
    verdict = f"{counted(found.count, 'problem')}" if found.count else "nothing was changed"
    style = "red" if found.count else "green"
    counts = f"{counted(found.records, 'record')} in {counted(found.files, 'file')} of {path}: "
    print_line(counts, (verdict, style))
