"""``holdfast check``: are the servers and tools that a job needs ready? For CI jobs, agents and scripts.

It asks the running hub that serves the configuration. Where there is none, it opens a hub of its own for the length of
the check, so both have the same states, retries and words. It never changes anything.

A requirement has a verdict. Waiting helps against one of them alone (``not_ready``), so every other bad verdict ends
the check at once; servers at their first connection get a moment more. The exit code is that of the worst verdict: what
is missing is a mistake of the job itself and comes first, then a decision of somebody (denied, held), then a server
that is down.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import anyio
import typer
from rich.text import Text

import holdfast.control
import holdfast.hub
from holdfast.cli.command_options import AsJson, ConfigFile, Url, seconds_in, serving_hub, what_to_do
from holdfast.cli.output import counted, first_names, print_json, print_line, print_note, working
from holdfast.cli.trust import load_servers
from holdfast.core import command_line, near, next_try, plain
from holdfast.errors import NoHub, UsageError

if TYPE_CHECKING:
    from holdfast.config import Config
    from holdfast.control import CatalogItem, ControlClient, RunningHub, Server, Views

__all__ = ["Row", "check", "check_servers", "print_row"]

Verdict: TypeAlias = Literal["ready", "missing", "denied", "held", "permanent", "not_ready"]

MISSING, NOT_READY, REFUSED = 10, 11, 12
_CODES: Mapping[Verdict, int] = {
    "ready": 0,
    "missing": MISSING,
    "denied": REFUSED,
    "held": REFUSED,
    "permanent": NOT_READY,
    "not_ready": NOT_READY,
}
_WORST_FIRST = (MISSING, REFUSED, NOT_READY)
_WORDS: Mapping[Verdict, tuple[str, str]] = {
    "ready": ("ready", "green"),
    "missing": ("missing", "red"),
    "denied": ("denied", "magenta"),
    "held": ("held", "magenta"),
    "permanent": ("failed", "red"),
    "not_ready": ("not ready", "yellow"),
}

LOOK_SECONDS = 0.25
"""How often the check looks. To follow the events of the hub instead would be a second way to learn the same, which a
restart of the hub would cut."""

OTHERS_SECONDS = 2.0
"""After a verdict that waiting cannot change: how long servers at their first connection may take to have one too.
Else the exit code would depend on which of two servers failed first."""


def check(
    require: Annotated[
        list[str] | None,
        typer.Option(
            "--require",
            metavar="SERVER[/TOOL],…",
            help="What must be ready; repeat it or use commas [default: every enabled server]",
        ),
    ] = None,
    wait: Annotated[
        str, typer.Option("--wait", metavar="TIME", help="How long to wait for it: 500ms, 30s, 2m")
    ] = "30s",
    config: ConfigFile = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Check that servers and tools are ready, and wait for those that are starting.

    It asks the running hub that serves the mcp.json; without one it connects to the servers itself, once.

    Exit code 0: all are ready. 10: one is not configured, is disabled, or has no such tool. 12: access is denied, or a
    tool is held until its change is approved. 11: one was not ready in time, or failed for good; the reason and the
    next try are shown. 2: wrong usage.
    """
    seconds = seconds_in(wait if wait[-1:].isalpha() else f"{wait}s", "--wait")
    wanted = [name for text in require or () for one in text.split(",") if (name := one.strip())]
    if require and not wanted:
        raise UsageError("--require names nothing", hint="for example --require github,files/read_file")
    hub = serving_hub(url, config)
    servers = load_servers(config) if hub is None else None
    with working(f"waiting for {', '.join(wanted[:3]) or 'the servers'}") as update:
        rows, url = anyio.run(check_servers, hub, servers, wanted, seconds, lambda rows: update(_waiting(rows)))
    code = exit_code(rows)
    if as_json:
        told = [{**asdict(row), "reason": row.reason or None, "hint": row.hint or None} for row in rows]
        print_json({"ok": code == 0, "code": code, "hub": url or None, "requirements": told})
    else:
        _show(rows, url)
    raise typer.Exit(code)


@dataclass(frozen=True, kw_only=True)
class Row:
    """What became of one requirement."""

    require: str
    server: str
    tool: str | None
    verdict: Verdict
    reason: str = ""
    hint: str = ""
    retry_in: float | None = None
    tools: int = 0
    login: bool = False
    """Whether a login would help."""


