"""An issuer for a hub, and a person who signs in at its pages without a window."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import httpx2

from tests.auth.real_servers import SECRET, running_issuer
from tests.peers.browser import filled_form

__all__ = ["SECRET", "Person", "issuer_for"]

MOST_PAGES = 12


@contextmanager
def issuer_for(hub: str) -> Iterator[str]:
    """The address of an issuer whose clients sign people in at this hub."""
    with running_issuer(hub) as servers:
        yield servers["issuer"]


class Person:
    """Someone with a browser of her own, which keeps cookies."""

    def __init__(self, name: str) -> None:
        self.name = name
        # No connection outlives its answer, so there is none to close.
        self.http = httpx2.AsyncClient(trust_env=False, limits=httpx2.Limits(max_keepalive_connections=0))

    async def visit(self, address: str, *, until: str = "") -> httpx2.Response:
        """Open an address, sign in with her name where a page asks, and agree to what it asks.

        With ``until`` she stops before an address that begins so: the answer is the one that sends her there.
        """
        answer = await self.http.get(address)
        for _ in range(MOST_PAGES):
            if answer.is_redirect:
                to = str(answer.url.join(answer.headers["location"]))
                if until and to.startswith(until):
                    return answer
                answer = await self.http.get(to)
            elif (form := filled_form(answer, self.name)) is not None and "/interaction/" in form.action:
                answer = await self.http.post(answer.url.join(form.action), data=form.fields)
            else:
                return answer
        raise AssertionError(f"the pages do not end: {answer.url}")

    async def log_in(self, link: str) -> httpx2.Response:
        """Open a link of the hub, sign in where that is asked, press the button of the page, and agree."""
        page = await self.visit(link)
        form = filled_form(page, self.name)
        assert form is not None, page.text
        own = f"{page.url.scheme}://{page.url.netloc.decode()}"
        sent = await self.http.post(page.url.join(form.action), data=form.fields, headers={"origin": own})
        return await self.visit(str(sent.url.join(sent.headers["location"]))) if sent.is_redirect else sent
