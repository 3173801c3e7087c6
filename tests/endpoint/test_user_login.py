"""A user logs in from the conversation with her client: in both eras, by a page that knows her browser (AUTH-7)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import anyio
import httpx2
import mcp_types as types
import pytest
from mcp import MCPError
from mcp.client import ClientRequestContext

from holdfast.auth.user_tokens import UserTokens
from holdfast.control.server.server_logins import CLIENT_DOCUMENT
from holdfast.endpoint import user_login
from holdfast.endpoint.user_login import LINK_SECONDS, PERSON_SECONDS, LoginLinks
from holdfast.keys import KeyRing
from tests.harness.raw_session import Session
from tests.harness.served_hub import Person, text_of
from tests.harness.users import UsersHub, client_of, hub_of, names, per_user
from tests.peers.browser import filled_form
from tests.peers.guarded import PLANTED, Guarded

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("AUTH-7")]


MOST_PAGES = 24
"""Redirects count too: a login leads through the hub and its authorization server, and back."""


class WebBrowser:
    """A browser that keeps cookies; its user types her token where the hub asks who she is."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.pages: list[str] = []
        self._cookies = httpx2.Cookies()

    async def send(self, method: str, address: Any, **more: Any) -> httpx2.Response:
        """One request, with the cookies of this browser."""
        headers = {"x-person": self.name, **more.pop("headers", {})}
        async with httpx2.AsyncClient(trust_env=False, cookies=self._cookies) as http:
            answer = await http.request(method, address, headers=headers, **more)
            self._cookies = http.cookies
        return answer

    async def open(self, link: str, *, until: str = "") -> httpx2.Response:
        """Open a link, go where it leads, and press the button of each page; stop at a page that has this text."""
        answer = await self.send("GET", link)
        for _ in range(MOST_PAGES):
            if answer.is_redirect:
                answer = await self.send("GET", answer.url.join(answer.headers["location"]))
                continue
            self.pages.append(answer.text)
            form = filled_form(answer, f"token-of-{self.name}")
            if form is None or (until and until in answer.text):
                return answer
            own = f"{answer.url.scheme}://{answer.url.netloc.decode()}"
            to = answer.url.join(form.action)
            answer = await self.send("POST", to, data=form.fields, headers={"origin": own})
        raise AssertionError("the pages do not end")


class Asked(Person):
    """A person whose client opens the URLs that it is given, in her own browser."""

    def __init__(self, name: str, *, agrees: bool = True, browser: WebBrowser | None = None) -> None:
        super().__init__(name)
        self.agrees = agrees
        self.browser = browser or WebBrowser(name)
        self.urls: list[str] = []

    async def elicit(self, ctx: ClientRequestContext, params: types.ElicitRequestParams) -> types.ElicitResult:
        assert isinstance(params, types.ElicitRequestURLParams)
        self.urls.append(params.url)
        self.asked.append(params.message)
        if not self.agrees:
            return types.ElicitResult(action="decline")
        done = await self.browser.open(params.url)
        assert "Logged in to files" in done.text
        return types.ElicitResult(action="accept")


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_client_that_takes_urls_logs_its_user_in_and_goes_on(
    era: str, peer: Guarded, tokens: UserTokens
) -> None:
    ada = Asked("ada")
    async with hub_of(per_user(peer), tokens, pages=True) as served, client_of(ada, served.all, era) as client:
        with anyio.fail_after(40):
            assert "holdfast_login" in await names(client)
            result = await client.call_tool("holdfast_login", {"server": "files"})
            assert text_of(result) == "You are logged in to MCP server 'files'."
            assert ada.asked == ["You are not logged in to MCP server 'files'."]
            assert text_of(await client.call_tool("files__of_ada", {})) == "of_ada done for ada"
        page = "".join(ada.browser.pages)
        assert all(said in page for said in ("files", "files:read", "ada"))
        assert "ada" not in ada.urls[0]
        assert PLANTED not in page
        if era == "legacy":
            await ada.until(lambda: "notifications/elicitation/complete" in ada.notices)


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_client_that_takes_no_urls_gets_the_link_in_the_result(
    era: str, peer: Guarded, tokens: UserTokens, ada: Person
) -> None:
    async with (
        hub_of(per_user(peer), tokens, pages=True) as served,
        client_of(ada, served.all, era, answers=False) as client,
    ):
        with anyio.fail_after(40):
            await names(client)
            told = await client.call_tool("holdfast_login", {"server": "files"})
            link = text_of(told).rpartition(" ")[2]
            assert told.is_error
            assert link.startswith(f"{served.base}/connect?ticket=")
            assert "Logged in to files" in (await WebBrowser("ada").open(link)).text
            again = await client.call_tool("holdfast_login", {"server": "files"})
            assert text_of(again) == "You are logged in to MCP server 'files'."


