"""A change of the file reaches the running hub; a broken change does not, and is reported."""

# ruff: noqa: ASYNC240 - the files are tiny, and nothing else waits for the loop

from __future__ import annotations

import json
import logging
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
import anyio.lowlevel
import pytest

from holdfast.access import Policy
from holdfast.config import AccessSettings, Config, read_file
from holdfast.config.read import config_from_mapping, load_config
from holdfast.core.catalog import Item, Listing
from holdfast.hub import reload
from holdfast.hub.hub import Hub
from holdfast.hub.journal import ConfigApplied, ConfigRefused
from holdfast.hub.reload import ConfigRecord, Reloader
from holdfast.testing import StdioServer
from tests.harness.waiting import came_true

pytestmark = pytest.mark.anyio


def text(**servers: object) -> str:
    return json.dumps({"mcpServers": servers})


async def settled(reloader: Reloader) -> tuple[ConfigRecord, ...]:
    """What a change comes to: the first look sees it, the second uses it."""
    return await reloader.look() or await reloader.look()


async def applied(reloader: Reloader) -> ConfigApplied:
    """A change that is used as a whole."""
    (record,) = await settled(reloader)
    assert isinstance(record, ConfigApplied)
    return record


async def refused(reloader: Reloader) -> ConfigRefused:
    """A change that cannot be used at all."""
    (record,) = await settled(reloader)
    assert isinstance(record, ConfigRefused)
    return record


@asynccontextmanager
async def running(file: Path) -> AsyncIterator[tuple[Hub, Reloader]]:
    async with Hub(load_config(file)) as hub:
        with anyio.fail_after(20):
            await hub.ready()
        yield hub, Reloader(hub, file)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "mcp.json"


