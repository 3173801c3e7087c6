"""What the rules at the door decide about one request, asked directly: certificates, wrong credentials, places."""

from __future__ import annotations

import asyncio
import socket

import pytest

from holdfast.access.audit_reader import checkpoints_in
from holdfast.access.audit_writer import Checkpoint, send_checkpoints
from holdfast.access.connections import Admission, ClientPeer, ConnectionLimits
from holdfast.access.guard import DELAY_SECONDS, FAILURES, AccessRules, Refused
from holdfast.access.principals import LOCAL, TokenPolicy

HOST = {"host": "localhost"}


@pytest.mark.anyio
@pytest.mark.requirement("SEC-16")
async def test_a_caller_without_a_verified_certificate_is_refused_where_one_is_required() -> None:
    rules = AccessRules(None, {"localhost"}, client_certificates=True)
    refused = await rules.check(HOST)
    assert isinstance(refused, Refused)
    assert (refused.status, refused.reason) == (403, "a client certificate is required")
    assert await rules.check(HOST, client_verified=True) == LOCAL
    assert await rules.check(HOST, open_to_all=True) == LOCAL


@pytest.mark.anyio
@pytest.mark.requirement("SEC-11")
async def test_wrong_credentials_are_reported_with_their_peer_and_answered_late_after_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[tuple[str, str]] = []
    waited: list[float] = []

    async def wait(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", wait)
    rules = AccessRules(
        TokenPolicy(tokens={"caller": "right"}), {"localhost"}, report=lambda kind, peer, *_: told.append((kind, peer))
    )
    admission = Admission(ClientPeer("10.0.0.9"), ConnectionLimits())
    for _ in range(FAILURES + 1):
        await rules.check({**HOST, "authorization": "Bearer wrong"}, admission=admission)
    assert told == [("login", "10.0.0.9")] * FAILURES + [("too_many_logins", "10.0.0.9")]
    assert waited == [DELAY_SECONDS]


@pytest.mark.requirement("SEC-11")
def test_a_place_that_one_connection_gives_back_is_one_place_and_not_all_of_its_principal() -> None:
    limits = ConnectionLimits(lambda: 16)
    first, second, third, fourth = (limits.enter(ClientPeer("10.0.0.1")) for _ in range(4))
    assert first is not None
    assert second is not None
    assert third is not None
    assert fourth is not None
    assert first.accepted("ada", 2)
    assert second.accepted("ada", 2)
    first.end()
    assert third.accepted("ada", 2)
    assert not fourth.accepted("ada", 2)


@pytest.mark.requirement("SEC-15")
@pytest.mark.parametrize("host", ["127.0.0.1", "[127.0.0.1]"])
def test_a_checkpoint_goes_to_the_syslog_of_another_machine_by_its_address(host: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as log:
        log.bind(("127.0.0.1", 0))
        log.settimeout(20)
        send_checkpoints(f"{host}:{log.getsockname()[1]}")(Checkpoint("audit-1.jsonl", 7, "ab" * 16))
        told = checkpoints_in(log.recv(4096).decode())
    assert [(one.file, one.n) for one in told] == [("audit-1.jsonl", 7)]


@pytest.mark.requirement("SEC-11")
def test_a_connection_is_counted_once_for_its_principal() -> None:
    place = ConnectionLimits(lambda: 16).enter(ClientPeer("10.0.0.1"))
    assert place is not None
    assert place.accepted("ada", 1)
    assert place.accepted("ada", 1)


def test_a_refusal_tells_what_there_is_to_tell_and_no_more() -> None:
    bare, whole = Refused(403, "no"), Refused(401, "no", hint="ask", challenge="Bearer", retry_after=3)
    assert (bare.body, bare.headers) == ({"error": "no"}, {})
    assert whole.body == {"error": "no", "hint": "ask"}
    assert whole.headers == {"www-authenticate": "Bearer", "retry-after": "3"}
