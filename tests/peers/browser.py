"""A browser for logins, without a window: it opens an address, follows redirects, and agrees to what a page asks."""

from __future__ import annotations

from contextlib import suppress
from html.parser import HTMLParser
from types import TracebackType
from typing import NamedTuple, Self

import anyio
import httpx2

from holdfast.auth.flows import DeviceCode

__all__ = ["Browser", "filled_form"]


class Browser:
    """A person who logs in and agrees to everything (a ``Person`` of ``holdfast.auth.person_login``).

    One that is ``elsewhere`` cannot follow a redirect to this machine: they paste where they ended up. A page that asks
    for a name gets ``name``.
    """

    def __init__(self, *, elsewhere: bool = False, name: str = "someone") -> None:
        self._name = name
        self.visited: list[str] = []
        self.scopes: list[tuple[str, ...]] = []
        self.codes: list[DeviceCode] = []
        self._elsewhere = elsewhere
        self._pasted = ""
        self._has_pasted = anyio.Event()
        self._tasks = anyio.create_task_group()

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._tasks.cancel_scope.cancel()
        await self._tasks.__aexit__(None, None, None)

    def asked_for(self, scope: tuple[str, ...], issuer: str) -> None:
        """Note what is asked for."""
        self.scopes.append(scope)

    def visit(self, address: str) -> None:
        """Open an address, and go wherever it leads."""
        self.visited.append(address)
        self._tasks.start_soon(self._open, address)

    def enter(self, code: DeviceCode) -> None:
        """Enter a device's code."""
        self.codes.append(code)
        self._tasks.start_soon(self._open, code.complete_address)

    async def paste(self) -> str:
        """Where a browser elsewhere ended up."""
        await self._has_pasted.wait()
        return self._pasted

    async def _open(self, address: str) -> None:
        async with httpx2.AsyncClient(follow_redirects=not self._elsewhere, trust_env=False) as http:
            with suppress(httpx2.HTTPError):
                answer = await http.get(address)
                if self._elsewhere:
                    self._pasted = answer.headers.get("location", "")
                    self._has_pasted.set()
                for _ in range(MOST_PAGES):
                    if (form := filled_form(answer, self._name)) is None:
                        break
                    answer = await http.post(answer.url.join(form.action), data=form.fields)


MOST_PAGES = 5
"""A login asks for a name, then for consent."""


class _Form(HTMLParser):
    """A page's form, filled in, with its first button pressed."""

    def __init__(self, written: str) -> None:
        super().__init__()
        self._written = written
        self.action: str | None = None
        self.fields: dict[str, str] = {}
        self._pressed = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        about = dict(attrs)
        name, value = about.get("name"), about.get("value")
        if tag == "form" and self.action is None:
            self.action = about.get("action") or ""
        elif tag == "input" and name:
            self.fields[name] = value or self._written
        elif tag == "button" and not self._pressed:
            self._pressed = True
            self.fields |= {name: value or ""} if name else {}


class FilledForm(NamedTuple):
    """The form of a page, filled in."""

    action: str
    fields: dict[str, str]


def filled_form(answer: httpx2.Response, written: str = "someone") -> FilledForm | None:
    """The form of a page, with this text in every empty field; None if it has none."""
    if not answer.headers.get("content-type", "").startswith("text/html"):
        return None
    form = _Form(written)
    form.feed(answer.text)
    return FilledForm(form.action, form.fields) if form.action is not None else None
