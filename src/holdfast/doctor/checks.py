"""The checks of one server, in the order in which they can fail.

First those that need no network: the definition, the command, and files with credentials or state. Then the network
route: the host name, the port, the certificate. Last the server itself: its credentials, the handshake, its tools, and
its state in a running hub.
"""

from __future__ import annotations

import glob
import re
import socket
import sqlite3
import ssl
import stat
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import anyio
import anyio.to_thread
from anyio.streams.tls import TLSAttribute, TLSStream
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

from holdfast.auth import Grant, status_of, unverified_claims
from holdfast.config import Definition, KeyPath, joined, looks_secret
from holdfast.control import Server
from holdfast.core import (
    HUB_NAME,
    NAME_LENGTH,
    CommandUnusable,
    Evidence,
    NetworkFailure,
    TimedOut,
    TlsFailure,
    TlsFault,
    TokenNotRenewed,
    base_name,
    classify_evidence,
    command_line,
    cutting_clients,
    masked,
    quoted,
    quoted_name,
)
from holdfast.doctor import network_faults as network
from holdfast.doctor.case import (
    SAME_ENVIRONMENT,
    Case,
    GlobalContext,
    Observation,
    Route,
    found,
    open_definition,
    probe,
    route_to,
)
from holdfast.doctor.diagnose import (
    configured_token,
    diagnose,
    expires_at,
    input_edits,
    lacking_inputs,
    named_inputs,
    route_failed,
)
from holdfast.doctor.process_exits import missing_interpreter, unusable
from holdfast.doctor.report import (
    Edit,
    Finding,
    LiveState,
    ask_for,
    finding,
    problem_finding,
    rename_edits,
    shell,
)
from holdfast.errors import Problem, ServerFailure
from holdfast.hub import is_shown
from holdfast.wire import NoClients, Offers, environment_of, evidence_of, find_program, ssl_context

__all__ = [
    "OVER_NETWORK",
    "look_at_command",
    "look_at_definition",
    "look_at_files",
    "look_at_handshake",
    "look_at_hub",
    "look_at_login",
    "look_at_name",
    "look_at_port",
    "look_at_state",
    "look_at_tls",
    "look_at_tokens",
    "look_at_tools",
]

_PLACEHOLDER = re.compile(
    r"<[A-Za-z][\w .:/-]{1,60}>"
    r"|[\[{(]{0,2}\b(?:YOUR|INSERT|REPLACE|ENTER)[_-](?:[A-Za-z0-9]+[_-])*"
    r"(?:KEY|TOKEN|SECRET|PASSWORD|PASS|ID|URL|HERE)\b[\]})]{0,2}"
    r"|\b(?:change|replace)[_-]?me\b|(?<=[_-])x{6,}\b",
    re.IGNORECASE,
)
"""How documentation marks a value that the reader must replace."""


async def look_at_definition(case: Case) -> Observation:
    """Report every problem, not only the first."""
    server = case.server
    if not server.problems:
        notes = (*_placeholders(case), *_old_placement(case))
        return Observation(case.document.label(case.definition.path), notes)
    # Each variable once, at the first place that names it: a person sets it once.
    missing = {problem.variable: problem for problem in reversed(server.problems) if problem.variable}
    others = [problem for problem in server.problems if not problem.variable]
    variables = [_missing_variable(problem) for problem in reversed(missing.values())]
    return found(
        *variables, *(problem_finding("HF-DEFINITION", problem, edits=rename_edits(problem)) for problem in others)
    )


def _placeholders(case: Case) -> Iterator[Finding]:
    """Values that were copied from documentation and not replaced."""
    for keys, text in _texts(case.definition.given):
        placeholder = _PLACEHOLDER.search(text)
        # A value that came from a variable is the person's own, also where it looks like a placeholder.
        if placeholder is None or case.definition.expansion.sources((*case.definition.path, *keys)):
            continue
        name = str(keys[-1]) if keys[0] == "env" else _variable_name(case.id, placeholder[0])
        value = text.replace(placeholder[0], f"${{env:{name}}}")
        words = f"`{joined(keys)}` is a placeholder, not a value"
        remedy = "put the real value into a variable (this command waits for you to paste it), and use it here"
        yield finding("HF-PLACEHOLDER", words, remedy, ask_for(name), edits=(case.edit(keys, value),))


