"""``holdfast audit`` and the records of a hub that runs: who called what, what was refused, who switched what."""

from __future__ import annotations

import hashlib
import json
import logging
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
import anyio.to_thread
import httpx2
import pytest
from msgspec.structs import replace as replace_struct

from holdfast.access.audit_reader import AuditFilter, AuditReader
from holdfast.access.audit_writer import AuditFiles, AuditRecord
from holdfast.config import Config, config_from_mapping
from holdfast.core import MASK
from holdfast.errors import UsageError
from holdfast.hub import AccessRefused, ConfigApplied, HubRecord
from holdfast.serve.options import ServeConfig, Serving
from holdfast.serve.telemetry import MOST_REFUSALS, audited, keep_log, log_to_stderr, record_other_events
from holdfast.testing import StdioServer
from tests.access.test_audit import KEY, called
from tests.cli.in_process import Inside
from tests.cli.serve_process import Served, run, served
from tests.harness.raw_session import Session
from tests.harness.waiting import PATIENCE, until

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("SEC-15")]

BOB, EVE = "token-of-bob-0123456789", "token-of-eve-0123456789"


def with_audit(file: Path, servers: Mapping[str, object], **audit: object) -> Path:
    content = {"mcpServers": servers, "holdfast": {"audit": {"path": "audit", **audit}}}
    file.write_text(json.dumps(content))
    return file


def tokens(file: Path, **holders: str) -> Path:
    made = [{"name": name, "sha256": hashlib.sha256(token.encode()).hexdigest()} for name, token in holders.items()]
    file.write_text(json.dumps({"tokens": made}))
    file.chmod(0o600)
    return file


def records(folder: Path) -> list[AuditRecord]:
    return list(AuditReader(folder, AuditFilter()).read())


async def until_recorded(folder: Path, wanted: Mapping[str, str], *, times: int = 1) -> list[AuditRecord]:
    """Wait until records with these values are in the files."""

    def found() -> list[AuditRecord]:
        return [one for one in records(folder) if all(getattr(one, k) == v for k, v in wanted.items())]

    await until(lambda: len(found()) >= times, beside=folder)
    return found()


async def call(hub: Served, token: str, tool: str, arguments: dict[str, Any] | None = None) -> bool:
    loader = hub.loader(authorization=f"Bearer {token}")
    with anyio.fail_after(PATIENCE):
        return (await loader.call("hub", tool, arguments or {})).is_error


@pytest.fixture
def one() -> Iterator[StdioServer]:
    with StdioServer({"echo": "done"}) as server:
        yield server


async def test_every_call_refusal_and_switch_of_a_hub_leaves_a_record(tmp_path: Path, one: StdioServer) -> None:
    file = with_audit(tmp_path / "mcp.json", {"files": one.definition})
    holders = tokens(tmp_path / "tokens.json", bob=BOB, eve=EVE)
    audit = tmp_path / "audit"
    async with served(tmp_path, "--config", str(file), "--tokens-file", str(holders)) as hub:
        await hub.said("files: connected")
        assert not await call(hub, BOB, "files__echo", {"text": "a secret thing"})
        assert not await call(hub, EVE, "files__echo", {"text": "b"})
        await hub.tools(authorization="Bearer wrong-token-0123456789")
        disabled = await anyio.to_thread.run_sync(lambda: run("disable", "files", "--config", str(file), home=tmp_path))
        assert disabled.returncode == 0, disabled.stderr
        assert await call(hub, BOB, "files__echo", {"text": "c"})
        with_audit(file, {"files": one.definition, "more": {**one.definition, "enabled": False}})
        await until_recorded(audit, {"event": "reload"})
        await until_recorded(audit, {"event": "login", "outcome": "refused"})
        by_bob = await until_recorded(audit, {"event": "call", "principal": "bob"}, times=2)
        hub.send(signal.SIGTERM)
        await hub.ended()

    assert [(one.server, one.tool, one.outcome) for one in by_bob] == [
        ("files", "echo", "completed"),
        ("files", "echo", "refused"),
    ]
    assert by_bob[0].program.startswith("holdfast")
    assert by_bob[0].argument_bytes > 0
    assert by_bob[0].result_bytes > 0
    assert len(by_bob[0].argument_hash) == 32
    assert "disabled" in by_bob[1].reason
    switch = next(one for one in records(audit) if one.event == "switch")
    assert (switch.principal, switch.method, switch.server) == ("control", "disable", "files")
    assert "127.0.0.1" in switch.source
    assert next(one for one in records(audit) if one.event == "reload").reason == "added: more"
    assert "a secret thing" not in "".join(one.read_text() for one in audit.iterdir())
    checked = run("audit", "verify", "--config", str(file), "--json", home=tmp_path)
    assert checked.returncode == 0, checked.stdout
    assert json.loads(checked.stdout)["unproven"] == []


