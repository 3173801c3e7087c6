"""Hubs of one fleet prove themselves to each other by certificates that follow from the session key."""

from __future__ import annotations

import os
import ssl
import tempfile
from pathlib import Path

import pytest

from holdfast.identity import FleetIdentity, peer_authority, peer_name
from holdfast.keys import KeyRing

pytestmark = pytest.mark.requirement("FLEET-5")

OLD, NEW = b"the old session key, long enough for it", b"the new session key, long enough for it"


def identity(name: str, *keys: bytes) -> FleetIdentity:
    return FleetIdentity(lambda: KeyRing(keys), name)


def shaken(client: ssl.SSLContext, server: ssl.SSLContext) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Both sides after the handshake, without a network; raises ``ssl.SSLError`` of the side that refuses."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    dialer = client.wrap_bio(to_client, to_server)
    listener = server.wrap_bio(to_server, to_client, server_side=True)
    open_sides = [dialer, listener]
    for _ in range(10):
        for side in list(open_sides):
            try:
                side.do_handshake()
                open_sides.remove(side)
            except ssl.SSLWantReadError:
                continue
        if not open_sides:
            dialer.write(b"x")
            assert listener.read(1) == b"x"
            return dialer, listener
    raise AssertionError("the handshake does not end")


def test_two_hubs_with_the_session_key_prove_their_names_to_each_other() -> None:
    a, b = identity("host-1-a b/ü", OLD), identity("b" * 200, OLD)
    dialer, listener = shaken(a.client(), b.server())
    assert (peer_name(dialer), peer_name(listener)) == ("b" * 200, "host-1-a b/ü")
    assert dialer.version() == "TLSv1.3"
    assert peer_authority(dialer) == peer_authority(listener) == a.authorities()[0]


@pytest.mark.parametrize("stranger", ["client", "server"])
def test_a_hub_with_another_key_is_refused_on_either_side(stranger: str) -> None:
    ours, theirs = identity("a", OLD), identity("b", NEW)
    client, server = (theirs, ours) if stranger == "client" else (ours, theirs)
    with pytest.raises(ssl.SSLCertVerificationError):
        shaken(client.client(), server.server())


def test_a_client_without_a_certificate_is_refused() -> None:
    bare = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    bare.check_hostname = False
    bare.verify_mode = ssl.CERT_NONE
    with pytest.raises(ssl.SSLError, match="CERTIFICATE"):
        shaken(bare, identity("a", OLD).server())


def test_a_hub_cannot_sign_for_another_one_with_its_own_certificate() -> None:
    """The authority is a key of the fleet; the certificate of a hub signs no further one."""
    _, listener = shaken(identity("b", OLD).client(), identity("a", OLD).server())
    (authority,) = listener.context.get_ca_certs()
    assert authority["subject"] == authority["issuer"]


@pytest.mark.parametrize(
    ("first", "second"), [((OLD,), (NEW, OLD)), ((NEW, OLD), (NEW,)), ((NEW, OLD), (OLD, NEW)), ((OLD, NEW), (NEW,))]
)
def test_while_a_key_is_replaced_hubs_with_a_key_in_common_reach_each_other(
    first: tuple[bytes, ...], second: tuple[bytes, ...]
) -> None:
    """Each side trusts every key in force; it presents the first one, which the other side must have too."""
    a, b = identity("a", *first), identity("b", *second)
    meet = first[0] in second and second[0] in first
    if meet:
        shaken(a.client(), b.server())
    else:
        with pytest.raises(ssl.SSLCertVerificationError):
            shaken(a.client(), b.server())


def test_the_contexts_follow_the_keys_in_force() -> None:
    keys = [KeyRing([OLD])]
    a, old = FleetIdentity(lambda: keys[0], "a"), identity("b", OLD)
    context = a.server()
    dialer, _ = shaken(old.client(), context)
    keys[0] = KeyRing([NEW])
    assert peer_authority(dialer) not in a.authorities(), "its owner ends this connection"
    with pytest.raises(ssl.SSLCertVerificationError):
        shaken(old.client(), context)


def test_certificates_hold_at_any_time_and_no_key_is_shown() -> None:
    one = identity("a", OLD)
    _, listener = shaken(identity("b", OLD).client(), one.server())
    (authority,) = listener.context.get_ca_certs()
    assert (authority["notBefore"], authority["notAfter"]) == ("Jan  1 00:00:00 1970 GMT", "Dec 31 23:59:59 9999 GMT")
    assert repr(one) == "<FleetIdentity 'a' with <KeyRing of 1 secrets>>"


def test_where_there_is_no_file_in_memory_the_key_goes_through_one_that_is_gone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    shaken(identity("a", OLD).client(), identity("b", OLD).server())
    assert list(tmp_path.iterdir()) == []