def _old_placement(case: Case) -> Iterator[Finding]:
    if case.definition.given.get("placement") is not None:
        yield finding(
            "HF-PLACEMENT",
            "`placement` has no effect any more: a stdio server runs on each replica",
            "remove the key, or write null",
            edits=(case.edit("placement", None),),
        )


def _texts(given: Mapping[str, object]) -> Iterator[tuple[KeyPath, str]]:
    for key in ("env", "headers", "args", "url", "serverUrl", "httpUrl"):
        value = given.get(key)
        if isinstance(value, str):
            yield (key,), value
        items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        yield from (((key, inner), text) for inner, text in items if isinstance(text, str))


def _variable_name(server: str, placeholder: str) -> str:
    """A variable for a placeholder: ``<YOUR_API_KEY>`` of `github` is ``GITHUB_API_KEY``."""
    words = re.sub(r"[^A-Z0-9]+", "_", placeholder.upper()).strip("_")
    words = re.sub(r"^(?:YOUR|MY|INSERT|REPLACE|ENTER)_+|_+HERE$", "", words)
    name = re.sub(r"[^A-Z0-9]+", "_", f"{server.upper()}_{words}").strip("_")
    return f"_{name}" if name[:1].isdigit() else name


def _missing_variable(problem: Problem) -> Finding:
    name = problem.variable
    text = (
        f"export it in the shell that starts Holdfast (this command waits for you to paste it), "
        f"or write a default: ${{{name}:-…}}"
    )
    return finding("HF-VARIABLE", str(problem), text, ask_for(name))


async def look_at_command(case: Case) -> Observation:
    """Find it as the hub does."""
    try:
        program = find_program(case.spec, environment_of(case.spec))
    except ServerFailure as failure:
        return found(unusable(case, cast("CommandUnusable", failure.evidence)))
    case.learned.program = program
    interpreter = missing_interpreter(case)
    return found(interpreter) if interpreter is not None else Observation(str(Path(program)))


_OTHERS = stat.S_IRGRP | stat.S_IROTH


async def look_at_files(whole: GlobalContext) -> Observation:
    """Check the mode of each file with a credential in plain text."""
    files = dict.fromkeys([*_with_secrets(whole), whole.store.file])
    return Observation("", tuple(found for file in files if (found := _readable(file)) is not None))


def _with_secrets(whole: GlobalContext) -> Iterator[Path]:
    source = whole.reading.config.source
    for definition in whole.reading.definitions:
        if source is not None and _writes_secret(definition):
            yield source
        values = definition.env_file.values if definition.env_file is not None else {}
        if definition.env_file is not None and any(looks_secret(name) and value for name, value in values.items()):
            yield definition.env_file.path


def _writes_secret(definition: Definition) -> bool:
    """Whether a credential is in the file itself, not in a variable that the file names, set or not."""
    for section in ("env", "headers", "oauth"):
        values = definition.given.get(section)
        for name, value in values.items() if isinstance(values, dict) else ():
            path = (*definition.path, section, name)
            expansion = definition.expansion
            if not looks_secret(name) or not isinstance(value, str) or not value.strip() or _PLACEHOLDER.search(value):
                continue
            if not expansion.sources(path) and not expansion.broken(path):
                return True
    return False


def _readable(file: Path) -> Finding | None:
    """The finding for a file that others may read; None if they may not."""
    try:
        mode = stat.S_IMODE(file.stat().st_mode)
    except OSError:
        return None
    if not mode & _OTHERS:
        return None
    return finding(
        "HF-FILE-READABLE",
        f"{file} contains credentials, and other users can read it (mode {mode:o})",
        f"make it readable only by you; `{command_line('doctor', '--fix')}` does the same",
        shell("chmod", "600", str(file)),
        repair="chmod",
        target=str(file),
    )