async def test_a_killed_hub_loses_at_most_the_calls_of_its_last_second(tmp_path: Path, one: StdioServer) -> None:
    file = with_audit(tmp_path / "mcp.json", {"files": one.definition})
    answered: list[float] = []
    enough = anyio.Event()
    async with served(tmp_path, "--config", str(file)) as hub, httpx2.AsyncClient(trust_env=False) as http:
        await hub.said("files: connected")

        async def keep_calling() -> None:
            session = Session(http, hub.url)
            await session.begin()
            while True:
                async with session.call("files__echo", {"text": "a"}) as events:
                    answered.extend([anyio.current_time() async for _ in events])
                if len(answered) >= 50 and answered[-1] - answered[0] >= 1.5:
                    enough.set()

        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as callers:
                for _ in range(3):
                    callers.start_soon(keep_calling)
                await enough.wait()
                hub.send(signal.SIGKILL)
                killed = anyio.current_time()
                callers.cancel_scope.cancel()
        await hub.ended()

    safe = sum(when < killed - 1.0 for when in answered)
    assert safe > 0
    assert sum(one.outcome == "completed" for one in records(tmp_path / "audit")) >= safe
    checked = run("audit", "verify", "--config", str(file), home=tmp_path)
    assert checked.returncode == 0, checked.stdout
    assert "was not closed" in checked.stdout


async def test_a_hub_whose_audit_is_required_calls_nothing_while_it_cannot_be_written(
    tmp_path: Path, one: StdioServer
) -> None:
    file = with_audit(tmp_path / "mcp.json", {"files": one.definition}, required=True)
    async with served(tmp_path, "--config", str(file)) as hub:
        await hub.said("files: connected")
        assert not (await hub.call("files__echo")).is_error
        for old in (tmp_path / "audit").glob("audit-*.jsonl"):
            old.unlink()
        (tmp_path / "audit").rename(tmp_path / "moved")
        (tmp_path / "audit").write_text("in its place")
        await hub.said("the audit cannot be written")
        refused = await hub.call("files__echo")
        assert refused.is_error
        assert "not called: the audit cannot be written" in refused.text
        (tmp_path / "audit").unlink()
        await hub.said("the audit is written again")
        assert not (await hub.call("files__echo")).is_error