async def test_a_person_who_declines_is_not_asked_again_in_the_same_call(peer: Guarded, tokens: UserTokens) -> None:
    ada = Asked("ada", agrees=False)
    async with hub_of(per_user(peer), tokens, pages=True) as served, client_of(ada, served.all) as client:
        with anyio.fail_after(40):
            await names(client)
            refused = await client.call_tool("holdfast_login", {"server": "files"})
            assert refused.is_error
            assert "declined" in text_of(refused)
            assert len(ada.urls) == 1


async def test_a_login_to_a_server_that_takes_none_says_which_do(
    peer: Guarded, tokens: UserTokens, ada: Person
) -> None:
    async with hub_of(per_user(peer), tokens, pages=True) as served, client_of(ada, served.all) as client:
        with anyio.fail_after(40):
            await names(client)
            refused = await client.call_tool("holdfast_login", {"server": "file"})
            assert refused.is_error
            assert text_of(refused).endswith("Servers that take a login of yours: files.")


async def test_a_link_in_another_user_s_browser_logs_no_one_in(peer: Guarded, tokens: UserTokens) -> None:
    async with hub_of(per_user(peer), tokens, pages=True) as served:
        link = served.links.link("ada", "files", "test")
        with anyio.fail_after(40):
            answer = await WebBrowser("bob").open(link)
        assert answer.status_code == 403
        assert "another user" in answer.text
        assert not tokens.rows()
        assert not await peer.seen("authorize")


async def test_a_browser_that_is_not_known_is_sent_to_sign_in_first(peer: Guarded, tokens: UserTokens) -> None:
    async with hub_of(per_user(peer), tokens, pages=True) as served, httpx2.AsyncClient(trust_env=False) as http:
        answer = await http.get(served.links.link("ada", "files", "test"))
        assert answer.status_code == 303
        assert urlsplit(answer.headers["location"]).path == "/signin"


async def test_the_form_needs_its_own_page_and_its_own_token(peer: Guarded, tokens: UserTokens) -> None:
    browser = WebBrowser("ada")
    async with hub_of(per_user(peer), tokens, pages=True) as served:
        with anyio.fail_after(40):
            page = await browser.open(served.links.link("ada", "files", "test"), until="csrf")
            form = filled_form(page, "")
            assert form is not None
            where, own = f"{served.base}/connect", {"origin": served.base}
            from_elsewhere = await browser.send(
                "POST", where, data=form.fields, headers={"origin": "https://evil.example"}
            )
            forged = await browser.send("POST", where, data={**form.fields, "csrf": "x"}, headers=own)
            assert (from_elsewhere.status_code, forged.status_code) == (403, 403)
            good = await browser.send("POST", where, data=form.fields, headers=own)
            assert good.status_code == 303
            assert good.headers["location"].startswith(f"{peer.address}/authorize")
        asked = parse_qs(urlsplit(good.headers["location"]).query)
        assert asked["code_challenge_method"] == ["S256"]
        assert asked["redirect_uri"] == [f"{served.base}/connect/callback"]


async def test_an_answer_that_this_browser_did_not_ask_for_is_refused(peer: Guarded, tokens: UserTokens) -> None:
    browser = WebBrowser("ada")
    async with hub_of(per_user(peer), tokens, pages=True) as served:
        with anyio.fail_after(40):
            await peer.behave(state="forged")
            answer = await browser.open(served.links.link("ada", "files", "test"))
            assert "answer to another request" in answer.text
            unasked = await WebBrowser("bob").send("GET", f"{served.base}/connect/callback?code=x&state=y")
            assert unasked.status_code == 403
        assert not tokens.rows()


async def test_a_link_expires_and_a_forged_one_opens_nothing(peer: Guarded, tokens: UserTokens) -> None:
    async with hub_of(per_user(peer), tokens, pages=True) as served, httpx2.AsyncClient(trust_env=False) as http:
        old = LoginLinks(served.base, served.links.ring, by_issuer=False, wall=lambda: 1_000.0)
        link = old.link("ada", "files", "test")
        assert LINK_SECONDS > 0
        for one in (link, f"{served.base}/connect?ticket=AAAA", f"{served.base}/connect"):
            assert (await http.get(one)).status_code == 400


async def test_a_user_whom_no_browser_can_prove_to_be_gets_no_link() -> None:
    ring = KeyRing([b"k" * 32])
    by_token, by_issuer = (LoginLinks("https://hub.example", lambda: ring, by_issuer=one) for one in (False, True))
    assert by_token.link("https://issuer.example#sub", "files", "") == ""
    assert by_issuer.link("https://issuer.example#sub", "files", "") != ""
    assert by_token.link("gateway#ada", "files", "") != ""
    assert by_token.link("local", "files", "") == ""