async def look_at_tokens(whole: GlobalContext) -> Observation:
    """Read it as the store does, without setting it aside."""
    file = whole.store.file
    fault = await anyio.to_thread.run_sync(whole.store.damage, abandon_on_cancel=True)
    if not fault:
        return Observation(str(file) if file.exists() else "")
    return _damaged(
        "HF-TOKENS-CORRUPT",
        f"the token store {file} is damaged ({fault}): no login can be read from it",
        f"set it aside and log in again; `{command_line('doctor', '--fix')}` sets it aside and deletes nothing",
        file,
    )


async def look_at_state(whole: GlobalContext) -> Observation:
    """Let SQLite check every page."""
    file = whole.state_file
    if file is None or not file.exists():
        return Observation()
    fault = await anyio.to_thread.run_sync(_fault, file, abandon_on_cancel=True)
    if not fault:
        return Observation(str(file))
    return _damaged(
        "HF-STATE-CORRUPT",
        f"the hub's state file {file} is damaged ({fault}): the hub cannot list the tools of its last run",
        f"set it aside; the hub writes a new one; `{command_line('doctor', '--fix')}` does the same",
        file,
    )


def _damaged(code: str, words: str, text: str, file: Path) -> Observation:
    aside = shell("mv", str(file), f"{file}.corrupt")
    return Observation("", (finding(code, words, text, aside, repair="set_aside", target=str(file)),))


def _fault(file: Path) -> str:
    """Why it is damaged; empty if it is intact or locked by another process."""
    try:
        # Read-only: doctor must not create a file, and must not repair one that it only looks at.
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True, timeout=1.0)) as database:
            (verdict,) = database.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.DatabaseError as exc:
        damaged = getattr(exc, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT)
        return str(exc) if damaged else ""
    return "" if verdict == "ok" else str(verdict)[:100]


OVER_NETWORK = ("http", "sse")

_ANSWERED_NO = frozenset({socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)})


SUSPICIOUS_SECONDS = 1.0
"""After this long without an answer to the TLS handshake, the port may speak another protocol."""


async def look_at_name(case: Case) -> Observation:
    """Resolve it."""
    route = case.learned.route = route_to(case.spec.url)
    try:
        with anyio.fail_after(case.left):
            case.learned.addresses = await case.tools.resolve(route.host, route.port)
    except TimeoutError:
        return found(network.not_reached(case, route, "no name server"))
    except socket.gaierror as exc:
        how: network.Unreached = "no name" if exc.errno in _ANSWERED_NO else "no name server"
        return found(network.not_reached(case, route, how))
    by = f" (the proxy of {route.variable})" if route.proxy else ""
    return Observation(f"{route.host} is {', '.join(case.learned.addresses[:3])}{by}")


async def look_at_port(case: Case) -> Observation:
    """Connect to all its addresses at the same time. One that accepts is enough."""
    route = case.learned.route
    assert route is not None  # noqa: S101 - `name` found it
    patience = case.left
    failures: list[Evidence] = []
    with anyio.move_on_after(patience):
        accepted = await _any_accepts(case.learned.addresses, route.port, failures)
        if accepted:
            return Observation(f"{accepted} port {route.port} accepts connections")
        return found(route_failed(case, route, failures[0]))
    return found(network.not_reached(case, route, "no answer", after=round(patience, 1)))


async def _any_accepts(addresses: tuple[str, ...], port: int, failures: list[Evidence]) -> str:
    accepted: list[str] = []

    async def connect(address: str) -> None:
        try:
            # All addresses, not the first: a name with a dead IPv6 address works for most programs.
            stream = await anyio.connect_tcp(address, port)
        except OSError as exc:
            seen = evidence_of(exc, doing="a connection")
            if seen is not None:
                failures.append(seen)
            return
        await stream.aclose()
        accepted.append(address)
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        for address in addresses:
            tasks.start_soon(connect, address)
    return accepted[0] if accepted else ""