def exit_code(rows: Iterable[Row]) -> int:
    """The exit code of the worst verdict."""
    codes = {_CODES[row.verdict] for row in rows}
    return next((code for code in _WORST_FIRST if code in codes), 0)


def judge(wanted: Sequence[str], servers: Sequence[Server], tools: Sequence[CatalogItem]) -> list[Row]:
    """The verdict on each requirement; on every enabled server if none is named."""
    by_name = {server.id: server for server in servers}
    names = wanted or [server.id for server in servers if server.status != "disabled"]
    listed: dict[str, dict[str, bool]] = {}
    for item in tools:
        listed.setdefault(item.server, {})[item.original] = item.held
    requirements = (_requirement(name, by_name) for name in dict.fromkeys(names))
    return [_row(server, tool, by_name.get(server), listed.get(server, {}), by_name) for server, tool in requirements]


def _requirement(text: str, servers: Mapping[str, Server]) -> tuple[str, str | None]:
    """The server and the tool of ``SERVER`` or ``SERVER/TOOL``; both names may have a slash in them."""
    if text in servers or "/" not in text:
        return text, None
    parts = text.split("/")
    splits = [("/".join(parts[:at]), "/".join(parts[at:])) for at in range(1, len(parts))]
    server, tool = next((split for split in splits if split[0] in servers), splits[0])
    return server, tool or None


def _row(
    name: str, tool: str | None, server: Server | None, tools: Mapping[str, bool], known: Mapping[str, Server]
) -> Row:
    verdict, reason, hint = _verdict(name, tool, server, tools, known)
    return Row(
        require=name if tool is None else f"{name}/{tool}",
        server=name,
        tool=tool,
        verdict=verdict,
        reason=reason,
        hint=hint,
        retry_in=server.retry_in if server is not None and verdict not in ("ready", "missing", "held") else None,
        tools=server.tools if server is not None else 0,
        login=server is not None and server.login,
    )


def _verdict(
    name: str, tool: str | None, server: Server | None, tools: Mapping[str, bool], known: Mapping[str, Server]
) -> tuple[Verdict, str, str]:
    if server is None:
        return "missing", "no such server is configured", near(name, list(known), "no server is configured")
    # Why a server is not ready, and what to do, in the words of `holdfast status`.
    said = server.reason or server.summary, what_to_do(server)
    if server.status == "disabled":
        return "missing", "it is disabled, and lists no tools", said[1] or command_line("enable", server=server.id)
    if server.status == "denied":
        return "denied", *said
    held = [one for one in ([tool] if tool else tools) if tools.get(one)]
    if held:
        review = f"`{command_line('approve', server=server.id)}` shows the change and approves it"
        return "held", f"{', '.join(map(plain, held))}: changed since first seen, and held", review
    is_up = server.status in ("available", "idle")
    if tool and tool not in tools and is_up:
        lists = f"`{command_line('tools', server=server.id)}` lists its tools"
        return "missing", "the server has no such tool", near(tool, list(tools), lists)
    if is_up:
        return "ready", "", ""
    return ("permanent" if server.status == "permanent" else "not_ready"), *said


# Where the states come from

OnRows: TypeAlias = Callable[[Sequence[Row]], None]
_Seen: TypeAlias = tuple[list[Row], bool]
"""The verdicts, and whether one of the servers is still at its first connection."""


async def check_servers(
    hub: RunningHub | None,
    config: Config | None,
    wanted: Sequence[str],
    seconds: float,
    on_rows: OnRows,
    at_once: bool = True,
) -> tuple[list[Row], str]:
    """The verdicts, and the address of the hub that gave them; it is empty if no hub runs.

    It waits until all is ready, until waiting cannot help, or until the time is over.

    Without ``at_once`` it waits for an outcome of every server, also where one failed for good.

    A running hub may be replaced meanwhile. So it is looked for again until the time is over.
    """
    deadline = anyio.current_time() + seconds
    if hub is None:
        async with holdfast.hub.Hub.from_config(config) as own:
            views = holdfast.control.Views(own, holdfast.control.History(), holdfast.control.HubInfo(endpoint=""))
            return await _settled(lambda: _seen(views, wanted, stays=False), deadline, on_rows, at_once=at_once), ""

    running = hub

    async def at_hub() -> _Seen:
        nonlocal running
        try:
            async with holdfast.control.ControlClient(running) as control:
                return await _seen(control, wanted)
        except NoHub as gone:
            file = running.config
            same = (one for one in holdfast.control.running_hubs() if file and one.config == file)
            running = next(same, running)
            return [_unknown(name, gone) for name in wanted or ["all servers"]], True

    rows = await _settled(at_hub, deadline, on_rows, at_once=at_once)
    return rows, running.url