async def test_a_state_of_another_user_or_another_request_is_refused(peer: Guarded, tokens: UserTokens) -> None:
    """The mutant that does not check the principal, or the request, lets one of these through."""
    ada, bob = Asked("ada"), Asked("bob")
    async with hub_of(per_user(peer), tokens, pages=True) as served:
        first = await _raw(served, ada, {"server": "files"})
        state = first["requestState"]
        assert first["resultType"] == "input_required"
        assert set(first["inputRequests"]) == {"login"}
        for person, arguments in ((bob, {"server": "files"}), (ada, {"server": "files", "more": 1})):
            with pytest.raises(MCPError, match="requestState"):
                await _raw(served, person, arguments, requestState=state)


async def test_a_state_that_waited_longer_than_a_person_may_take_is_refused(
    peer: Guarded, tokens: UserTokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hub_of(per_user(peer), tokens, pages=True) as served:
        first = await _raw(served, ada := Asked("ada"), {"server": "files"})
        later = served.links.wall() + PERSON_SECONDS + 1
        monkeypatch.setattr(served.links, "wall", lambda: later)
        with pytest.raises(MCPError, match="requestState"):
            await _raw(served, ada, {"server": "files"}, requestState=first["requestState"])


async def test_a_repeated_request_without_an_answer_is_asked_again_and_a_declined_one_is_not(
    peer: Guarded, tokens: UserTokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_login, "RETRY_SECONDS", 0.0)
    async with hub_of(per_user(peer), tokens, pages=True) as served:
        first = await _raw(served, ada := Asked("ada"), {"server": "files"})
        for answers in ({}, {"login": {"action": "accept"}}, {"login": 7}):
            again = await _raw(
                served, ada, {"server": "files"}, requestState=first["requestState"], inputResponses=answers
            )
            assert again["resultType"] == "input_required"
        declined = {"login": {"action": "cancel"}}
        refused = await _raw(
            served, ada, {"server": "files"}, requestState=first["requestState"], inputResponses=declined
        )
        assert "declined" in refused["content"][0]["text"]


async def _raw(served: UsersHub, person: Person, arguments: dict[str, Any], **more: Any) -> dict[str, Any]:
    """One request of 2026-07-28, as its bytes are."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"url": {}}},
    }
    params = {"name": "holdfast_login", "arguments": arguments, "_meta": meta, **more}
    headers = {
        "authorization": f"Bearer token-of-{person.name}",
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": "2026-07-28",
        "mcp-method": "tools/call",
        "mcp-name": "holdfast_login",
    }
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    async with httpx2.AsyncClient(trust_env=False) as http:
        with anyio.fail_after(30):
            answer = (await http.post(served.all, json=message, headers=headers)).json()
    if "error" in answer:
        raise MCPError(answer["error"]["code"], answer["error"]["message"])
    result: dict[str, Any] = answer["result"]
    return result


async def test_a_call_that_cannot_be_used_to_ask_is_refused_with_the_link_and_told_later(
    peer: Guarded, tokens: UserTokens
) -> None:
    async with hub_of(per_user(peer), tokens, pages=True) as served, httpx2.AsyncClient(trust_env=False) as http:
        session = Session(http, served.all)
        session.headers["authorization"] = "Bearer token-of-ada"
        await session.begin(elicitation={"url": {}})
        with anyio.fail_after(40):
            async with session.notices() as told:
                plain = {**session.headers, "accept": "application/json"}
                asked = {"name": "holdfast_login", "arguments": {"server": "files"}}
                message = {"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": asked}
                error = (await http.post(served.all, json=message, headers=plain)).json()["error"]
                assert error["code"] == -32042
                (wanted,) = error["data"]["elicitations"]
                assert wanted["mode"] == "url"
                assert "Logged in to files" in (await WebBrowser("ada").open(wanted["url"])).text
                heard = [
                    json.loads(event["data"]) async for event in _until(told, "notifications/elicitation/complete")
                ]
        assert heard[-1]["params"] == {"elicitationId": wanted["elicitationId"]}
        assert not [one for one in heard if one["method"] == "elicitation/create"], "never both"


async def _until(events: AsyncIterator[dict[str, str]], method: str) -> AsyncIterator[dict[str, str]]:
    async for event in events:
        if event.get("data"):
            yield event
            if json.loads(event["data"]).get("method") == method:
                return


@pytest.mark.requirement("AUTH-10")
async def test_a_hub_with_a_public_https_name_serves_its_own_client_metadata(peer: Guarded, tokens: UserTokens) -> None:
    async with (
        hub_of(per_user(peer), tokens, pages=True, base="https://hub.example") as public,
        httpx2.AsyncClient(trust_env=False) as http,
    ):
        about = (await http.get(f"{public.base}{CLIENT_DOCUMENT}")).json()
        assert about["client_id"] == f"https://hub.example{CLIENT_DOCUMENT}"
        assert about["redirect_uris"] == ["https://hub.example/connect/callback"]
    async with hub_of(per_user(peer), tokens, pages=True) as private, httpx2.AsyncClient(trust_env=False) as http:
        assert (await http.get(f"{private.base}{CLIENT_DOCUMENT}")).status_code == 404