async def look_at_tls(case: Case) -> Observation:
    """Make a TLS handshake with the certificates that the hub trusts."""
    route = case.learned.route
    assert route is not None  # noqa: S101 - `name` found it
    patience = case.left
    seen = await _handshake(route, patience)
    if isinstance(seen, TlsFailure):
        return found(await network.unverified(case, route, seen))
    if isinstance(seen, NetworkFailure) and seen.stood:
        return found(await network.no_handshake(case, route, cut=True))
    if isinstance(seen, TimedOut):
        return found(await network.no_handshake(case, route, after=patience))
    return Observation(seen if isinstance(seen, str) else "the handshake check shows more")


async def _handshake(route: Route, patience: float) -> str | Evidence | None:
    """The TLS version or the evidence of a failure. A silent port that speaks plain HTTP ends the wait."""
    result: list[str | Evidence | None] = []

    async def shake() -> None:
        try:
            result.append(await _tls_version(route))
        except (ssl.SSLError, OSError, anyio.BrokenResourceError, anyio.EndOfStream) as exc:
            result.append(evidence_of(exc, doing="the TLS handshake", connecting=True))
        tasks.cancel_scope.cancel()

    async def suspect() -> None:
        await anyio.sleep(SUSPICIOUS_SECONDS)
        # A plain HTTP server waits for the end of the request line, which a TLS handshake may never send.
        if await network.speaks_plain_http(route):
            result.append(TlsFailure(fault=TlsFault.HANDSHAKE))
            tasks.cancel_scope.cancel()

    with anyio.move_on_after(patience):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(shake)
            tasks.start_soon(suspect)
    return result[0] if result else TimedOut(doing="the TLS handshake", after=patience)


async def _tls_version(route: Route) -> str:
    async with await anyio.connect_tcp(route.host, route.port) as tcp:
        stream = await TLSStream.wrap(tcp, hostname=route.host, ssl_context=ssl_context(), standard_compatible=False)
        version = stream.extra(TLSAttribute.tls_version)  # noqa: S610 - no database is near
        return f"{version}, certificate valid"


async def look_at_login(case: Case) -> Observation:
    """Read the store; ask the authorization server only for an expired token."""
    store = case.tools.logins.store
    # A keyring may ask the user first. The thread lets the deadline hold.
    status = await anyio.to_thread.run_sync(status_of, case.spec, store, abandon_on_cancel=True)
    if status.grant is not None:
        return await _login(case, status.grant, status.place)
    match status.kind:
        case "header":
            return Observation(_header(case))
        case "off":
            return Observation("no login is used: the definition says so")
        case "none":
            seen = "there is no login" if not case.spec.headers else "headers of its definition, no login"
            return Observation(seen, tuple(_incomplete(case)))
        case _:
            return Observation("credentials come from elsewhere")


async def _login(case: Case, grant: Grant, place: str) -> Observation:
    if grant.refused or not grant.usable(time.time()):
        return _ended(case, _not_renewed(grant) if grant.refused else "its token expired")
    if not grant.expired(time.time()):
        return Observation(f"a login from {place}{_until(grant)}")
    logins = case.tools.logins
    try:
        renewed = await logins.renew(
            grant.key, instead_of=grant.access_token, allow_plain_http=case.spec.allow_plain_http
        )
    except ServerFailure as failure:
        why = cast("TokenNotRenewed", failure.evidence).reason
        return Observation(f"a login that expired and could not be renewed just now: {why}")
    if renewed is None:
        return _ended(case, _not_renewed(next((one for one in logins.store.known if one.key == grant.key), None)))
    case.learned.renewed = f"renewed the login of `{case.id}`, which had expired{_until(renewed)}"
    words = f"its token had expired and was renewed{_until(renewed)}"
    note = finding("HF-LOGIN-RENEWED", words, "nothing needs to be done", command_line("auth", "status"))
    return Observation(f"a login from {place}{_until(renewed)}, renewed just now", (note,))


