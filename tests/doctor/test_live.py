"""Beside a running hub: its live state, and why it may say something else."""

from __future__ import annotations

import os
from collections.abc import Callable

import anyio
import pytest

from holdfast.control.control_client import ControlClient
from holdfast.control.hub_finder import RunningHub, find_hub, registered, running_hubs
from holdfast.core.replicas import agreement
from holdfast.errors import HubRefused
from holdfast.fleet import Fleet, LocalStore, serve_broker
from holdfast.keys import KeyRing
from tests.cli.command import stdio
from tests.cli.serve_process import served
from tests.control.server.controlled_hub import TOKEN, steered
from tests.doctor.examination import Examination
from tests.harness.open_hubs import running
from tests.harness.waiting import asked
from tests.peers.http_fault import closed_port, respond
from tests.peers.mcp_http import McpPeer, calls_meet
from tests.peers.stdio import StdioPeer

OFF = {"command": "x", "enabled": False}

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("DOC-5")]

Make = Callable[..., StdioPeer]


def choosy(peer: StdioPeer, *, wants: str) -> dict[str, object]:
    """A server that starts only where a variable has the right value."""
    program = (
        "import os, sys\n"
        f"if os.environ['SWITCH'] != {wants!r}: sys.exit('not like this')\n"
        f"os.execv({peer.command!r}, {[peer.command, *peer.args]!r})"
    )
    return {"command": peer.command, "args": ["-c", program], "env": {"SWITCH": "${CLINIC_SWITCH:-off}"}}


