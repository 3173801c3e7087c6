"""The external decision point: a real gRPC service that allows, denies, hangs, dies and comes back (SEC-14)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import httpx2
import pytest
import trustme
from hypothesis import given, strategies as st
from starlette.applications import Starlette

from holdfast.access.ext_authz import (
    AuthzAnswer,
    AuthzQuestion,
    ExtAuthz,
    NotAsked,
    decode_answer,
    encode_request,
)
from holdfast.access.principals import Principal
from holdfast.config.settings import ExtAuthzSettings
from tests.harness.web import serving
from tests.peers.envoy import envoy_gateway
from tests.peers.grpc_authorizer import GrpcAuthorizer, grpc_authorizer
from tests.peers.mcp_http import McpPeer

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("SEC-14")]

ALICE = Principal(
    name="https://idp.example#alice", groups=frozenset({"sre", "a, b"}), scopes=frozenset({"call"}), source="jwt"
)
FACTS = AuthzQuestion(ALICE, "jira", "tools/call", "get_issue", "ab" * 32, 17)


@asynccontextmanager
async def asking(service: GrpcAuthorizer, *, within: float = 20.0, **settings: str | bool) -> AsyncIterator[ExtAuthz]:
    made = ExtAuthz(ExtAuthzSettings(address=service.address, timeout=within, **settings))  # type: ignore[arg-type]  # of each field its own
    try:
        yield made
    finally:
        made.close()
        await anyio.lowlevel.checkpoint()


async def test_the_service_is_told_who_calls_what_with_which_arguments(tmp_path: Path) -> None:
    async with grpc_authorizer(tmp_path) as service, asking(service) as decision:
        assert await decision.ask(FACTS) == AuthzAnswer(allowed=True)
        (question,) = service.seen
    assert question["source"] == {"principal": ALICE.name}
    assert question["destination"] == {"service": "jira"}
    assert question["request"]["http"] == {
        "method": "POST",
        "path": "/servers/jira/mcp",
        "host": "holdfast",
        "size": "17",
    }
    assert question["context_extensions"] == {
        "principal": ALICE.name,
        "principal_source": "jwt",
        "groups": json.dumps(["a, b", "sre"]),
        "scopes": json.dumps(["call"]),
        "server": "jira",
        "method": "tools/call",
        "name": "get_issue",
        "argument_hash": "ab" * 32,
    }


async def test_a_denial_has_the_words_of_the_service(tmp_path: Path) -> None:
    async with grpc_authorizer(tmp_path) as service, asking(service) as decision:
        service.deny('alice is not in "ops"\nask them')
        assert await decision.ask(FACTS) == AuthzAnswer(allowed=False, reason="alice is not in 'ops' ask them")
        service.deny(message="no relation")
        assert await decision.ask(FACTS) == AuthzAnswer(allowed=False, reason="no relation")


async def test_a_service_that_hangs_is_given_up_and_asked_again_on_the_next_call(tmp_path: Path) -> None:
    async with grpc_authorizer(tmp_path) as service, asking(service) as warm:
        await warm.ask(FACTS)
        async with asking(service, within=0.3) as decision:
            service.hang()
            with pytest.raises(NotAsked, match="timeout"):
                await decision.ask(FACTS)
            service.allow()
        async with asking(service) as decision:
            assert (await decision.ask(FACTS)).allowed


async def test_a_dead_service_refuses_and_one_that_is_back_is_asked_at_once(tmp_path: Path) -> None:
    async with grpc_authorizer(tmp_path) as service, asking(service) as decision:
        assert (await decision.ask(FACTS)).allowed
        await service.kill()
        for _ in range(2):
            with pytest.raises(NotAsked, match="connection refused"):
                await decision.ask(FACTS)
            async with service.running():
                assert (await decision.ask(FACTS)).allowed
                await service.kill()
        async with service.running():  # the connection of before is dead, and nothing was asked meanwhile
            assert (await decision.ask(FACTS)).allowed


async def test_a_question_on_a_connection_that_died_is_put_once_more(tmp_path: Path) -> None:
    async with grpc_authorizer(tmp_path) as service, asking(service) as decision:
        service.hang()
        ends: list[str] = []

        async def ask() -> None:
            with pytest.raises(NotAsked) as caught:
                await decision.ask(FACTS)
            ends.append(caught.value.reason)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await service.asked(1)
            await service.kill()
        assert ends[0] in ("connection refused", "connection closed")


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ("UNAVAILABLE", "gRPC status UNAVAILABLE"),
        ("PERMISSION_DENIED", "gRPC status PERMISSION_DENIED"),
        ("DEADLINE_EXCEEDED", "timeout"),
    ],
)
async def test_a_status_of_grpc_is_no_decision(tmp_path: Path, status: str, reason: str) -> None:
    async with grpc_authorizer(tmp_path) as service, asking(service) as decision:
        service.fail(status)
        with pytest.raises(NotAsked) as caught:
            await decision.ask(FACTS)
    assert caught.value.reason == reason


async def test_many_questions_share_a_connection_and_get_their_own_answers(tmp_path: Path) -> None:
    async with grpc_authorizer(tmp_path) as service, asking(service) as decision:
        async with anyio.create_task_group() as tasks:
            for number in range(200):
                tasks.start_soon(decision.ask, FACTS._replace(name=f"tool {number}", argument_hash="x" * 2_000))
        names = {one["context_extensions"]["name"] for one in service.seen}
    assert names == {f"tool {number}" for number in range(200)}


async def test_each_call_is_asked_about_also_where_the_answer_says_that_it_may_be_kept(tmp_path: Path) -> None:
    async with grpc_authorizer(tmp_path) as service, asking(service) as decision:
        service.allow(cache_control="max-age=86400")
        assert (await decision.ask(FACTS)).allowed
        service.deny("taken back")
        assert not (await decision.ask(FACTS)).allowed
        assert len(service.seen) == 2


async def test_a_service_with_tls_and_certificates_of_both_sides(tmp_path: Path) -> None:
    ca, other = trustme.CA(), trustme.CA()
    server, client = ca.issue_cert("127.0.0.1"), ca.issue_cert("hub.example")
    files = {"server.key": server.private_key_pem, "server.pem": server.cert_chain_pems[0], "ca.pem": ca.cert_pem}
    files |= {"hub.pem": client.private_key_and_cert_chain_pem, "other.pem": other.cert_pem}
    for name, content in files.items():
        content.write_to_path(tmp_path / name)
    paths = {name: str(tmp_path / name) for name in files}
    async with grpc_authorizer(
        tmp_path, *(tmp_path / one for one in ("server.key", "server.pem", "ca.pem"))
    ) as service:
        async with asking(service, tls=True, ca=paths["ca.pem"], certificate=paths["hub.pem"]) as decision:
            assert (await decision.ask(FACTS)).allowed
        async with asking(service, tls=True, ca=paths["other.pem"], certificate=paths["hub.pem"]) as decision:
            with pytest.raises(NotAsked, match="its certificate is of an unknown authority"):
                await decision.ask(FACTS)
        async with asking(service, tls=True, ca=paths["ca.pem"]) as decision:
            with pytest.raises(NotAsked):
                await decision.ask(FACTS)
        async with asking(service, tls=True, ca=str(tmp_path / "none.pem")) as decision:
            with pytest.raises(NotAsked, match="the files for its TLS cannot be read"):
                await decision.ask(FACTS)
        async with asking(service) as plain:
            with pytest.raises(NotAsked):
                await plain.ask(FACTS)
    assert len(service.seen) == 1


async def test_a_peer_that_speaks_no_grpc_decides_nothing() -> None:
    async with serving(Starlette()) as base:
        decision = ExtAuthz(ExtAuthzSettings(address=f"127.0.0.1:{httpx2.URL(base).port}", timeout=20.0))
        with pytest.raises(NotAsked) as caught:
            await decision.ask(FACTS)
        decision.close()
        await anyio.lowlevel.checkpoint()
    assert caught.value.reason in ("it does not speak gRPC", "connection closed")


async def test_an_answer_without_a_decision_allows_nothing(tmp_path: Path) -> None:
    async with grpc_authorizer(tmp_path) as service, asking(service) as decision:
        for content, reason in (
            (b"", "its answer has no decision"),
            (b"\xff\xff", "its answer cannot be read"),
            (b"\x0a\x7f", "its answer cannot be read"),
            (b"\x0a\x00" + b"\x2a\x00" * 40_000, "its answer is too large"),
        ):
            service.answer_bytes(content)
            with pytest.raises(NotAsked) as caught:
                await decision.ask(FACTS)
            assert caught.value.reason == reason


def test_a_contradictory_answer_is_a_denial() -> None:
    assert decode_answer(b"\x0a\x00") == AuthzAnswer(allowed=True)
    assert decode_answer(b"\x1a\x00") == AuthzAnswer(allowed=True)
    assert not decode_answer(b"\x0a\x00\x12\x00").allowed  # it allows, and has a response of a denial
    assert not decode_answer(b"\x0a\x02\x08\x07\x1a\x00").allowed
    assert not decode_answer(b"\x0a\x02\x08\x07\x0a\x00").allowed  # a status in two parts is their sum


@given(st.binary(max_size=80))
def test_bytes_of_any_kind_are_an_answer_or_none(content: bytes) -> None:
    try:
        answer = decode_answer(content)
    except NotAsked:
        return
    assert not answer.allowed or content[:1] != b""


def test_the_same_call_is_the_same_question() -> None:
    again = FACTS._replace(principal=Principal(name=ALICE.name, groups=ALICE.groups, scopes=ALICE.scopes, source="jwt"))
    assert encode_request(again) == encode_request(FACTS)
    assert encode_request(FACTS._replace(name="\ud800")) != encode_request(FACTS)


async def test_the_service_of_a_gateway_decides_for_the_hub_in_the_same_way(tmp_path: Path) -> None:
    """One service, asked by a real Envoy and by the hub: the messages of both have the same form."""
    async with (
        grpc_authorizer(tmp_path) as service,
        McpPeer() as peer,
        envoy_gateway(
            {"/mcp": httpx2.URL(peer.url).port or 0},
            authz_port=service.port,
            folder=tmp_path,
            protocol="grpc",
            timeout_ms=20_000,
        ) as gateway,
        httpx2.AsyncClient(trust_env=False) as http,
        asking(service) as decision,
    ):
        service.deny("not for you")
        refused = await http.post(gateway.url("/mcp"), json={})
        answer = await decision.ask(FACTS)
        by_envoy, by_hub = service.seen
    assert (refused.status_code, refused.text) == (403, "not for you")
    assert answer == AuthzAnswer(allowed=False, reason="not for you")
    assert by_envoy["request"]["http"]["method"] == by_hub["request"]["http"]["method"] == "POST"
    assert by_envoy["request"]["http"]["path"] == "/mcp"