def _not_renewed(grant: Grant | None) -> str:
    return f"the authorization server no longer renews it ({grant.refused if grant is not None else 'it was removed'})"


def _incomplete(case: Case) -> Iterator[Finding]:
    """What a login would lack. If the server asks for one, the handshake says this too, with what it learned."""
    if missing := lacking_inputs(case.spec.oauth):
        words = f"for a login, its definition lacks {named_inputs(missing)}"
        it = "it" if len(missing) == 1 else "them"
        yield finding(
            "HF-LOGIN-SETTINGS",
            words,
            f"if the server asks for a login, ask the operator of the authorization server for {it}, and write {it}",
            edits=input_edits(case, missing),
        )


def _ended(case: Case, why: str) -> Observation:
    """No finding yet: the server may accept the request without a login. If not, the handshake reports it."""
    case.learned.login_ended = why
    return Observation(f"a login that has ended: {why}")


def _header(case: Case) -> str:
    expires = expires_at(unverified_claims(configured_token(case.spec)) or {})
    if expires is None:
        return "an Authorization header of its definition"
    when = "expired" if expires < datetime.now(UTC) else "good until"
    return f"an Authorization header of its definition: a token, {when} {expires:%Y-%m-%d %H:%M} UTC"


def _until(grant: Grant) -> str:
    if grant.expires_at is None:
        return ""
    return f", good until {datetime.fromtimestamp(grant.expires_at, UTC):%Y-%m-%d %H:%M} UTC"


_NAMED = 5
"""How many tools a message names; the rest is counted."""

_ACCEPTED_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


async def look_at_handshake(case: Case) -> Observation:
    """Dial it as the hub does, and list what it offers on the same connection."""
    tools = case.tools
    seen = case.learned.probe = tools.probes[case.id] = probe(case.spec, case.redactor, case.deadline)
    await seen.run(tools.dialer, tools.starts if case.transport == "stdio" else tools.dials, relay=NoClients())
    if not seen.version:
        assert seen.evidence is not None  # noqa: S101 - a dial ends with a version or with evidence
        return found(await diagnose(case, seen.evidence))
    noisy: tuple[Finding, ...] = ()
    if seen.noise:
        words = "it prints text on stdout that is not MCP; Holdfast skips it, other clients may fail"
        text = f"make it log to stderr; this command shows what it prints, {SAME_ENVIRONMENT}"
        noisy = (finding("HF-STDOUT-NOISE", words, text, *case.by_hand(then=" </dev/null"), detail=seen.noise),)
    return Observation(f"speaks MCP {seen.version} after {seen.handshake_seconds:.2f} s", noisy)


async def look_at_tools(case: Case) -> Observation:
    """Check the listing of the handshake's connection."""
    seen = case.learned.probe
    assert seen is not None  # noqa: S101 - `handshake` made it
    if not seen.version:  # only one process of it can run, and a hub has that: `handshake` says so
        return Observation("not listed: the hub runs it")
    if seen.evidence is not None:
        return found(await diagnose(case, seen.evidence))
    lists = tuple(_list_failures(case, seen.listing)) if seen.listing is not None else ()
    offered = seen.listing.get("tools", ()) if seen.listing is not None else ()
    listed = {name: raw for name, raw in offered if is_shown(name, case.spec.tools)}
    count = f"{len(listed)} tool{'' if len(listed) == 1 else 's'} listed in {seen.listing_seconds:.2f} s"
    if not offered:
        return Observation(count, (_none(case, other_offers=bool(seen.listing and len(seen.listing) > 1)), *lists))
    if not listed:
        return Observation(count, (_hidden(case, len(offered)), *lists))
    names = [name for name, _ in offered if name in listed]
    return Observation(count, (*_faults(case, names, listed), *_cut_names(case, listed), *lists))


