from __future__ import annotations

import json
import logging
import stat
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import keyring
import pytest
from keyring.backends import fail

from holdfast.auth.token_endpoint import OAuthClient
from holdfast.auth.token_store import PAUSE, GrantKey, KeyringStorage, StoreUnusable, TokenStore, find_secret_storage
from tests.auth.grants import grant
from tests.auth.ring import Ring

pytestmark = pytest.mark.requirement("AUTH-2")


@pytest.fixture
def ring() -> Ring:
    return Ring()


@pytest.fixture
def with_ring(tmp_path: Path, ring: Ring) -> TokenStore:
    return TokenStore(tmp_path / "ringed", vault=lambda: KeyringStorage(ring))


def test_what_one_process_keeps_another_reads(store: TokenStore) -> None:
    kept = store.put(grant())
    other = TokenStore(store.folder, vault=lambda: None)
    assert other.grants() == (kept,)
    assert other.of("https://files1.example/mcp") == kept
    assert other.of("https://files2.example/mcp") is None


def test_the_file_is_for_its_owner_alone_whatever_the_umask(store: TokenStore) -> None:
    store.put(grant())
    assert stat.S_IMODE(store.file.stat().st_mode) == 0o600
    assert stat.S_IMODE(store.folder.stat().st_mode) == 0o700


def test_a_grant_is_kept_by_issuer_and_resource(store: TokenStore) -> None:
    first = store.put(grant(issuer="https://auth.example", servers=("https://files1.example/mcp",)))
    store.put(grant(issuer="https://other.example", servers=("https://elsewhere.example/mcp",)))
    store.put(replace(first, access_token="planted-newer"))
    assert [(one.issuer, one.access_token) for one in store.grants()] == [
        ("https://other.example", "planted-access-1"),
        ("https://auth.example", "planted-newer"),
    ]


def test_an_address_belongs_to_the_login_that_was_made_last(store: TokenStore) -> None:
    store.put(grant(issuer="https://old.example"))
    store.put(grant(issuer="https://new.example"))
    found = store.of("https://files1.example/mcp")
    assert found is not None
    assert found.issuer == "https://new.example"


def test_a_renewal_of_an_older_login_takes_no_address_back(store: TokenStore) -> None:
    old = store.put(grant(issuer="https://old.example", login="old"))
    store.put(grant(issuer="https://new.example", login="new"))
    store.put(replace(old, access_token="planted-renewed"))
    found = store.of("https://files1.example/mcp")
    assert found is not None
    assert found.issuer == "https://new.example"
    renewed = store.get(old.key)
    assert renewed is not None
    assert (renewed.access_token, renewed.servers) == ("planted-renewed", ())


def test_a_change_is_seen_by_its_stamp_alone(store: TokenStore) -> None:
    other = TokenStore(store.folder, vault=lambda: None)
    seen = [len(other.grants()), other.is_current()]
    store.put(grant())
    seen += [other.is_current(), len(other.grants()), other.is_current()]
    assert seen == [0, True, False, 1, True]


