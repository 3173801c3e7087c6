"""``holdfast check``: what a job requires, and the exit code that tells it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from subprocess import CompletedProcess
from typing import Any

import anyio.to_thread
import pytest

from tests.cli.command import Cli, stdio
from tests.cli.hub_peer import HubPeer, hub_peer, server
from tests.cli.in_process import Inside
from tests.cli.serve_process import served
from tests.peers.http_fault import FaultServer, respond
from tests.peers.stdio import StdioPeer

pytestmark = pytest.mark.requirement("DX-11")

Make = Callable[..., StdioPeer]


def tools(**of: list[str]) -> dict[str, Any]:
    """A catalog: by server, its tools; one that ends with ``!`` is held."""
    items = [
        {"name": f"{one}__{name}", "server": one, "original": name.rstrip("!"), "held": name.endswith("!")}
        for one, names in of.items()
        for name in names
    ]
    return {"version": 1, "tools": items}


@pytest.fixture
def hub() -> Iterator[HubPeer]:
    with hub_peer(
        server("github", held=("secret",)),
        server("files", tools=2),
        server(
            "linear",
            "denied",
            reason="it rejected the token (401)",
            action="Log in.",
            command="holdfast login linear",
            login=True,
        ),
        server("login-page", "denied", reason="access denied (403)", command="holdfast doctor login-page"),
        server("slow", "transient", state="reconnecting", reason="its process exited with code 3", retry_in=4.2),
        server("broken", "permanent", reason="the command `nope` was not found", retry_in=60.0),
        server("off", "disabled"),
        server("lazy", "idle"),
        server("a/b"),
    ) as peer:
        peer.answers["GET /api/catalog"] = (
            200,
            tools(
                github=["issues", "secret!"], files=["read", "write"], lazy=["wake"], **{"a/b": ["c/d"]}, slow=["old"]
            ),
        )
        yield peer


@pytest.mark.parametrize(
    ("require", "code", "verdict", "says"),
    [
        ("files", 0, "ready", ""),
        ("files/read", 0, "ready", ""),
        ("github/issues", 0, "ready", ""),
        ("lazy/wake", 0, "ready", ""),
        ("a/b", 0, "ready", ""),
        ("a/b/c/d", 0, "ready", ""),
        ("files/raed", 10, "missing", "did you mean `read`?"),
        ("fils", 10, "missing", "did you mean `files`?"),
        ("fils/read", 10, "missing", "no such server is configured"),
        ("off", 10, "missing", "it is disabled"),
        ("github/secret", 12, "held", "holdfast approve"),
        ("github", 12, "held", "secret"),
        ("linear", 12, "denied", "holdfast login linear"),
        ("linear/any", 12, "denied", "rejected the token"),
        ("broken", 11, "permanent", "next try in 1 min"),
        ("slow", 11, "not_ready", "next try in 4 s"),
        ("slow/old", 11, "not_ready", "its process exited with code 3"),
        ("slow,broken,linear", 12, "not_ready", ""),
        ("slow,linear,zzz", 10, "not_ready", ""),
    ],
)
def test_each_requirement_has_a_verdict_and_the_worst_gives_the_exit_code(
    hub: HubPeer, inside: Inside, require: str, code: int, verdict: str, says: str
) -> None:
    ran = inside("check", "--require", require, "--wait", "0s", environment=hub.environment)
    assert ran.code == code, ran
    assert says in ran.out
    as_data = inside("check", "--require", require, "--wait", "0s", "--json", environment=hub.environment)
    told = json.loads(as_data.out)
    assert (told["ok"], told["code"], told["hub"]) == (code == 0, code, hub.url)
    assert told["requirements"][0]["verdict"] == verdict
    assert {asked for asked, _ in hub.asked} <= {"GET /api/servers", "GET /api/catalog"}


def test_whether_a_login_helps_is_told_by_the_hub_and_not_by_a_word_in_its_hint(hub: HubPeer, inside: Inside) -> None:
    asked = ("check", "--require", "linear,login-page,files", "--wait", "0s", "--json")
    told = json.loads(inside(*asked, environment=hub.environment).out)
    assert [one["login"] for one in told["requirements"]] == [True, False, False]


@pytest.mark.requirement("MSG-9")
def test_the_next_try_of_a_failed_server_has_a_line_of_its_own(hub: HubPeer, inside: Inside) -> None:
    ran = inside("check", "--require", "broken", "--wait", "0s", environment=hub.environment)
    verdict, later, *_ = ran.out.splitlines()
    assert "failed" in verdict
    assert "try" not in verdict
    assert later == "  next try in 1 min"


def test_a_server_that_is_starting_is_waited_for(hub: HubPeer, inside: Inside) -> None:
    def come_up() -> None:
        hub.looked_at()
        hub.change(server("slow"))

    helper = threading.Thread(target=come_up)
    helper.start()
    ran = inside("check", "--require", "slow,files", "--wait", "50s", environment=hub.environment)
    helper.join()
    assert (ran.code, ran.err) == (0, f"2 of 2 ready, says the hub at {hub.url}\n")


def test_what_waiting_cannot_change_ends_the_check_at_once(hub: HubPeer, inside: Inside) -> None:
    """The wait is longer than the test may take."""
    for require, code in {"slow,broken": 11, "slow,linear": 12, "slow,nothing": 10}.items():
        assert inside("check", "--require", require, "--wait", "1h", environment=hub.environment).code == code


def test_without_a_requirement_every_enabled_server_is_required(hub: HubPeer, inside: Inside) -> None:
    ran = inside("check", "--wait", "0s", "--json", environment=hub.environment)
    assert ran.code == 12
    assert "off" not in {row["server"] for row in json.loads(ran.out)["requirements"]}


def test_a_hub_that_goes_away_is_not_ready_and_says_so(hub: HubPeer, inside: Inside) -> None:
    hub.closed = True
    ran = inside("check", "--require", "files", "--wait", "0s", environment=hub.environment)
    assert ran.code == 11
    assert "cannot be reached" in ran.out


@pytest.mark.parametrize(
    "arguments",
    [("--wait", "soon"), ("--wait", "30q"), ("--wait", "²"), ("--wait", ""), ("--require", ","), ("--nothing",)],
)
def test_wrong_usage_is_2(inside: Inside, arguments: tuple[str, ...]) -> None:
    assert inside("check", *arguments).code == 2


@pytest.mark.anyio
async def test_without_a_hub_it_connects_to_the_servers_itself(cli: Cli, stdio_peer: Make) -> None:
    async with FaultServer(respond(403, '{"error": "your plan has no access"}')) as closed:
        cli.configure(
            {
                "files": stdio(stdio_peer("--tools", "2")),
                "gone": {"command": "holdfast-no-such-program"},
                "closed": {"url": f"{closed.origin}/mcp", "oauth": False},
            }
        )
        ready = await _run(cli, "check", "--require", "files/echo,files/add")
        ran = await _run(cli, "check", "--json", "--wait", "1h")
    assert ready.returncode == 0
    told = json.loads(ran.stdout)
    verdicts = {row["server"]: row["verdict"] for row in told["requirements"]}
    assert verdicts == {"files": "ready", "gone": "permanent", "closed": "denied"}
    assert (ran.returncode, told["hub"]) == (12, None)
    row = next(row for row in told["requirements"] if row["server"] == "gone")
    assert "holdfast-no-such-program" in row["reason"]
    assert row["hint"]


@pytest.mark.requirement("MSG-5")
def test_without_a_hub_no_later_try_is_promised_and_no_command_for_a_hub_is_named(cli: Cli) -> None:
    """The hub of the check ends with it: nothing tries a server again, and nothing can be reconnected or enabled."""
    waiting = {"command": "sh", "args": ["-c", "read -r _"]}
    cli.configure(
        {"slow": waiting, "gone": {"command": "holdfast-no-such-program"}, "off": {**waiting, "enabled": False}}
    )
    asked = ("check", "--require", "slow,gone,off", "--wait", "0s")
    ran = cli.run(*asked)
    for untrue in ("try", "retried", "reconnect", "holdfast enable"):
        assert untrue not in ran.stdout
    assert ran.stdout.count("hint: ") == 3
    rows = json.loads(cli.run(*asked, "--json").stdout)["requirements"]
    assert [row["retry_in"] for row in rows] == [None] * 3


@pytest.mark.anyio
async def test_tools_call_find_and_check_use_the_running_hub(cli: Cli, stdio_peer: Make) -> None:
    """One process of the server runs: that of the hub. The words are those of a command that connects itself."""
    peer = stdio_peer("--tools", "2")
    cli.configure({"a": stdio(peer), "gone": {"command": "holdfast-no-such-program"}})
    async with served(cli.folder, "--config", str(cli.folder / "mcp.json"), **cli.environment) as hub:
        cli.environment["XDG_STATE_HOME"] = str(hub.home / "state")
        checked = await _run(cli, "check", "--require", "a/add")
        tools = await _run(cli, "tools", "--json")
        shown = await _run(cli, "tools")
        called = await _run(cli, "call", "a", "add", "a=1", "b=2")
        gone = await _run(cli, "call", "gone", "x")
        found = await _run(cli, "find", "add", "--limit", "1", "--json")
    assert (checked.returncode, "says the hub at" in checked.stderr) == (0, True)
    assert peer.starts == 1
    up, down = json.loads(tools.stdout)["servers"]
    assert (tools.returncode, up["status"], [tool["name"] for tool in up["tools"]]) == (1, "available", ["echo", "add"])
    assert (down["status"], down["error"]) == ("permanent", "the command `holdfast-no-such-program` was not found")
    doctor = f"`holdfast doctor --config {cli.folder / 'mcp.json'}` checks the others"
    assert shown.stderr == f"1 of 2 servers available, 2 tools; {doctor}\n", "the hub needs no trust in it, doctor does"
    assert (called.returncode, called.stdout, called.stderr) == (0, "3\n", "")
    failed = "error: the call to `gone` failed: the command `holdfast-no-such-program` was not found"
    assert (gone.returncode, gone.stderr.splitlines()[0]) == (1, failed)
    (hit,) = json.loads(found.stdout)["tools"]
    assert (hit["name"], hit["server"], hit["available"], hit["state"]) == ("a__add", "a", True, "connected")


async def _run(cli: Cli, *arguments: str) -> CompletedProcess[str]:
    return await anyio.to_thread.run_sync(lambda: cli.run(*arguments))