def _list_failures(case: Case, offers: Offers) -> Iterator[Finding]:
    for kind, seen in offers.failures.items():
        reason = classify_evidence(masked(seen, case.redactor), connected_before=True).reason
        text = (
            "its tools work. If the error names something that it lacks, provide it; else this is a fault of the "
            "server: report it to its authors. This command asks it again"
        )
        yield finding("HF-LIST", f"its {kind} could not be listed: {reason}", text, case.again)


def _none(case: Case, *, other_offers: bool) -> Finding:
    words = "it lists no tools" + (", only prompts or resources" if other_offers else "")
    return finding(
        "HF-TOOLS-NONE",
        words,
        "if it should have tools, compare its definition with its documentation; this command opens it",
        *open_definition(case),
    )


def _hidden(case: Case, count: int) -> Finding:
    words = "its definition hides its only tool" if count == 1 else f"its definition hides all of its {count} tools"
    return finding(
        "HF-TOOLS-HIDDEN",
        words,
        "show all of them, or correct the patterns",
        edits=(case.edit("tools", {"include": ["*"]}),),
    )


def _faults(case: Case, names: list[str], listed: Mapping[str, Mapping[str, Any]]) -> Iterator[Finding]:
    """What is wrong with tools. One edit hides them all: two would be for the same key."""
    twice = [name for name, count in Counter(names).items() if count > 1]
    odd = [name for name in listed if not _ACCEPTED_NAME.fullmatch(name)]
    invalid = {name: why for name, raw in listed.items() if (why := _schema_fault(raw))}
    told = []
    if twice:
        told.append(("HF-TOOLS-DUPLICATE", f"more than one tool is named {_some(twice)}"))
    if odd:
        accepted = "clients accept tool names of at most 64 letters, digits, _ and -"
        told.append(("HF-TOOLS-NAME", f"{accepted}; not {_some(odd)}"))
    if invalid:
        first, why = next(iter(invalid.items()))
        words = f"the schema of {_some(list(invalid))} is not valid JSON Schema ({quoted_name(first)}: {why})"
        told.append(("HF-TOOLS-SCHEMA", words))
    for number, (code, words) in enumerate(told):
        text = "this is a bug in the server: report it to its authors"
        if number == 0:
            text += "; until it is fixed, hide " + ("all tools that are at fault" if len(told) > 1 else "these tools")
            yield finding(code, words, text, edits=(_hide(case, list(dict.fromkeys([*twice, *odd, *invalid]))),))
        else:
            text += "; the edit above hides these tools too, and this command writes it"
            yield finding(code, words, text, command_line("doctor", server=case.id, options=("--fix",)))


def _cut_names(case: Case, listed: Iterable[str]) -> Iterator[Finding]:
    """Names that do not fit behind the prefix of a client: at the endpoint of all servers, and at the server's own."""
    spec, longest = case.spec, case.tools.settings.name_length
    given = [base_name(spec.id, name, spec.prefix, longest) for name in listed]
    if cut := [name for name in given if cutting_clients(HUB_NAME, name)]:
        yield finding(
            "HF-TOOLS-CUT",
            f"{_who_cut(HUB_NAME, cut)} cut or leave out {_some(cut)}",
            "the default length leaves room for the prefix of every known client",
            edits=(case.setting("nameLength", NAME_LENGTH),),
        )
    if long := [name for name in listed if _ACCEPTED_NAME.fullmatch(name) and cutting_clients(spec.id, name)]:
        yield finding(
            "HF-TOOLS-LONG",
            f"at /servers/{spec.id}/mcp, {_who_cut(spec.id, long)} cut or leave out {_some(long)}",
            "use it at /mcp, where the hub shortens these names; this command shows its tools",
            command_line("tools", server=case.id),
        )


def _who_cut(server: str, names: list[str]) -> str:
    return ", ".join(sorted({client for name in names for client in cutting_clients(server, name)}))