async def _seen(source: ControlClient | Views, wanted: Sequence[str], *, stays: bool = True) -> _Seen:
    told = (await source.servers()).servers
    servers = told if stays else tuple(map(_tried_once, told))
    # The catalog may have ten thousand tools, so it is read only where a verdict depends on one of them.
    needs_tools = not {one.id for one in servers}.issuperset(wanted) or any(one.held for one in servers)
    rows = judge(wanted, servers, (await source.catalog()).tools if needs_tools else ())
    states = {one.id: one.state for one in servers}
    return rows, any(row.verdict == "not_ready" and states.get(row.server) == "connecting" for row in rows)


def _tried_once(server: Server) -> Server:
    """A server as the check's own hub saw it. That hub ends with the check, so what it plans will not happen."""
    words: dict[str, Any] = {"retry_in": None}
    if server.status == "transient":
        # Its words promise a retry, and name a command that needs a hub.
        command = command_line("doctor", server=server.id)
        words |= {"summary": "it did not answer in time", "action": "Find out why.", "command": command}
    if server.status == "disabled":
        words |= {"action": 'Remove `"enabled": false` from its definition.', "command": ""}
    return server.model_copy(update=words)


async def _settled(
    look: Callable[[], Awaitable[_Seen]], deadline: float, on_rows: OnRows, *, at_once: bool
) -> list[Row]:
    """The verdicts when they are settled, or at the deadline."""
    hopeless = False
    while True:
        rows, others_connect = await look()
        on_rows(rows)
        if at_once and not hopeless and any(row.verdict not in ("ready", "not_ready") for row in rows):
            hopeless = True
            deadline = min(deadline, anyio.current_time() + OTHERS_SECONDS)
        is_settled = not others_connect if hopeless else all(row.verdict != "not_ready" for row in rows)
        left = deadline - anyio.current_time()
        if is_settled or left <= 0:
            return rows
        await anyio.sleep(min(left, LOOK_SECONDS))


def _unknown(require: str, gone: NoHub) -> Row:
    server, _, tool = require.partition("/")
    return Row(
        require=require, server=server, tool=tool or None, verdict="not_ready", reason=gone.message, hint=gone.hint
    )


# Words


def _waiting(rows: Sequence[Row]) -> str:
    left = [row.require for row in rows if row.verdict == "not_ready"]
    return f"{len(rows) - len(left)} of {len(rows)} ready; waiting for {first_names(left)}"


def _show(rows: Sequence[Row], hub: str) -> None:
    width = max((len(plain(row.require)) for row in rows), default=0)
    for row in rows:
        print_row(row, width)
    ready = sum(row.verdict == "ready" for row in rows)
    if not rows:
        print_note("no servers are configured, so nothing is required")
        return
    where = f", says the hub at {hub}" if hub else "; no hub runs, so the servers were tried directly"
    count = Text(f"{ready} of {len(rows)} ready", style="bold")
    print_note(count.append(where, style="not bold"))


def print_row(row: Row, width: int = 0) -> None:
    """Print one verdict with its reason; for one that is not ready also the next try and what to do."""
    word, colour = _WORDS[row.verdict]
    line = Text.assemble((f"{plain(row.require):<{width}}", "bold"), "  ", (word, colour))
    if row.verdict == "ready":
        if row.tool is None:
            line.append(f"  {counted(row.tools, 'tool')}", style="dim")
        print_line(line)
        return
    line.append(f"  {plain(row.reason).rstrip('.')}")
    print_line(line)
    if when := next_try(row.retry_in):  # never in one sentence with the reason: that of a failed server is permanent
        print_line(f"  next try {when}")
    if row.hint:
        print_line(("  hint: ", "cyan"), plain(row.hint))
