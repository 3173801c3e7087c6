"""Keys: one purpose opens nothing of another, the first secret is in force, and older ones still open."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import given, settings, strategies as st

from holdfast.keys import MOST_DERIVED, KeyRing, derive

OLD, NEW = b"the old secret, which is long enough", b"the new secret, which is long enough"
SESSION = b"s" * 16


@pytest.mark.requirement("FLEET-1", "FLEET-2")
def test_what_is_sealed_opens_for_its_purpose_its_subject_and_its_session_alone() -> None:
    ring = KeyRing([OLD])
    sealed = ring.seal(b"content", purpose="session state", about=b"state", salt=SESSION)
    assert ring.open(sealed, purpose="session state", about=b"state", salt=SESSION) == b"content"
    assert ring.open(sealed, purpose="session id", about=b"state", salt=SESSION) is None
    assert ring.open(sealed, purpose="session state", about=b"events m", salt=SESSION) is None
    assert ring.open(sealed, purpose="session state", about=b"state", salt=b"t" * 16) is None
    assert ring.open(sealed, purpose="session state", about=b"state") is None
    for cut in range(len(sealed)):
        assert ring.open(sealed[:cut], purpose="session state", about=b"state", salt=SESSION) is None


@given(st.binary(max_size=64), st.data())
@settings(max_examples=40, deadline=None)
def test_no_changed_byte_is_opened_or_verified(content: bytes, data: st.DataObject) -> None:
    ring = KeyRing([OLD])
    sealed, signature = ring.seal(content, purpose="p"), ring.sign(content, purpose="p")
    for whole in (sealed, signature):
        at = data.draw(st.integers(0, len(whole) - 1))
        changed = bytearray(whole)
        changed[at] ^= data.draw(st.integers(1, 255))
        if whole is sealed:
            assert ring.open(bytes(changed), purpose="p") is None
        else:
            assert not ring.verify(bytes(changed), content, purpose="p")


@pytest.mark.requirement("FLEET-1")
def test_the_first_secret_is_in_force_and_the_older_ones_still_open() -> None:
    before, both, after = KeyRing([OLD]), KeyRing([NEW, OLD]), KeyRing([NEW])
    old, new = before.seal(b"old", purpose="p"), both.seal(b"new", purpose="p")
    assert (both.open(old, purpose="p"), both.open(new, purpose="p")) == (b"old", b"new")
    assert after.open(new, purpose="p") == b"new"
    assert after.open(old, purpose="p") is None
    assert both.verify(before.sign(b"x", purpose="p"), b"x", purpose="p")
    assert after.verify(both.sign(b"x", purpose="p"), b"x", purpose="p")
    assert not after.verify(before.sign(b"x", purpose="p"), b"x", purpose="p")


def test_a_signature_is_of_one_content_one_purpose_and_one_size() -> None:
    ring = KeyRing([OLD])
    assert ring.verify(ring.sign(b"x", purpose="p", size=16), b"x", purpose="p", size=16)
    assert not ring.verify(ring.sign(b"x", purpose="p"), b"y", purpose="p")
    assert not ring.verify(ring.sign(b"x", purpose="p"), b"x", purpose="q")
    assert not ring.verify(ring.sign(b"x", purpose="p", size=1), b"x", purpose="p")


@pytest.mark.requirement("FLEET-1")
def test_a_session_id_of_an_earlier_version_still_opens() -> None:
    """The derivation is part of the ids that clients keep: it is written here once more, by the library alone."""
    key = HKDF(algorithm=SHA256(), length=32, salt=None, info=b"holdfast session id").derive(OLD)
    sealed = b"n" * 12 + AESGCM(key).encrypt(b"n" * 12, b"ticket", b"bound")
    assert derive(OLD, "session id") == key
    assert KeyRing([NEW, OLD]).open(sealed, purpose="session id", about=b"bound") == b"ticket"


def test_a_short_secret_is_refused_and_none_is_shown() -> None:
    for secrets in ([], [b"short"], [OLD, b"short"]):
        with pytest.raises(ValueError, match="32 bytes"):
            KeyRing(secrets)
    assert repr(KeyRing([OLD, NEW])) == "<KeyRing of 2 secrets>"


def test_a_ring_remembers_a_bounded_number_of_derived_keys() -> None:
    ring = KeyRing([OLD])
    for number in range(10 * MOST_DERIVED):
        ring.derived("session state", salt=number.to_bytes(16))
    assert ring.derived.cache_info().currsize == MOST_DERIVED
    assert ring.derived("session state", salt=bytes(16)) == KeyRing([OLD]).derived("session state", salt=bytes(16))
