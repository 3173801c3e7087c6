"""Logins that another process stored: which servers are told, and how often (AUTH-3)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from holdfast.auth import Logins, UserTokens
from holdfast.auth.token_store import TokenStore
from holdfast.core import FailureRemedy, State, events as on
from holdfast.hub import owned_slots, registry
from holdfast.hub.hub import Hub
from tests.auth.grants import grant
from tests.harness.open_hubs import config

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("AUTH-3")]

URL = grant().servers[0]
SERVERS = {"files": {"url": URL}, "other": {"url": "https://other.example/mcp"}, "child": {"command": "x"}}


class Noted:
    """A slot that notes what it is told."""

    def __init__(self, hub: Hub, server: str) -> None:
        self.id = server
        self.spec = hub.config.servers[server]
        self.state = State.DENIED
        self.events: list[on.Event] = []

    def handle(self, event: on.Event) -> None:
        self.events.append(event)


class Polls:
    """Each poll waits until the test lets it look again."""

    def __init__(self, steps: list[Callable[[], object]]) -> None:
        self._steps = iter(steps)
        self.scope = anyio.CancelScope()

    async def __call__(self, period: float) -> None:
        step = next(self._steps, None)
        if step is None:
            self.scope.cancel()
            await anyio.sleep_forever()
        else:
            step()


async def test_a_server_is_told_of_each_new_login_to_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, other = (TokenStore(tmp_path, vault=lambda: None) for _ in range(2))
    hub = Hub(config(SERVERS), logins=Logins(own))
    slots: Any = {name: Noted(hub, name) for name in hub.config.servers}
    hub.registry.slots = dict(slots)
    counted = list[int]()

    def count() -> None:
        counted.append(len(slots["files"].events))

    polls = Polls([
        lambda: other.put(grant()),
        count,
        lambda: other.put(grant(access_token="renewed")),
        count,
        lambda: other.put(grant(login="two")),
        count,
        lambda: hub.registry.slots.pop("files"),
        lambda: other.put(grant(login="three")),
        count,
    ])  # fmt: skip
    monkeypatch.setattr(registry, "sleep_until_poll", polls)
    assert await registry.current_logins(hub.registry) == {}
    with anyio.fail_after(30), polls.scope:
        await registry.watch_logins(hub.registry, {})
    assert counted == [1, 1, 2, 2], "a renewal is no new login, and a server that is gone is told nothing"
    assert slots["files"].events == [on.LoginSucceeded()] * 2
    assert [slots["other"].events, slots["child"].events] == [[], []]
    assert await registry.current_logins(hub.registry) == {"files": "three"}


async def test_the_slot_of_a_user_is_told_of_her_own_logins_and_of_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, other = (UserTokens(tmp_path, keeps=keeps) for keeps in (True, False))
    hub = Hub(config({"files": {"url": URL, "sharing": "per-user"}}), user_tokens=own)
    users = hub.registry.users
    slots = {name: Noted(hub, "files") for name in ("ann", "bob")}
    users.slots.find = lambda owner, server: slots.get(str(owner))  # type: ignore[method-assign,assignment,return-value]
    for name in slots:
        own.of(name).grants()  # a slot reads them before its first dial
    counted = list[tuple[int, int]]()

    def count() -> None:
        counted.append((len(slots["ann"].events), len(slots["bob"].events)))

    def login(principal: str, **fields: Any) -> None:
        other.of(principal).put(grant(**fields))

    polls = Polls([
        lambda: login("ann"),
        count,  # no user has a slot yet: nothing is looked at
        lambda: users.slots.servers_of.update(ann={"files"}, bob={"files"}),
        lambda: login("ann", login="two"),
        count,
        lambda: login("ann", login="two", access_token="renewed"),
        count,
        lambda: login("bob"),
        count,
    ])  # fmt: skip
    monkeypatch.setattr(owned_slots, "sleep_until_poll", polls)
    with anyio.fail_after(30), polls.scope:
        await users.watch_logins()
    assert counted[0] == (0, 0)
    assert [(ann - counted[1][0], bob) for ann, bob in counted[1:]] == [(0, 0), (0, 0), (0, 1)]
    assert counted[1][0] >= 1


async def test_a_login_is_followed_that_a_call_of_its_user_read_first_and_one_that_could_not_be_read_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """She calls another server of hers meanwhile, and each call looks whether her logins changed."""
    own, other = (UserTokens(tmp_path, keeps=keeps) for keeps in (True, False))
    hub = Hub(config({"files": {"url": URL, "sharing": "per-user"}}), user_tokens=own)
    users, slot = hub.registry.users, Noted(hub, "files")
    users.slots.find = lambda owner, server: slot  # type: ignore[method-assign,assignment,return-value]
    users.slots.servers_of.update(ann={"files"})
    mine = own.of("ann")
    mine.grants()
    aside, counted = tmp_path / "aside", list[int]()

    def log_in_and_call() -> None:
        other.of("ann").put(grant())
        mine.grants()

    def damage() -> None:
        other.of("ann").put(grant(login="three"))
        own.file.rename(aside)
        own.file.write_bytes(b"what a broken disk returns" * 100)

    def count() -> None:
        counted.append(len(slot.events))

    polls = Polls([
        log_in_and_call,
        count,
        lambda: mine.put(grant(login="two")),  # her login by the page, which tells the slot itself
        count,
        damage,
        count,
        lambda: aside.rename(own.file),
        count,
    ])  # fmt: skip
    monkeypatch.setattr(owned_slots, "sleep_until_poll", polls)
    with anyio.fail_after(30), polls.scope:
        await users.watch_logins()
    assert counted == [1, 1, 1, 2]
    assert "cannot be used" in caplog.text, "a store that cannot be read ends no hub"


@pytest.mark.parametrize(
    ("state", "stored", "lacks"),
    [(State.DENIED, False, True), (State.DENIED, True, False), (State.CONNECTED, False, False)],
)
async def test_a_user_lacks_a_login_where_her_server_denies_her_and_none_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: State, stored: bool, lacks: bool
) -> None:
    tokens = UserTokens(tmp_path, keeps=True)
    hub = Hub(config({"files": {"url": URL, "sharing": "per-user"}}), user_tokens=tokens)
    users = hub.registry.users
    if stored:
        tokens.of("ann").put(grant())
        tokens.of("ann").grants()
    slot = Noted(hub, "files")
    slot.state = state
    users.slots.find = lambda owner, server: slot if owner == "ann" else None  # type: ignore[method-assign,assignment,return-value]
    users.slots.servers_of.update(ann={"files"})
    monkeypatch.setattr(owned_slots, "remedy_for", lambda _: FailureRemedy())
    assert users.lacking_login("ann") == (("files",) if lacks else ())
    assert users.lacking_login("bob") == users.lacking_login("local") == ()
    for remedy, expected in (
        (FailureRemedy(login="log in"), state is State.DENIED),
        (FailureRemedy(login="log in", scope=("more",)), lacks),
    ):
        monkeypatch.setattr(owned_slots, "remedy_for", lambda _, remedy=remedy: remedy)
        assert bool(users.lacking_login("ann")) is expected, "a stored one may be rejected; a missing scope is none"
