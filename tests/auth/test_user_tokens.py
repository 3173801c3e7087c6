"""The logins of the hub's users: encrypted at rest, bound to their user, and never lost by a fault (AUTH-8)."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import anyio
import pytest
from keyring.backends import fail

from holdfast.auth.credentials import Logins
from holdfast.auth.token_store import StoreUnusable
from holdfast.auth.user_tokens import KEY_FILE_VARIABLE, KEY_VARIABLE, UserTokens, find_user_keys
from holdfast.config import ServerSpec
from holdfast.core import TokenNotRenewed
from holdfast.errors import HoldfastError, ServerFailure, UsageError
from holdfast.keys import KeyRing
from tests.auth.grants import grant
from tests.auth.logins import logged_in
from tests.auth.ring import Ring
from tests.peers.guarded import PLANTED, Guarded

pytestmark = pytest.mark.requirement("AUTH-8")

OLD, NEW = b"an old key of thirty-two bytes....", b"a new key of thirty-two bytes....."


def _tokens(folder: Path, *keys: bytes, keeps: bool = True) -> UserTokens:
    return UserTokens(folder, keys=KeyRing(keys or (OLD,)), keeps=keeps)


def test_a_login_is_kept_for_its_user_and_no_other_user_has_it(tmp_path: Path) -> None:
    tokens = _tokens(tmp_path)
    tokens.of("ada").put(grant())
    again = _tokens(tmp_path)
    assert again.of("ada").of(grant().servers[0]) == grant()
    assert again.of("bob").of(grant().servers[0]) is None
    assert again.of("bob").grants() == ()


def test_two_users_have_logins_of_one_issuer_and_a_logout_ends_one_of_them(tmp_path: Path) -> None:
    tokens = _tokens(tmp_path)
    for name in ("ada", "bob"):
        tokens.of(name).put(grant(access_token=f"planted-of-{name}"))
    assert tokens.of("ada").remove(grant().key)
    assert not tokens.of("ada").remove(grant().key)
    assert [one.access_token for one in tokens.of("bob").grants()] == ["planted-of-bob"]


def test_nothing_of_a_grant_is_readable_in_the_file(tmp_path: Path) -> None:
    tokens = _tokens(tmp_path)
    tokens.of("ada").put(grant())
    assert b"planted" not in tokens.file.read_bytes()
    assert tokens.file.stat().st_mode & 0o077 == 0


def test_a_row_that_is_copied_to_another_user_does_not_open_there(tmp_path: Path) -> None:
    tokens = _tokens(tmp_path)
    tokens.of("ada").put(grant())
    with closing(sqlite3.connect(tokens.file)) as database, database:
        database.execute("INSERT INTO grants SELECT 'bob', issuer, resource, sealed FROM grants")
    again = _tokens(tmp_path)
    assert again.of("bob").grants() == ()
    assert [(one.principal, one.grant is not None) for one in again.rows()] == [("ada", True), ("bob", False)]


def test_a_new_key_in_front_seals_all_rows_again_so_that_the_old_one_can_go(tmp_path: Path) -> None:
    _tokens(tmp_path, OLD).of("ada").put(grant())
    assert _tokens(tmp_path, NEW, OLD).of("ada").grants() == (grant(),)
    assert _tokens(tmp_path, NEW).of("ada").grants() == (grant(),)


def test_a_hub_that_lost_its_key_sets_the_file_aside_and_the_old_key_opens_it_again(tmp_path: Path) -> None:
    _tokens(tmp_path, OLD).of("ada").put(grant())
    lost = _tokens(tmp_path, NEW)
    assert lost.of("ada").grants() == ()
    lost.of("ada").put(grant(2))
    (aside,) = tmp_path.glob("*.corrupt-*")
    lost.file.unlink()
    aside.rename(lost.file)
    assert _tokens(tmp_path, OLD).of("ada").grants() == (grant(),)


def test_a_command_with_the_wrong_key_is_refused_and_leaves_the_file_where_it_is(tmp_path: Path) -> None:
    kept = _tokens(tmp_path, OLD)
    kept.of("ada").put(grant())
    with pytest.raises(StoreUnusable, match="does not open") as refused:
        _tokens(tmp_path, NEW, keeps=False).of("ada").grants()
    assert KEY_VARIABLE in refused.value.hint
    assert _tokens(tmp_path, OLD).of("ada").grants() == (grant(),)


def test_the_operator_sees_who_has_logins_and_no_secret(tmp_path: Path) -> None:
    tokens = _tokens(tmp_path)
    tokens.of("ada").put(grant(scope="files:read"))
    (seen,) = tokens.rows()
    assert seen.grant is not None
    assert (seen.principal, seen.key.issuer, seen.grant.scope) == ("ada", grant().issuer, "files:read")
    assert "planted" not in repr(seen) + repr(tokens) + repr(tokens.of("ada"))


def test_another_process_s_change_is_seen_and_no_change_costs_no_read(tmp_path: Path) -> None:
    here, there = _tokens(tmp_path).of("ada"), _tokens(tmp_path).of("ada")
    here.put(grant())
    assert there.grants() == (grant(),)
    current = [there.is_current()]
    here.put(replace(grant(), access_token="planted-newer"))
    current.append(there.is_current())
    assert current == [True, False]
    assert there.grants()[0].access_token == "planted-newer"


def test_the_key_comes_from_the_variable_the_file_or_the_folder(tmp_path: Path) -> None:
    file = tmp_path / "given.key"
    file.write_bytes(NEW + b"\n" + OLD + b"\n")
    file.chmod(0o600)
    assert find_user_keys(tmp_path, {KEY_VARIABLE: OLD.decode()}) == KeyRing([OLD])
    assert find_user_keys(tmp_path, {KEY_FILE_VARIABLE: str(file)}) == KeyRing([NEW, OLD])
    own = find_user_keys(tmp_path, {})
    assert find_user_keys(tmp_path, {}) == own
    assert (tmp_path / "user-tokens.key").stat().st_mode & 0o077 == 0


def test_the_key_is_made_once_in_the_keyring_and_found_there_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring = Ring()
    monkeypatch.setattr("keyring.get_keyring", lambda: ring)
    keys = find_user_keys(tmp_path, {KEY_FILE_VARIABLE: "keyring"})
    UserTokens(tmp_path, keys=keys).of("ada").put(grant())
    again = find_user_keys(tmp_path, {KEY_FILE_VARIABLE: "keyring"})
    assert UserTokens(tmp_path, keys=again).of("ada").grants() == (grant(),)
    assert len(ring.held) == 1
    assert [file.name for file in tmp_path.iterdir() if file.suffix == ".key"] == []


def test_a_keyring_that_gives_no_key_says_so_and_no_other_key_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring = Ring()
    ring.locked = True
    monkeypatch.setattr("keyring.get_keyring", lambda: ring)
    with pytest.raises(HoldfastError, match="KeyringLocked") as locked:
        find_user_keys(tmp_path, {KEY_FILE_VARIABLE: "keyring"})
    assert locked.value.hint == "unlock it"
    monkeypatch.setattr("keyring.get_keyring", fail.Keyring)
    with pytest.raises(HoldfastError, match="there is no keyring here"):
        find_user_keys(tmp_path, {KEY_FILE_VARIABLE: "keyring"})
    assert [*tmp_path.iterdir()] == []


def test_a_key_that_cannot_be_used_says_what_to_do(tmp_path: Path) -> None:
    open_file = tmp_path / "open.key"
    open_file.write_bytes(OLD)
    open_file.chmod(0o644)
    with pytest.raises(UsageError, match="exclude each other"):
        find_user_keys(tmp_path, {KEY_VARIABLE: OLD.decode(), KEY_FILE_VARIABLE: "x"})
    with pytest.raises(UsageError, match="at least 32 bytes"):
        find_user_keys(tmp_path, {KEY_VARIABLE: "short"})
    with pytest.raises(HoldfastError, match="not private") as refused:
        find_user_keys(tmp_path, {KEY_FILE_VARIABLE: str(open_file)})
    assert "chmod 600" in refused.value.hint
    with pytest.raises(HoldfastError, match="cannot be read"):
        find_user_keys(tmp_path, {KEY_FILE_VARIABLE: str(tmp_path / "none.key")})


@pytest.mark.anyio
async def test_two_processes_that_renew_one_login_at_once_ask_once(peer: Guarded, tmp_path: Path) -> None:
    one, other = _tokens(tmp_path).of("ada"), _tokens(tmp_path).of("ada")
    kept, _ = await logged_in(peer.spec(), one)
    await peer.behave(token_delay=0.2)
    async with anyio.create_task_group() as tasks:
        for store in (one, other):
            tasks.start_soon(partial(Logins(store).renew, kept.key, instead_of=kept.access_token))
    assert await peer.renewals() == 1
    assert not await peer.seen("reuse")
    assert one.grants() == other.grants()


@pytest.mark.anyio
async def test_a_network_fault_never_loses_a_refresh_token(peer: Guarded, tmp_path: Path) -> None:
    store = _tokens(tmp_path).of("ada")
    kept, _ = await logged_in(peer.spec(), store)
    await peer.behave(token_cut=True)
    with pytest.raises(ServerFailure):
        await Logins(store).renew(kept.key, instead_of=kept.access_token)
    assert store.grants() == (kept,)
    await peer.behave(token_cut=False)
    renewed = await Logins(store).renew(kept.key, instead_of=kept.access_token)
    assert renewed is not None
    assert renewed.access_token.startswith(PLANTED)


@pytest.mark.anyio
@pytest.mark.requirement("AUTH-5")
async def test_a_file_that_cannot_be_read_is_a_passing_fault_and_ends_no_login(tmp_path: Path) -> None:
    tokens = _tokens(tmp_path)
    tokens.of("ada").put(grant())
    bearer = tokens.of("ada").logins.authorize(ServerSpec(id="files", transport="http", url=grant().servers[0]))
    assert bearer is not None
    assert await bearer.token() == "planted-access-1"
    whole = tokens.file.read_bytes()
    tokens.file.write_bytes(b"what a broken disk returns" * 100)
    with pytest.raises(ServerFailure) as failed:
        await bearer.token()
    assert isinstance(failed.value.evidence, TokenNotRenewed)
    assert "cannot be used" in failed.value.evidence.reason
    tokens.file.write_bytes(whole)
    assert await bearer.token() == "planted-access-1"