async def test_the_hubs_state_is_shown_beside_the_probe_and_where_they_differ_it_says_why(
    clinic: Examination, stdio_peer: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    clinic.configure(
        {
            "both": stdio(stdio_peer()),
            "neither": {"command": "no-such-command"},
            "hub_only": choosy(stdio_peer(), wants="off"),
            "here_only": choosy(stdio_peer(), wants="on"),
            "switched_off": stdio(stdio_peer()),
        },
    )
    home = clinic.folder.parent / "home"
    monkeypatch.setenv("CLINIC_SWITCH", "on")
    async with served(home, "--config", str(clinic.file)) as hub:
        monkeypatch.setenv("XDG_STATE_HOME", str(home / "state"))
        with anyio.fail_after(60):
            async with ControlClient(find_hub()) as control:
                for name in ("both", "hub_only"):
                    await control.act(name, "reconnect")
                for name in ("neither", "here_only"):
                    with pytest.raises(HubRefused):
                        await control.act(name, "reconnect")
                await control.act("switched_off", "disable")
            report = await clinic.all()
    assert report.hub is not None
    assert report.hub.pid == hub.process.pid
    live = {server.id: (server.health, server.hub) for server in report.servers}
    shown = {
        name: (health, state.state, state.breaker, state.agrees) for name, (health, state) in live.items() if state
    }
    assert shown == {
        "both": ("healthy", "connected", "closed", True),
        "neither": ("failed", "parked", "closed", True),
        "hub_only": ("failed", "connected", "closed", False),
        "here_only": ("warned", "parked", "closed", False),
        "switched_off": ("healthy", "disabled", "closed", False),
    }
    differs = ("HF-HUB-DIFFERS", "HF-HUB-DISABLED")
    differing = [one for server in report.servers for one in server.findings if one.code in differs]
    clinic.matches("hub_differs", differing)


async def test_servers_are_examined_also_where_the_hub_that_is_named_has_no_token_here(
    clinic: Examination, stdio_peer: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_URL", "http://127.0.0.1:1")
    monkeypatch.delenv("HOLDFAST_CONTROL_TOKEN", raising=False)
    clinic.configure({"one": stdio(stdio_peer())})
    report = await clinic.all()
    assert (report.ok, report.hub) == (True, None)


async def test_a_server_of_which_only_one_process_can_run_works_where_the_hub_runs_it(
    clinic: Examination, stdio_peer: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock stands for the port: no other program of the machine can take it meanwhile."""
    peer = stdio_peer()
    program = (
        "import fcntl, os, sys\n"
        f"lock = os.open({str(clinic.folder / 'lock')!r}, os.O_CREAT | os.O_RDWR)\n"
        "os.set_inheritable(lock, True)\n"
        "try: fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
        "except OSError: sys.exit('OSError: [Errno 98] Address already in use')\n"
        f"os.execv({peer.command!r}, {[peer.command, *peer.args]!r})"
    )
    clinic.configure({"one": {"command": peer.command, "args": ["-c", program]}})
    home = clinic.folder.parent / "home"
    async with served(home, "--config", str(clinic.file)):
        monkeypatch.setenv("XDG_STATE_HOME", str(home / "state"))
        with anyio.fail_after(60):
            async with ControlClient(find_hub()) as control:
                await control.act("one", "reconnect")
            (server,) = (await clinic.all()).servers
    assert (server.health, [one.code for one in server.findings]) == ("warned", ["HF-HUB-ALONE"])
    assert server.hub is not None
    assert server.hub.agrees
    clinic.matches("hub_alone", server.findings)


async def test_no_hub_or_another_ones_is_none_of_ours(clinic: Examination) -> None:
    clinic.configure({"off": {"command": "x", "enabled": False}})
    other = RunningHub(
        url="http://127.0.0.1:1", token="t", pid=os.getpid(), started=1.0, config="/other.json", version="1"
    )
    with registered(other):
        assert len(running_hubs()) == 1
        report = await clinic.all()
    assert (report.hub, report.checks[-1].check) == (None, "state")


async def test_a_hub_that_cannot_be_asked_is_a_warning(clinic: Examination) -> None:
    clinic.configure({"off": {"command": "x", "enabled": False}})
    with closed_port() as port:
        stuck = RunningHub(
            url=f"http://127.0.0.1:{port}",
            token="planted-control-token",
            pid=os.getpid(),
            started=1.0,
            config=str(clinic.file),
            version="1",
        )
        with registered(stuck):
            report = await clinic.all()
    (found,) = report.checks[-1].findings
    assert found.code == "HF-HUB-SILENT"
    assert "planted-control-token" not in report.model_dump_json()
    clinic.matches("hub_silent", found)


@pytest.mark.requirement("FLEET-2", "FLEET-3")
async def test_a_wrong_clock_of_a_replica_is_in_the_api_and_in_the_doctor(clinic: Examination) -> None:
    clinic.configure({"off": OFF})
    path = clinic.folder / "broker"
    fleet = Fleet(LocalStore(path), replica="one", keys=lambda: KeyRing([b"k" * 32]))
    async with anyio.create_task_group() as tasks:
        await tasks.start(lambda task_status: serve_broker(path, task_status=task_status))
        async with steered({"off": OFF}, fleet=fleet) as hub:
            fleet.state.clock.agreed.note(1.8e9, {"one": 0, "two": 90_000, "three": 1}, 0.0)

            async def is_told() -> bool:
                return bool((await hub.control.hub()).notice)

            await asked(is_told)
            view = await hub.control.hub()
            assert view.fleet is not None
            assert view.fleet.wrong_clocks == {"two": 90_000}
            assert view.notice.startswith("the clock of two is 90000 s ahead of the fleet's: correct it")
            found = RunningHub(
                url=hub.base, token=TOKEN, pid=os.getpid(), started=1.0, config=str(clinic.file), version="1"
            )
            with registered(found):
                report = await clinic.all()
        tasks.cancel_scope.cancel()
    (finding,) = report.checks[-1].findings
    assert finding.code == "HF-HUB-NOTICE"
    clinic.matches("hub_clock", finding)


@pytest.mark.requirement("FLEET-3")
async def test_a_replica_whose_store_does_not_answer_is_named_by_the_doctor(
    clinic: Examination, monkeypatch: pytest.MonkeyPatch
) -> None:
    clinic.configure({"off": OFF})
    home = clinic.folder.parent / "home"
    fleet = {"HOLDFAST_SESSION_KEY": "k" * 40, "HOLDFAST_FLEET": "redis://:secret-of-redis@127.0.0.1:1?fleet=blue"}
    async with served(home, "--config", str(clinic.file), "--advertise", "tcp://127.0.0.1:0", **fleet) as hub:
        monkeypatch.setenv("XDG_STATE_HOME", str(home / "state"))
        with anyio.fail_after(60):
            await hub.said("redis://127.0.0.1:1?fleet=blue does not answer")
            report = await clinic.all()
    found = report.checks[-1].findings[0]
    assert found.code == "HF-HUB-NOTICE"
    assert "secret-of-redis" not in report.model_dump_json() + hub.err
    clinic.matches("hub_store", found)


@pytest.mark.requirement("FLEET-2")
async def test_different_configurations_of_replicas_are_in_the_api_and_in_the_doctor(
    clinic: Examination, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agreement, "SETTLED_SECONDS", 0.0)
    clinic.configure({"off": OFF})
    path = clinic.folder / "broker"

    def replica(name: str) -> Fleet:
        return Fleet(LocalStore(path), replica=name, keys=lambda: KeyRing([b"k" * 32]))

    async with anyio.create_task_group() as tasks:
        await tasks.start(lambda task_status: serve_broker(path, task_status=task_status))
        async with (
            running({"off": OFF, "more": OFF}, hub={"fleet": replica("two")}),
            steered({"off": OFF}, fleet=replica("one")) as hub,
        ):

            async def is_told() -> bool:
                return bool((await hub.control.hub()).notice)

            await asked(is_told)
            view = await hub.control.hub()
            assert view.fleet is not None
            assert view.fleet.different_configs == (("one",), ("two",))
            assert view.notice.startswith("the replicas run 2 different configurations (one; two): ")
            found = RunningHub(
                url=hub.base, token=TOKEN, pid=os.getpid(), started=1.0, config=str(clinic.file), version="1"
            )
            with registered(found):
                report = await clinic.all()
        tasks.cancel_scope.cancel()
    (finding,) = report.checks[-1].findings
    assert finding.code == "HF-HUB-NOTICE"
    clinic.matches("hub_configs", finding)


async def test_a_server_whose_calls_the_hub_refuses_is_not_simply_well(
    clinic: Examination, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = clinic.folder.parent / "home"
    async with McpPeer() as peer:
        clinic.configure({"server": {"url": peer.url}}, breaker={"threshold": 2, "cooldown": "300s"})
        async with served(home, "--config", str(clinic.file)) as hub:
            monkeypatch.setenv("XDG_STATE_HOME", str(home / "state"))
            with anyio.fail_after(60):
                async with ControlClient(find_hub()) as control:
                    await control.act("server", "reconnect")
                    peer.script = calls_meet(respond(503, "mending"), peer)
                    while (await control.server("server")).breaker.state != "open":
                        await hub.call("server__echo")
                    peer.script = peer.healthy  # no reconnect closes a breaker that failing calls opened (BRK-11)
                    (server,) = (await clinic.all()).servers
    assert server.health == "warned"
    assert server.hub is not None
    assert (server.hub.breaker, server.hub.agrees) == ("open", False)
    (found,) = server.findings
    assert (found.code, found.remedy.commands) == ("HF-HUB-BREAKER", ("holdfast reconnect server",))
    clinic.matches("hub_breaker", found)


async def test_the_waits_are_those_that_status_shows(clinic: Examination, monkeypatch: pytest.MonkeyPatch) -> None:
    home = clinic.folder.parent / "home"
    async with McpPeer() as peer:
        clinic.configure({"server": {"url": peer.url}}, breaker={"threshold": 2, "cooldown": "300s"})
        async with served(home, "--config", str(clinic.file)) as hub:
            monkeypatch.setenv("XDG_STATE_HOME", str(home / "state"))
            with anyio.fail_after(60):
                async with ControlClient(find_hub()) as control:
                    await control.act("server", "reconnect")
                    await peer.stop()
                    while (await control.server("server")).breaker.state != "open":
                        await hub.call("server__echo")
                    begun = (await control.server("server")).breaker.retry_in
                    assert begun is not None

                    async def has_waited() -> bool:
                        now = (await control.server("server")).breaker.retry_in
                        return now is not None and now < begun - 1.5

                    async def slowly(host: str, port: int) -> tuple[str, ...]:
                        await asked(has_waited)
                        return (host,)

                    # The doctor takes a while: the times of its start would be too long.
                    report = await clinic.all(within=3.0, resolve=slowly)
                    before = anyio.current_time()
                    status = await control.server("server")
                    passed = anyio.current_time() - before
    live = report.servers[0].hub
    assert live is not None
    assert live.breaker == status.breaker.state == "open"
    assert live.breaker_retry_in is not None
    assert status.breaker.retry_in is not None
    assert -0.5 < live.breaker_retry_in - status.breaker.retry_in < passed + 1.5


async def test_the_hubs_state_is_that_of_the_end_of_a_slow_examination(
    clinic: Examination, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = clinic.folder.parent / "home"
    async with McpPeer() as peer:
        clinic.configure({"server": {"url": peer.url}})
        async with served(home, "--config", str(clinic.file)):
            monkeypatch.setenv("XDG_STATE_HOME", str(home / "state"))
            with anyio.fail_after(60):
                async with ControlClient(find_hub()) as control:
                    await control.act("server", "reconnect")

                    async def while_the_hub_changes(host: str, port: int) -> tuple[str, ...]:
                        await control.act("server", "disable")
                        return (host,)

                    (server,) = (await clinic.all(resolve=while_the_hub_changes)).servers
    assert server.hub is not None
    assert (server.hub.state, [one.code for one in server.findings]) == ("disabled", ["HF-HUB-DISABLED"])