@pytest.mark.requirement("SEC-12")
async def test_arguments_are_masked_by_the_secrets_of_the_configuration_that_is_in_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A secret that a changed file brings is one from then on, also if nothing in its form says so."""

    def with_secret(value: str) -> Config:
        servers = {"files": {"command": "files", "env": {"FILES_PASSWORD": value}}}
        audit = {"path": str(tmp_path / "audit"), "arguments": "masked"}
        return config_from_mapping({"mcpServers": servers, "holdfast": {"audit": audit}})

    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    log_to_stderr("console", "info", secrets=())
    sinks = list[Callable[[HubRecord], None]]()

    def add_sink(sink: Callable[[HubRecord], None], calls: object) -> Callable[[], None]:
        sinks.append(sink)
        return lambda: None

    journal = SimpleNamespace(add_sink=add_sink)
    hub = SimpleNamespace(config=with_secret("correct horse"), registry=SimpleNamespace(journal=journal))
    serving = Serving(options=ServeConfig(), config=hub.config, host="127.0.0.1")
    with audited(serving) as audit:
        assert audit.trail is not None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(keep_log, cast("Any", hub))
            await anyio.wait_all_tasks_blocked()
            hub.config = with_secret("battery staple")
            sinks[0](ConfigApplied(at=0.0))
            tasks.cancel_scope.cancel()
        arguments = b'{"text": "the battery staple of it"}'
        audit.trail.add(replace_struct(called("set"), argument_bytes=len(arguments)), arguments)
    (record,) = records(tmp_path / "audit")
    assert record.arguments is not None
    assert json.loads(bytes(record.arguments)) == {"text": f"the {MASK} of it"}


def test_a_hub_on_loopback_writes_no_audit_by_default(inside: Inside) -> None:
    ran = inside("audit")
    assert ran.code == 2
    assert "there is no audit in" in ran.err


def test_without_a_state_folder_a_hub_serves_without_the_audit_of_the_default_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    beyond = Serving(options=ServeConfig(), config=config_from_mapping({}), host="0.0.0.0")
    with audited(beyond) as audit:
        assert audit.trail is None
        assert audit.notice.startswith("no audit is written: ")
    assert "no audit is written" in caplog.text
    asked = config_from_mapping({"holdfast": {"audit": {"enabled": True}}})
    with pytest.raises(UsageError, match="the key of the audit"), audited(replace(beyond, config=asked)):
        pass
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with audited(beyond) as audit:
        assert audit.trail is not None
        assert audit.notice == ""
    with audited(replace(beyond, host="127.0.0.1")) as audit:
        assert audit == (None, "")


async def test_the_status_says_that_the_audit_of_the_default_is_missing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    token, config, control = tmp_path / "token", tmp_path / "mcp.json", "the-control-token-of-this-test"
    token.write_text("token-of-the-callers-0123456789")
    token.chmod(0o600)
    config.write_text('{"mcpServers": {}}')
    listen = ("--host", "0.0.0.0", "--token-file", str(token))
    environ = {"XDG_STATE_HOME": str(tmp_path / "file"), "HOLDFAST_CONTROL_TOKEN": control}
    async with served(tmp_path / "home", "--config", str(config), *listen, **environ) as hub:
        async with httpx2.AsyncClient(trust_env=False, headers={"authorization": f"Bearer {control}"}) as http:
            told = (await http.get(f"{hub.url.removesuffix('/mcp')}/api/hub")).json()
        assert told["notice"].startswith("no audit is written: ")
        shown = partial(run, "status", "--url", hub.url.removesuffix("/mcp"), home=tmp_path / "home", **environ)
        assert "no audit is written" in (await anyio.to_thread.run_sync(shown)).stdout


def test_records_are_shown_by_user_server_tool_and_outcome(inside: Inside, tmp_path: Path) -> None:
    folder = tmp_path / "log"
    files = AuditFiles(folder, KEY)
    files.write([called("get"), called("set", "eve\x1b[2J")])
    files.close()
    everything = inside("audit", "--path", str(folder), "--since", "2026-01-01")
    assert (everything.code, everything.out.count("\n")) == (0, 2)
    assert "\x1b" not in everything.out
    only = inside("audit", "--path", str(folder), "--since", "2026-01-01", "--user", "bob", "--tool", "get", "--json")
    assert json.loads(only.out)["principal"] == "bob"
    assert inside("audit", "--path", str(folder), "--since", "2026-01-01", "--outcome", "failed").out == ""
    assert inside("audit", "--path", str(folder), "--since", "yesterday").code == 2


async def test_a_stranger_who_is_refused_often_does_not_fill_the_audit_and_the_rest_is_counted() -> None:
    wall, sinks = [100.0], list[Callable[[HubRecord], None]]()
    events: list[tuple[str, str, str]] = []
    journal = SimpleNamespace(add_sink=lambda sink, calls: sinks.append(sink))
    trail = SimpleNamespace(event=lambda kind, *, outcome, reason, **_: events.append((kind, outcome, reason)))
    hub = SimpleNamespace(registry=SimpleNamespace(journal=journal))
    record_other_events(cast("Any", trail), cast("Any", hub), wall=lambda: wall[0])
    for _ in range(MOST_REFUSALS + 7):
        sinks[0](AccessRefused(kind="unknown_user", source="192.0.2.1", at=0.0))
    assert events == [("refusal", "refused", "unknown_user")] * MOST_REFUSALS
    wall[0] += 1
    sinks[0](AccessRefused(kind="unknown_user", source="192.0.2.1", at=1.0))
    assert events[MOST_REFUSALS:] == [
        ("refusal", "not recorded", "7 more in one second"),
        ("refusal", "refused", "unknown_user"),
    ]