def _hide(case: Case, names: list[str]) -> Edit:
    """The edit that hides these tools, and no other, and keeps what the definition says already."""
    given = case.definition.given.get("tools")
    tools = given if isinstance(given, dict) else {"include": given} if isinstance(given, list) else {}
    # A name may have characters that mean something in a pattern.
    exclude = [*_words(tools.get("exclude")), *(glob.escape(name) for name in names if name)]
    if "" not in names and not isinstance(given, list):
        return case.edit("tools.exclude", exclude)
    # No pattern of `exclude` is empty: a tool without a name is hidden by what the others have.
    include = ["?*" if set(pattern) == {"*"} else pattern for pattern in _words(tools.get("include")) or ["*"]]
    return case.edit("tools", {**tools, "include": include, **({"exclude": exclude} if exclude else {})})


def _words(value: object) -> list[str]:
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []


def _some(names: list[str]) -> str:
    shown = ", ".join(quoted_name(name, 70, ticks=True) for name in names[:_NAMED])
    return f"{shown} and {len(names) - _NAMED} more" if len(names) > _NAMED else shown


def _schema_fault(raw: Mapping[str, Any]) -> str:
    """Why a tool's schema is invalid; empty if it is valid."""
    for key in ("inputSchema", "outputSchema"):
        schema = raw.get(key)
        if schema is None:
            continue
        try:
            Draft202012Validator.check_schema(schema)
        except SchemaError as exc:
            where = "/".join(str(step)[:40] for step in list(exc.absolute_path)[:12]) or key
            return f"{quoted_name(where)}: {quoted(exc.message, most=100)}"
        if key == "inputSchema" and schema.get("type") != "object":
            return 'inputSchema: its type must be "object"'
    return ""


async def look_at_hub(case: Case) -> Observation:
    """Compare the hub's state with this examination."""
    hub = case.tools.hub
    server = await hub.server(case.id) if hub is not None else None
    if server is None:
        return Observation("the hub does not have this server")
    found = _difference(server, failed=case.learned.failed)
    case.learned.live = LiveState(
        state=server.state,
        status=server.status,
        breaker=server.breaker.state,
        reason=server.reason,
        retry_in=server.retry_in,
        breaker_retry_in=server.breaker.retry_in,
        agrees=found is None,
        difference=found.words if found is not None else "",
    )
    return Observation(f"{server.state}, breaker {server.breaker.state}", (found,) if found is not None else ())


def _difference(server: Server, *, failed: bool) -> Finding | None:
    """How the hub and this examination differ, with the command that makes the hub try again; None if they agree."""
    again = command_line("reconnect", server=server.id)
    if server.breaker.state != "closed" and not failed:
        words = f"it works now, but calls to it through the hub fail: its breaker is {_spaced(server.breaker.state)}"
        reason = f" ({server.reason.rstrip('.')})" if server.reason else ""
        return finding(
            "HF-HUB-BREAKER",
            f"{words}{reason}",
            "after the time that is shown, the hub tries it with the next call; to make it try now",
            again,
        )
    match server.status, failed:
        case ("available", True):
            words = (
                "the hub is still connected, but a new connection fails: the server stopped or changed just now, "
                "or the hub was started with another environment (PATH, variables, proxy)"
            )
            return _differs(words, again)
        case ("disabled", False):
            return finding(
                "HF-HUB-DISABLED",
                "it works, but it is disabled in the hub",
                "to use it, enable it",
                command_line("enable", server=server.id),
            )
        case ("transient" | "permanent" | "denied", False):
            reason = f": {server.reason.rstrip('.')}" if server.reason else ""
            words = (
                f"it works now, but it is {_spaced(server.state)} in the hub{reason}. The hub has not "
                "tried again yet, or was started with another environment (PATH, variables, proxy, login)"
            )
            return _differs(words, again)
    return None


def _differs(words: str, command: str) -> Finding:
    return finding("HF-HUB-DIFFERS", words, "wait a moment; if they still differ, make the hub try now", command)


def _spaced(state: str) -> str:
    return state.replace("_", " ")