@pytest.mark.parametrize(
    "damage", [b"{", b"\xff\xfe", b"[]", b'{"version": 1}', b'{"version": 1, "grants": [{}]}', b""]
)
def test_a_damaged_store_is_set_aside_and_never_deleted(
    store: TokenStore, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    store.put(grant())
    store.file.write_bytes(damage)
    with caplog.at_level(logging.WARNING):
        assert store.grants() == ()
    assert store.file.with_name("auth.json.corrupt-1").read_bytes() == damage
    assert "set aside as auth.json.corrupt-1" in caplog.text
    store.put(grant(2))
    store.file.write_bytes(damage)
    store.put(grant(3))
    assert store.file.with_name("auth.json.corrupt-2").read_bytes() == damage
    assert [one.issuer for one in store.grants()] == ["https://auth3.example"]


def test_the_store_of_a_newer_version_is_left_alone(store: TokenStore) -> None:
    store.put(grant())
    newer = json.dumps({"version": 2, "grants": "in a way of its own"})
    store.file.write_text(newer)
    assert store.grants() == ()
    with pytest.raises(StoreUnusable, match="newer Holdfast"):
        store.put(grant(2))
    assert store.file.read_text() == newer


def test_a_write_that_fails_leaves_what_stood_there(store: TokenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = store.put(grant())

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(StoreUnusable, match="No space left on device"):
        store.put(replace(kept, access_token="planted-newer"))
    monkeypatch.undo()
    assert store.grants() == (kept,)
    assert sorted(file.name for file in store.folder.iterdir()) == ["auth.json", "auth.lock"]


_WRITER = """
import sys
from pathlib import Path
from holdfast.auth.token_store import TokenStore
from tests.auth.grants import grant
from tests.auth.ring import Ring
store = TokenStore(Path(sys.argv[1]), vault=lambda: None)
for number in range(int(sys.argv[2]), int(sys.argv[2]) + 20):
    store.put(grant(number))
"""


def test_processes_that_write_at_once_lose_nothing_of_each_other(store: TokenStore) -> None:
    root = Path(__file__).parents[2]
    environment = {"PYTHONPATH": f"{root}:{root / 'src'}"}
    writers = [
        subprocess.Popen([sys.executable, "-c", _WRITER, str(store.folder), str(first)], env=environment)
        for first in (0, 100)
    ]
    assert [writer.wait(60) for writer in writers] == [0, 0]
    assert len(store.grants()) == 40


def test_with_a_keyring_the_file_holds_no_secret(with_ring: TokenStore, ring: Ring) -> None:
    kept = with_ring.put(grant())
    assert kept.source == "keyring"
    assert "planted" not in with_ring.file.read_text()
    other = TokenStore(with_ring.folder, vault=lambda: KeyringStorage(ring))
    assert other.grants() == (kept,)
    assert other.remove(kept.key)
    assert ring.held == {}
    assert not other.remove(kept.key)


@pytest.mark.requirement("AUTH-9")
def test_with_a_keyring_the_file_holds_no_private_key(with_ring: TokenStore, ring: Ring) -> None:
    client = OAuthClient(id="mine", key="planted-key", method="private_key_jwt")
    kept = with_ring.put(grant(client=client))
    assert "planted" not in with_ring.file.read_text()
    other = TokenStore(with_ring.folder, vault=lambda: KeyringStorage(ring))
    assert other.grants() == (kept,)
    assert "planted" not in repr(kept)


def test_a_locked_keyring_hides_its_grants_and_loses_none(with_ring: TokenStore, ring: Ring) -> None:
    first = with_ring.put(grant())
    ring.locked = True
    other = TokenStore(with_ring.folder, vault=lambda: KeyringStorage(ring))
    assert other.grants() == ()
    second = other.put(grant(2))
    assert second.source == "file"
    ring.locked = False
    assert TokenStore(with_ring.folder, vault=lambda: KeyringStorage(ring)).grants() == (first, second)


def test_a_locked_keyring_is_asked_again_after_a_while_and_not_at_every_look(with_ring: TokenStore, ring: Ring) -> None:
    kept, now = with_ring.put(grant()), [0.0]
    ring.locked = True
    other = TokenStore(with_ring.folder, vault=lambda: KeyringStorage(ring), clock=lambda: now[0])
    assert other.grants() == ()
    ring.locked = False
    assert (other.is_current(), other.grants()) == (True, ()), "it is left alone for a moment"
    now[0] += PAUSE
    assert not other.is_current()
    assert other.grants() == (kept,)
    now[0] += 10 * PAUSE
    assert other.is_current(), "what was read whole is read no more"


def test_a_file_that_could_not_be_read_for_a_moment_is_read_again(
    store: TokenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, now = store.put(grant()), [0.0]
    other = TokenStore(store.folder, vault=lambda: None, clock=lambda: now[0])

    def too_many(*_: object, **__: object) -> str:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(Path, "read_text", too_many)
    assert other.grants() == ()
    monkeypatch.undo()
    now[0] += PAUSE
    assert other.grants() == (kept,)


def test_a_slow_reader_does_not_put_an_older_state_back(with_ring: TokenStore, ring: Ring) -> None:
    with_ring.put(grant())
    asked, go_on = threading.Event(), threading.Event()

    class Slow(KeyringStorage):
        def read(self, key: GrantKey) -> Mapping[str, str] | None:
            found = super().read(key)
            if not asked.is_set():
                asked.set()
                assert go_on.wait(60)
            return found

    other = TokenStore(with_ring.folder, vault=lambda: Slow(ring))
    slow, quick = threading.Thread(target=other.grants), threading.Thread(target=other.grants)
    slow.start()
    assert asked.wait(60)
    newer = with_ring.put(grant(access_token="planted-newer"))
    quick.start()
    quick.join(0.2)  # it waits for its turn; were there none, it would be done by now
    go_on.set()
    slow.join()
    quick.join()
    assert other.known == (newer,)


def test_a_keyring_that_lost_an_entry_leaves_the_others(with_ring: TokenStore, ring: Ring) -> None:
    with_ring.put(grant())
    second = with_ring.put(grant(2))
    del ring.held[min(ring.held)]
    assert TokenStore(with_ring.folder, vault=lambda: KeyringStorage(ring)).grants() == (second,)


def test_no_keyring_is_looked_for_where_a_file_is_wanted(monkeypatch: pytest.MonkeyPatch, ring: Ring) -> None:
    monkeypatch.setattr("keyring.get_keyring", lambda: ring)
    assert find_secret_storage({"HOLDFAST_TOKEN_STORE": "file"}) is None
    assert isinstance(find_secret_storage({}), KeyringStorage)


def test_a_machine_without_a_keyring_uses_the_file(caplog: pytest.LogCaptureFixture) -> None:
    keyring.set_keyring(fail.Keyring())  # type: ignore[no-untyped-call]  # the package has no types there
    assert find_secret_storage({}) is None
    assert find_secret_storage({"HOLDFAST_TOKEN_STORE": "keyring"}) is None
    assert "there is no keyring here" in caplog.text


def test_no_repr_shows_a_secret(store: TokenStore) -> None:
    kept = store.put(grant())
    assert "planted" not in repr(kept)
    assert "planted" not in repr(store)
    assert kept.key == GrantKey("https://auth1.example", "https://files1.example/mcp")