@pytest.mark.requirement("LIFE-20")
async def test_an_edit_of_an_env_file_that_was_read_and_not_yet_watched_is_in_force(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with StdioServer({"a": "1"}) as one:
        file.write_text(text(one=one.definition))
        (file.parent / "vars.env").write_text("X=1\n")
        async with running(file) as (hub, reloader):

            def edited_after(*args: Any, **options: Any) -> Any:
                found = read_file(*args, **options)
                (file.parent / "vars.env").write_text("X=22\n")
                return found

            monkeypatch.setattr(reload, "read_file", edited_after)
            file.write_text(text(one={**one.definition, "envFile": "vars.env"}))
            await applied(reloader)
            await reloader.look()
            await reloader.look()
            assert hub.config.servers["one"].env["X"] == "22"


@pytest.mark.requirement("LIFE-20")
async def test_only_servers_whose_definition_changed_are_touched(file: Path) -> None:
    with StdioServer({"a": "1"}) as one, StdioServer({"b": "2"}) as two, StdioServer({"c": "3"}) as three:
        file.write_text(text(one=one.definition, two=two.definition))
        async with running(file) as (hub, reloader):
            file.write_text(text(one=one.definition, two={**two.definition, "env": {"X": "1"}}, three=three.definition))
            result = await applied(reloader)
            assert (result.added, result.removed, result.changed) == (("three",), (), ("two",))
            with anyio.fail_after(20):
                await hub.ready()
                assert (await hub.call_tool("three__c")).text == "3"
                assert (await hub.call_tool("two__b")).text == "2"
            assert (len(one.pids), len(two.pids)) == (1, 2)
            file.write_text(text(one=one.definition))
            result = await applied(reloader)
            assert result.removed == ("two", "three")
            assert list(hub.servers) == ["one"]


@pytest.mark.requirement("LIFE-20")
async def test_a_swap_of_symbolic_links_is_seen(tmp_path: Path) -> None:
    """As Kubernetes updates a mounted ConfigMap: the file is a link into a folder that is itself a link."""
    with StdioServer({"a": "1"}) as one, StdioServer({"b": "2"}) as two:
        for number, servers in enumerate(({"one": one.definition}, {"one": one.definition, "two": two.definition})):
            (tmp_path / f"..{number}").mkdir()
            (tmp_path / f"..{number}" / "mcp.json").write_text(text(**servers))
        (tmp_path / "..data").symlink_to("..0")
        file = tmp_path / "mcp.json"
        file.symlink_to("..data/mcp.json")
        async with running(file) as (hub, reloader):
            assert await settled(reloader) == ()
            (tmp_path / "..data_tmp").symlink_to("..1")
            (tmp_path / "..data_tmp").replace(tmp_path / "..data")
            result = await applied(reloader)
            assert result.added == ("two",)
            with anyio.fail_after(20):
                await hub.ready()
                assert (await hub.call_tool("two__b")).text == "2"


@pytest.mark.requirement("LIFE-20")
@pytest.mark.parametrize("broken", ['{"mcpServers": {', '{"mcpServer": {}}', ""])
async def test_a_broken_edit_keeps_the_running_configuration_and_says_why(
    file: Path, broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    with StdioServer({"a": "1"}) as one:
        file.write_text(text(one=one.definition))
        async with running(file) as (hub, reloader):
            file.write_text(broken)
            with caplog.at_level(logging.ERROR):
                result = await refused(reloader)
            assert str(file) in result.problems[0]
            assert str(file) in caplog.text
            assert await settled(reloader) == (), "it is reported once"
            assert (await hub.call_tool("one__a")).text == "1"
            assert len(one.pids) == 1


async def test_a_file_that_is_gone_keeps_the_running_configuration_and_its_return_is_seen(file: Path) -> None:
    with StdioServer({"a": "1"}) as one:
        file.write_text(text(one=one.definition))
        async with running(file) as (hub, reloader):
            file.unlink()
            await refused(reloader)
            file.write_text(text(one=one.definition, late={"command": "no-such-command-here"}))
            result = await applied(reloader)
            assert result.added == ("late",)
            assert len(one.pids) == 1
            assert list(hub.servers) == ["one", "late"]


async def test_a_file_that_is_not_there_yet_is_no_refused_edit(file: Path) -> None:
    async with Hub(config_from_mapping({"mcpServers": {}})) as hub:
        reloader = Reloader(hub, file)
        assert await reloader.reload() == ()
        with StdioServer({"a": "1"}) as one:
            file.write_text(text(one=one.definition))
            assert (await applied(reloader)).added == ("one",)


async def test_a_server_with_a_broken_new_definition_keeps_the_one_that_it_had(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with StdioServer({"a": "1"}) as one, StdioServer({"b": "2"}) as two:
        file.write_text(text(one=one.definition))
        async with running(file) as (hub, reloader):
            file.write_text(text(one={"comand": "x"}, two=two.definition))
            with caplog.at_level(logging.ERROR):
                result, kept = await settled(reloader)
            assert isinstance(result, ConfigApplied)
            assert result.added == ("two",)
            assert isinstance(kept, ConfigRefused)
            assert kept.servers == ("one",)
            assert "the new definition of one cannot be used" in caplog.text
            assert (await hub.call_tool("one__a")).text == "1"
            assert len(one.pids) == 1


async def test_a_half_written_file_is_not_read(file: Path) -> None:
    with StdioServer({"a": "1"}) as one:
        file.write_text(text(one=one.definition))
        async with running(file) as (_, reloader):
            file.write_text(text(one=one.definition)[:20])
            assert await reloader.look() == ()
            file.write_text(text(one={**one.definition, "prefix": "uno"}))
            assert await reloader.look() == ()
            assert await reloader.look() != ()


@pytest.mark.requirement("SEC-7")
async def test_a_disk_that_hangs_under_an_env_file_holds_up_no_loop(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables, looked = file.with_name("vars.env"), list[bool]()
    variables.write_text("X=1\n")
    file.write_text(text(one={"command": "no-such-command-here", "enabled": False, "envFile": "vars.env"}))
    stat = Path.stat

    def noted(self: Path, **options: Any) -> Any:
        if self.name == variables.name:
            looked.append(threading.current_thread() is threading.main_thread())
        return stat(self, **options)

    async with running(file) as (_, reloader):
        monkeypatch.setattr(Path, "stat", noted)
        await reloader.reload()
        await settled(reloader)
    assert looked
    assert not any(looked)


async def test_a_change_of_an_env_file_is_a_change_of_its_server(file: Path) -> None:
    with StdioServer({"a": "1"}) as one:
        variables = file.with_name("vars.env")
        variables.write_text("X=1\n")
        file.write_text(text(one={**one.definition, "envFile": "vars.env"}))
        async with running(file) as (_, reloader):
            await reloader.reload()  # as the first step of `run`, which finds the files that it must watch
            variables.write_text("X=22\n")
            result = await applied(reloader)
            assert result.changed == ("one",)


@pytest.mark.requirement("LIFE-20")
async def test_settings_that_changed_are_named_and_what_of_them_waits_for_the_next_start(file: Path) -> None:
    with StdioServer({"a": "1"}) as one:
        file.write_text(text(one=one.definition))
        async with running(file) as (hub, reloader):
            changed = {"call": {"timeout": "5s"}, "breaker": {"threshold": 9}, "limits": {"messageBytes": 5000}}
            file.write_text(json.dumps({"mcpServers": {"one": one.definition}, "holdfast": changed}))
            result = await applied(reloader)
            assert result.settings == ("holdfast.call", "holdfast.limits", "holdfast.breaker")
            assert result.at_restart == ("holdfast.limits.messageBytes, for what clients send",)
            assert "settings: holdfast.call" in str(result)
            assert hub.config.settings.call.timeout == 5
            assert hub.registry.slot("one").machine.breaker.policy.threshold == 9
            assert len(one.pids) == 1


@pytest.mark.requirement("LIFE-20")
@pytest.mark.parametrize("sharing", ["shared", "per-client"])
async def test_a_servers_own_limit_of_calls_applies_without_a_new_connection(file: Path, sharing: str) -> None:
    with StdioServer({"a": "1"}) as one:
        file.write_text(text(one={**one.definition, "sharing": sharing}))
        async with running(file) as (hub, reloader):
            server, own = hub.config.servers["one"], None
            assert not server.problems
            if sharing == "per-client":
                own = hub.registry.clients.of("me", server, lambda: None)
                await came_true(lambda slot=own: slot.lease is not None)  # type: ignore[misc]
            started = len(one.pids)
            file.write_text(text(one={**one.definition, "sharing": sharing, "timeout": 300}))
            assert (await applied(reloader)).changed == ("one",)
            server = hub.config.servers["one"]
            assert not server.problems
            assert hub.registry.slot("one").spec is server
            if own is not None:
                assert hub.registry.clients.of("me", server, lambda: None) is own
                assert own.spec is server
            assert hub.config.settings.call.of(server).timeout == 300
            assert len(one.pids) == started


async def test_a_saved_file_that_says_the_same_changes_nothing(file: Path) -> None:
    with StdioServer({"a": "1"}) as one:
        file.write_text(text(one=one.definition))
        async with running(file) as (_, reloader):
            file.write_text(file.read_text() + "\n// a note\n")
            assert await settled(reloader) == ()
            assert len(one.pids) == 1


async def test_it_watches_by_itself(file: Path) -> None:
    file.write_text("{}")
    told = anyio.Event()
    async with Hub(load_config(file)) as hub, anyio.create_task_group() as tasks:
        hub.listen(lambda record: told.set() if isinstance(record, ConfigApplied) else None)
        tasks.start_soon(Reloader(hub, file).run)
        file.write_text(text(late={"command": "no-such-command-here"}))
        with anyio.fail_after(20):
            await told.wait()
        assert list(hub.servers) == ["late"]
        tasks.cancel_scope.cancel()


async def test_an_edit_between_reading_and_watching_is_not_missed(file: Path) -> None:
    file.write_text("{}")
    config, told = load_config(file), anyio.Event()
    file.write_text(text(late={"command": "no-such-command-here"}))
    async with Hub(config) as hub, anyio.create_task_group() as tasks:
        hub.listen(lambda record: told.set() if isinstance(record, ConfigApplied) else None)
        tasks.start_soon(Reloader(hub, file).run)
        with anyio.fail_after(20):
            await told.wait()
        assert list(hub.servers) == ["late"]
        tasks.cancel_scope.cancel()


async def test_it_can_be_told_to_read_at_once(file: Path) -> None:
    file.write_text("{}")
    async with running(file) as (hub, reloader):
        file.write_text(text(late={"command": "no-such-command-here"}))
        assert await reloader.reload() != ()
        assert list(hub.servers) == ["late"]
        assert await reloader.reload() == ()


OFF = {"url": "http://127.0.0.1:9/mcp", "enabled": False}


@pytest.mark.requirement("SEC-7")
async def test_readers_see_an_edit_of_many_servers_as_a_whole_while_it_is_made_in_turns(file: Path) -> None:
    few, many = {"kept": OFF, "gone": OFF}, {"kept": OFF, **{f"s{number}": OFF for number in range(120)}}
    seen: set[tuple[int, int, int, bool]] = set()
    file.write_text(text(**few))
    async with running(file) as (hub, reloader), anyio.create_task_group() as tasks:

        async def read() -> None:
            while True:
                registry = hub.registry
                seen.add(
                    (len(hub.config.servers), len(registry.slots), len(hub.catalog.servers), "gone" in hub.servers)
                )
                await anyio.lowlevel.checkpoint()

        tasks.start_soon(read)
        hub.registry.publisher.publish(Listing(server="gone", generation=1, tools=(Item("x"),)))
        file.write_text(text(**many))
        await reloader.reload()
        tasks.cancel_scope.cancel()
    assert seen == {(2, 2, 2, True), (121, 121, 121, False)}


@pytest.mark.requirement("SEC-7")
async def test_a_hub_that_is_closed_in_the_middle_of_a_large_edit_closes_at_once(file: Path) -> None:
    file.write_text(text())
    async with running(file) as (hub, reloader):
        file.write_text(text(**{f"s{number}": OFF for number in range(200)}))
        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(reloader.reload)
                while not hub.registry.slots:
                    await anyio.lowlevel.checkpoint()
                slots = [*hub.registry.slots.values()]
                await hub.close()
        assert len(slots) == 200
        assert all(slot.closed.is_set() for slot in slots)


@pytest.mark.requirement("SEC-7")
async def test_an_edit_that_breaks_many_servers_writes_a_short_log(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    names = [f"s{number}" for number in range(100)]
    file.write_text(text(**dict.fromkeys(names, OFF)))
    async with running(file) as (_, reloader):
        caplog.clear()
        file.write_text(text(**{name: {"url": 7} for name in names}))
        *_, record = await reloader.reload()
    assert isinstance(record, ConfigRefused)
    assert record.servers == tuple(names), "the record has all of them"
    assert len(record.problems) == 100
    told = [one.getMessage() for one in caplog.records if one.name == "holdfast.reload"]
    assert len(told) < 30
    assert max(map(len, told)) < 400
    assert any("and 90 more" in line for line in told)
    assert any("80 more problems" in line for line in told)


@pytest.mark.requirement("LIFE-20")
async def test_a_listing_that_comes_while_new_rules_are_made_is_not_replaced_by_an_older_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def edited(**settings: object) -> Config:
        return config_from_mapping({"mcpServers": {"a": {"command": "x", "enabled": False}}, "holdfast": settings})

    async with Hub(edited()) as hub:

        def make(settings: AccessSettings) -> Policy:
            anyio.from_thread.run_sync(
                hub.registry.publisher.publish, Listing(server="a", generation=1, tools=(Item("new"),))
            )
            return Policy(settings)

        monkeypatch.setattr(reload, "Policy", make)
        await hub.apply(edited(access={"default": "allow"}))
        assert [tool.name for tool in hub.catalog.tools] == ["a__new"]
